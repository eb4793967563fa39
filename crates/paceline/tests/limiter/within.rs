//! A permit, unless the wait is long.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use paceline::{Class, Error, Level, MaxWait, Outcome, PauseCause, WaitCause, Within};

use super::*;

/// Until when, in seconds from then, and whose rule.
fn deferred(within: Result<Within, Error>, from: Instant) -> (u64, Level, WaitCause) {
    match within {
        Ok(Within::Deferred { until, reason }) => ((until - from).as_secs(), reason.level, reason.cause),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_known_hold_is_told_at_once_and_a_shorter_one_is_waited_for() {
    let limiter = limiter(fixed(vec![], None, 9));
    let start = limiter.now();
    limiter.hold(None, start + 60 * S);
    let result = limiter.acquire_within(request(&limiter), 5 * S).await;
    assert_eq!(deferred(result, start), (60, Level::Account, WaitCause::Held { cause: PauseCause::Program }));
    assert_eq!((limiter.now(), limiter.snapshot().account.waiting), (start, 0));
    let Ok(Within::Granted(permit)) = limiter.acquire_within(request(&limiter), 60 * S).await else {
        panic!("it takes a minute")
    };
    assert!(limiter.now() - start >= 60 * S);
    permit.complete(success());
    assert_eq!(sends(&limiter), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_comes_is_told_to_those_who_wait_and_to_no_other() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let mut within = pin!(limiter.acquire_within(request(&limiter), 30 * S));
    let mut patient = pin!(limiter.acquire_within(request(&limiter), 90 * S));
    let mut any_wait = pin!(limiter.acquire(Request { max_wait: Some(S.into()), ..request(&limiter) }));
    poll_fn(|context| {
        assert!(within.as_mut().poll(context).is_pending() && patient.as_mut().poll(context).is_pending());
        assert!(any_wait.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    tokio::time::advance(S).await;
    let now = limiter.now();
    held.complete(Outcome::new(Class::Throttled).with_hint(60 * S, false));
    let cause = PauseCause::Throttled { asked: true };
    assert_eq!(deferred(within.await, now), (60, Level::Scope, WaitCause::Gate { cause }));
    assert_eq!(limiter.now(), now, "at once");
    assert_eq!(limiter.snapshot().account.waiting, 2);
    let Ok(Within::Granted(permit)) = patient.await else { panic!("it takes 90 s") };
    permit.complete(success());
    any_wait.await.expect("a wait is no error").complete(success());
}

#[tokio::test(start_paused = true)]
async fn a_used_up_limit_is_told_unless_only_pauses_count() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 9));
    limiter.try_acquire(request(&limiter)).expect("the first").complete(success());
    let start = limiter.now();
    let result = limiter.acquire_within(request(&limiter), 5 * S).await;
    let (seconds, level, policy) = deferred(result, start);
    assert!((3_599..=3_601).contains(&seconds) && level == Level::Account, "{seconds} s, {level:?}");
    assert!(matches!(policy, WaitCause::Quota { limit: 1, .. }), "{policy}");
    let Ok(Within::Granted(permit)) = limiter.acquire_within(request(&limiter), MaxWait::Pause(5 * S)).await else {
        panic!("a limit is no pause")
    };
    permit.complete(success());
    assert!(limiter.now() - start > 3_598 * S);
}

#[tokio::test(start_paused = true)]
async fn to_wait_behind_others_is_no_long_wait() {
    let limiter = limiter(fixed(vec![requests(1, S)], Some(1), 9));
    let start = limiter.now();
    let calls = (0..20).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(
            async move { matches!(limiter.acquire_within(request(&limiter), 2 * S).await, Ok(Within::Granted(_))) },
        )
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.expect("no panic"));
    }
    assert!(limiter.now() - start >= 19 * S);
}

#[tokio::test(start_paused = true)]
async fn stopped_closed_and_impossible_are_errors_as_ever() {
    let limiter = limiter(fixed(vec![requests(1, 60 * S)], None, 9));
    limiter.hold(None, limiter.now() + 600 * S);
    let mut two = request(&limiter);
    two.cost.set(Dimension::Requests, 2);
    let result = limiter.acquire_within(two, S).await;
    assert!(matches!(result, Err(Error::TooLarge(_))), "{result:?}");
    limiter.stop(Some(&limiter.scope("test")), "a bad key");
    let result = limiter.acquire_within(request(&limiter), S).await;
    assert!(matches!(result, Err(Error::Stopped { .. })), "{result:?}");
    limiter.close();
    let result = limiter.acquire_within(request(&limiter), S).await;
    assert!(matches!(result, Err(Error::Closed)), "{result:?}");
}

#[test]
fn a_blocked_thread_is_told_too() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let waiting = std::thread::spawn({
        let limiter = limiter.clone();
        move || limiter.blocking().acquire_within(request(&limiter), S)
    });
    while limiter.snapshot().account.waiting == 0 {
        std::thread::yield_now();
    }
    let now = limiter.now();
    limiter.hold(None, now + 60 * S);
    let result = waiting.join().expect("no panic");
    assert_eq!(deferred(result, now), (60, Level::Account, WaitCause::Held { cause: PauseCause::Program }));
    held.complete(success());
}
