//! A server that is down, met by a rate that is learnt: calls are too few then for a share of failures.

use std::time::Duration;

use crate::job::{at, run, seconds};
use paceline_core::{Class, Outcome, PacerConfig};

#[test]
fn no_item_pays_for_an_outage_and_few_calls_are_spent_on_it() {
    for (from, to) in [(0.0, 600.0), (1.0, 600.0)] {
        let down = at(from)..at(to);
        let job = run(PacerConfig::default(), 2_000, at(10_000.0), |now, _| {
            let class = if down.contains(&now) { Class::Overloaded } else { Class::Success };
            (Duration::from_millis(20), Outcome::new(class))
        });
        assert_eq!((job.succeeded.len(), job.failed.len()), (2_000, 0), "down from {from} s on");
        let spent = job.arrivals.iter().filter(|arrival| down.contains(&arrival.at)).count();
        assert!(spent < 80, "{spent} calls in ten minutes");
        let first = job.succeeded.iter().map(|(_, at)| seconds(*at)).find(|at| *at > to).expect("some are left");
        assert!(first < to + 40.0, "noticed after {first} s");
    }
}
