//! The paces that put one delay between the calls of a scope.

use std::time::Duration;

use crate::job::{at, run, run_models, seconds};
use paceline_core::{
    Backoff, Class, Concurrency, Cost, Event, Growth, Instant, Jitter, Limits, Outcome, Pace, Pacer, PacerConfig,
    Quota, Request, ResponsiveConfig, Retry, Snapshot, Ticket,
};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn paced(pace: Pace, in_flight: u32) -> PacerConfig {
    let retry = Retry { max_retries: 1_000, max_deferrals: None, ..Retry::default() };
    PacerConfig { pace, concurrency: Concurrency::Fixed { max: in_flight }, retry, ..PacerConfig::default() }
}

fn classic() -> PacerConfig {
    let responsive = ResponsiveConfig { compat: true, randomization: 0.0, ..ResponsiveConfig::default() };
    PacerConfig { responsive, ..paced(Pace::Responsive, 1) }
}

#[test]
fn a_required_gap_is_found_by_many_workers_together() {
    for (gap, in_flight, latency) in [(50 * MS, 1, 5 * MS), (50 * MS, 20, 200 * MS), (2_000 * MS, 50, 100 * MS)] {
        let mut admitted: Option<Instant> = None;
        let job = run(paced(Pace::Responsive, in_flight), 1_000, at(1e6), |now, _| {
            if admitted.is_some_and(|last| now - last < gap) {
                return (MS, Outcome::new(Class::Throttled));
            }
            admitted = Some(now);
            (latency, Outcome::new(Class::Success))
        });
        assert_eq!(job.succeeded.len(), 1_000);
        let refused = job.arrivals.len() - 1_000;
        let spacing = job.makespan() / 1_000.0 / gap.as_secs_f64();
        assert!(refused <= 120 && spacing <= 1.15, "{gap:?}, {in_flight} in flight: {refused} refused, {spacing:.3}");
    }
}

/// Sends calls one after the other, each ending at once as given, and returns when each left.
fn one_by_one(config: PacerConfig, outcomes: &[Outcome]) -> (Vec<f64>, Snapshot) {
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    let (mut now, mut left) = (Instant::ZERO, Vec::new());
    for outcome in outcomes {
        let ticket = pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits");
        now = wait_for(&mut pacer, ticket, now);
        left.push(seconds(now));
        pacer.complete(now, ticket, outcome.clone());
    }
    (left, pacer.snapshot(now))
}

fn wait_for(pacer: &mut Pacer, ticket: Ticket, mut now: Instant) -> Instant {
    while !matches!(pacer.poll_event(), Some(Event::Granted { ticket: granted, .. }) if granted == ticket) {
        if let Some(due) = pacer.poll_timeout() {
            now = now.max(due);
            pacer.handle_timeout(now);
        }
    }
    now
}

#[test]
fn linear_and_exponential_grow_with_each_refusal_and_a_success_ends_them() {
    let (refused, ok) = (Outcome::new(Class::Throttled), Outcome::new(Class::Success));
    let outcomes = [&refused, &refused, &refused, &ok, &ok, &refused, &ok].map(Clone::clone);
    for (pace, expected) in
        [(Pace::Linear, [0.0, 1.0, 3.0, 6.0, 6.0, 6.0, 7.0]), (Pace::Exponential, [0.0, 1.0, 3.0, 7.0, 7.0, 7.0, 8.0])]
    {
        let growth = match pace {
            Pace::Linear => Growth::Linear { step: S, cap: 60 * S },
            _ => Growth::Exponential { base: S, multiplier: 2.0, cap: 60 * S },
        };
        let backoff = Backoff { growth, jitter: Jitter::None };
        let retry = Retry { backoff, ..Retry::default() };
        let (left, snapshot) = one_by_one(PacerConfig { retry, ..paced(pace, 1) }, &outcomes);
        assert_eq!(left, expected, "{pace:?}");
        assert_eq!(snapshot.scopes[0].delay, Duration::ZERO);
    }
}

#[test]
fn only_throttled_and_overloaded_answers_count_as_failures() {
    for class in Class::ALL {
        let outcomes = [Outcome::new(class), Outcome::new(Class::Success)];
        if matches!(class, Class::Account | Class::QuotaExhausted) {
            continue; // These stop or hold the scope.
        }
        let (left, snapshot) = one_by_one(classic(), &outcomes);
        let slows = matches!(class, Class::Throttled | Class::Overloaded);
        assert_eq!(left[1] > 0.0, slows, "{class:?}");
        let counters = snapshot.scopes[0].responsive.expect("it acts");
        assert_eq!(counters.went_up, u64::from(slows), "{class:?}");
        assert_eq!(snapshot.scopes[0].delay, counters.current_delay);
    }
}

#[test]
fn the_servers_word_is_a_lower_bound() {
    let hinted = |wait| Outcome::new(Class::Throttled).with_hint(wait, false);
    for (wait, second) in [(100 * MS, 0.5), (800 * MS, 0.8), (30 * S, 30.0)] {
        let (left, _) = one_by_one(classic(), &[hinted(wait), Outcome::new(Class::Success)]);
        assert_eq!(left[1], second, "{wait:?}");
    }
}

#[test]
fn refusals_of_calls_that_were_under_way_together_are_one_failure_and_a_scope_has_its_own_delay() {
    let config = paced(Pace::Responsive, 20);
    let mut pacer = Pacer::new(config.clone(), 1, Instant::ZERO).expect("sensible");
    let scopes = ["a", "b"].map(|name| pacer.scope(name));
    let tickets: Vec<_> = (0..10)
        .map(|_| pacer.enqueue(Instant::ZERO, Request::new(&scopes[0], Cost::request())).expect("fits"))
        .collect();
    for ticket in tickets {
        pacer.complete(at(0.1), ticket, Outcome::new(Class::Throttled));
    }
    let snapshot = pacer.snapshot(at(0.1));
    let [a, b] = [0, 1].map(|scope: usize| snapshot.scopes[scope].responsive.expect("it acts"));
    assert_eq!((a.went_up, b.went_up), (1, 0));
    assert!(pacer.admit(at(0.1), &Request::new(&scopes[1], Cost::request())).is_now());
    assert!(!pacer.admit(at(0.1), &Request::new(&scopes[0], Cost::request())).is_now());
    pacer.reconfigure(at(0.1), config.clone()).expect("sensible");
    assert_eq!(pacer.snapshot(at(0.1)).scopes[0].responsive, Some(a), "what was learnt stays");
    pacer.reconfigure(at(0.1), PacerConfig { pace: Pace::Fixed, ..config }).expect("sensible");
    assert!(pacer.admit(at(0.1), &Request::new(&scopes[0], Cost::request())).is_now());
}

#[test]
fn a_slow_model_does_not_slow_another() {
    let model = |item| if item % 2 == 0 { "slow" } else { "quick" };
    let job = run_models(paced(Pace::Responsive, 10), 200, at(1e6), model, |now, item| {
        let early = item % 2 == 0 && seconds(now) < 30.0;
        (10 * MS, Outcome::new(if early { Class::Throttled } else { Class::Success }))
    });
    assert_eq!(job.succeeded.len(), 200);
    let quick =
        job.succeeded.iter().filter(|(item, _)| item % 2 == 1).map(|(_, end)| seconds(*end)).fold(0.0, f64::max);
    assert!(quick < 2.0, "the last of the quick model ended at {quick} s");
}

/// A gateway takes a permit of the client's limit first, and gives it back where the upstream's has no room.
#[test]
fn calls_that_never_left_took_nothing_of_the_burst() {
    let limits = Limits { quotas: vec![Quota::per_minute(3)], burst: Some(3) };
    let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("model");
    let granted = |pacer: &mut Pacer, calls: usize| {
        for _ in 0..calls {
            pacer.enqueue(Instant::ZERO, Request::from(&scope)).expect("it fits");
        }
        let tickets = std::iter::from_fn(|| pacer.poll_event()).filter_map(|event| match event {
            Event::Granted { ticket, .. } => Some(ticket),
            _ => None,
        });
        tickets.collect::<Vec<Ticket>>()
    };
    let first = granted(&mut pacer, 3);
    assert_eq!(first.len(), 3);
    for ticket in &first[1..] {
        assert!(pacer.cancel(Instant::ZERO, *ticket).is_some());
    }
    assert_eq!(granted(&mut pacer, 3).len(), 2, "one has left, and there is room for two");
}
