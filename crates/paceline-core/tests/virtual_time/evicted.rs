//! Idle scopes without state worth keeping are evicted, and nothing else is.

use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, Request, ScopeId,
};

const S: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn pacer(config: PacerConfig) -> Pacer {
    Pacer::new(config, 1, Instant::ZERO).expect("sensible")
}

/// A call that leaves at once and ends like that.
fn call(pacer: &mut Pacer, now: Instant, scope: &ScopeId, class: Class) {
    pacer.enqueue(now, Request::new(scope, Cost::request())).expect("no limit is too small for it");
    let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("nothing stands in its way") };
    pacer.complete(now, ticket, Outcome::new(class));
    while pacer.poll_event().is_some() {}
}

fn knows(pacer: &Pacer, now: Instant, name: &str) -> bool {
    pacer.snapshot(now).scopes.iter().any(|scope| &*scope.name == name)
}

/// Other work goes on until then, a call every ten seconds.
fn go_on(pacer: &mut Pacer, from: u64, until: u64) {
    let other = pacer.scope("other");
    (from..until).step_by(10).for_each(|now| call(pacer, at(now), &other, Class::Success));
}

#[test]
fn a_hundred_thousand_names_in_a_day_are_a_thousand_at_once_and_their_sums_stay() {
    let mut pacer = pacer(PacerConfig::default());
    let (names, day) = (100_000, 86_400 * S);
    let mut now = Instant::ZERO;
    let mut most = 0;
    for n in 0..names {
        now += day / names;
        let scope = pacer.scope(&format!("customer-{n}"));
        call(&mut pacer, now, &scope, Class::Success);
        if n % 5_000 == 0 {
            most = most.max(pacer.snapshot(now).scopes.len());
        }
    }
    // 15 minutes of names, and those whose turn in the round comes next.
    assert!((500..1_200).contains(&most), "{most} scopes at once");
    let totals = pacer.snapshot(now).account.totals;
    assert_eq!((totals.sends, totals.of(Class::Success)), (u64::from(names), u64::from(names)));
}

#[test]
fn the_handle_of_a_evicted_scope_makes_it_anew() {
    let mut pacer = pacer(PacerConfig::default());
    let scope = pacer.scope("a");
    call(&mut pacer, at(0), &scope, Class::Success);
    go_on(&mut pacer, 1, 1_000);
    assert!(!knows(&pacer, at(1_000), "a"));
    let strangers: Vec<_> = (0..3).map(|n| pacer.scope(&format!("stranger {n}"))).collect();
    assert!(pacer.admit(at(1_000), &Request::new(&scope, Cost::request())).is_now(), "a question makes no scope");
    assert!(!knows(&pacer, at(1_000), "a"));
    call(&mut pacer, at(1_000), &scope, Class::Success);
    strangers.iter().for_each(|scope| call(&mut pacer, at(1_000), scope, Class::Success));
    let snapshot = pacer.snapshot(at(1_000));
    let sends = |name: &str| snapshot.scopes.iter().find(|scope| &*scope.name == name).map(|scope| scope.totals.sends);
    assert_eq!((sends("a"), sends("stranger 0"), sends("stranger 2")), (Some(1), Some(1), Some(1)));
}

#[test]
fn what_was_learnt_is_kept_for_an_hour() {
    let mut pacer = pacer(PacerConfig::default());
    let (refused, busy) = (pacer.scope("refused"), pacer.scope("busy"));
    call(&mut pacer, at(0), &refused, Class::Throttled);
    pacer.enqueue(at(0), Request::new(&busy, Cost::request())).expect("fits");
    assert!(matches!(pacer.poll_event(), Some(Event::Granted { .. })));
    go_on(&mut pacer, 1, 3_590);
    assert!(knows(&pacer, at(3_590), "refused"));
    go_on(&mut pacer, 3_590, 4_000);
    assert!(!knows(&pacer, at(4_000), "refused"));
    assert!(knows(&pacer, at(4_000), "busy"), "its call is in flight");
}

#[test]
fn a_scope_that_is_held_or_stopped_or_has_used_its_limit_is_kept() {
    let day = Quota::sliding(Dimension::Requests, 100, 86_400 * S);
    let tiers = vec![("tier".into(), Limits { quotas: vec![day], burst: None })];
    let mut pacer = pacer(PacerConfig { tiers, ..PacerConfig::default() });
    let names = ["tier", "held", "stopped", "waits"];
    let [tier, held, stopped, waits] = names.map(|name| pacer.scope(name));
    call(&mut pacer, at(0), &tier, Class::Success);
    pacer.hold(at(0), Some(&held), at(50_000));
    pacer.stop(at(0), Some(&stopped), "a bad key".into());
    let later = Request { not_before: Some(at(40_000)), ..Request::new(&waits, Cost::request()) };
    pacer.enqueue(at(0), later).expect("fits");
    while pacer.poll_event().is_some() {}
    go_on(&mut pacer, 1, 39_000);
    for name in names {
        assert!(knows(&pacer, at(39_000), name), "{name}");
    }
    go_on(&mut pacer, 90_010, 100_000);
    assert!(!knows(&pacer, at(100_000), "tier") && !knows(&pacer, at(100_000), "held"));
    assert!(knows(&pacer, at(100_000), "stopped"), "until a person acts");
}

#[test]
fn ten_thousand_handles_of_evicted_scopes_mean_their_own_names() {
    let (mut pacer, mut elsewhere) = (pacer(PacerConfig::default()), pacer(PacerConfig::default()));
    let old: Vec<ScopeId> = (0..10_000).map(|n| pacer.scope(&format!("old-{n}"))).collect();
    old.iter().for_each(|scope| call(&mut pacer, at(0), scope, Class::Success));
    // Each input asks a few of them.
    (0..5_000).for_each(|_| pacer.handle_timeout(at(1_990)));
    call(&mut pacer, at(2_000), &elsewhere.scope("other"), Class::Success);
    assert!(pacer.snapshot(at(2_000)).scopes.len() < 10, "they were evicted");
    // Others take their places, in another order; and a handle may come from another pacer.
    let new: Vec<ScopeId> = (0..5_000).rev().map(|n| pacer.scope(&format!("new-{n}"))).collect();
    pacer.hold(at(2_000), Some(&old[0]), at(9_000));
    assert!(matches!(pacer.poll_event(), Some(Event::Held { .. })));
    for (nth, scope) in old.iter().enumerate().skip(1).step_by(2) {
        call(&mut pacer, at(2_000), scope, Class::Success);
        call(&mut pacer, at(2_000), &new[nth / 2], Class::Success);
    }
    for scope in old.iter().skip(1).step_by(2) {
        call(&mut pacer, at(2_001), &elsewhere.scope(scope.name()), Class::Success);
    }
    let snapshot = pacer.snapshot(at(2_001));
    let sends = |name: &str| snapshot.scopes.iter().find(|scope| &*scope.name == name).map(|scope| scope.totals.sends);
    assert_eq!(
        (sends("old-1"), sends("old-9999"), sends("new-4999"), sends("new-0")),
        (Some(2), Some(2), Some(1), Some(1))
    );
    assert_eq!((sends("old-0"), sends("old-2")), (Some(0), None), "held by its name, and not asked for");
    assert_eq!(snapshot.scopes.len(), 1 + 1 + 5_000 + 5_000, "what went on, what is held, half of the old, the new");
    assert_eq!(snapshot.account.totals.sends, 10_000 + 1 + 15_000);
}

#[test]
fn a_scope_whose_server_has_given_one_proof_of_two_is_kept() {
    let mut pacer = pacer(PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() });
    let scope = pacer.scope("a");
    (0..20).for_each(|_| call(&mut pacer, at(0), &scope, Class::Transient));
    call(&mut pacer, at(2), &scope, Class::Success);
    go_on(&mut pacer, 3, 2_000);
    assert!(knows(&pacer, at(2_000), "a"), "its breaker is half open");
    go_on(&mut pacer, 2_000, 4_000);
    assert!(!knows(&pacer, at(4_000), "a"));
}
