//! Many runs beside each other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde::Serialize;

use crate::engine::simulate_until;
use crate::measures::Measures;
use crate::scenario::Scenario;
use crate::setup::{Setup, SimError};
use crate::too_good::TooGood;

/// The medians of a scenario's runs under one policy, over the seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Median {
    /// As in [`Measures`].
    pub scenario: String,
    /// As in [`Measures`].
    pub policy: String,
    /// As in [`Measures`].
    pub clients: u32,
    /// As in [`Measures`].
    pub hints: String,
    /// How many seeds.
    pub seeds: u64,
    /// As in [`Measures`], and so are all that follow.
    pub goodput: f64,
    /// Refused calls per successful one.
    pub waste: f64,
    /// Share of the items that were given up.
    pub lost: f64,
    /// Share of the items that had not ended.
    pub undone: f64,
    /// By the oracle's.
    pub makespan: f64,
    /// Seconds.
    pub p99_s: f64,
    /// 1 is equal.
    pub jain: f64,
    /// The median of the seeds that have it.
    pub up_s: Option<f64>,
    /// The median of the seeds that have it.
    pub down_s: Option<f64>,
    /// That of the first seed that has it.
    pub too_good: Option<TooGood>,
}

/// A run that failed to start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{policy} in {scenario} with seed {seed}: {error}")]
pub struct Failed {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// The seed.
    pub seed: u64,
    /// Why.
    pub error: SimError,
}

/// Runs every setup in every scenario with the seeds 1 to `seeds`, on at most `threads` threads. The setups' own seeds do
/// not matter. The result is in the order of the scenarios, then of the setups, then of the seeds, whatever the threads
/// did; `done` is called for each run as it ends.
///
/// # Errors
/// The first in that order.
pub fn compare(
    scenarios: &[Scenario],
    setups: &[Setup],
    seeds: u64,
    threads: usize,
    mut done: impl FnMut(&Measures),
) -> Result<Vec<Measures>, Failed> {
    let never = AtomicBool::new(false);
    let runs = compare_each(scenarios, setups, seeds, threads, &never, |run| run.iter().for_each(&mut done));
    runs.into_iter().collect()
}

/// [`compare`], but a run that cannot be made keeps no other from being made; and once `stop` is true none goes on, and
/// those that have not ended are missing.
pub fn compare_each(
    scenarios: &[Scenario],
    setups: &[Setup],
    seeds: u64,
    threads: usize,
    stop: &AtomicBool,
    mut done: impl FnMut(&Result<Measures, Failed>),
) -> Vec<Result<Measures, Failed>> {
    let jobs: Vec<(&Scenario, Setup)> = scenarios
        .iter()
        .flat_map(|scenario| setups.iter().map(move |setup| (scenario, setup)))
        .flat_map(|(scenario, setup)| (1..=seeds).map(move |seed| (scenario, Setup { seed, ..setup.clone() })))
        .collect();
    let next = AtomicUsize::new(0);
    // A worker hands over a result before it begins another run: it is at most one run ahead of the caller that may stop it.
    let (results, finished) = mpsc::sync_channel(0);
    let mut measures: Vec<Option<Result<Measures, Failed>>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (jobs, next, results) = (&jobs, &next, results.clone());
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((scenario, setup)) = jobs.get(index) else { return };
                    // The receiver is gone only when the other side panicked, and then the scope panics as well.
                    let Some(result) = one(scenario, setup, stop).transpose() else { return };
                    if results.send((index, result)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for (index, result) in finished {
            done(&result);
            measures[index] = Some(result);
        }
    });
    measures.into_iter().flatten().collect()
}

fn one(scenario: &Scenario, setup: &Setup, stop: &AtomicBool) -> Result<Option<Measures>, Failed> {
    simulate_until(scenario, setup, stop).map_err(|error| Failed {
        scenario: scenario.name.clone(),
        policy: setup.policy.clone(),
        seed: setup.seed,
        error,
    })
}

/// The medians over the seeds of runs that [`compare`] made.
pub fn medians(measures: &[Measures]) -> Vec<Median> {
    let same = |a: &Measures, b: &Measures| {
        (&a.scenario, &a.policy, a.clients, &a.hints) == (&b.scenario, &b.policy, b.clients, &b.hints)
    };
    measures.chunk_by(same).map(Median::of).collect()
}

impl Median {
    fn of(runs: &[Measures]) -> Self {
        let of = |value: fn(&Measures) -> f64| median(runs.iter().map(value).collect()).unwrap_or_default();
        let known = |value: fn(&Measures) -> Option<f64>| median(runs.iter().filter_map(value).collect());
        let Measures { scenario, policy, clients, hints, .. } = runs[0].clone();
        Self {
            scenario,
            policy,
            clients,
            hints,
            seeds: runs.len() as u64,
            goodput: of(|run| run.goodput),
            waste: of(|run| run.waste),
            lost: of(|run| run.lost),
            undone: of(|run| run.undone),
            makespan: of(|run| run.makespan),
            p99_s: of(|run| run.p99_s),
            jain: of(|run| run.jain),
            up_s: known(|run| run.up_s),
            down_s: known(|run| run.down_s),
            too_good: runs.iter().find_map(|run| run.too_good),
        }
    }
}

/// The figures that runs are compared by, of one or as the mean of many. Units as in [`Measures`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Of the oracle's.
    pub goodput: f64,
    /// Refused calls per successful one.
    pub waste: f64,
    /// Share of the items that were given up.
    pub lost: f64,
    /// Share of the items that had not ended.
    pub undone: f64,
    /// By the oracle's.
    pub makespan: f64,
    /// 1 is equal.
    pub jain: f64,
}

impl Figures {
    /// The mean of each; none of nothing.
    pub fn mean<F: Into<Self>>(of: impl IntoIterator<Item = F>) -> Option<Self> {
        let (mut sum, mut count) = (Self::default(), 0u32);
        for one in of {
            let one = one.into();
            sum.goodput += one.goodput;
            sum.waste += one.waste;
            sum.lost += one.lost;
            sum.undone += one.undone;
            sum.makespan += one.makespan;
            sum.jain += one.jain;
            count += 1;
        }
        let mean = |sum: f64| sum / f64::from(count);
        (count > 0).then(|| Self {
            goodput: mean(sum.goodput),
            waste: mean(sum.waste),
            lost: mean(sum.lost),
            undone: mean(sum.undone),
            makespan: mean(sum.makespan),
            jain: mean(sum.jain),
        })
    }
}

impl From<&Measures> for Figures {
    fn from(run: &Measures) -> Self {
        let &Measures { goodput, waste, lost, undone, makespan, jain, .. } = run;
        Self { goodput, waste, lost, undone, makespan, jain }
    }
}

impl From<&Median> for Figures {
    fn from(median: &Median) -> Self {
        let &Median { goodput, waste, lost, undone, makespan, jain, .. } = median;
        Self { goodput, waste, lost, undone, makespan, jain }
    }
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle)?;
    Some(if values.len() % 2 == 1 { *upper } else { f64::midpoint(values[middle - 1], *upper) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_the_figures_do_not_depend_on_the_threads() {
        let scenarios = ["n10-30", "b2-20"].map(|name| Scenario::named(name).expect("built in"));
        let setups = ["tenacity", "aimd"].map(Setup::new);
        let run = |threads| compare(&scenarios, &setups, 3, threads, |_| {}).expect("it runs");
        let (one, two) = (run(1), run(2));
        assert_eq!(one, two);
        let order: Vec<_> = two.iter().map(|run| (run.scenario.as_str(), run.policy.as_str(), run.seed)).collect();
        assert_eq!(
            order[..4],
            [("n10-30", "tenacity", 1), ("n10-30", "tenacity", 2), ("n10-30", "tenacity", 3), ("n10-30", "aimd", 1)]
        );
        let medians = medians(&two);
        assert_eq!((medians.len(), medians[3].scenario.as_str(), medians[3].seeds), (4, "b2-20", 3));
        let mut wastes = [two[0].waste, two[1].waste, two[2].waste];
        wastes.sort_unstable_by(f64::total_cmp);
        assert_eq!(medians[0].waste, wastes[1]);
    }

    #[test]
    fn a_run_that_cannot_be_made_keeps_no_other_from_being_made() {
        let scenario = [Scenario::named("b2-20").expect("built in")];
        let setups = ["nobody", "fixed"].map(Setup::new);
        let runs = compare_each(&scenario, &setups, 2, 2, &AtomicBool::new(false), |_| {});
        let failed: Vec<String> = runs.iter().filter_map(|run| run.as_ref().err()).map(ToString::to_string).collect();
        assert_eq!((runs.len(), failed.len(), runs.iter().flatten().count()), (4, 2, 2));
        assert!(failed[0].starts_with("nobody in b2-20 with seed 1: there is no policy named \"nobody\", expected"));
    }

    #[test]
    fn a_run_that_would_take_for_ever_ends_when_it_is_stopped() {
        let scenario = Scenario::named("tb-slow").expect("built in");
        let endless = [Scenario { items: 500_000, ..scenario }];
        let stop = AtomicBool::new(false);
        let runs = thread::scope(|scope| {
            let runs = scope.spawn(|| compare_each(&endless, &[Setup::new("fixed")], 1, 1, &stop, |_| {}));
            stop.store(true, Ordering::Relaxed);
            runs.join().expect("it ends")
        });
        assert!(runs.is_empty(), "{runs:?}");
    }

    #[test]
    fn who_is_stopped_begins_nothing_more() {
        let scenario = [Scenario::named("b2-20").expect("built in")];
        let stop = AtomicBool::new(false);
        let runs =
            compare_each(&scenario, &[Setup::new("fixed")], 50, 1, &stop, |_| stop.store(true, Ordering::Relaxed));
        assert!(runs.len() <= 2, "{} runs", runs.len());
        assert_eq!(runs.first().map(|run| run.as_ref().is_ok_and(|run| run.seed == 1)), Some(true));
    }
}
