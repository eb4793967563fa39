//! What a limiter knows goes on after a restart.

use std::time::Duration;

use paceline::{
    Class, Cost, Dimension, Limiter, LimiterState, Limits, NewerState, Outcome, PacerConfig, PacerState, PauseCause,
    Quota, QuotaShape, Request, Timestamp,
};

const HOUR: i64 = 3_600_000;

fn hourly() -> Limiter {
    let quota = |shape| Quota { shape, ..Quota::sliding(Dimension::Requests, 5, S * 3_600) };
    let quotas = vec![quota(QuotaShape::Sliding), quota(QuotaShape::Fixed), quota(QuotaShape::Bucket { burst: 5 })];
    let config = PacerConfig { limits: Limits { quotas, burst: Some(5) }, ..PacerConfig::default() };
    Limiter::with_seed(config, 1).expect("sensible")
}

const S: Duration = Duration::from_secs(1);

fn send(limiter: &Limiter, scope: &str) -> bool {
    let request = Request::new(limiter.scope(scope), Cost::request());
    let permit = limiter.try_acquire(request);
    permit.is_ok_and(|permit| {
        permit.complete(Outcome::new(Class::Success));
        true
    })
}

/// As a file keeps it, and as old as that.
fn kept(state: &LimiterState, ago_ms: i64) -> LimiterState {
    let text = serde_json::to_string(state).expect("it can be written");
    let state: LimiterState = serde_json::from_str(&text).expect("it can be read");
    LimiterState { at: Timestamp::from_millis(state.at.as_millis() - ago_ms), ..state }
}

#[test]
fn an_hourly_limit_holds_over_a_restart_and_a_clock_that_is_set_back() {
    let before = hourly();
    assert!(["a", "b"].iter().all(|scope| send(&before, scope)));
    for (ago, remaining) in [(0, 3), (-48 * HOUR, 3), (HOUR / 2, 3), (2 * HOUR, 5)] {
        let after = hourly();
        after.restore(&kept(&before.export(), ago)).expect("the present version");
        let quotas = after.snapshot().account.quotas;
        // Half an hour has refilled more than the two that a bucket lacks.
        let expected = [remaining, remaining, if ago == HOUR / 2 { 5 } else { remaining }];
        assert_eq!(quotas.iter().map(|quota| quota.remaining).collect::<Vec<_>>(), expected, "{ago} ms ago");
    }
}

#[test]
fn a_hold_lasts_no_longer_than_it_had_left() {
    let before = hourly();
    before.hold_for(Some(&before.scope("a")), before.now() + S * 3_600, PauseCause::QuotaUsedUp);
    for (ago, left) in [(0, 3_600), (-48 * HOUR, 3_600), (HOUR / 4, 2_700), (2 * HOUR, 0)] {
        let after = hourly();
        after.restore(&kept(&before.export(), ago)).expect("the present version");
        let held = after.export().pacer.scopes.first().and_then(|scope| scope.held);
        let seconds = held.map_or(0.0, |held| held.left.as_secs_f64());
        assert!((seconds - f64::from(left)).abs() < 5.0, "{ago} ms ago: {seconds} s");
        assert!(held.is_none_or(|held| held.cause == PauseCause::QuotaUsedUp));
    }
}

#[test]
fn it_is_written_as_plain_numbers_and_words() {
    let before = hourly();
    assert!(send(&before, "a"));
    before.hold_for(Some(&before.scope("a")), before.now() + S * 60, PauseCause::QuotaUsedUp);
    let state: serde_json::Value = serde_json::to_value(before.export()).expect("it can be written");
    assert_eq!((&state["version"], state["at_ms"].is_i64()), (&1.into(), true));
    let window = &state["account"]["windows"][2];
    assert_eq!(window["dimension"], "requests");
    assert_eq!((&window["window_ms"], &window["shape"]["bucket"]["burst"]), (&3_600_000.into(), &5.into()));
    assert_eq!((&window["taken"][0]["units"], window["taken"][0]["ago_ms"].is_u64()), (&1.into(), true));
    let held = &state["scopes"][0]["held"];
    assert!(held["left_ms"].as_u64().is_some_and(|left| left > 59_000), "{held}");
    assert_eq!(held["cause"], "a used-up quota to refill");
}

#[test]
fn a_later_version_is_refused_and_what_is_not_known_is_passed_over() {
    let limiter = hourly();
    let text = r#"{"version":2,"at_ms":0,"account":{"stopped":"a word of version 2"}}"#;
    let state: LimiterState = serde_json::from_str(text).expect("it can be read");
    assert_eq!(limiter.restore(&state), Err(NewerState { version: 2 }));
    assert!(send(&limiter, "a"));
    let text = r#"{"version":1,"at_ms":0,"account":{"name":"","mood":"new"},"scopes":[{"name":"a","stopped":"now"}]}"#;
    let state: LimiterState = serde_json::from_str(text).expect("it can be read");
    limiter.restore(&state).expect("the present version");
    assert!(!send(&limiter, "a") && send(&limiter, "b"));
}

#[tokio::test(start_paused = true)]
async fn two_limiters_of_an_account_take_turns() {
    let (one, other) = (hourly(), hourly());
    other.yield_turn();
    assert!(["a", "b", "c", "d"].iter().all(|scope| send(&one, scope)));
    let waits = tokio::spawn({
        let other = other.clone();
        async move { other.acquire(Request::new(other.scope("a"), Cost::request())).await.map(drop) }
    });
    tokio::time::sleep(S).await;
    assert!(!waits.is_finished(), "it is not its turn");
    one.yield_turn();
    let told = one.own_windows().expect("four have left");
    assert_eq!(one.own_windows(), None);
    other.take_turn(&[kept(&told, 0)]).expect("the present version");
    waits.await.expect("no panic").expect("one was left");
    assert!(!send(&other, "b"), "and now none is");
    let later = PacerState { version: 2, ..told.pacer };
    assert_eq!(other.take_turn(&[LimiterState { pacer: later, ..told }]), Err(NewerState { version: 2 }));
}
