//! Permits: given, awaited, given up, returned.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;

use paceline::{Class, Error, Level, NextAction, NotNow, WaitCause, WaitReason};
use tokio::time::Duration;

use super::*;

/// Polls a future that many times, then drops it. `None`: it was not ready by then.
async fn poll_times<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    for _ in 0..times {
        let ready = poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(value) = ready.await {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_dropped_wait_leaves_no_trace() {
    for polls in 0..4 {
        let limiter = limiter(fixed(vec![], None, 1));
        let held = limiter.acquire(request(&limiter)).await.expect("the only place");
        assert!(poll_times(polls, limiter.acquire(request(&limiter))).await.is_none());
        assert_eq!(limiter.snapshot().account.waiting, 0, "after {polls} polls");
        held.complete(success());
        assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
        limiter.try_acquire(request(&limiter)).expect("the place is free").complete(success());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_after_its_grant_returns_the_permit() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.acquire(request(&limiter)).await.expect("the only place");
    {
        let mut waiting = pin!(limiter.acquire(request(&limiter)));
        assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        held.complete(success());
        assert_eq!(limiter.snapshot().account.concurrency.in_flight, 1, "granted, not yet noticed");
    }
    let snapshot = limiter.snapshot().account;
    assert_eq!((snapshot.concurrency.in_flight, snapshot.waiting), (0, 0));
    assert_eq!(snapshot.totals.sends, 1, "a call that was not sent is not counted");
}

#[tokio::test(start_paused = true)]
async fn an_earlier_due_time_wakes_the_timer_early() {
    let limiter = limiter(fixed(vec![], None, 10));
    let start = limiter.now();
    let mut waits = Vec::new();
    for seconds in [20, 1] {
        let limiter = limiter.clone();
        waits.push(tokio::spawn(async move {
            let not_before = Some(start + seconds * S);
            drop(limiter.acquire(Request { not_before, ..request(&limiter) }).await.expect("a wait is no error"));
            limiter.now() - start
        }));
        // The timer sets itself to what it knows so far.
        tokio::time::advance(S / 100).await;
    }
    for (wait, seconds) in waits.into_iter().zip([20, 1]) {
        let waited = wait.await.expect("no panic");
        assert!((seconds * S..seconds * S + S / 100).contains(&waited), "{waited:?} instead of {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_returns_the_permit() {
    let limiter = limiter(fixed(vec![], None, 1));
    let task = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.run(async || -> Result<(), std::io::Error> { panic!("a bug") }).await }
    });
    assert!(task.await.expect_err("it panicked").is_panic());
    let snapshot = limiter.snapshot().account;
    assert_eq!((snapshot.concurrency.in_flight, snapshot.totals.of(Class::Abandoned)), (0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_thousand_tasks_on_eight_threads_lose_no_wake_up() {
    let limiter = limiter(fixed(vec![], None, 16));
    let (running, peak) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let tasks: Vec<_> = (0..1_000u32)
        .map(|index| {
            let (limiter, running, peak) = (limiter.clone(), running.clone(), peak.clone());
            tokio::spawn(async move {
                let permit = limiter.acquire(request(&limiter)).await.expect("never stopped");
                peak.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                match index % 3 {
                    0 => drop(permit),
                    _ => drop(permit.complete(success())),
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task panics");
    }
    assert!(peak.load(Ordering::SeqCst) <= 16);
    let account = limiter.snapshot().account;
    assert_eq!((account.waiting, account.concurrency.in_flight, account.totals.sends), (0, 0, 1_000));
    assert_eq!(account.totals.of(Class::Abandoned), 334);
}

#[tokio::test(start_paused = true)]
async fn clones_share_one_budget() {
    let first = limiter(fixed(vec![requests(2, 60 * S)], Some(2), 50));
    let second = first.clone();
    drop(first.try_acquire(request(&first)).expect("one"));
    drop(second.try_acquire(request(&second)).expect("two"));
    let refusal = first.try_acquire(request(&first)).expect_err("two a minute");
    let NotNow::Wait {
        after: Some(after),
        reason: WaitReason { level: Level::Account, cause: WaitCause::Quota { limit: 2, .. } },
    } = refusal
    else {
        panic!("{refusal:?}");
    };
    assert!(after <= 61 * S && after >= 59 * S, "{after:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_costs_nothing() {
    let limiter = limiter(fixed(vec![requests(1, S)], Some(1), 50));
    drop(limiter.try_acquire(request(&limiter)).expect("the first"));
    for _ in 0..100 {
        limiter.try_acquire(request(&limiter)).expect_err("one a second");
    }
    tokio::time::advance(S + Duration::from_millis(20)).await;
    drop(limiter.try_acquire(request(&limiter)).expect("a second later"));
    assert_eq!(limiter.snapshot().account.totals.sends, 2);
}

#[tokio::test(start_paused = true)]
async fn local_refusals_carry_their_numbers() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 50));
    let mut two = request(&limiter);
    two.cost.set(Dimension::Requests, 2);
    let Err(Error::TooLarge(numbers)) = limiter.acquire(two).await else { panic!("it can never start") };
    assert_eq!((numbers.cost, numbers.limit), (2, 1));

    drop(limiter.acquire(request(&limiter)).await.expect("the first"));
    let deadline = Some(limiter.now() + 90 * S);
    let error = limiter.acquire(Request { deadline, ..request(&limiter) }).await.expect_err("an hour to wait");
    let Error::DeadlineExceeded { waited: Duration::ZERO, needed: Some(needed) } = error else { panic!("{error:?}") };
    assert!(needed > 3_590 * S && needed < 3_601 * S, "{needed:?}: an hour, and not the 90 s");

    let busy = self::limiter(fixed(vec![], None, 1));
    let first = busy.acquire(request(&busy)).await.expect("the only place");
    let deadline = Some(busy.now() + 90 * S);
    let late = busy.acquire(Request { deadline, ..request(&busy) }).await.expect_err("the place does not come free");
    let Error::DeadlineExceeded { waited, needed: None } = late else { panic!("{late:?}") };
    assert!(waited >= 90 * S && waited < 91 * S, "{waited:?}");
    drop(first);

    let past = limiter.acquire(Request { deadline: Some(limiter.now()), ..request(&limiter) }).await;
    assert!(matches!(past, Err(Error::DeadlineExceeded { waited: Duration::ZERO, .. })), "{past:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_tells_those_who_wait_and_those_who_come_until_it_ends() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.acquire(request(&limiter)).await.expect("the only place");
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(request(&limiter)).await }
    });
    tokio::task::yield_now().await;
    limiter.stop(None, "invalid api key");
    let expected = Error::Stopped { scope: "the account".into(), reason: "invalid api key".into() };
    assert_eq!(waiting.await.expect("no panic").expect_err("stopped"), expected);
    assert_eq!(limiter.acquire(request(&limiter)).await.expect_err("stopped"), expected);
    assert_eq!(limiter.try_acquire(request(&limiter)).expect_err("stopped"), NotNow::Never(expected));
    limiter.resume(None);
    held.complete(success());
    drop(limiter.acquire(request(&limiter)).await.expect("resumed"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_one_scope_concerns_its_own_callers_and_its_end_no_other_stop() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let (test, other) = (limiter.scope("test"), limiter.scope("other"));
    let in_other = Request::new(&other, Cost::request());
    let mut elsewhere = pin!(limiter.acquire(in_other.clone()));
    assert!(poll_fn(|context| Poll::Ready(elsewhere.as_mut().poll(context).is_pending())).await);
    limiter.stop(Some(&test), "a test");
    assert!(poll_fn(|context| Poll::Ready(elsewhere.as_mut().poll(context).is_pending())).await, "it goes on waiting");

    limiter.stop(Some(&other), "another");
    let error = elsewhere.await.expect_err("now it is stopped too");
    assert_eq!(error, Error::Stopped { scope: "other".into(), reason: "another".into() });
    limiter.resume(Some(&other));
    let error = limiter.acquire(request(&limiter)).await.expect_err("still stopped");
    assert_eq!(error, Error::Stopped { scope: "test".into(), reason: "a test".into() });
    limiter.resume(None);
    for request in [request(&limiter), in_other] {
        let wait = limiter.try_acquire(request).expect_err("the place is taken");
        assert!(matches!(wait, NotNow::Wait { .. }), "{wait}");
    }
    held.complete(success());
    drop(limiter.try_acquire(request(&limiter)).expect("open"));
}

#[tokio::test(start_paused = true)]
async fn what_is_mended_ends_stops_and_no_hold() {
    let limiter = limiter(fixed(vec![], None, 1));
    let (held, stopped) = (limiter.scope("held"), limiter.scope("stopped"));
    limiter.hold(Some(&held), limiter.now() + Duration::from_secs(60));
    for scope in [None, Some(&held), Some(&stopped)] {
        limiter.stop(scope, "a bad key");
    }
    limiter.end_stops();
    drop(limiter.try_acquire(Request::new(&stopped, Cost::request())).expect("open"));
    let wait = limiter.try_acquire(Request::new(&held, Cost::request())).expect_err("still held");
    assert!(matches!(wait, NotNow::Wait { .. }), "{wait}");
}

#[tokio::test(start_paused = true)]
async fn an_account_answer_stops_its_scope_alone() {
    let limiter = limiter(fixed(vec![], None, 10));
    let other = Request::new(limiter.scope("other"), Cost::request());
    let permit = limiter.acquire(request(&limiter)).await.expect("open");
    permit.complete(Outcome::new(Class::Account));
    assert!(matches!(limiter.acquire(request(&limiter)).await, Err(Error::Stopped { .. })));
    drop(limiter.acquire(other).await.expect("another scope goes on"));
}

#[tokio::test(start_paused = true)]
async fn a_permit_says_whether_its_call_tests_a_failing_server() {
    let limiter = limiter(fixed(vec![], None, 100));
    for _ in 0..20 {
        let permit = limiter.acquire(request(&limiter)).await.expect("a wait is no error");
        assert!(!permit.is_probe());
        permit.complete(Outcome::new(Class::Transient));
    }
    let probe = limiter.acquire(request(&limiter)).await.expect("a wait is no error");
    assert!(probe.is_probe());
    probe.complete(success());
}

#[tokio::test(start_paused = true)]
async fn a_hold_makes_wait_and_then_lets_go() {
    let limiter = limiter(fixed(vec![], None, 10));
    let start = limiter.now();
    limiter.hold(None, start + 7_200 * S);
    drop(limiter.acquire(request(&limiter)).await.expect("a wait is no error"));
    let waited = limiter.now() - start;
    assert!(waited >= 7_200 * S && waited < 7_201 * S, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn closing_lets_all_callers_go() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.acquire(request(&limiter)).await.expect("the only place");
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(request(&limiter)).await }
    });
    tokio::task::yield_now().await;
    limiter.close();
    assert_eq!(waiting.await.expect("no panic").expect_err("closed"), Error::Closed);
    assert_eq!(limiter.acquire(request(&limiter)).await.expect_err("closed"), Error::Closed);
    assert_eq!(limiter.try_acquire(request(&limiter)).expect_err("closed"), NotNow::Never(Error::Closed));
    held.complete(success());
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn new_limits_reach_those_who_wait() {
    let limiter = limiter(fixed(vec![requests(1, 3_600 * S)], None, 10));
    drop(limiter.acquire(request(&limiter)).await.expect("the first"));
    let start = limiter.now();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(request(&limiter)).await.map(drop) }
    });
    tokio::task::yield_now().await;
    limiter.reconfigure(fixed(vec![requests(100, 3_600 * S)], None, 10)).expect("wider limits");
    waiting.await.expect("no panic").expect("room enough");
    assert!(limiter.now() - start < S);
}

#[tokio::test(start_paused = true)]
async fn new_limits_tell_those_who_wait_when_they_leave_no_room_for_them() {
    let tokens = |limit| Quota::sliding(Dimension::Tokens, limit, 60 * S);
    let limiter = limiter(fixed(vec![tokens(100)], None, 10));
    let of = |units| Request { cost: Cost::request().with(Dimension::Tokens, units), ..request(&limiter) };
    limiter.try_acquire(of(90)).expect("the first").complete(success());
    let mut waiting = pin!(limiter.acquire(of(80)));
    assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
    limiter.reconfigure(fixed(vec![tokens(70)], None, 10)).expect("sensible");
    let Err(Error::TooLarge(error)) = waiting.await else { panic!("it can never start") };
    assert_eq!((error.cost, error.limit), (80, 70));
    assert_eq!(limiter.snapshot().account.waiting, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_comes_tells_a_deadline_before_its_end_to_those_who_wait() {
    let limiter = limiter(fixed(vec![], None, 1));
    let held = limiter.try_acquire(request(&limiter)).expect("the only place");
    let deadline = Some(limiter.now() + 30 * S);
    let mut waiting = pin!(limiter.acquire(Request { deadline, ..request(&limiter) }));
    assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
    tokio::time::advance(S).await;
    let before = limiter.now();
    held.complete(Outcome::new(Class::Throttled).with_hint(60 * S, false));
    let error = waiting.await.expect_err("30 s are not enough");
    assert_eq!(error, Error::DeadlineExceeded { waited: S, needed: Some(60 * S) });
    assert_eq!(limiter.now(), before, "at once");
}

#[test]
fn waiting_survives_the_end_of_one_runtime() {
    let limiter = limiter(fixed(vec![requests(1, S)], Some(1), 10));
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            tokio::time::timeout(S / 2, limiter.acquire(request(&limiter))).await.ok();
            let mut waiting = pin!(limiter.acquire(request(&limiter)));
            assert!(poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending())).await);
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        drop(limiter.acquire(request(&limiter)).await.expect("a new timer in a new runtime"));
    });
}

#[tokio::test(start_paused = true)]
async fn what_is_known_of_a_limit_is_said_before_what_is_learnt() {
    let limiter = Limiter::with_seed(Quota::per_minute(60), 1).expect("a limit");
    for _ in 0..50 {
        let permit = limiter.acquire(limiter.scope("chat")).await.expect("a permit");
        assert_eq!(permit.complete_with(&Ok::<(), std::io::Error>(())), NextAction::Done);
    }
    let text = limiter.explain();
    assert!(text.ends_with("; the limit is 60 requests per 60s"), "{text}");
    let refused = limiter.acquire(limiter.scope("chat")).await.expect("a permit");
    let action = refused.complete_with(&Err::<(), _>(std::io::Error::other("reset")));
    assert!(matches!(action, NextAction::Retry { .. }), "{action:?}");
}

#[tokio::test(start_paused = true)]
async fn one_line_explains_what_calls_wait_for() {
    let limiter = limiter(fixed(vec![requests(2, 60 * S)], None, 5));
    assert_eq!(limiter.explain(), "0 of 5 calls in flight, 0 waiting");
    let call = async |scope: &str| limiter.acquire(Request::new(limiter.scope(scope), Cost::request())).await;
    let waiting = async {
        let _first = call("a").await;
        let _second = call("a").await;
        tokio::join!(call("a"), call("b"), async {
            tokio::time::sleep(20 * S).await;
            let in_flight = "2 of 5 calls in flight, 2 waiting; in a the next call waits ";
            assert_eq!(limiter.explain(), format!("{in_flight}40s for the limit of 2 requests per 60s"));
            limiter.hold(Some(&limiter.scope("b")), limiter.now() + 3_600 * S);
            assert!(limiter.explain().ends_with("; in b nothing leaves for 1h 00m: this program has set the hold"));
            limiter.stop(None, "no credit is left");
            assert!(limiter.explain().ends_with("; nothing leaves until a person acts: no credit is left"));
        })
    };
    let ended = tokio::time::timeout(21 * S, waiting).await;
    assert!(ended.is_err() || ended.is_ok_and(|(a, b, ())| a.is_err() && b.is_err()), "a stop refuses who waits");
}

/// Behind a busy thread the calls of two windows are polled together.
#[tokio::test(start_paused = true)]
async fn callers_that_are_polled_late_send_no_more_than_the_limit_in_any_window() {
    let limiter = limiter(fixed(vec![Quota::sliding(Dimension::Requests, 10, S)], Some(10), 100));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let mut calls: Vec<_> = (0..40).map(|_| Box::pin(limiter.acquire(request(&limiter)))).collect();
    let (mut sent, mut permits) = (Vec::new(), Vec::new());
    // Polled at once, and then seldom: what is granted meanwhile waits for that.
    for seconds in [0.0, 2.9, 0.3, 1.7, 2.4, 1.2, 2.2, 1.1] {
        tokio::time::sleep(S.mul_f64(seconds)).await;
        calls.retain_mut(|call| match call.as_mut().poll(context) {
            Poll::Ready(permit) => {
                sent.push(limiter.now());
                permits.push(permit.expect("a wait is no error"));
                false
            }
            Poll::Pending => true,
        });
    }
    assert_eq!(sent.len(), 40, "all have left");
    for (first, from) in sent.iter().enumerate() {
        let within = sent[first..].iter().take_while(|at| **at - *from < S).count();
        assert!(within <= 10, "{within} of 10 in the second from {from}");
    }
    let account = limiter.snapshot().account;
    assert_eq!((account.totals.sends, account.waiting), (40, 0), "each counts once");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_again_hears_that_the_limiter_is_closed() {
    let limiter = limiter(fixed(vec![Quota::sliding(Dimension::Requests, 1, S)], Some(1), 100));
    let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
    let first = limiter.try_acquire(request(&limiter)).expect("the first");
    let mut late = pin!(limiter.acquire(request(&limiter)));
    assert!(late.as_mut().poll(context).is_pending());
    tokio::time::sleep(S * 3).await;
    drop(limiter.acquire(request(&limiter)).await.expect("in place of the late one"));
    limiter.close();
    assert!(matches!(late.as_mut().poll(context), Poll::Ready(Err(Error::Closed))));
    drop(first);
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
}
