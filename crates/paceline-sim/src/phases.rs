//! The parts of a run in which neither the workers nor the capacity changed.

use paceline_core::Instant;
use paceline_model::Schedule;
use serde::Serialize;

use crate::record::{Record, SPAN, second};
use crate::scenario::Scenario;

/// A part of a run. Times are whole seconds since its start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// Its first second.
    pub from_s: u64,
    /// The second after its last.
    pub to_s: u64,
    /// Workers of all clients.
    pub workers: u32,
    /// Calls per second that the provider admitted at most, without what was stored.
    pub capacity: f64,
    /// Calls that it did admit.
    pub admitted: u64,
    /// Calls that it refused.
    pub refused: u64,
    /// The admitted calls by what the capacity would have allowed.
    pub used: f64,
    /// The most refused calls of one second.
    pub worst_second: u32,
    /// Seconds until four fifths of the capacity were used, over five seconds. None if they never were.
    pub reached_s: Option<u64>,
}

/// The phases of a run whose workers or capacity follow a rule of its own; none of another.
pub(crate) fn of(scenario: &Scenario, schedule: &Schedule, record: &Record) -> Vec<Phase> {
    let scales = matches!(scenario.provider.schedule, Schedule::Scales(_));
    let (Some(until), true) = (scenario.until, scales || !scenario.workers.is_empty()) else { return Vec::new() };
    let end = second(Instant::ZERO + until);
    let mut cuts: Vec<usize> = scenario.workers.iter().map(|step| second(Instant::ZERO + step.at)).collect();
    if let Schedule::Steps { steps, .. } = schedule {
        cuts.extend(steps.iter().map(|step| second(Instant::ZERO + step.at)));
    }
    cuts.retain(|cut| *cut < end);
    cuts.extend([0, end]);
    cuts.sort_unstable();
    cuts.dedup();
    let counts = Counts::new(record, end);
    cuts.windows(2).map(|cut| counts.phase(scenario, schedule, cut[0], cut[1])).collect()
}

/// Calls by the second.
struct Counts {
    admitted: Vec<u32>,
    refused: Vec<u32>,
    clients: u32,
}

impl Counts {
    fn new(record: &Record, end: usize) -> Self {
        let mut admitted = vec![0; end];
        for at in &record.admitted {
            if let Some(count) = admitted.get_mut(second(*at)) {
                *count += 1;
            }
        }
        let mut refused = record.refused.clone();
        refused.resize(end, 0);
        Self { admitted, refused, clients: record.clients }
    }

    fn phase(&self, scenario: &Scenario, schedule: &Schedule, from: usize, to: usize) -> Phase {
        let (admitted, refused) = (&self.admitted[from..to], &self.refused[from..to]);
        let sum = |counts: &[u32]| counts.iter().copied().map(u64::from).sum::<u64>();
        let start = Instant::from_nanos(from as u64 * 1_000_000_000);
        let capacity = scenario.capacity(schedule, start);
        let reached = admitted.windows(SPAN).position(|span| sum(span) as f64 >= 0.8 * capacity * SPAN as f64);
        Phase {
            from_s: from as u64,
            to_s: to as u64,
            workers: scenario.workers(start).saturating_mul(self.clients),
            capacity,
            admitted: sum(admitted),
            refused: sum(refused),
            used: sum(admitted) as f64 / (capacity * (to - from) as f64),
            worst_second: refused.iter().copied().max().unwrap_or_default(),
            reached_s: reached.map(|seconds| seconds as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulate;
    use crate::setup::Setup;

    fn phases(policy: &str) -> Vec<Phase> {
        let scenario = Scenario::named("table-scales").expect("built in");
        simulate(&scenario, &Setup::new(policy)).expect("it runs").phases
    }

    /// What happens to writers on a table that scales, beside the clock: 4 workers, 16 at 40 s, 4 again at 200 s.
    #[test]
    fn a_table_grows_for_who_asks_for_more_and_shrinks_when_they_have_gone() {
        for policy in ["auto", "aimd", "responsive"] {
            let phases = phases(policy);
            let cuts: Vec<_> = phases.iter().map(|phase| (phase.workers, phase.capacity)).collect();
            assert_eq!(cuts, [(4, 100.0), (16, 100.0), (16, 400.0), (4, 400.0), (4, 100.0)], "{policy}");
            let (grew, shrank) = (phases[2].from_s, phases[4].from_s);
            assert!((60..=75).contains(&grew) && shrank == 260, "{policy}: grew at {grew}, shrank at {shrank}");
            assert!(phases[0].used > 0.9 && phases[4].used > 0.9, "{policy}: {phases:?}");
            assert!(phases[2].reached_s.is_some_and(|seconds| seconds <= 30), "{policy}: {phases:?}");
            assert_eq!(phases[3].refused, 0, "{policy}: 4 workers are less than half of 400");
        }
        assert!(phases("auto")[2].used > 0.9);
    }

    #[test]
    fn who_keeps_to_what_was_documented_never_gets_more() {
        let phases = phases("fixed");
        assert_eq!(phases.iter().map(|phase| phase.capacity).collect::<Vec<_>>(), [100.0; 3]);
        assert!(phases.iter().all(|phase| phase.used > 0.99 && phase.refused <= 1), "{phases:?}");
    }

    /// Sixteen workers that fail together raise one delay sixteen times; ten successes lower it once.
    #[test]
    fn the_classic_delay_hardly_writes_at_all() {
        let phases = phases("responsive-classic");
        assert!(phases[1..].iter().all(|phase| phase.used < 0.1), "{phases:?}");
    }

    #[test]
    fn a_run_without_such_changes_has_no_phases() {
        let scenario = Scenario::named("b2-20").expect("built in");
        assert_eq!(simulate(&scenario, &Setup::new("fixed")).expect("it runs").phases, []);
    }
}
