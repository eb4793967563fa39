//! An item that is refused whatever the pace must not look like a limit that lets nothing pass.

use std::time::Duration;

use crate::job::{at, run};
use paceline_core::{Class, Outcome, PacerConfig};

#[test]
fn an_item_that_is_always_refused_does_not_stop_the_others() {
    for stuck in [3, 60] {
        let job = run(PacerConfig::default(), 100, at(600.0), |_, item| {
            let class = if item == stuck { Class::Throttled } else { Class::Success };
            (Duration::from_millis(20), Outcome::new(class))
        });
        assert_eq!((job.succeeded.len(), job.waiting), (99, 1), "beside item {stuck}");
        let calls = job.arrivals_of(stuck);
        assert!(calls <= 60, "{calls} calls for item {stuck} in ten minutes");
    }
}
