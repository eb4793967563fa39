//! One run of a scenario under a policy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_core::{Instant, Rng};
use paceline_model::{ProviderConfig, ProviderModel, Schedule};

use crate::ideal::Ideal;
use crate::measures::Measures;
use crate::scenario::{Item, Scenario};
use crate::setup::{Setup, SimError};
use crate::trace::{Recorder, Trace};

pub(crate) use world::World;

mod world;

/// A run with this flag is never stopped.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs a scenario under a policy. The same arguments give the same measures, bit for bit.
///
/// # Errors
/// An unknown policy or mode, an impossible number of clients, or a provider that makes no sense.
pub fn simulate(scenario: &Scenario, setup: &Setup) -> Result<Measures, SimError> {
    simulate_until(scenario, setup, &NEVER).map(|measures| measures.expect("the flag is never set"))
}

/// The same, but nothing once `stop` is true: then it ends within an instant.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_until(scenario: &Scenario, setup: &Setup, stop: &AtomicBool) -> Result<Option<Measures>, SimError> {
    run(
        scenario,
        setup,
        stop,
        |ideal, _| cut_off(ideal),
        |_, _| {},
        |world, ideal| Measures::of(scenario, setup, world.provider.schedule(), ideal, &world.record),
    )
}

/// As [`simulate`], and how it went.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_traced(scenario: &Scenario, setup: &Setup) -> Result<(Measures, Trace), SimError> {
    let traced = run(
        scenario,
        setup,
        &NEVER,
        |ideal, _| cut_off(ideal),
        |world, ideal| world.recorder = Some(Recorder::new(ideal)),
        |world, ideal| {
            let measures = Measures::of(scenario, setup, world.provider.schedule(), ideal, &world.record);
            let recorder = world.recorder.take().expect("it was there from the start");
            (measures, recorder.finish(ideal))
        },
    );
    traced.map(|traced| traced.expect("the flag is never set"))
}

/// Lets a run happen until its end, which may depend on when the best schedule finishes; `begin` is called before its
/// first event, `finish` after its last. None when it was stopped.
pub(crate) fn run<T>(
    scenario: &Scenario,
    setup: &Setup,
    stop: &AtomicBool,
    end: impl FnOnce(&Ideal, &[Item]) -> Instant,
    begin: impl FnOnce(&mut World<'_>, &Ideal),
    finish: impl FnOnce(&mut World<'_>, &Ideal) -> T,
) -> Result<Option<T>, SimError> {
    let hints = setup.hints()?;
    let (clients, items) = (setup.clients, scenario.items);
    if clients == 0 || clients > items {
        return Err(SimError::Clients { clients, items });
    }
    let mut seeds = Rng::new(setup.seed);
    let items = scenario.draw_items(seeds.next_u64());
    let provider_seed = seeds.next_u64();
    let mut ideal = Ideal::of(scenario, &items, clients, provider_seed, stop)?;
    let provider = ProviderModel::new(scenario.provider.clone(), provider_seed)?;
    let mut world = World::new(scenario, setup, hints, &items, provider, &mut seeds)?;
    begin(&mut world, &ideal);
    world.run(scenario.until.map_or_else(|| end(&ideal, &items), |until| Instant::ZERO + until), stop);
    if matches!(scenario.provider.schedule, Schedule::Scales(_)) {
        // Another client would have met another capacity: the best use of the one that was there is what counts.
        let schedule = world.provider.schedule().clone();
        let provider = ProviderConfig { schedule, ..scenario.provider.clone() };
        ideal = Ideal::of(&Scenario { provider, ..scenario.clone() }, &items, clients, provider_seed, stop)?;
    }
    Ok((!stop.load(Ordering::Relaxed)).then(|| finish(&mut world, &ideal)))
}

/// When a run is cut off: it waits for no client any longer.
fn cut_off(ideal: &Ideal) -> Instant {
    let oracle = ideal.finished - Instant::ZERO;
    Instant::ZERO + (oracle * 8).max(oracle + Duration::from_secs(300))
}

#[cfg(test)]
mod tests;
