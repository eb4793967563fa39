//! What a pacer knew goes on in another one, as after a restart.

use std::time::Duration;

use paceline_core::{
    Admit, Announcement, Class, Cost, Dimension, Event, Instant, LearntState, LevelState, LimitReport, Limits,
    NewerState, Outcome, Pace, Pacer, PacerConfig, PacerState, PauseCause, PauseState, Quota, QuotaShape, RefillMode,
    Request, ScopeState,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

/// A scope that knows its rate.
pub(crate) fn learnt(scope: &str, rate: f64) -> LevelState {
    let learnt = LearntState { rate, tokens: None, cap: None, ago: Duration::ZERO };
    LevelState { name: scope.into(), learnt: Some(learnt), ..LevelState::default() }
}

pub(crate) fn restore(pacer: &mut Pacer, now: Instant, scope: LevelState) {
    let state = PacerState { scopes: vec![scope], ..PacerState::default() };
    pacer.restore(now, &state, Duration::ZERO).expect("the present version");
}

fn pacer(quotas: Vec<Quota>) -> Pacer {
    paced(Pace::Auto, quotas)
}

fn paced(pace: Pace, quotas: Vec<Quota>) -> Pacer {
    let limits = Limits { burst: quotas.first().map(|quota| quota.limit), quotas };
    let tiers = vec![("tier".into(), limits.clone())];
    Pacer::new(PacerConfig { limits, tiers, pace, ..PacerConfig::default() }, 1, Instant::ZERO).expect("sensible")
}

fn send(pacer: &mut Pacer, now: Instant, scope: &str, calls: usize) -> usize {
    let scope = pacer.scope(scope);
    (0..calls).for_each(|_| _ = pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits"));
    std::iter::from_fn(|| pacer.poll_event()).filter(|event| matches!(event, Event::Granted { .. })).count()
}

/// How long the next call waits, in seconds.
fn wait(pacer: &mut Pacer, now: Instant, scope: &str) -> f64 {
    let scope = pacer.scope(scope);
    match pacer.admit(now, &Request::new(&scope, Cost::request())) {
        Admit::Now => 0.0,
        Admit::At { at, .. } => (at - now).as_secs_f64(),
        Admit::OnRelease { cause } => panic!("it waits for {cause}"),
    }
}

/// Beside 512 calls that may be in flight two, and a third that waits, need a reason.
#[test]
fn a_call_behind_the_learnt_calls_in_flight_waits_for_them_by_name() {
    let mut pacer = paced(Pace::Auto, Vec::new());
    let mut known = learnt("a", 1_000.0);
    known.learnt.as_mut().expect("it is").cap = Some(2);
    restore(&mut pacer, at(0.0), known);
    let scope = pacer.scope("a");
    for now in [1.0, 2.0, 3.0] {
        pacer.handle_timeout(at(now));
        _ = pacer.enqueue(at(now), Request::new(&scope, Cost::request())).expect("fits");
    }
    let seen = pacer.snapshot(at(3.0));
    assert_eq!((seen.account.concurrency.in_flight, seen.account.concurrency.current_limit), (2, 512));
    let expected = "2 of 512 calls in flight, 1 waiting; the next call waits for the end of one of its 2 calls in flight, for more at a \
                    time were refused";
    assert!(seen.explain(at(3.0)).starts_with(expected), "{}", seen.explain(at(3.0)));
}

/// As a gateway that is started and killed again and again, and saves what it knows each half second.
#[test]
fn a_rate_that_processes_without_calls_hand_on_does_not_fall() {
    for rate in [0.3, 1.5, 50.0] {
        let mut known = learnt("a", rate);
        for _ in 0..30 {
            let mut pacer = pacer(Vec::new());
            restore(&mut pacer, at(0.0), known);
            known = pacer.export(at(1.0)).scopes.remove(0);
        }
        let left = known.learnt.expect("it is known").rate;
        assert!((0.99 * rate..1.01 * rate).contains(&left), "{left} of {rate}");
    }
}

#[test]
fn a_window_of_any_shape_counts_on() {
    for shape in [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 5 }] {
        let hourly = || vec![Quota { shape, ..Quota::sliding(Dimension::Requests, 5, 3_600 * S) }];
        let mut before = paced(Pace::Fixed, hourly());
        assert_eq!(send(&mut before, at(100.0), "tier", 2) + send(&mut before, at(2_000.0), "tier", 3), 5);
        let state = before.export(at(2_010.0));
        assert!(!state.account.windows.is_empty() && !state.scopes[0].windows.is_empty(), "{state:?}");
        for off in [0.0, 40.0, 1_700.0, 3_700.0] {
            let (mut after, now) = (paced(Pace::Fixed, hourly()), at(1e7));
            after.restore(now, &state, S.mul_f64(off)).expect("the present version");
            for scope in ["another", "tier"] {
                let expected = wait(&mut before, at(2_010.0 + off), scope);
                let waits = wait(&mut after, now, scope);
                assert!((waits - expected).abs() < 1.0, "{shape:?}, {off} s off: {waits} s instead of {expected} s");
            }
        }
    }
}

#[test]
fn what_left_counts_under_a_limit_that_is_another_now() {
    let mut before = paced(Pace::Fixed, vec![Quota::sliding(Dimension::Requests, 5, 3_600 * S)]);
    assert_eq!(send(&mut before, at(100.0), "a", 5), 5);
    let state = before.export(at(200.0));
    for (limit, window, left) in
        [(8, 3_600 * S, 3), (8, 86_400 * S, 3), (8, 600 * S, 3), (8, 50 * S, 8), (3, 3_600 * S, 0)]
    {
        let mut after = paced(Pace::Fixed, vec![Quota::sliding(Dimension::Requests, limit, window)]);
        after.restore(at(1e7), &state, Duration::ZERO).expect("the present version");
        assert_eq!(after.snapshot(at(1e7)).account.quotas[0].remaining, left, "{limit} in {window:?}");
    }
}

#[test]
fn what_headers_announced_goes_on_until_an_answer_brings_news() {
    let report = LimitReport {
        dimension: Dimension::Requests,
        limit: Some(20),
        remaining: Some(3),
        reset: Some(17 * S),
        window: Some(20 * S),
        restores: RefillMode::Gradually,
    };
    let mut before = pacer(vec![]);
    let scope = before.scope("a");
    let first = before.enqueue(at(10.0), Request::new(&scope, Cost::request())).expect("fits");
    before.complete(at(11.0), first, Outcome { limits: vec![report.clone()], ..Outcome::new(Class::Success) });
    send(&mut before, at(11.0), "a", 1);
    let state = before.export(at(12.0));
    let announced = Announcement { report: report.clone(), ago: 2 * S, spent_since: 1 };
    assert_eq!(state.scopes[0].announced, [announced]);
    assert!(before.export(at(30.0)).scopes.is_empty(), "the limit is whole again");

    let mut after = pacer(vec![]);
    after.restore(at(5_000.0), &state, Duration::ZERO).expect("the present version");
    assert_eq!(wait(&mut after, at(5_000.0), "a"), wait(&mut before, at(12.0), "a"));
    let scope = after.scope("a");
    let first = after.enqueue(at(5_001.0), Request::new(&scope, Cost::request())).expect("fits");
    let now = after.poll_timeout().unwrap_or(at(5_001.0));
    after.handle_timeout(now);
    let news = LimitReport { remaining: Some(20), ..report };
    after.complete(now + S, first, Outcome { limits: vec![news], ..Outcome::new(Class::Success) });
    after.restore(now + S, &state, Duration::ZERO).expect("the present version");
    assert_eq!(wait(&mut after, now + S, "a"), 0.0, "the answer knows better");
}

#[test]
fn a_learnt_pace_goes_on_in_its_unit_and_an_old_one_is_tried_carefully() {
    let learnt = LearntState { rate: 1_000.0, tokens: Some(50_000.0), cap: Some(8), ago: 5 * S };
    let level = LevelState { name: "a".into(), learnt: Some(learnt), ..LevelState::default() };
    let state = PacerState { scopes: vec![level], ..PacerState::default() };
    let restored = |since| {
        let mut after = pacer(vec![]);
        after.restore(at(1e7), &state, since).expect("the present version");
        let estimate = after.snapshot(at(1e7)).scopes[0].estimate.clone().expect("the pace auto");
        (estimate.rate, estimate.tokens, estimate.cap, after.export(at(1e7) + 60 * S))
    };
    let (rate, tokens, cap, again) = restored(Duration::ZERO);
    assert!((500.0..=1_000.0).contains(&rate) && tokens == Some(50.0 * rate) && cap == Some(8), "{rate}, {tokens:?}");
    let again = again.scopes[0].learnt.clone().expect("still known");
    assert_eq!((again.tokens, again.ago), (Some(50.0 * again.rate), 60 * S));
    let (_, tokens, cap, _) = restored(3_594 * S);
    assert!(tokens.is_some() && cap == Some(8));
    let (rate, tokens, cap, _) = restored(3_595 * S);
    assert!((2.0..100.0).contains(&rate) && tokens.is_none() && cap.is_none(), "{rate}, {tokens:?}, {cap:?}");
    assert_eq!(restored(86_400 * S).0, 2.0);
}

#[test]
fn a_start_that_was_never_refused_says_nothing() {
    let mut before = pacer(vec![]);
    send(&mut before, at(0.0), "a", 50);
    assert_eq!(before.export(at(1.0)), PacerState::default());
}

#[test]
fn holds_and_pauses_last_as_long_as_they_had_left_and_stops_stay() {
    let mut before = pacer(vec![]);
    let [held, paused, stopped] = ["held", "paused", "stopped"].map(|name| before.scope(name));
    before.hold_for(at(0.0), Some(&held), at(100.0), PauseCause::QuotaUsedUp);
    before.stop(at(0.0), Some(&stopped), "no money left".into());
    let refused = before.enqueue(at(0.0), Request::new(&paused, Cost::request())).expect("fits");
    before.complete(at(0.0), refused, Outcome::new(Class::Throttled).with_hint(80 * S, true));
    before.hold(at(0.0), None, at(20.0));
    let state = before.export(at(10.0));
    assert_eq!(state.account.held, Some(PauseState { left: 10 * S, cause: PauseCause::Program }));

    for (since, [account, held, paused]) in [(0, [10.0, 90.0, 70.0]), (30, [0.0, 60.0, 40.0]), (500, [0.0, 0.0, 0.0])] {
        let (mut after, now) = (pacer(vec![]), at(1e7));
        after.restore(now, &state, since * S).expect("the present version");
        for (scope, expected) in [("another", account), ("held", held), ("paused", paused)] {
            assert_eq!(wait(&mut after, now, scope), expected, "{scope}, {since} s later");
        }
        let states: Vec<_> = after.snapshot(now).scopes.into_iter().map(|scope| scope.state).collect();
        assert!(states.contains(&ScopeState::Stopped { reason: "no money left".into() }), "{states:?}");
        after.resume(now, None);
        assert_eq!(wait(&mut after, now, "stopped"), 0.0);
    }
}

/// Its calls end after a minute each, too seldom to open a breaker.
#[test]
fn a_server_that_was_failing_is_tested_by_one_call_at_a_time() {
    let mut before = paced(Pace::Fixed, vec![]);
    let scope = before.scope("a");
    for minute in 0..5 {
        let began = at(60.0 * f64::from(minute));
        let sent = before.enqueue(began, Request::new(&scope, Cost::request())).expect("fits");
        before.complete(began + 59 * S, sent, Outcome::new(Class::Transient));
    }
    let state = before.export(at(300.0));
    assert!(state.scopes[0].failing, "{state:?}");
    let (mut after, now) = (paced(Pace::Fixed, vec![]), at(1e7));
    after.restore(now, &state, 86_400 * S).expect("the present version");
    assert_eq!((send(&mut after, now, "a", 50), send(&mut after, now, "another", 5)), (1, 5));
    assert!(after.export(now).scopes[0].failing, "nothing has succeeded");
    after.restore(now, &state, S).expect("the present version");
    assert_eq!(send(&mut after, now, "another", 5), 5);
}

/// Whether there is a server costs nothing to find out.
#[test]
fn a_server_that_was_not_there_is_no_failing_one() {
    let mut before = paced(Pace::Fixed, vec![]);
    let scope = before.scope("a");
    for call in 0..30 {
        let sent = before.enqueue(at(f64::from(call)), Request::new(&scope, Cost::request())).expect("fits");
        before.complete(at(f64::from(call)), sent, Outcome { unsent: true, ..Outcome::new(Class::Transient) });
    }
    assert!(before.export(at(31.0)).scopes.iter().all(|scope| !scope.failing));
}

#[test]
fn a_value_of_a_later_version_changes_nothing() {
    let mut after = pacer(vec![]);
    let held = Some(PauseState { left: S, cause: PauseCause::Program });
    let account = LevelState { held, ..LevelState::default() };
    let state = PacerState { version: 2, account, ..PacerState::default() };
    assert_eq!(after.restore(at(1.0), &state, Duration::ZERO), Err(NewerState { version: 2 }));
    assert!(NewerState { version: 2 }.to_string().contains("version 2"), "{}", NewerState { version: 2 });
    assert_eq!(after.export(at(1.0)), PacerState::default());
}

#[test]
fn a_part_is_the_account_and_the_scopes_that_are_named() {
    let mut before = pacer(vec![Quota::sliding(Dimension::Requests, 5, 3_600 * S)]);
    restore(&mut before, at(0.0), learnt("a", 10.0));
    restore(&mut before, at(0.0), learnt("b", 10.0));
    send(&mut before, at(1.0), "a", 1);
    let (all, part) = (before.export(at(2.0)), before.export_of(at(2.0), ["b", "nowhere"]));
    assert_eq!((part.account, part.scopes), (all.account, all.scopes[1..].to_vec()));
}

#[test]
fn what_was_granted_and_has_not_left_can_be_left_out_of_the_state() {
    let shapes = [
        Quota::sliding(Dimension::Requests, 9, 3_600 * S),
        Quota { shape: QuotaShape::Fixed, ..Quota::sliding(Dimension::Requests, 9, 3_600 * S) },
    ];
    for quota in shapes {
        let mut before = paced(Pace::Fixed, vec![quota]);
        let counted = |state: PacerState| {
            let taken = state.account.windows.into_iter().flat_map(|window| window.taken);
            taken.filter(|taken| taken.units > 0).map(|taken| (taken.ago.as_secs(), taken.units)).collect::<Vec<_>>()
        };
        send(&mut before, at(100.0), "a", 2);
        let scope = before.scope("a");
        let waiting = [1_000.0, 1_100.0]
            .map(|time| before.enqueue(at(time), Request::new(&scope, Cost::request())).expect("it fits"));
        send(&mut before, at(1_200.0), "a", 1);
        let all = counted(before.export(at(1_300.0)));
        let left = counted(before.export_without(at(1_300.0), waiting));
        assert_eq!(
            (all.iter().map(|(_, units)| units).sum::<u64>(), left.iter().map(|(_, units)| units).sum::<u64>()),
            (5, 3)
        );
        let ends = |taken: &[(u64, u64)]| [taken.first(), taken.last()].map(|taken| taken.map(|(ago, _)| *ago));
        assert_eq!(ends(&left), ends(&all), "each keeps its age");
        assert_eq!(counted(before.export(at(1_300.0))), all, "it changes nothing");
        before.complete(at(1_400.0), waiting[0], Outcome::new(Class::Success));
        let left = counted(before.export_without(at(1_400.0), waiting));
        assert_eq!(left.iter().map(|(_, units)| units).sum::<u64>(), 4, "one has ended, so it had left");
    }
}

#[test]
fn a_hold_that_is_over_is_no_part_of_the_state() {
    let mut before = pacer(vec![]);
    let held = before.scope("held");
    before.hold_for(at(0.0), Some(&held), at(10.0), PauseCause::QuotaUsedUp);
    assert_eq!(before.export(at(9.0)).scopes[0].held, Some(PauseState { left: S, cause: PauseCause::QuotaUsedUp }));
    assert!(before.export(at(10.0)).scopes.iter().all(|scope| scope.held.is_none()));
}

#[test]
fn what_another_process_learnt_counts_until_the_first_call_leaves_and_nonsense_never() {
    let rate = |pacer: &Pacer| pacer.snapshot(at(1.0)).scopes[0].estimate.clone().expect("the pace auto").rate;
    let mut after = pacer(vec![]);
    send(&mut after, at(0.0), "a", 1);
    let own = rate(&after);
    restore(&mut after, at(1.0), learnt("a", 1_000.0));
    assert_eq!(rate(&after), own, "it knows better itself");
    for nonsense in [0.0, -5.0, f64::NAN, f64::INFINITY] {
        let mut after = pacer(vec![]);
        after.scope("a");
        let own = rate(&after);
        restore(&mut after, at(1.0), learnt("a", nonsense));
        assert_eq!(rate(&after), own, "{nonsense}");
    }
}
