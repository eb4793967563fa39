//! The defects of the classic systems, each as a test that fails with the defect.

use std::cell::Cell;
use std::time::Duration;

use crate::job::{at, run, seconds};
use paceline_core::{
    Backoff, Class, Concurrency, Cost, Dimension, Event, Growth, Instant, Jitter, LimitScope, Limits, NextAction,
    Outcome, Pace, Pacer, PacerConfig, Quota, Request, Retry,
};

const S: Duration = Duration::from_secs(1);
const FOREVER: f64 = 1e6;

fn limited(quotas: Vec<Quota>, burst: Option<u64>) -> PacerConfig {
    let concurrency = Concurrency::Fixed { max: 1_000 };
    PacerConfig { limits: Limits { quotas, burst }, concurrency, pace: Pace::Fixed, ..PacerConfig::default() }
}

fn constant(delay: Duration, max_retries: u32) -> Retry {
    let backoff = Backoff { growth: Growth::Constant { delay }, jitter: Jitter::None };
    Retry { max_retries, max_deferrals: None, backoff, deadline: None }
}

fn ok() -> (Duration, Outcome) {
    (Duration::from_millis(10), Outcome::new(Class::Success))
}

#[test]
fn the_burst_is_refilled_evenly_and_never_used_up_for_good() {
    let config = limited(vec![Quota::per_minute(600)], Some(10));
    let job = run(config, 100, at(FOREVER), |_, _| ok());
    assert_eq!(job.succeeded.len(), 100);
    assert!((8.5..=10.5).contains(&job.makespan()), "took {} s", job.makespan());
    for (n, arrival) in job.arrivals.iter().enumerate() {
        assert!((n + 1) as f64 <= 11.0 + 10.0 * seconds(arrival.at), "arrival {n} at {}", arrival.at);
    }
}

#[test]
fn after_an_idle_hour_the_burst_is_whole_again() {
    let config = limited(vec![Quota::per_minute(600)], Some(10));
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    for hour in 0..3 {
        let now = at(3_600.0 * f64::from(hour));
        let mut tickets: Vec<_> =
            (0..30).map(|_| pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits")).collect();
        let granted = std::iter::from_fn(|| pacer.poll_event()).count();
        assert_eq!(granted, 10, "hour {hour}");
        tickets.split_off(granted).into_iter().for_each(|waiting| drop(pacer.cancel(now, waiting)));
        tickets.into_iter().for_each(|ticket| drop(pacer.complete(now, ticket, Outcome::new(Class::Success))));
    }
}

#[test]
fn an_hourly_limit_counts_and_only_counts() {
    let config = limited(vec![Quota::sliding(Dimension::Requests, 5, 3_600 * S)], None);
    let job = run(config, 12, at(7_199.0), |_, _| ok());
    let times: Vec<u64> = job.arrivals.iter().map(|a| seconds(a.at) as u64 / 3_600).collect();
    assert_eq!(times, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1], "5 at once and no more in that hour");
    assert_eq!(job.arrivals[4].at, Instant::ZERO);
}

#[test]
fn retries_appear_in_the_window() {
    let config = PacerConfig { retry: constant(S / 10, 7), ..limited(vec![Quota::per_minute(120)], Some(1)) };
    let mut seen = std::collections::BTreeSet::new();
    let job = run(config, 60, at(FOREVER), |_, item| {
        let class = if seen.insert(item) { Class::Throttled } else { Class::Success };
        (Duration::from_millis(10), Outcome::new(class))
    });
    assert_eq!(job.arrivals.len(), 120);
    assert_eq!(job.succeeded.len(), 60);
    assert!(job.most_in(S) <= 3, "{} in a second", job.most_in(S));
}

#[test]
fn calls_are_one_and_the_retries() {
    for max_retries in [0, 2, 7] {
        let config = PacerConfig { retry: constant(S, max_retries), ..limited(vec![], None) };
        let job = run(config, 3, at(FOREVER), |_, _| (S / 10, Outcome::new(Class::Overloaded)));
        assert_eq!(job.failed.len(), 3);
        assert!((0..3).all(|item| job.arrivals_of(item) == 1 + max_retries as usize));
    }
}

#[test]
fn throttles_are_deferrals_and_have_a_bound_of_their_own() {
    let bounded = |max_deferrals| Retry { max_deferrals, ..constant(S, 0) };
    let config = PacerConfig { retry: bounded(Some(2)), ..limited(vec![], None) };
    let job = run(config, 2, at(FOREVER), |_, _| (S / 10, Outcome::new(Class::Throttled)));
    assert!((0..2).all(|item| job.arrivals_of(item) == 3), "1 + 2 sends");
    let config = PacerConfig { retry: bounded(None), ..limited(vec![], None) };
    let job = run(config, 2, at(300.0), |_, _| (S / 10, Outcome::new(Class::Throttled)));
    assert_eq!((job.failed.len(), job.waiting), (0, 2), "no throttle uses up a retry");
}

#[test]
fn an_empty_account_costs_the_calls_in_flight_and_keeps_every_item() {
    let config = PacerConfig { concurrency: Concurrency::Fixed { max: 8 }, ..limited(vec![], None) };
    let outcome = Outcome::new(Class::Account).with_reach(LimitScope::Account);
    let job = run(config, 100, at(FOREVER), |_, _| (S, outcome.clone()));
    assert_eq!(job.arrivals.len(), 8);
    assert_eq!((job.waiting, job.failed.len()), (100, 0));
}

#[test]
fn items_that_wait_hold_neither_a_worker_nor_a_permit() {
    let config =
        PacerConfig { retry: constant(5 * S, 7), concurrency: Concurrency::Fixed { max: 2 }, ..limited(vec![], None) };
    let mut failed = std::collections::BTreeSet::new();
    let job = run(config, 10, at(FOREVER), |_, item| {
        let fails = item < 2 && failed.insert(item);
        (S / 10, Outcome::new(if fails { Class::Overloaded } else { Class::Success }))
    });
    let last_other = job.succeeded.iter().filter(|(item, _)| *item >= 2).map(|(_, at)| *at).max();
    assert!(last_other.is_some_and(|last| last < at(1.0)), "eight others took until {last_other:?}");
    assert!((5.0..5.5).contains(&job.makespan()));
}

#[test]
fn a_hint_is_waited_for_and_a_long_one_holds_the_scope() {
    let mut config = limited(vec![], None);
    config.concurrency = Concurrency::Fixed { max: 1 };
    let first = Cell::new(true);
    let job = run(config, 5, at(FOREVER), |_, _| match first.replace(false) {
        true => (S / 10, Outcome::new(Class::Throttled).with_hint(30 * S, false)),
        false => ok(),
    });
    assert!(job.arrivals[1..].iter().all(|arrival| arrival.at >= at(30.1)), "{:?}", job.arrivals);
    assert_eq!(job.succeeded.len(), 5);
}

#[test]
fn a_short_hint_in_whole_seconds_delays_its_item_alone() {
    let mut config = limited(vec![], None);
    config.concurrency = Concurrency::Fixed { max: 1 };
    let first = Cell::new(true);
    let job = run(config, 5, at(FOREVER), |_, _| match first.replace(false) {
        true => (S / 10, Outcome::new(Class::Throttled).with_hint(S, false)),
        false => ok(),
    });
    assert!(job.arrivals[1].at < at(0.2), "another item goes on");
    let again = job.arrivals.iter().rfind(|arrival| arrival.item == 0).expect("sent again");
    assert!(again.at >= at(1.1));
}

#[test]
fn after_a_pause_work_leaves_at_the_refill_rate() {
    let config = limited(vec![Quota::per_minute(600)], Some(10));
    let first = Cell::new(true);
    let job = run(config, 60, at(FOREVER), |_, _| match first.replace(false) {
        true => (S / 100, Outcome::new(Class::Throttled).with_hint(20 * S, false)),
        false => ok(),
    });
    let after: Vec<f64> = job.arrivals.iter().map(|a| seconds(a.at)).filter(|at| *at >= 20.0).collect();
    for (n, at) in after.iter().enumerate() {
        assert!((n as f64) <= 1.0 + 10.0 * (at - 20.0) + 1e-6, "call {n} after the pause at {at}");
    }
}

#[test]
fn when_a_window_turns_its_beginning_does_not_come_back_as_a_burst() {
    let config = limited(vec![Quota::sliding(Dimension::Requests, 192, 10 * S)], None);
    let job = run(config, 600, at(FOREVER), |_, _| ok());
    assert_eq!(job.arrivals.iter().filter(|a| a.at == Instant::ZERO).count(), 20, "a burst after idling");
    for (n, arrival) in job.arrivals.iter().filter(|a| a.at >= at(10.0)).enumerate() {
        assert!(n as f64 <= 1.0 + 19.2 * (seconds(arrival.at) - 10.0) + 1e-6, "call {n} at {}", arrival.at);
    }
    assert!(job.makespan() < 600.0 / 19.2 + 1.1, "took {}", job.makespan());
}

#[test]
fn an_outage_of_an_hour_burns_no_item() {
    let config = PacerConfig { concurrency: Concurrency::Fixed { max: 32 }, ..limited(vec![], None) };
    let job = run(config, 500, at(FOREVER), |now, _| {
        (S / 2, Outcome::new(if seconds(now) < 3_600.0 { Class::Overloaded } else { Class::Success }))
    });
    assert_eq!((job.succeeded.len(), job.failed.len()), (500, 0));
    assert!(job.arrivals.len() < 500 + 32 + 200, "{} calls: probes are few", job.arrivals.len());
    assert!(job.makespan() < 3_600.0 + 60.0);
}

#[test]
fn one_item_that_always_fails_cannot_keep_the_breaker_open() {
    let mut config = limited(vec![], None);
    config.concurrency = Concurrency::Fixed { max: 32 };
    let job = run(config, 200, at(FOREVER), |now, item| {
        let fails = item == 0 || seconds(now) < 5.0;
        (S / 2, Outcome::new(if fails { Class::Transient } else { Class::Success }))
    });
    assert_eq!((job.succeeded.len(), job.failed.len()), (199, 1));
    assert!(job.makespan() < 120.0, "took {}", job.makespan());
}

#[test]
fn a_quota_of_unknown_end_is_tried_by_one_call_ever_more_rarely() {
    let mut config = limited(vec![], None);
    config.concurrency = Concurrency::Fixed { max: 4 };
    let job = run(config, 20, at(FOREVER), |now, _| {
        (S, Outcome::new(if seconds(now) < 2_000.0 { Class::QuotaExhausted } else { Class::Success }))
    });
    let times: Vec<u64> = job.arrivals.iter().take(8).map(|a| seconds(a.at) as u64).collect();
    assert_eq!(times[..7], [0, 0, 0, 0, 301, 902, 2_103], "after 5, 10 and 20 minutes, one call each");
    assert_eq!(job.succeeded.len(), 20);
}

#[test]
fn a_request_larger_than_its_limit_is_refused_at_once_with_the_numbers() {
    let config = limited(vec![Quota::sliding(Dimension::Tokens, 1_000, 60 * S)], None);
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    let cost = Cost::request().with(Dimension::Tokens, 1_001);
    let error = pacer.enqueue(Instant::ZERO, Request::new(&scope, cost)).expect_err("never fits");
    assert_eq!((error.cost, error.limit, error.dimension), (1_001, 1_000, Dimension::Tokens));
}

#[test]
fn limits_change_while_running_and_what_was_used_stays_used() {
    let config = |limit| limited(vec![Quota::per_minute(limit)], Some(limit));
    let mut pacer = Pacer::new(config(100), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    let grants = |pacer: &mut Pacer, now, n| {
        for _ in 0..n {
            pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits");
        }
        std::iter::from_fn(|| pacer.poll_event()).filter(|e| matches!(e, Event::Granted { .. })).count()
    };
    assert_eq!(grants(&mut pacer, at(0.0), 60), 60);
    pacer.reconfigure(at(1.0), config(80)).expect("sensible");
    assert_eq!(grants(&mut pacer, at(1.0), 50), 20, "60 of 80 are used");
}

#[test]
fn time_in_a_held_scope_does_not_count_against_the_deadline() {
    let mut pacer = Pacer::new(limited(vec![], None), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    pacer.hold(at(1.0), Some(&scope), at(1_000.0));
    let request = Request { deadline: Some(at(10.0)), ..Request::new(&scope, Cost::request()) };
    let ticket = pacer.enqueue(at(2.0), request).expect("fits");
    pacer.handle_timeout(at(999.0));
    pacer.handle_timeout(at(1_000.0));
    let events: Vec<_> = std::iter::from_fn(|| pacer.poll_event()).collect();
    assert!(events.contains(&Event::Granted { ticket, probe: false }), "{events:?}");
    let outcome = Outcome::new(Class::Throttled).with_hint(20 * S, false);
    let action = pacer.complete(at(1_001.0), ticket, outcome);
    assert!(matches!(action, NextAction::GiveUp { .. }), "8 s of running time are left, the next try is in 20 s");
}
