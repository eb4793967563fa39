//! Many runs beside each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde::Serialize;

use crate::engine::{Setup, SimError, simulate};
use crate::measures::Measures;
use crate::scenario::Scenario;

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
}

/// Runs every setup in every scenario with the seeds 1 to `seeds`, on at most `threads` threads. The setups' own seeds do
/// not matter. The result is in the order of the scenarios, then of the setups, then of the seeds, whatever the threads
/// did; `done` is told of each run as it ends.
///
/// # Errors
/// The first in that order.
pub fn compare(
    scenarios: &[Scenario],
    setups: &[Setup],
    seeds: u64,
    threads: usize,
    mut done: impl FnMut(&Measures),
) -> Result<Vec<Measures>, SimError> {
    let jobs: Vec<(&Scenario, Setup)> = scenarios
        .iter()
        .flat_map(|scenario| setups.iter().map(move |setup| (scenario, setup)))
        .flat_map(|(scenario, setup)| (1..=seeds).map(move |seed| (scenario, Setup { seed, ..setup.clone() })))
        .collect();
    let next = AtomicUsize::new(0);
    let (results, finished) = mpsc::channel();
    let mut measures: Vec<Option<Result<Measures, SimError>>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            let (jobs, next, results) = (&jobs, &next, results.clone());
            scope.spawn(move || {
                while let Some((scenario, setup)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(index).map(|(scenario, setup)| (*scenario, (index, setup)))
                } {
                    let (index, setup) = setup;
                    // Nobody listens any more only when the other side panicked, and then the scope panics as well.
                    if results.send((index, simulate(scenario, setup))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        for (index, result) in finished {
            result.iter().for_each(&mut done);
            measures[index] = Some(result);
        }
    });
    measures.into_iter().map(|result| result.expect("every job was done")).collect()
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
        }
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
    fn the_first_error_is_told() {
        let scenario = [Scenario::named("b2-20").expect("built in")];
        let error = compare(&scenario, &[Setup::new("nobody")], 1, 2, |_| {}).expect_err("no such policy");
        assert!(error.to_string().starts_with("there is no policy named \"nobody\", expected one of auto, fixed"));
    }
}
