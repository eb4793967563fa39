//! An item that is refused whatever the pace must not look like a limit that lets nothing pass.

use std::time::Duration;

use crate::job::{at, run};
use paceline_core::{Class, Outcome, Pace, PacerConfig, Retry};

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

/// Six prompts that the server cannot answer, beside others: they open the breaker again and again, and each test is a call of
/// one of them that is paid for.
#[test]
fn no_item_gets_more_calls_than_its_retries_allow() {
    for pace in [Pace::Auto, Pace::Fixed] {
        for max_retries in [0, 2, 7] {
            let retry = Retry { max_retries, ..Retry::default() };
            let config = PacerConfig { retry, pace, ..PacerConfig::default() }.with_in_flight(8);
            let job = run(config, 40, at(6_000.0), |_, item| {
                let class = if item < 6 { Class::Transient } else { Class::Success };
                (Duration::from_millis(20), Outcome::new(class))
            });
            assert_eq!((job.succeeded.len(), job.failed.len()), (34, 6));
            let calls: Vec<usize> = (0..6).map(|item| job.arrivals_of(item)).collect();
            assert_eq!(calls, [max_retries as usize + 1; 6], "{pace:?}");
        }
    }
}

/// Answers that do not fit what the caller expects come from a server that works.
#[test]
fn answers_that_are_of_no_use_open_no_breaker() {
    for pace in [Pace::Auto, Pace::Fixed] {
        let config = PacerConfig { pace, ..PacerConfig::default() }.with_in_flight(8);
        let job = run(config, 200, at(600.0), |_, _| {
            (Duration::from_millis(20), Outcome { server_works: true, ..Outcome::new(Class::Transient) })
        });
        assert_eq!((job.failed.len(), job.arrivals.len()), (200, 200 * 8));
        assert!(job.failed.iter().all(|(_, end)| *end < at(250.0)), "{pace:?}: no wait but the backoff of each item");
    }
}
