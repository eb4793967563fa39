//! What a run is judged by.

use paceline_core::Instant;
use paceline_model::Schedule;
use serde::Serialize;

use crate::ideal::Ideal;
use crate::phases::{self, Phase};
use crate::record::{Record, SPAN, second};
use crate::scenario::Scenario;
use crate::setup::Setup;
use crate::too_good::{Compared, TooGood};

/// The figures of one run. Ratios to the oracle are to the best schedule of an oracle that sees the provider's state.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measures {
    /// The scenario's name.
    pub scenario: String,
    /// The policy's name.
    pub policy: String,
    /// How many processes.
    pub clients: u32,
    /// What the provider said.
    pub hints: String,
    /// The seed.
    pub seed: u64,
    /// Calls admitted before the first client had no work left or the oracle admitted its last one, whichever was earlier,
    /// by the oracle's before then.
    pub goodput: f64,
    /// Refused calls per successful one.
    pub waste: f64,
    /// Share of the items that were given up.
    pub lost: f64,
    /// Share of the items that had not ended at the cut-off: 8 times the oracle's time, or 300 s more if that is more.
    /// Where the scenario says when to stop, of the items that were begun.
    pub undone: f64,
    /// The time of the last success by the oracle's.
    pub makespan: f64,
    /// First attempt to success in seconds, for 99 of 100 items.
    pub p99_s: f64,
    /// How equally clients had succeeded when the first had no work left; 1 is equal.
    pub jain: f64,
    /// Seconds until a capacity that grew is used to 90 %, the mean over its steps. None without such steps, or if it
    /// never was.
    pub up_s: Option<f64>,
    /// Seconds until after a capacity shrank at most 5 % are refused and 70 % of it is used, likewise.
    pub down_s: Option<f64>,
    /// What about these figures is too good to be true. None of most.
    pub too_good: Option<TooGood>,
    /// Where the workers change or the capacity scales: each part of the run in which neither did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
}

impl Measures {
    /// `schedule` is that of the provider as it was.
    pub(crate) fn of(scenario: &Scenario, setup: &Setup, schedule: &Schedule, ideal: &Ideal, record: &Record) -> Self {
        let oracle_done = ideal.admitted.last().copied().unwrap_or_default();
        let until = record.first_done.as_ref().map_or(oracle_done, |(at, _)| oracle_done.min(*at));
        // What is admitted at that very instant does not count: where the oracle ends with a whole window's burst, it is
        // the schedule before it that is compared.
        // An oracle that is through in its first instant leaves nothing to compare before it.
        let at_once = ideal.admitted.first() == Some(&until);
        let counts = |at: &Instant| *at < until || at_once && *at == until;
        let before = |admitted: &[Instant]| admitted.partition_point(counts);
        let calls = (before(&record.admitted), before(&ideal.admitted));
        let spent = |tokens: &[u64], calls: usize| calls.checked_sub(1).map_or(0, |last| tokens[last]);
        let tokens = (spent(&record.tokens, calls.0), spent(&ideal.tokens, calls.1));
        let succeeded = record.times.len() as f64;
        let begun = f64::from(record.begun());
        let items = if scenario.until.is_some() { begun } else { f64::from(scenario.items) };
        let open = items - succeeded - f64::from(record.lost);
        let changes = Changes { scenario, schedule, record, until };
        let goodput = calls.0 as f64 / (calls.1 as f64).max(1.0);
        let waste = record.refusals as f64 / succeeded.max(1.0);
        let lost = f64::from(record.lost) / items;
        let successes = record.first_done.as_ref().map_or(&record.successes, |(_, successes)| successes);
        let compared = Compared { scenario, setup, ideal, calls, tokens, goodput, waste, lost };
        Self {
            scenario: scenario.name.clone(),
            policy: setup.policy.clone(),
            clients: setup.clients,
            hints: setup.hints.clone(),
            seed: setup.seed,
            goodput,
            waste,
            lost,
            undone: open / items,
            makespan: record.last_success.as_nanos() as f64 / ideal.finished.as_nanos() as f64,
            p99_s: p99(&record.times),
            jain: jain(successes.iter().map(|count| *count as f64)),
            up_s: changes.up(),
            down_s: changes.down(),
            too_good: compared.too_good(),
            phases: phases::of(scenario, schedule, record),
        }
    }
}

fn p99(times: &[u64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() * 99).div_ceil(100).saturating_sub(1);
    times.get(index).map_or(0.0, |nanos| *nanos as f64 * 1e-9)
}

/// How equal they are: 1 is equal.
pub(crate) fn jain(parts: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let (sum, squares): (f64, f64) = (parts.clone().sum(), parts.clone().map(|part| part * part).sum());
    if squares == 0.0 { 1.0 } else { sum * sum / (parts.len() as f64 * squares) }
}

/// How fast a run followed the steps of the capacity.
struct Changes<'a> {
    scenario: &'a Scenario,
    schedule: &'a Schedule,
    record: &'a Record,
    until: Instant,
}

impl Changes<'_> {
    fn up(&self) -> Option<f64> {
        self.mean(|before, after| after > before, |admitted, _, capacity| admitted >= 0.9 * capacity)
    }

    fn down(&self) -> Option<f64> {
        let calm = |admitted: f64, refused: f64, capacity: f64| {
            refused <= 0.05 * (admitted + refused) && admitted >= 0.7 * capacity
        };
        self.mean(|before, after| after < before, calm)
    }

    /// The mean of the seconds from a step of that kind to the first span that is good.
    fn mean(&self, kind: impl Fn(f64, f64) -> bool, good: impl Fn(f64, f64, f64) -> bool) -> Option<f64> {
        let Schedule::Steps { steps, .. } = self.schedule else { return None };
        let mut admitted = vec![0u32; second(self.until) + 1];
        for at in self.record.admitted.iter().take_while(|at| **at <= self.until) {
            admitted[second(*at)] += 1;
        }
        let (mut sum, mut count, mut factor) = (0, 0u32, 1.0);
        for (index, step) in steps.iter().enumerate() {
            let from = second(Instant::ZERO + step.at);
            let to = steps.get(index + 1).map_or(admitted.len(), |next| second(Instant::ZERO + next.at));
            let to = to.min(admitted.len()).saturating_sub(SPAN);
            if kind(factor, step.factor) && from < to {
                let capacity = self.scenario.nominal_rate() * step.factor * SPAN as f64;
                let refused = |at: usize| -> u32 { self.record.refused.iter().skip(at).take(SPAN).sum() };
                let is_good = |at: &usize| {
                    let admitted: u32 = admitted[*at..*at + SPAN].iter().sum();
                    good(f64::from(admitted), f64::from(refused(*at)), capacity)
                };
                sum += (from..to).find(is_good)? - from;
                count += 1;
            }
            factor = step.factor;
        }
        (count > 0).then(|| sum as f64 / f64::from(count))
    }
}
