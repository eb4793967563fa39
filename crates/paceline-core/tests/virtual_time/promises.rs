//! What a pacer says about a start that lies ahead: a deadline that cannot be met at once, and when it will be its turn.

use std::time::Duration;

use paceline_core::{
    Admit, Announcement, Class, Concurrency, Cost, Dimension, Event, GiveUp, Instant, LevelState, LimitReport, Limits,
    MaxWait, NextAction, Outcome, Pace, Pacer, PacerConfig, Quota, RefillMode, Request, ScopeId, Ticket, WaitCause,
};

use crate::job::at;
use crate::restored::{learnt, restore};

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn pacer(quotas: Vec<Quota>) -> (Pacer, ScopeId) {
    let config = PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

fn hourly(limit: u64) -> Quota {
    Quota::sliding(Dimension::Requests, limit, 3_600 * S)
}

fn until(scope: &ScopeId, deadline: Instant) -> Request {
    Request { deadline: Some(deadline), ..Request::new(scope, Cost::request()) }
}

fn send(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Ticket {
    let ticket = pacer.enqueue(now, Request::new(scope, Cost::request())).expect("fits");
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
    ticket
}

/// Requests that expired, with their earliest start.
fn late(pacer: &mut Pacer) -> Vec<(Ticket, Option<Instant>)> {
    let expired = |event| match event {
        Event::Expired { ticket, earliest, .. } => Some((ticket, earliest)),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(expired).collect()
}

#[test]
fn a_deadline_before_the_end_of_a_pause_expires_at_once() {
    let (mut pacer, scope) = pacer(vec![]);
    let refused = send(&mut pacer, at(0.0), &scope);
    let other = send(&mut pacer, at(0.0), &scope);
    pacer.complete(at(0.5), other, Outcome::new(Class::Success));
    let waits = Request { not_before: Some(at(2.0)), ..until(&scope, at(30.0)) };
    let waits = pacer.enqueue(at(0.5), waits).expect("fits");
    let long = Request { not_before: Some(at(2.0)), ..until(&scope, at(62.0)) };
    pacer.enqueue(at(0.5), long).expect("fits");
    assert_eq!(late(&mut pacer), []);
    pacer.complete(at(1.0), refused, Outcome::new(Class::Throttled).with_hint(60 * S, false));
    assert_eq!(late(&mut pacer), [(waits, Some(at(61.0)))], "who waited already");
    let new = pacer.enqueue(at(1.0), until(&scope, at(1.1))).expect("fits");
    assert_eq!(late(&mut pacer), [(new, Some(at(61.0)))], "and who comes now");
    let other = pacer.scope("b");
    send(&mut pacer, at(1.0), &other);
}

#[test]
fn a_deadline_before_the_due_time_expires_at_once() {
    let (mut pacer, scope) = pacer(vec![]);
    let ticket = pacer.enqueue(at(0.0), Request { not_before: Some(at(5.0)), ..until(&scope, at(5.0)) }).expect("fits");
    assert_eq!(late(&mut pacer), [(ticket, Some(at(5.0)))]);
}

#[test]
fn a_deadline_behind_a_full_window_expires_once_nothing_in_flight_can_be_given_back() {
    let (mut pacer, scope) = pacer(vec![hourly(2)]);
    let [first, second] = [send(&mut pacer, at(0.0), &scope), send(&mut pacer, at(0.0), &scope)];
    let waits = pacer.enqueue(at(1.0), until(&scope, at(9.0))).expect("fits");
    pacer.complete(at(2.0), first, Outcome::new(Class::Success));
    assert_eq!(late(&mut pacer), [], "the other could still be taken back");
    pacer.complete(at(3.0), second, Outcome::new(Class::Success));
    let expired = late(&mut pacer);
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].0, waits);
    assert!(expired[0].1.is_some_and(|earliest| earliest >= at(3_600.0)), "{expired:?}");

    let (mut pacer, scope) = self::pacer(vec![hourly(1)]);
    let first = send(&mut pacer, at(0.0), &scope);
    let waits = pacer.enqueue(at(1.0), until(&scope, at(9.0))).expect("fits");
    pacer.cancel(at(2.0), first);
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: waits, probe: false }), "it was right to wait");
}

#[test]
fn behind_a_request_that_is_deferred_by_the_account_the_next_deadline_is_checked() {
    let (mut pacer, scope) = pacer(vec![Quota::sliding(Dimension::Tokens, 10, 3_600 * S)]);
    let others = ["b", "c"].map(|name| pacer.scope(name));
    let costing =
        |scope: &ScopeId, tokens| Request::new(scope.clone(), Cost::request().with(Dimension::Tokens, tokens));
    let in_flight = [(0.0, 6), (100.0, 4)].map(|(now, tokens)| {
        let ticket = pacer.enqueue(at(now), costing(&scope, tokens)).expect("fits");
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
        ticket
    });
    let [soon, later] = [at(3_650.0), at(3_690.0)].map(Some);
    let max_wait = Some(MaxWait::Known(10 * S));
    let small = Request { deadline: soon, max_wait, ..costing(&others[0], 1) };
    let [small, large] = [small, Request { deadline: later, ..costing(&others[1], 8) }]
        .map(|r| pacer.enqueue(at(101.0), r).expect("fits"));
    for ticket in in_flight {
        pacer.complete(at(102.0), ticket, Outcome::new(Class::Success));
    }
    assert!(matches!(pacer.poll_event(), Some(Event::Deferred { ticket, .. }) if ticket == small), "room at 3600 s");
    assert!(matches!(pacer.poll_event(), Some(Event::Expired { ticket, .. }) if ticket == large), "room at 3700 s");
}

#[test]
fn a_window_of_the_account_that_is_full_expires_requests_in_every_scope() {
    let (mut pacer, scope) = pacer(vec![hourly(1)]);
    let others = ["b", "c"].map(|name| pacer.scope(name));
    let first = send(&mut pacer, at(0.0), &scope);
    let waiting = [(30.0, 0), (20.0, 1)].map(|(deadline, other): (_, usize)| {
        pacer.enqueue(at(1.0), until(&others[other], at(deadline))).expect("fits")
    });
    assert_eq!(late(&mut pacer), [], "the one in flight could still be taken back");
    pacer.complete(at(2.0), first, Outcome::new(Class::Success));
    let expired: Vec<_> = late(&mut pacer).into_iter().map(|(ticket, _)| ticket).collect();
    assert_eq!(expired, [waiting[1], waiting[0]], "the nearest deadline first, though no input touched their scopes");
    let far = pacer.enqueue(at(3.0), until(&others[0], at(3_700.0))).expect("fits");
    let new = pacer.enqueue(at(3.0), until(&others[1], at(9.0))).expect("fits");
    assert_eq!(late(&mut pacer).into_iter().map(|(ticket, _)| ticket).collect::<Vec<_>>(), [new]);
    assert!(pacer.request(far).is_some());
}

#[test]
fn a_deadline_expires_at_once_also_behind_a_nearer_one_that_can_still_be_met() {
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Tokens, 1_000, 60 * S)], burst: None };
    let concurrency = Concurrency::Fixed { max: 1 };
    let config = PacerConfig { limits, concurrency, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    let large = pacer.enqueue(at(0.0), Request::new(&scope, tokens(900))).expect("fits");
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: large, probe: false }));
    pacer.complete(at(0.0), large, Outcome::new(Class::Success));
    send(&mut pacer, at(0.0), &scope);
    let nearer = pacer.enqueue(at(1.0), until(&scope, at(20.0))).expect("fits");
    let impossible = Request { cost: tokens(500), ..until(&scope, at(30.0)) };
    let impossible = pacer.enqueue(at(1.0), impossible).expect("fits");
    let expired = late(&mut pacer);
    assert_eq!(expired.len(), 1, "{expired:?}");
    assert_eq!(expired[0].0, impossible);
    assert!(expired[0].1.is_some_and(|earliest| earliest >= at(60.0)), "{expired:?}");
    assert!(pacer.request(nearer).is_some(), "it may have the place in time");
}

#[test]
fn a_deadline_in_a_held_scope_waits_and_is_judged_when_the_clock_runs_again() {
    let (mut pacer, scope) = pacer(vec![]);
    pacer.hold(at(0.0), Some(&scope), at(60.0));
    let ticket = pacer.enqueue(at(0.0), until(&scope, at(0.1))).expect("fits");
    assert_eq!(late(&mut pacer), []);
    pacer.handle_timeout(at(60.0));
    let events: Vec<_> = std::iter::from_fn(|| pacer.poll_event()).collect();
    assert_eq!(events, [Event::Granted { ticket, probe: false }]);
}

#[test]
fn a_deadline_behind_others_only_expires_in_its_time() {
    let minute = Quota::per_minute(60);
    let (mut pacer, scope) = pacer(vec![minute]);
    (0..10).for_each(|_| _ = pacer.enqueue(at(0.0), Request::new(&scope, Cost::request())).expect("fits"));
    let ticket = pacer.enqueue(at(0.0), until(&scope, at(5.0))).expect("fits");
    assert_eq!(late(&mut pacer), [], "those before it may all be cancelled");
    pacer.handle_timeout(at(4.9));
    assert_eq!(late(&mut pacer), []);
    pacer.handle_timeout(at(5.0));
    assert_eq!(late(&mut pacer), [(ticket, None)]);
}

/// How far the estimate of a request at the end of a queue is from its real start, in seconds, and the estimate.
fn estimated(quotas: Vec<Quota>, cost: &Cost, ahead: u64) -> (f64, f64) {
    let (pacer, scope) = pacer(quotas);
    estimated_in(pacer, scope, cost, ahead)
}

fn estimated_in(mut pacer: Pacer, scope: ScopeId, cost: &Cost, ahead: u64) -> (f64, f64) {
    let request = Request::new(&scope, cost.clone());
    (0..ahead).for_each(|_| _ = pacer.enqueue(at(0.0), request.clone()).expect("fits"));
    let now = at(0.0) + MS;
    let Admit::At { at: estimate, cause: WaitCause::Queue } = pacer.admit(now, &request) else { panic!("it waits") };
    let last = pacer.enqueue(now, request).expect("fits");
    let mut moment = now;
    loop {
        while let Some(event) = pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { continue };
            if ticket == last {
                let seconds = |at: Instant| Duration::from_nanos(at.as_nanos()).as_secs_f64();
                return (seconds(estimate) - seconds(moment), seconds(estimate));
            }
            pacer.complete(moment, ticket, Outcome::new(Class::Success));
        }
        moment = pacer.poll_timeout().expect("it starts some time");
        pacer.handle_timeout(moment);
    }
}

#[test]
fn admit_behind_waiters_estimates_when() {
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    let per_minute = Quota::sliding(Dimension::Tokens, 1_000, 60 * S);
    for (quotas, cost, ahead, about) in [
        (vec![Quota::per_minute(60)], Cost::request(), 20, 20.0),
        (vec![Quota::per_minute(60)], Cost::request(), 300, 300.0),
        (vec![hourly(5)], Cost::request(), 17, 3.0 * 3_600.0),
        (vec![per_minute.clone()], tokens(100), 35, 180.0),
        (vec![per_minute, Quota::per_minute(60)], tokens(10), 150, 150.0),
    ] {
        let (off, estimate) = estimated(quotas.clone(), &cost, ahead);
        assert!(off.abs() <= 0.05 * about && (estimate - about).abs() <= 0.05 * about, "{quotas:?}: {estimate}, {off}");
    }
}

/// Under the pace `auto`, with those limits and that burst.
fn auto(quotas: Vec<Quota>, burst: Option<u64>) -> (Pacer, ScopeId) {
    let config = PacerConfig { limits: Limits { quotas, burst }, pace: Pace::Auto, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

#[test]
fn admit_behind_waiters_estimates_when_by_the_learnt_rate() {
    for (rate, ahead, about) in [(100.0, 50, 0.5), (100.0, 300, 3.0), (20.0, 100, 5.0), (0.5, 10, 20.0)] {
        let (mut pacer, scope) = auto(vec![], None);
        restore(&mut pacer, at(0.0), learnt("a", rate));
        let (off, estimate) = estimated_in(pacer, scope, &Cost::request(), ahead);
        // Meanwhile the rate grows.
        let near = 0.3 * about;
        assert!(off.abs() <= near && (estimate - about).abs() <= near, "{rate}, {ahead}: {estimate}, {off}");
    }
}

#[test]
fn admit_behind_waiters_estimates_by_configured_limits_while_they_are_trusted() {
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    let per_minute = Quota::sliding(Dimension::Tokens, 1_000, 60 * S);
    for (quotas, burst, cost, ahead, about) in [
        (vec![Quota::per_minute(60)], None, Cost::request(), 20, 20.0),
        (vec![Quota::per_minute(60)], Some(10), Cost::request(), 20, 11.0),
        (vec![Quota::sliding(Dimension::Requests, 50, S)], Some(50), Cost::request(), 75, 1.5),
        (vec![per_minute.clone()], None, tokens(100), 35, 180.0),
        // The whole second window at once, whatever the rate to begin with.
        (vec![per_minute], None, tokens(100), 19, 60.0),
    ] {
        let (pacer, scope) = auto(quotas.clone(), burst);
        let (off, estimate) = estimated_in(pacer, scope, &cost, ahead);
        assert!(off.abs() <= 0.05 * about && (estimate - about).abs() <= 0.05 * about, "{quotas:?}: {estimate}, {off}");
    }
}

#[test]
fn admit_behind_waiters_counts_what_headers_left() {
    // 3 of 10 are left for 20 s of a window of a minute, or 7 come back within 20 s; one has left.
    for (restores, ahead, about) in [
        (RefillMode::AtOnce, 1, None),
        (RefillMode::AtOnce, 2, Some(20.0)),
        (RefillMode::AtOnce, 31, Some(140.0)),
        (RefillMode::AtOnce, 32, Some(200.0)),
        (RefillMode::Gradually, 1, None),
        (RefillMode::Gradually, 9, Some(8.0 * 20.0 / 7.0)),
        (RefillMode::Gradually, 23, Some(22.0 * 20.0 / 7.0)),
    ] {
        let (mut pacer, scope) = auto(vec![], None);
        let report = LimitReport {
            dimension: Dimension::Requests,
            limit: Some(10),
            remaining: Some(3),
            reset: Some(20 * S),
            window: Some(60 * S),
            restores,
        };
        let known = Announcement { report, ago: Duration::ZERO, spent_since: 0 };
        restore(&mut pacer, at(0.0), LevelState { announced: vec![known], ..learnt("a", 1_000.0) });
        (0..=ahead).for_each(|_| _ = pacer.enqueue(at(0.0), Request::new(&scope, Cost::request())).expect("fits"));
        let estimate = match pacer.admit(at(0.0), &Request::new(&scope, Cost::request())) {
            Admit::At { at, cause: WaitCause::Queue } => Duration::from_nanos(at.as_nanos()).as_secs_f64(),
            other => panic!("{other:?}"),
        };
        let near = |about: f64| (estimate - about).abs() <= 0.01 * about;
        assert!(about.map_or(estimate < 1.0, near), "{restores:?}, {ahead}: {estimate}");
    }
}

#[test]
fn a_deadline_under_auto_expires_at_once_behind_a_pause_and_a_full_window_and_not_behind_the_learnt_rate() {
    let (mut pacer, scope) = auto(vec![hourly(3)], None);
    let [refused, second] = [send(&mut pacer, at(0.0), &scope), send(&mut pacer, at(2.0), &scope)];
    pacer.complete(at(2.1), second, Outcome::new(Class::Success));
    pacer.complete(at(2.1), refused, Outcome::new(Class::Throttled).with_hint(60 * S, false));
    let behind_a_pause = pacer.enqueue(at(2.2), until(&scope, at(2.3))).expect("fits");
    assert_eq!(late(&mut pacer), [(behind_a_pause, Some(at(62.1)))]);
    pacer.handle_timeout(at(63.0));
    let canary = send(&mut pacer, at(63.0), &scope);
    pacer.complete(at(63.1), canary, Outcome::new(Class::Success));
    let behind_a_window = pacer.enqueue(at(63.1), until(&scope, at(70.0))).expect("fits");
    let expired = late(&mut pacer);
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].0, behind_a_window);
    assert!(expired[0].1.is_some_and(|earliest| earliest >= at(3_600.0)), "{expired:?}");

    let (mut pacer, scope) = auto(vec![], None);
    restore(&mut pacer, at(0.0), learnt("a", 0.1));
    send(&mut pacer, at(0.0), &scope);
    let behind_the_rate = pacer.enqueue(at(0.0), until(&scope, at(1.0))).expect("fits");
    assert_eq!(late(&mut pacer), [], "an answer may teach a higher rate");
    pacer.handle_timeout(at(1.0));
    assert_eq!(late(&mut pacer), [(behind_the_rate, None)]);
}

/// The bound of an item counts from its first send, however long it waited for that.
#[test]
fn no_try_leaves_later_than_the_bound_of_its_item_after_the_first() {
    let config = PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() }.with_deadline(60 * S);
    let mut pacer = Pacer::new(config, 1, at(0.0)).expect("sensible");
    let scope = pacer.scope("a");
    pacer.hold(at(0.0), Some(&scope), at(100.0));
    let ticket = pacer.enqueue(at(0.0), Request::new(&scope, Cost::request())).expect("fits");
    pacer.handle_timeout(at(100.0));
    let refused = Outcome::new(Class::Throttled).with_hint(40 * S, false);
    let NextAction::Retry { next, .. } = pacer.complete(at(101.0), ticket, refused.clone()) else {
        panic!("it may leave until 160 s")
    };
    assert_eq!(next.deadline, Some(at(160.0)));
    let again = pacer.enqueue(at(101.0), *next).expect("fits");
    pacer.handle_timeout(at(141.0));
    let action = pacer.complete(at(142.0), again, refused);
    assert!(matches!(action, NextAction::GiveUp { reason: GiveUp::Deadline, .. }), "{action:?}");
    let none = PacerConfig::default().with_deadline(Duration::ZERO);
    let error = Pacer::new(none, 1, at(0.0)).expect_err("no try could follow").to_string();
    assert_eq!(error, "deadline is 0s, expected a duration of more than 0");
}

#[test]
fn admit_behind_waiters_says_nothing_where_those_wait_for_something_without_a_time() {
    let (mut pacer, scope) = pacer(vec![]);
    pacer.stop(at(0.0), Some(&scope), "a bad key".into());
    pacer.enqueue(at(0.0), Request::new(&scope, Cost::request())).expect("fits");
    let request = Request::new(&scope, Cost::request());
    assert_eq!(pacer.admit(at(0.0), &request), Admit::OnRelease { cause: WaitCause::Queue });
    let (urgent, reason) = (Request { priority: 1, ..request }, "a bad key".into());
    assert_eq!(pacer.admit(at(0.0), &urgent), Admit::OnRelease { cause: WaitCause::Stopped { reason } });
}

#[test]
fn a_deadline_before_the_next_test_of_a_failing_server_expires_at_once() {
    let (mut pacer, scope) = pacer(vec![]);
    let sent: Vec<_> = (0..20).map(|_| send(&mut pacer, at(0.0), &scope)).collect();
    let waits = Request { not_before: Some(at(1.1)), ..until(&scope, at(1.5)) };
    let waits = pacer.enqueue(at(0.0), waits).expect("fits");
    sent.into_iter().for_each(|ticket| _ = pacer.complete(at(1.0), ticket, Outcome::new(Class::Transient)));
    let (mut next_test, mut expired) = (None, None);
    for event in std::iter::from_fn(|| pacer.poll_event()) {
        match event {
            Event::BreakerOpened { until, .. } => next_test = Some(until),
            Event::Expired { ticket, earliest, .. } => expired = Some((ticket, earliest)),
            _ => {}
        }
    }
    assert!(next_test.is_some_and(|next_test| next_test >= at(1.5)), "{next_test:?}");
    assert_eq!(expired, Some((waits, next_test)));
}

#[test]
fn a_deadline_in_a_held_account_waits_and_is_judged_when_the_clock_runs_again() {
    let (mut pacer, scope) = pacer(vec![]);
    pacer.hold(at(0.0), None, at(60.0));
    let ticket = pacer.enqueue(at(0.0), until(&scope, at(10.0))).expect("fits");
    pacer.handle_timeout(at(30.0));
    assert_eq!(late(&mut pacer), []);
    pacer.handle_timeout(at(60.0));
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
}

#[test]
fn a_deadline_at_the_very_start_expires_at_once() {
    let (mut pacer, scope) = pacer(vec![hourly(1)]);
    let other = pacer.scope("b");
    let first = send(&mut pacer, at(0.0), &scope);
    let Admit::At { at: opens, .. } = pacer.admit(at(0.0), &Request::new(&other, Cost::request())) else {
        panic!("the window is full");
    };
    let ticket = pacer.enqueue(at(1.0), until(&other, opens)).expect("fits");
    assert_eq!(late(&mut pacer), []);
    pacer.complete(at(2.0), first, Outcome::new(Class::Success));
    assert_eq!(late(&mut pacer), [(ticket, Some(opens))]);
}
