//! A request with a bound on its known wait is deferred as soon as a longer wait is known, and only then.

use std::time::Duration;

use paceline_core::{
    Admit, BreakerConfig, Class, Concurrency, Cost, Dimension, Event, GiveUp, Instant, Level, LimitScope, Limits,
    MaxWait, NextAction, Outcome, Pace, Pacer, PacerConfig, PauseCause, Quota, Request, ScopeId, Ticket, WaitCause,
    WaitReason,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

const HELD: WaitCause = WaitCause::Held { cause: PauseCause::Program };

fn pacer(config: PacerConfig) -> (Pacer, ScopeId) {
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

fn fixed(quotas: Vec<Quota>) -> PacerConfig {
    PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() }
}

fn hourly(limit: u64) -> Quota {
    Quota::sliding(Dimension::Requests, limit, 3_600 * S)
}

fn any_wait(scope: &ScopeId) -> Request {
    Request::new(scope, Cost::request())
}

/// A request that takes a wait of ten seconds.
fn ten(scope: &ScopeId) -> Request {
    Request { max_wait: Some((10 * S).into()), ..any_wait(scope) }
}

fn send(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Ticket {
    let ticket = pacer.enqueue(now, any_wait(scope)).expect("fits");
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
    ticket
}

fn success() -> Outcome {
    Outcome::new(Class::Success)
}

/// Those that were put off, with end and reason of their wait.
fn put_off(pacer: &mut Pacer) -> Vec<(Ticket, Instant, WaitReason)> {
    let deferred = |event| match event {
        Event::Deferred { ticket, until, reason, .. } => Some((ticket, until, reason)),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(deferred).collect()
}

fn of(level: Level, cause: WaitCause) -> WaitReason {
    WaitReason { level, cause }
}

#[test]
fn deferred_at_once_behind_a_known_hold() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    pacer.hold(at(0.0), Some(&scope), at(60.0));
    let ticket = pacer.enqueue(at(1.0), ten(&scope)).expect("fits");
    assert_eq!(put_off(&mut pacer), [(ticket, at(60.0), of(Level::Scope, HELD))]);
    assert!(pacer.request(ticket).is_none());
    let other = pacer.scope("b");
    send(&mut pacer, at(1.0), &other);
}

#[test]
fn deferred_when_a_hold_comes_while_it_waits() {
    let (mut pacer, scope) = pacer(PacerConfig { concurrency: Concurrency::Fixed { max: 1 }, ..fixed(vec![]) });
    let first = send(&mut pacer, at(0.0), &scope);
    let tickets = [9, 10, 11].map(|seconds| {
        let max_wait = Some(MaxWait::Known(seconds * S));
        pacer.enqueue(at(0.0), Request { max_wait, ..any_wait(&scope) }).expect("fits")
    });
    assert_eq!(put_off(&mut pacer), []);
    pacer.hold(at(5.0), Some(&scope), at(16.0));
    assert_eq!(put_off(&mut pacer), [0, 1].map(|n| (tickets[n], at(16.0), of(Level::Scope, HELD))));
    // What the server says counts as what the program says.
    let outcome = Outcome::new(Class::Throttled).with_hint(30 * S, false);
    pacer.complete(at(6.0), first, outcome);
    let asked = WaitCause::Gate { cause: PauseCause::Throttled { asked: true } };
    assert_eq!(put_off(&mut pacer), [(tickets[2], at(36.0), of(Level::Scope, asked))]);
}

#[test]
fn not_deferred_for_the_queue_alone() {
    let (mut pacer, scope) = pacer(fixed(vec![Quota::per_minute(60)]));
    (0..100).for_each(|_| _ = pacer.enqueue(at(0.0), any_wait(&scope)).expect("fits"));
    pacer.enqueue(at(0.0), ten(&scope)).expect("fits");
    let Admit::At { at: turn, cause: WaitCause::Queue } = pacer.admit(at(0.0), &any_wait(&scope)) else {
        panic!("it waits behind others")
    };
    assert!(turn > at(60.0));
    for now in [0.0, 1.0, 5.0] {
        pacer.handle_timeout(at(now));
        assert_eq!(put_off(&mut pacer), []);
    }
}

#[test]
fn not_deferred_when_the_hold_is_shorter() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    pacer.hold(at(0.0), Some(&scope), at(12.0));
    let ticket = pacer.enqueue(at(2.0), ten(&scope)).expect("fits");
    pacer.hold(at(11.0), Some(&scope), at(21.0));
    assert_eq!(put_off(&mut pacer), [], "counted from when it is known, not from when it came");
    pacer.handle_timeout(at(21.0));
    assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
}

#[test]
fn a_request_without_a_bound_never() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    pacer.hold(at(0.0), None, at(1e6));
    let ticket = pacer.enqueue(at(0.0), any_wait(&scope)).expect("fits");
    pacer.hold(at(1.0), Some(&scope), at(2e6));
    assert_eq!(put_off(&mut pacer), []);
    assert!(pacer.request(ticket).is_some());
}

#[test]
fn a_hold_of_the_account_names_the_account() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    let first = send(&mut pacer, at(0.0), &scope);
    let busy = PacerConfig { concurrency: Concurrency::Fixed { max: 1 }, ..fixed(vec![]) };
    pacer.reconfigure(at(0.0), busy).expect("sensible");
    let waiting = pacer.enqueue(at(0.0), ten(&scope)).expect("fits");
    let used_up = Outcome::new(Class::QuotaExhausted).with_hint(600 * S, true).with_reach(LimitScope::Account);
    pacer.complete(at(1.0), first, used_up);
    let reason = of(Level::Account, WaitCause::Held { cause: PauseCause::QuotaUsedUp });
    assert_eq!(put_off(&mut pacer), [(waiting, at(601.0), reason.clone())]);
    assert_eq!(reason.to_string(), "a used-up quota to refill (the whole account)");
    for name in ["a", "new"] {
        let scope = pacer.scope(name);
        let ticket = pacer.enqueue(at(1.0), ten(&scope)).expect("fits");
        assert_eq!(put_off(&mut pacer), [(ticket, at(601.0), reason.clone())], "{name}");
    }
    // A longer pause of the scope is the scope's.
    pacer.hold(at(2.0), Some(&scope), at(700.0));
    let ticket = pacer.enqueue(at(2.0), ten(&scope)).expect("fits");
    assert_eq!(put_off(&mut pacer), [(ticket, at(700.0), of(Level::Scope, HELD))]);
}

#[test]
fn a_full_window_defers_once_nothing_in_flight_can_be_given_back() {
    let quota = |limit| WaitCause::Quota { dimension: Dimension::Requests, limit, window: 3_600 * S };
    for (level, config) in [
        (Level::Account, fixed(vec![hourly(2)])),
        (
            Level::Tier,
            PacerConfig {
                tiers: vec![("a".into(), Limits { quotas: vec![hourly(2)], burst: None })],
                ..fixed(vec![hourly(100)])
            },
        ),
    ] {
        let (mut pacer, scope) = pacer(config);
        let sent = [(); 2].map(|()| send(&mut pacer, at(0.0), &scope));
        let waiting = [(); 3].map(|()| pacer.enqueue(at(1.0), ten(&scope)).expect("fits"));
        let patient = Request { max_wait: Some(MaxWait::Pause(Duration::ZERO)), ..any_wait(&scope) };
        let patient = pacer.enqueue(at(1.0), patient).expect("fits");
        pacer.complete(at(2.0), sent[0], success());
        assert_eq!(put_off(&mut pacer), [], "the other could still be taken back");
        pacer.complete(at(3.0), sent[1], success());
        let deferred = put_off(&mut pacer);
        assert_eq!(deferred.iter().map(|(ticket, ..)| *ticket).collect::<Vec<_>>(), waiting);
        for (_, until, reason) in deferred {
            assert!(until >= at(3_600.0) && reason == of(level, quota(2)), "{until}: {reason:?}");
        }
        assert!(pacer.request(patient).is_some(), "a limit is no pause");
        pacer.hold(at(4.0), None, at(5.0));
        assert_eq!(put_off(&mut pacer).len(), 1);
    }
}

#[test]
fn a_window_that_turns_in_time_is_waited_for() {
    let (mut pacer, scope) = pacer(fixed(vec![Quota::sliding(Dimension::Requests, 1, 9 * S)]));
    let first = send(&mut pacer, at(0.0), &scope);
    pacer.complete(at(0.0), first, success());
    let waiting = [(); 3].map(|()| pacer.enqueue(at(0.0), ten(&scope)).expect("fits"));
    for ticket in waiting {
        let now = pacer.poll_timeout().expect("the window turns");
        pacer.handle_timeout(now);
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
        pacer.complete(now, ticket, success());
        assert_eq!(put_off(&mut pacer), []);
    }
}

#[test]
fn an_open_breaker_is_known_and_no_pause() {
    let breaker = BreakerConfig { open: 30 * S, open_max: 60 * S, ..BreakerConfig::default() };
    let (mut pacer, scope) = pacer(PacerConfig { breaker, ..fixed(vec![]) });
    let sent: Vec<_> = (0..20).map(|_| send(&mut pacer, at(0.0), &scope)).collect();
    let pause = Request { max_wait: Some(MaxWait::Pause(Duration::ZERO)), ..any_wait(&scope) };
    let pause = Request { not_before: Some(at(2.0)), ..pause };
    let pause = pacer.enqueue(at(0.0), pause).expect("fits");
    sent.into_iter().for_each(|ticket| _ = pacer.complete(at(1.0), ticket, Outcome::new(Class::Transient)));
    assert_eq!(put_off(&mut pacer), []);
    let ticket = pacer.enqueue(at(1.0), ten(&scope)).expect("fits");
    assert_eq!(put_off(&mut pacer), [(ticket, at(31.0), of(Level::Scope, WaitCause::Breaker))]);
    pacer.handle_timeout(at(2.0));
    assert_eq!(put_off(&mut pacer), []);
    assert!(pacer.request(pause).is_some());
}

#[test]
fn its_own_due_time_is_no_reason_and_a_known_wait_after_it_defers_it_then() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    pacer.hold(at(0.0), Some(&scope), at(60.0));
    let later = |due| Request { not_before: Some(at(due)), ..ten(&scope) };
    let [soon, late, after] = [20.0, 55.0, 90.0].map(|due| pacer.enqueue(at(0.0), later(due)).expect("fits"));
    assert_eq!(put_off(&mut pacer), []);
    pacer.handle_timeout(at(20.0));
    assert_eq!(put_off(&mut pacer), [(soon, at(60.0), of(Level::Scope, HELD))]);
    pacer.handle_timeout(at(55.0));
    assert_eq!(put_off(&mut pacer), []);
    assert!([late, after].iter().all(|ticket| pacer.request(*ticket).is_some()));
}

#[test]
fn a_stop_has_no_known_end() {
    for whole in [true, false] {
        let (mut pacer, scope) = pacer(fixed(vec![]));
        pacer.hold(at(0.0), Some(&scope), at(60.0));
        pacer.stop(at(0.0), (!whole).then_some(&scope), "a bad key".into());
        let ticket = pacer.enqueue(at(1.0), ten(&scope)).expect("fits");
        pacer.hold(at(1.0), (!whole).then_some(&scope), at(70.0));
        assert_eq!(put_off(&mut pacer), []);
        pacer.resume(at(2.0), None);
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
    }
}

#[test]
fn what_is_put_off_costs_nothing_and_changes_nothing() {
    let (mut pacer, scope) = pacer(fixed(vec![hourly(5)]));
    pacer.hold(at(0.0), Some(&scope), at(60.0));
    let waiting = pacer.enqueue(at(0.0), any_wait(&scope)).expect("fits");
    let (before, wake) = (pacer.snapshot(at(1.0)), pacer.poll_timeout());
    pacer.enqueue(at(1.0), ten(&scope)).expect("fits");
    let deferred = std::iter::from_fn(|| pacer.poll_event()).find_map(|event| match event {
        Event::Deferred { request, .. } => Some(*request),
        _ => None,
    });
    assert_eq!((pacer.snapshot(at(1.0)), pacer.poll_timeout()), (before, wake));
    // It comes back before those that came after it.
    let later = pacer.enqueue(at(2.0), any_wait(&scope)).expect("fits");
    let again = Request { max_wait: None, ..deferred.expect("it is put off") };
    let again = pacer.enqueue(at(3.0), again).expect("fits");
    let mut left = Vec::new();
    while let Some(now) = pacer.poll_timeout().filter(|_| left.len() < 3) {
        pacer.handle_timeout(now);
        while let Some(event) = pacer.poll_event() {
            let Event::Granted { ticket, .. } = event else { panic!("{event:?}") };
            pacer.complete(now, ticket, success());
            left.push(ticket);
        }
    }
    assert_eq!(left, [waiting, again, later]);
}

#[test]
fn ten_thousand_that_wait_are_deferred_in_one_input() {
    let (mut pacer, scope) = pacer(PacerConfig { concurrency: Concurrency::Fixed { max: 1 }, ..fixed(vec![]) });
    let first = send(&mut pacer, at(0.0), &scope);
    for _ in 0..10_000 {
        pacer.enqueue(at(0.0), ten(&scope)).expect("fits");
    }
    pacer.complete(at(1.0), first, Outcome::new(Class::Overloaded).with_hint(60 * S, true));
    let deferred = put_off(&mut pacer);
    let asked = of(Level::Scope, WaitCause::Gate { cause: PauseCause::Overloaded { asked: true } });
    assert!(
        deferred.len() == 10_000 && deferred.iter().all(|(_, until, reason)| *until == at(61.0) && *reason == asked)
    );
    assert_eq!(pacer.snapshot(at(1.0)).account.waiting, 0);
}

#[test]
fn a_wait_is_of_the_account_where_no_other_is_stricter() {
    let tier = |limit| PacerConfig {
        tiers: vec![("a".into(), Limits { quotas: vec![hourly(limit)], burst: None })],
        ..fixed(vec![hourly(2)])
    };
    for (limit, level) in [(1, Level::Tier), (2, Level::Account)] {
        let (mut pacer, scope) = pacer(tier(limit));
        (0..limit).for_each(|_| _ = send(&mut pacer, at(0.0), &scope));
        assert_eq!(pacer.level(at(1.0), &any_wait(&scope)), level, "{limit} an hour");
        pacer.hold(at(1.0), Some(&scope), at(7_200.0));
        assert_eq!(pacer.level(at(1.0), &any_wait(&scope)), Level::Scope);
        pacer.hold(at(1.0), None, at(7_200.0));
        assert_eq!(pacer.level(at(1.0), &any_wait(&scope)), Level::Account);
    }
}

/// An answer reports more tokens than its request asked for, so that the second waiter has no room for an hour. The first one
/// has, and leaves.
#[test]
fn behind_one_that_leaves_the_next_is_checked_at_once() {
    let tokens = |tokens| Cost::request().with(Dimension::Tokens, tokens);
    let hourly = Quota::sliding(Dimension::Tokens, 100, 3_600 * S);
    let (mut pacer, first) = pacer(PacerConfig { concurrency: Concurrency::Fixed { max: 1 }, ..fixed(vec![hourly]) });
    let second = pacer.scope("b");
    let bounds: [fn(&mut Request, u64); 2] = [
        |request, seconds| request.max_wait = Some(Duration::from_secs(seconds).into()),
        |request, seconds| request.deadline = Some(at(seconds as f64)),
    ];
    for bound in bounds {
        let mut pacer = pacer.clone();
        let sent = pacer.enqueue(at(0.0), Request::new(&first, tokens(40))).expect("fits");
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket: sent, probe: false }));
        for (scope, cost, seconds) in [(&first, 10, 60), (&second, 50, 120)] {
            let mut request = Request::new(scope, tokens(cost));
            bound(&mut request, seconds);
            pacer.enqueue(at(0.0), request).expect("fits");
        }
        pacer.complete(at(1.0), sent, success().with_usage(tokens(70)));
        let events: Vec<_> = std::iter::from_fn(|| pacer.poll_event()).collect();
        assert!(
            matches!(&events[..], [Event::Granted { .. }, Event::Deferred { .. } | Event::Expired { .. }]),
            "{events:?}"
        );
    }
}

/// Who sets its requests aside for a pause has them back after it with the time that they had.
#[test]
fn a_pause_for_which_requests_are_set_aside_counts_against_no_deadline() {
    let (mut pacer, scope) = pacer(fixed(vec![]));
    let aside =
        |deadline| Request { max_wait: Some(MaxWait::Pause(S)), deadline: Some(at(deadline)), ..any_wait(&scope) };
    let opens = pacer.enqueue(at(0.0), aside(20.0)).expect("fits");
    let refused = Outcome::new(Class::Throttled).with_hint(25 * S, false);
    let NextAction::Retry { next, delay } = pacer.complete(at(1.0), opens, refused.clone()) else {
        panic!("the pause ends later than its deadline, and does not count");
    };
    assert_eq!((delay, next.deadline), (25 * S, Some(at(45.0))));
    let behind = pacer.enqueue(at(2.0), aside(5.0)).expect("fits");
    let put_off = put_off(&mut pacer);
    assert_eq!(put_off.iter().map(|(ticket, ..)| *ticket).collect::<Vec<_>>(), [behind], "and does not expire");

    let again = pacer.enqueue(at(26.0), Request { not_before: None, ..*next }).expect("fits");
    let events: Vec<_> = std::iter::from_fn(|| pacer.poll_event()).collect();
    assert!(events.contains(&Event::Granted { ticket: again, probe: false }), "{events:?}");
    let failed = pacer.complete(at(46.0), again, refused);
    assert!(matches!(failed, NextAction::GiveUp { reason: GiveUp::Deadline, .. }), "its time was over: {failed:?}");
}
