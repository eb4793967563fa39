//! The account is a ceiling over its scopes; each scope has a pace of its own.

use std::time::Duration;

use paceline_core::{
    Admit, Backoff, Class, Concurrency, Cost, Event, Growth, Instant, Jitter, LimitScope, Limits, NextAction, Outcome,
    Pace, Pacer, PacerConfig, PauseCause, Quota, Request, Retry, ScopeId, ScopeState, Ticket, WaitCause,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

fn pacer(config: PacerConfig) -> Pacer {
    let concurrency = Concurrency::Fixed { max: 100 };
    Pacer::new(PacerConfig { concurrency, pace: Pace::Fixed, ..config }, 1, Instant::ZERO).expect("sensible")
}

fn one_per_second() -> Limits {
    Limits { quotas: vec![Quota::requests_per_minute(60)], burst: Some(1) }
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
    let tier = Limits { quotas: vec![Quota::requests_per_minute(60)], burst: Some(5) };
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
    let tier = Limits { quotas: vec![Quota::requests_per_minute(60)], burst: Some(5) };
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
    let held = |scope| Event::Held { scope: Some(scope), until: at(50.0), cause };
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
