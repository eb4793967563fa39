//! The account is a ceiling over its scopes; each scope has a pace of its own.

use std::time::Duration;

use paceline_core::{
    Admit, Backoff, Class, Concurrency, Cost, Event, Growth, Instant, Jitter, LimitScope, Limits, NextAction, Outcome,
    Pace, Pacer, PacerConfig, PauseCause, Quota, QuotaShape, Request, Retry, ScopeId, ScopeState, Ticket, WaitCause,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

fn pacer(config: PacerConfig) -> Pacer {
    let concurrency = Concurrency::Fixed { max: 100 };
    Pacer::new(PacerConfig { concurrency, pace: Pace::Fixed, ..config }, 1, Instant::ZERO).expect("sensible")
}

fn one_per_second() -> Limits {
    Limits { quotas: vec![Quota::per_minute(60)], burst: Some(1) }
}

fn request(scope: &ScopeId, priority: i32) -> Request {
    Request { priority, ..Request::new(scope, Cost::request()) }
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let granted = |event| match event {
        Event::Granted { ticket, .. } => Some(ticket),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect()
}

/// Follows the timeouts until `until` and lists what is granted.
fn all_until(pacer: &mut Pacer, until: Instant) -> Vec<Ticket> {
    let mut all = granted(pacer);
    while let Some(due) = pacer.poll_timeout().filter(|due| *due <= until) {
        pacer.handle_timeout(due);
        all.extend(granted(pacer));
    }
    all
}

#[test]
fn under_the_ceiling_the_highest_priority_goes_first_then_the_earliest_arrival() {
    let mut pacer = pacer(PacerConfig { limits: one_per_second(), ..PacerConfig::default() });
    let (a, b) = (pacer.scope("a"), pacer.scope("b"));
    let wishes = [(&a, 0), (&b, 0), (&a, 0), (&b, 5), (&a, 5), (&b, -1)];
    let tickets: Vec<Ticket> =
        wishes.map(|(scope, priority)| pacer.enqueue(at(0.0), request(scope, priority)).expect("fits")).into();
    let order: Vec<usize> = all_until(&mut pacer, at(100.0))
        .iter()
        .map(|ticket| tickets.iter().position(|t| t == ticket).expect("known"))
        .collect();
    assert_eq!(order, [0, 3, 4, 1, 2, 5]);
}

#[test]
fn a_throttled_model_does_not_slow_the_others() {
    let mut pacer = pacer(PacerConfig::default());
    let (a, b) = (pacer.scope("a"), pacer.scope("b"));
    let first = pacer.enqueue(at(0.0), request(&a, 0)).expect("fits");
    pacer.complete(at(0.1), first, Outcome::new(Class::Throttled).with_hint(60 * S, false));
    granted(&mut pacer);
    let waits = pacer.enqueue(at(0.2), request(&a, 0)).expect("fits");
    let goes = pacer.enqueue(at(0.2), request(&b, 0)).expect("fits");
    assert_eq!(granted(&mut pacer), [goes]);
    let (until, cause) = (at(60.1), PauseCause::Throttled { asked: true });
    assert_eq!(pacer.snapshot(at(0.2)).scopes[0].waits_for, Some((WaitCause::Gate { cause }, Some(until))));
    assert_eq!(all_until(&mut pacer, until), [waits]);
}

#[test]
fn a_throttle_of_one_item_delays_it_alone() {
    let backoff = Backoff { growth: Growth::Constant { delay: S }, jitter: Jitter::None };
    let retry = Retry { backoff, ..Retry::default() };
    let config = PacerConfig { retry, pace: Pace::Auto, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    let hot = pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits");
    granted(&mut pacer);
    let action = pacer.complete(at(0.1), hot, Outcome::new(Class::Throttled).with_reach(LimitScope::Item));
    let NextAction::Retry { delay, .. } = action else { panic!("{action:?}") };
    assert_eq!(delay, S, "the backoff");
    let other = pacer.enqueue(at(0.1), request(&scope, 1)).expect("fits");
    assert_eq!(all_until(&mut pacer, at(1.0)), [other]);
}

/// Hints of half a minute from a limit of a day, in either reach: one is honoured, a second in a row is not believed.
#[test]
fn a_days_limit_that_refuses_again_after_its_own_wait_is_probed_after_five_minutes() {
    for reach in [LimitScope::Scope, LimitScope::Account] {
        let mut pacer = pacer(PacerConfig::default());
        let scope = pacer.scope("a");
        let refused = Outcome { long_period: true, ..Outcome::new(Class::Throttled).with_hint(30 * S, false) };
        let refused = refused.with_reach(reach);
        let tickets: Vec<Ticket> = (0..9).map(|_| pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits")).collect();
        assert_eq!(granted(&mut pacer), tickets);
        for ticket in tickets {
            pacer.complete(at(0.5), ticket, refused.clone());
            pacer.enqueue(at(0.5), request(&scope, 0)).expect("fits");
        }
        let canary = all_until(&mut pacer, at(31.0));
        assert_eq!(canary.len(), 1, "the wait is honoured, and one call goes first");
        pacer.complete(at(31.0), canary[0], refused.clone());
        assert!(all_until(&mut pacer, at(330.0)).is_empty(), "five minutes");
        let probe = all_until(&mut pacer, at(332.0));
        assert_eq!(probe.len(), 1);
        pacer.complete(at(332.0), probe[0], Outcome::new(Class::QuotaExhausted).with_reach(reach));
        assert!(all_until(&mut pacer, at(931.0)).is_empty(), "then ten");
        let probe = all_until(&mut pacer, at(933.0));
        assert_eq!(probe.len(), 1);
        pacer.complete(at(933.0), probe[0], Outcome::new(Class::Success));
        assert_eq!(all_until(&mut pacer, at(934.0)).len(), 6, "the rest");
    }
}

/// Calls that were in flight together ask for one guess, also where the whole account is used up.
#[test]
fn a_quota_of_unknown_end_is_guessed_once_at_a_time() {
    for reach in [LimitScope::Scope, LimitScope::Account] {
        let mut pacer = pacer(PacerConfig::default());
        let scope = pacer.scope("a");
        let tickets: Vec<Ticket> = (0..9).map(|_| pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits")).collect();
        granted(&mut pacer);
        for ticket in tickets {
            pacer.complete(at(1.0), ticket, Outcome::new(Class::QuotaExhausted).with_reach(reach));
        }
        pacer.enqueue(at(1.0), request(&scope, 0)).expect("fits");
        assert!(all_until(&mut pacer, at(300.0)).is_empty());
        assert_eq!(all_until(&mut pacer, at(301.0)).len(), 1, "{reach:?}");
    }
}

#[test]
fn a_bad_key_stops_every_scope_until_a_user_acts() {
    let mut pacer = pacer(PacerConfig::default());
    let (a, b) = (pacer.scope("a"), pacer.scope("b"));
    let first = pacer.enqueue(at(0.0), request(&a, 0)).expect("fits");
    pacer.complete(at(0.1), first, Outcome::new(Class::Account).with_reach(LimitScope::Account));
    granted(&mut pacer);
    let waits = [&a, &b].map(|scope| pacer.enqueue(at(1.0), request(scope, 0)).expect("fits"));
    assert!(all_until(&mut pacer, at(1e6)).is_empty());
    assert_eq!(pacer.admit(at(1.0), &request(&b, 0)), Admit::OnRelease { cause: WaitCause::Queue });
    assert!(matches!(pacer.snapshot(at(2.0)).account.state, ScopeState::Stopped { .. }));
    pacer.resume(at(3.0), None);
    assert_eq!(granted(&mut pacer), waits);
}

#[test]
fn a_tier_has_limits_of_its_own_and_starts_again_with_an_empty_burst() {
    let tier = Limits { quotas: vec![Quota::per_minute(60)], burst: Some(5) };
    let mut pacer = pacer(PacerConfig { tiers: vec![("tier".into(), tier)], ..PacerConfig::default() });
    let (tier, plain) = (pacer.scope("tier"), pacer.scope("plain"));
    for _ in 0..20 {
        pacer.enqueue(at(0.0), request(&plain, 0)).expect("fits");
    }
    assert_eq!(granted(&mut pacer).len(), 20, "no limit but the tier's");
    pacer.hold(at(0.0), Some(&tier), at(50.0));
    for _ in 0..20 {
        pacer.enqueue(at(0.0), request(&tier, 0)).expect("fits");
    }
    let canary = all_until(&mut pacer, at(50.0));
    assert_eq!(canary.len(), 1, "one call goes first");
    pacer.complete(at(60.0), canary[0], Outcome::new(Class::Success));
    assert_eq!(all_until(&mut pacer, at(64.0)).len(), 5, "then one a second, however long the canary took");
}

#[test]
fn one_canary_passes_and_a_pause_without_canary_empties_the_burst_too() {
    let tier = Limits { quotas: vec![Quota::per_minute(60)], burst: Some(5) };
    let mut pacer = pacer(PacerConfig { tiers: vec![("tier".into(), tier)], ..PacerConfig::default() });
    let scope = pacer.scope("tier");
    let first = pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits");
    granted(&mut pacer);
    pacer.complete(at(60.0), first, Outcome::new(Class::Throttled).with_hint(S / 2, true));
    for _ in 0..20 {
        pacer.enqueue(at(60.1), request(&scope, 0)).expect("fits");
    }
    assert_eq!(all_until(&mut pacer, at(60.5)).len(), 1, "the five that were stored are forgotten");
    assert_eq!(all_until(&mut pacer, at(63.6)).len(), 3);
}

#[test]
fn time_that_goes_backwards_stands_still() {
    let mut pacer = pacer(PacerConfig::default());
    let scope = pacer.scope("a");
    pacer.handle_timeout(at(10.0));
    let due = Request { not_before: Some(at(8.0)), ..request(&scope, 0) };
    assert!(pacer.admit(at(5.0), &due).is_now());
    let ticket = pacer.enqueue(at(5.0), due).expect("fits");
    assert_eq!(granted(&mut pacer), [ticket], "8 s have passed, whatever the clock says now");
}

#[test]
fn a_handle_of_another_pacer_means_the_scope_of_that_name() {
    let pacer = || Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("sensible");
    let (mut here, mut there) = (pacer(), pacer());
    let (first, own) = (here.scope("first"), here.scope("shared"));
    // The places differ: "shared" is the first scope there, and "first" is unknown.
    let foreign = there.scope("shared");
    assert_eq!((&own, own.name()), (&foreign, foreign.name()));
    here.hold(at(0.0), Some(&foreign), at(50.0));
    let cause = PauseCause::Program;
    let held = |scope| Event::Held { scope: Some(scope), until: at(50.0), cause, renewed: false };
    assert_eq!(here.poll_event(), Some(held(own.clone())));
    for handle in [&own, &foreign] {
        let cause = WaitCause::Held { cause };
        assert_eq!(here.admit(at(1.0), &request(handle, 0)), Admit::At { at: at(50.0), cause });
    }
    assert!(here.admit(at(1.0), &request(&first, 0)).is_now());
    assert!(there.admit(at(1.0), &request(&first, 0)).is_now(), "a question makes no scope");
    assert_eq!(there.snapshot(at(1.0)).scopes.len(), 1);
    let ticket = there.enqueue(at(1.0), request(&first, 0)).expect("fits");
    assert_eq!(granted(&mut there), [ticket]);
    let names: Vec<_> = there.snapshot(at(1.0)).scopes.into_iter().map(|scope| scope.name).collect();
    assert_eq!(names, ["shared".into(), "first".into()]);
}

#[test]
fn what_is_to_be_tested_has_one_call_of_each_scope_go_first() {
    // That may be asked for before any scope is known.
    for (of_account, known) in [(false, true), (true, true), (true, false)] {
        let mut pacer = pacer(PacerConfig::default());
        let before = known.then(|| pacer.scope("a"));
        pacer.test_first(at(5.0), before.as_ref().filter(|_| !of_account));
        let scope = pacer.scope("a");
        let tickets: Vec<Ticket> = (0..3).map(|_| pacer.enqueue(at(5.0), request(&scope, 0)).expect("fits")).collect();
        assert_eq!(granted(&mut pacer), tickets[..1], "{of_account} {known}");
        pacer.complete(at(9.0), tickets[0], Outcome::new(Class::Success));
        assert_eq!(granted(&mut pacer), tickets[1..]);
        let later = pacer.scope("b");
        let tickets: Vec<Ticket> = (0..2).map(|_| pacer.enqueue(at(9.0), request(&later, 0)).expect("fits")).collect();
        assert_eq!(granted(&mut pacer), tickets, "the account is known to work");
    }
}

#[test]
fn a_used_up_quota_that_many_calls_in_flight_find_is_one_hold() {
    for reach in [LimitScope::Scope, LimitScope::Account] {
        let mut pacer = pacer(PacerConfig::default());
        let scope = pacer.scope("a");
        let tickets: Vec<Ticket> = (0..4).map(|_| pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits")).collect();
        granted(&mut pacer);
        let mut told = |refused: f64, nth: usize, seconds: u32| {
            let outcome = Outcome::new(Class::QuotaExhausted).with_reach(reach).with_hint(S * seconds, false);
            pacer.complete(at(refused), tickets[nth], outcome);
            let held = |event| match event {
                Event::Held { until, renewed, .. } => Some((until, renewed)),
                _ => None,
            };
            std::iter::from_fn(|| pacer.poll_event()).find_map(held).expect("held")
        };
        assert_eq!(told(1.0, 0, 7_200), (at(7_201.0), false));
        assert_eq!(told(1.5, 1, 7_200), (at(7_201.5), true), "the same wait, counted from a later arrival");
        assert_eq!(told(2.0, 2, 60), (at(62.0), true), "an end before that which is known");
        assert_eq!(told(2.0, 3, 86_400), (at(86_402.0), false), "another wait");
    }
}

#[test]
fn an_item_that_finds_the_quota_used_up_waits_for_the_rest_of_the_guess_that_others_made() {
    for reach in [LimitScope::Scope, LimitScope::Account] {
        let mut pacer = pacer(PacerConfig::default());
        let scope = pacer.scope("a");
        let tickets: Vec<Ticket> = (0..2).map(|_| pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits")).collect();
        granted(&mut pacer);
        let waits = [(10.0, tickets[0]), (100.0, tickets[1])].map(|(end, ticket)| {
            match pacer.complete(at(end), ticket, Outcome::new(Class::QuotaExhausted).with_reach(reach)) {
                NextAction::Retry { delay, .. } => delay,
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(waits, [300 * S, 210 * S], "{reach:?}");
    }
}

/// The delay of the second of two calls that were in flight together, after the first ended so.
fn delays(first: Outcome, second: Outcome) -> [Duration; 2] {
    let backoff = Backoff { growth: Growth::Constant { delay: S }, jitter: Jitter::None };
    let retry = Retry { backoff, ..Retry::default() };
    let mut pacer = pacer(PacerConfig { retry, ..PacerConfig::default() });
    let scope = pacer.scope("a");
    let tickets = [(); 2].map(|()| pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits"));
    granted(&mut pacer);
    let [one, two] = tickets;
    [(one, first), (two, second)].map(|(ticket, outcome)| match pacer.complete(at(10.0), ticket, outcome) {
        NextAction::Retry { delay, .. } => delay,
        other => panic!("{other:?}"),
    })
}

#[test]
fn only_an_item_that_found_the_quota_used_up_for_an_unknown_time_waits_for_the_guess() {
    let unknown = || Outcome::new(Class::QuotaExhausted);
    assert_eq!(delays(unknown(), unknown().with_hint(30 * S, false)), [300 * S, 30 * S], "its own hint");
    assert_eq!(delays(unknown(), Outcome::new(Class::Transient)), [300 * S, S], "its backoff");
    let of_item = unknown().with_reach(LimitScope::Item);
    assert_eq!(delays(unknown().with_hint(7_200 * S, false), of_item), [7_200 * S, 300 * S], "a quota of its own");
}

#[test]
fn a_wait_that_concerns_the_account_closes_every_scope_and_is_reported_where_it_was_asked_for() {
    let mut pacer = pacer(PacerConfig::default());
    let [a, b] = ["a", "b"].map(|name| pacer.scope(name));
    let refused = pacer.enqueue(at(0.0), request(&a, 0)).expect("fits");
    granted(&mut pacer);
    pacer.complete(
        at(1.0),
        refused,
        Outcome::new(Class::Throttled).with_hint(60 * S, false).with_reach(LimitScope::Account),
    );
    let events: Vec<Event> = std::iter::from_fn(|| pacer.poll_event()).collect();
    assert!(events.contains(&Event::GateClosed { scope: a.clone(), until: at(61.0) }), "{events:?}");
    for scope in [a, b] {
        let cause = PauseCause::Throttled { asked: true };
        let admit = pacer.admit(at(1.0), &request(&scope, 0));
        assert_eq!(admit, Admit::At { at: at(61.0), cause: WaitCause::Gate { cause } });
    }
}

#[test]
fn the_account_tells_what_its_next_waiter_waits_for() {
    let mut pacer = pacer(PacerConfig::default());
    let [idle, late, soon] = ["idle", "late", "soon"].map(|name| pacer.scope(name));
    for (scope, until) in [(&idle, 5.0), (&late, 30.0), (&soon, 20.0)] {
        pacer.hold(at(0.0), Some(scope), at(until));
    }
    assert_eq!(pacer.snapshot(at(1.0)).account.next_due, None, "nothing waits");
    for scope in [&late, &soon] {
        pacer.enqueue(at(1.0), request(scope, 0)).expect("fits");
    }
    let account = pacer.snapshot(at(1.0)).account;
    assert_eq!((account.waiting, account.next_due), (2, Some(at(20.0))));
    assert_eq!(account.waits_for, Some((WaitCause::Held { cause: PauseCause::Program }, Some(at(20.0)))));
}

#[test]
fn after_a_full_window_of_a_tier_its_work_leaves_at_the_accounts_refill_rate() {
    let tier = Quota { shape: QuotaShape::Fixed, ..Quota::per_minute(20) };
    let limits = Limits { quotas: vec![Quota::per_minute(600)], burst: Some(10) };
    let tiers = vec![("tier".into(), Limits { quotas: vec![tier], burst: None })];
    let mut pacer = pacer(PacerConfig { limits, tiers, ..PacerConfig::default() });
    let scope = pacer.scope("tier");
    (0..40).for_each(|_| _ = pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits"));
    let first = all_until(&mut pacer, at(59.9)).len();
    let second = all_until(&mut pacer, at(60.05)).len();
    assert_eq!((first, second), (20, 1));
}

#[test]
fn others_test_a_closed_gate_before_an_item_that_failed_there() {
    let sits_out = |pace, waiting: usize| {
        let config = PacerConfig { pace, ..PacerConfig::default() };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        let tickets = [0.0, 2.0].map(|now| {
            let ticket = pacer.enqueue(at(now), request(&scope, 0)).expect("fits");
            assert_eq!(granted(&mut pacer), [ticket]);
            ticket
        });
        (0..waiting).for_each(|_| {
            let later = Request { not_before: Some(at(9.0)), ..request(&scope, 0) };
            pacer.enqueue(at(2.0), later).expect("fits");
        });
        pacer.complete(at(2.1), tickets[0], Outcome::new(Class::Throttled).with_hint(8 * S, false));
        match pacer.complete(at(3.1), tickets[1], Outcome::new(Class::Transient)) {
            NextAction::Retry { delay, .. } => delay,
            other => panic!("{other:?}"),
        }
    };
    // The gate opens in 7 s, and each of up to four more tests that fails closes it for 5 s at most.
    assert_eq!([1, 3, 5, 9].map(|waiting| sits_out(Pace::Auto, waiting)), [7, 17, 27, 27].map(|wait| wait * S));
    assert!(sits_out(Pace::Auto, 0) < S && sits_out(Pace::Fixed, 9) < S, "its backoff alone");
}

#[test]
fn answers_are_counted_by_class_in_their_scope_and_in_the_account() {
    let mut pacer = pacer(PacerConfig::default());
    for (name, class, calls) in [("a", Class::Success, 3), ("a", Class::Invalid, 2), ("b", Class::Success, 4)] {
        let scope = pacer.scope(name);
        for _ in 0..calls {
            let ticket = pacer.enqueue(at(0.0), request(&scope, 0)).expect("fits");
            pacer.complete(at(0.0), ticket, Outcome::new(class));
        }
    }
    let snapshot = pacer.snapshot(at(0.0));
    let levels = [&snapshot.account, &snapshot.scopes[0], &snapshot.scopes[1]];
    let counted = levels.map(|level| [Class::Success, Class::Invalid].map(|class| level.totals.of(class)));
    assert_eq!(counted, [[7, 2], [3, 2], [4, 0]]);
}

#[test]
fn scopes_are_in_the_order_of_their_names() {
    let mut pacer = pacer(PacerConfig::default());
    let [b, a] = ["b", "a"].map(|name| pacer.scope(name));
    assert!(a < b);
}
