//! Calls whose outcomes are not reported.

use std::pin::pin;
use std::task::{Context, Waker};

use paceline::{Error, NotNow, ScopeState, Unreported, WaitCause};

use super::*;

fn fixed_pace(limits: impl Into<Limits>) -> Limiter {
    limiter(PacerConfig::from(limits.into()).with_pace(Pace::Fixed).with_max_retries(0))
}

/// How many of so many calls may be made at once.
fn at_once(calls: &Unreported, times: u64) -> u64 {
    (0..times).map(|_| u64::from(calls.try_acquire().is_ok())).sum()
}

#[tokio::test(start_paused = true)]
async fn they_have_the_limits_of_all_others() {
    let limiter = fixed_pace(Quota::per_minute(60).burst(10));
    let calls = limiter.unreported("a");
    assert_eq!(at_once(&calls, 7), 7);
    call_blocking(&limiter, 1);
    assert_eq!(at_once(&calls, 9), 2);
    let Err(NotNow::Wait { after, reason }) = calls.try_acquire() else { panic!("ten are all") };
    assert_eq!((after, matches!(reason.cause, WaitCause::Quota { .. })), (Some(S), true));
    assert_eq!(limiter.snapshot().account.totals.sends, 10);
    tokio::time::advance(3 * S).await;
    assert_eq!(at_once(&calls, 9), 3);
}

#[tokio::test(start_paused = true)]
async fn a_window_counts_each_when_it_left_however_late_the_next_call_comes() {
    let limiter = fixed_pace(Limits { quotas: vec![Quota::per_minute(60)], burst: Some(60) });
    let calls = limiter.unreported("a");
    assert_eq!(at_once(&calls, 40), 40);
    tokio::time::advance(59 * S).await;
    assert_eq!(at_once(&calls, 40), 20, "in any minute");
    tokio::time::advance(S + S / 100).await;
    assert_eq!(limiter.snapshot().account.quotas[0].remaining, 40);
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_go_first() {
    let limiter = fixed_pace(Quota::per_second(1).burst(1));
    let calls = limiter.unreported("a");
    calls.acquire().await.expect("the first");
    let start = limiter.now();
    let mut waiting = pin!(calls.acquire());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    tokio::time::advance(S).await;
    assert_eq!(at_once(&calls, 1), 0, "it is the turn of the one that waits");
    waiting.await.expect("a wait is no error");
    assert_eq!(limiter.now() - start, S);
}

#[tokio::test(start_paused = true)]
async fn a_hold_a_stop_and_new_limits_act_at_once() {
    let limiter = fixed_pace(Quota::per_hour(1_000));
    let (calls, others) = (limiter.unreported("a"), limiter.unreported("b"));
    assert_eq!(at_once(&calls, 5), 5);
    limiter.hold(Some(&limiter.scope("a")), limiter.now() + S);
    assert_eq!((at_once(&calls, 5), at_once(&others, 5)), (0, 5));
    tokio::time::advance(2 * S).await;
    // After a pause one call goes first, and its outcome is not reported: the next one may leave then.
    assert_eq!(at_once(&calls, 5), 5);
    limiter.stop(None, "enough");
    assert!(matches!(calls.try_acquire(), Err(NotNow::Never(Error::Stopped { .. }))));
    limiter.resume(None);
    limiter.reconfigure(PacerConfig::from(Quota::per_hour(20)).with_pace(Pace::Fixed)).expect("sensible");
    assert_eq!(at_once(&others, 9), 5, "fifteen have left");
    limiter.close();
    assert!(matches!(calls.try_acquire(), Err(NotNow::Never(Error::Closed))));
    assert!(matches!(calls.acquire().await, Err(Error::Closed)));
}

#[tokio::test(start_paused = true)]
async fn each_call_takes_its_cost_from_every_budget() {
    let budget = |dimension, limit| Quota::per_minute(limit).burst(limit).of(dimension);
    let limiter = fixed_pace([budget(Dimension::Requests, 9), budget(Dimension::Tokens, 1_000)]);
    let large = limiter.unreported(Request::new("a", Cost::request().with(Dimension::Tokens, 300)));
    let small = limiter.unreported(Request::new("a", Cost::request().with(Dimension::Tokens, 20)));
    assert_eq!((at_once(&large, 5), at_once(&small, 20)), (3, 5));
    let never = limiter.unreported(Request::new("a", Cost::request().with(Dimension::Tokens, 1_001)));
    assert!(matches!(never.try_acquire(), Err(NotNow::Never(Error::TooLarge { .. }))));
}

#[tokio::test(start_paused = true)]
async fn under_a_pace_that_learns_they_are_limited_as_well() {
    let limiter = limiter(Quota::per_second(100).burst(3).into());
    let calls = limiter.unreported("a");
    assert_eq!(at_once(&calls, 5), 3);
    let snapshot = limiter.snapshot();
    assert_eq!((snapshot.account.totals.sends, snapshot.account.concurrency.in_flight), (3, 0));
    assert_eq!(snapshot.scopes[0].state, ScopeState::Paced);
    tokio::time::advance(S).await;
    let permit = limiter.try_acquire("a").expect("a second later");
    drop(permit.complete(Outcome::new(paceline::Class::Throttled).with_hint(60 * S, true)));
    assert_eq!(at_once(&calls, 5), 0, "the server asked for a minute");
}
