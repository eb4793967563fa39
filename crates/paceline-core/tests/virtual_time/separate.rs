//! Scopes that are accounts of their own.

use std::time::Duration;

use paceline_core::{
    Class, Concurrency, Event, Instant, LimitCounts, LimitScope, Limits, Outcome, Pacer, PacerConfig, Quota, Request,
    ScopeId, Ticket,
};

const S: Duration = Duration::from_secs(1);

fn limits() -> Limits {
    Quota::per_hour(3).into()
}

fn pacer() -> Pacer {
    let config =
        PacerConfig { per_scope: Some(limits()), concurrency: Concurrency::Fixed { max: 2 }, ..PacerConfig::default() };
    Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be")
}

fn granted(pacer: &mut Pacer, scope: &ScopeId) -> Option<Ticket> {
    let now = Instant::ZERO;
    let ticket = pacer.enqueue(now, Request::from(scope)).expect("not too large");
    let granted = matches!(pacer.poll_event(), Some(Event::Granted { .. }));
    if !granted {
        pacer.cancel(now, ticket);
    }
    granted.then_some(ticket)
}

fn call(pacer: &mut Pacer, scope: &ScopeId) -> bool {
    granted(pacer, scope).map(|ticket| pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Success))).is_some()
}

#[test]
fn each_has_the_limits_and_the_places_for_itself() {
    let mut pacer = pacer();
    for scope in ["a", "b"].map(|name| pacer.scope(name)) {
        let in_flight = [granted(&mut pacer, &scope), granted(&mut pacer, &scope)];
        assert!(in_flight.iter().all(Option::is_some));
        assert_eq!(granted(&mut pacer, &scope), None, "two in flight are all");
        for ticket in in_flight.into_iter().flatten() {
            pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Success));
        }
        assert_eq!([(); 2].map(|()| call(&mut pacer, &scope)), [true, false], "three an hour, and believed");
    }
}

#[test]
fn what_an_answer_says_of_the_account_reaches_its_scope() {
    let mut pacer = pacer();
    let [bad, good] = ["bad", "good"].map(|name| pacer.scope(name));
    let ticket = granted(&mut pacer, &bad).expect("the first");
    pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Account).with_reach(LimitScope::Account));
    while pacer.poll_event().is_some() {}
    assert!(!call(&mut pacer, &bad));
    assert!(call(&mut pacer, &good));
}

#[test]
fn a_scope_that_only_counts_leaves_the_pacer_and_comes_back_with_its_counts() {
    let (mut pacer, now) = (pacer(), Instant::ZERO);
    let mut counts = LimitCounts::new(&limits()).expect("they are valid");
    assert!(counts.try_take(now).is_now());
    let scope = pacer.scope_from("a".into(), counts);
    let ticket = granted(&mut pacer, &scope).expect("the second");
    assert!(pacer.release_scope(now, &scope).is_none(), "a call is in flight");
    pacer.complete(now, ticket, Outcome::new(Class::Success));
    let other = scope.clone();
    assert!(pacer.release_scope(now, &scope).is_none(), "a caller may still use its handle");
    drop(other);
    let mut counts = pacer.release_scope(now, &scope).expect("it only counts");
    assert!(counts.try_take(now).is_now() && !counts.try_take(now).is_now(), "the third, and no more");
    assert!(!counts.is_unused(now) && counts.is_unused(now + 3_601 * S));
    assert_eq!(pacer.snapshot(now).scopes.len(), 0);
    assert!(pacer.release_scope(now, &scope).expect("it was removed").is_unused(now));
}

#[test]
fn a_scope_that_was_refused_stays() {
    let (mut pacer, now) = (pacer(), Instant::ZERO);
    let scope = pacer.scope("a");
    let ticket = granted(&mut pacer, &scope).expect("the first");
    drop(pacer.complete(now, ticket, Outcome::new(Class::Throttled)));
    while pacer.poll_event().is_some() {}
    assert!(pacer.release_scope(now + 60 * S, &scope).is_none());
}

#[test]
fn scopes_that_come_and_go_leave_nothing_behind() {
    let mut pacer = pacer();
    for n in 0..100_000 {
        let now = Instant::ZERO + n * S / 100;
        let scope = pacer.scope_from("a".into(), LimitCounts::new(&limits()).expect("they are valid"));
        assert!(pacer.release_scope(now, &scope).is_some());
    }
    assert_eq!(pacer.snapshot(Instant::ZERO).scopes.len(), 0);
}
