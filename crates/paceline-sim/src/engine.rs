//! One run of a scenario under a policy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_core::{ConfigError, Instant, PacerConfig, Rng};

use crate::hints::Hints;
use crate::ideal::Ideal;
use crate::measures::Measures;
use crate::plan::Plan;
use crate::policy;
use crate::provider::{Provider, ProviderConfig, ProviderError};
use crate::scenario::{Item, Scenario};
use crate::schedule::Schedule;
use crate::trace::{Recorder, Trace};

use world::World;

mod world;

/// What is to be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// The policy's name.
    pub policy: String,
    /// What a pacer is told that acts in place of a policy known by name; then `policy` only names it. Each client has
    /// one, with all of its limits. Default: none.
    pub pacer: Option<PacerConfig>,
    /// The name of the scope that the calls of such a pacer belong to: a tier's, to be under its limits. Default `sim`.
    pub scope: String,
    /// How many processes divide the items among themselves. Default 1.
    pub clients: u32,
    /// Whether all of them ask one policy. Default: each has its own.
    pub share: bool,
    /// What the provider says, by the name of the mode. Default `none`.
    pub hints: String,
    /// Of everything that is random. Default 1.
    pub seed: u64,
}

impl Setup {
    /// One client that is told nothing.
    pub fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            pacer: None,
            scope: "sim".to_owned(),
            clients: 1,
            share: false,
            hints: "none".to_owned(),
            seed: 1,
        }
    }

    /// Whether its names are known.
    ///
    /// # Errors
    /// The first that is not, and those that are.
    pub fn check(&self) -> Result<(), SimError> {
        let known = || policy::OURS.iter().chain(&policy::PEERS).any(|name| *name == self.policy);
        if self.pacer.is_none() && !known() {
            return Err(SimError::Policy(self.policy.clone()));
        }
        self.hints().map(|_| ())
    }

    fn hints(&self) -> Result<Hints, SimError> {
        let hints = Hints::NAMED.iter().find(|(name, _)| *name == self.hints);
        hints.map(|(_, hints)| *hints).ok_or_else(|| SimError::Hints(self.hints.clone()))
    }
}

/// Why nothing can be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// No such policy.
    #[error("there is no policy named {0:?}, expected one of {names}", names = names(policy::OURS.iter().chain(&policy::PEERS)))]
    Policy(String),
    /// A pacer that cannot be.
    #[error("{0}")]
    Pacer(ConfigError),
    /// No such mode of hints.
    #[error("there are no hints named {0:?}, expected one of {names}", names = names(Hints::NAMED.iter().map(|(name, _)| name)))]
    Hints(String),
    /// No client at all, or more than the items.
    #[error("{clients} clients for {items} items, expected 1 to as many as there are items")]
    Clients {
        /// As asked for.
        clients: u32,
        /// As the scenario has.
        items: u32,
    },
    /// The scenario's provider makes no sense.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

fn names<'a>(names: impl IntoIterator<Item = &'a &'a str>) -> String {
    names.into_iter().copied().collect::<Vec<_>>().join(", ")
}

/// A run with this flag is never stopped.
static NEVER: AtomicBool = AtomicBool::new(false);

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

/// Lets a run happen until its end, which may depend on when the best schedule finishes; `begin` sees it before its
/// first event, `tell` after its last. None when it was stopped.
fn run<T>(
    scenario: &Scenario,
    setup: &Setup,
    stop: &AtomicBool,
    end: impl FnOnce(&Ideal, &[Item]) -> Instant,
    begin: impl FnOnce(&mut World<'_>, &Ideal),
    tell: impl FnOnce(&mut World<'_>, &Ideal) -> T,
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
    let provider = Provider::new(scenario.provider.clone(), provider_seed)?;
    let mut world = World::new(scenario, setup, hints, &items, provider, &mut seeds)?;
    begin(&mut world, &ideal);
    world.run(scenario.until.map_or_else(|| end(&ideal, &items), |until| Instant::ZERO + until), stop);
    if matches!(scenario.provider.schedule, Schedule::Scales(_)) {
        // Another client would have met another capacity: the best use of the one that was there is what counts.
        let schedule = world.provider.schedule().clone();
        let provider = ProviderConfig { schedule, ..scenario.provider.clone() };
        ideal = Ideal::of(&Scenario { provider, ..scenario.clone() }, &items, clients, provider_seed, stop)?;
    }
    Ok((!stop.load(Ordering::Relaxed)).then(|| tell(&mut world, &ideal)))
}

/// Runs a job to its end, whatever the oracle did, and notes what its calls wait for. `end` is given the oracle's end.
pub(crate) fn plan(
    scenario: &Scenario,
    setup: &Setup,
    end: impl FnOnce(Instant, &[Item]) -> Instant,
) -> Result<Plan, SimError> {
    let plan = run(
        scenario,
        setup,
        &NEVER,
        |ideal, items| end(ideal.finished, items),
        |world, _| world.watch(),
        |world, ideal| {
            let (waits, longest, ended) = world.waited();
            let record = &world.record;
            let (succeeded, failed) = (record.times.len() as u64, u64::from(record.lost));
            Plan {
                simulated: scenario.items,
                succeeded,
                failed,
                unfinished: u64::from(scenario.items) - succeeded - failed,
                seconds: seconds(ended),
                oracle_seconds: seconds(ideal.finished),
                calls: record.sends,
                resends: record.sends - u64::from(record.begun()),
                probes: world.probes(),
                refused: record.refusals,
                tokens: record.tokens.last().copied().unwrap_or_default(),
                longest_wait_s: longest.as_secs_f64(),
                waits,
            }
        },
    );
    plan.map(|plan| plan.expect("the flag is never set"))
}

fn seconds(at: Instant) -> f64 {
    (at - Instant::ZERO).as_secs_f64()
}

/// When a run is cut off: it waits for no client any longer.
fn cut_off(ideal: &Ideal) -> Instant {
    let oracle = ideal.finished - Instant::ZERO;
    Instant::ZERO + (oracle * 8).max(oracle + Duration::from_secs(300))
}

#[cfg(test)]
mod tests;
