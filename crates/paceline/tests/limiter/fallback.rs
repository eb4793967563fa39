//! What takes the place of an answer while the API stays down.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use http::Response;
use paceline::testing::block_on;
use paceline::{Class, Error, Outcome, RunError, Sourced, UnknownOutcome};

use super::*;

/// One item whose calls all end with `outcome`, with one retry and one deferral; returns also whether the fallback was used.
async fn ends(outcome: Outcome) -> (Result<Sourced<(), &'static str>, RunError<io::Error>>, u64) {
    let retry = Retry { max_deferrals: Some(1), ..backing_off(S, 1) };
    let limiter = limiter(PacerConfig { retry, ..fixed(vec![], None, 5) });
    let run = limiter.run(async || Err::<(), _>(io::Error::other("down"))).read(|_, _| outcome.clone());
    let result = run
        .fallback(|last| async move {
            last.expect_err("the operation's last error");
            "a guess"
        })
        .await;
    assert_eq!(limiter.snapshot().account.concurrency.in_flight, 0);
    (result, limiter.snapshot().account.totals.sends)
}

#[tokio::test(start_paused = true)]
async fn it_is_used_where_the_api_stayed_down_and_nowhere_else() {
    for class in [Class::Transient, Class::Overloaded, Class::Throttled, Class::QuotaExhausted] {
        let (result, sends) = ends(Outcome::new(class)).await;
        assert_eq!((result.expect("a guess"), sends), (Sourced::Fallback("a guess"), 2), "{class}");
    }
    let (stopped, sends) = ends(Outcome::new(Class::Account)).await;
    assert_eq!((stopped.expect("a guess"), sends), (Sourced::Fallback("a guess"), 1));
    for class in [Class::Invalid, Class::Filtered] {
        let (result, sends) = ends(Outcome::new(class)).await;
        assert_eq!((result.expect_err("the item is bad").calls(), sends), (1, 1), "{class}");
    }
    for unknown in [UnknownOutcome::Fail, UnknownOutcome::Hold] {
        let (result, sends) = ends(Outcome { unknown, ..Outcome::new(Class::Transient) }).await;
        assert_eq!((result.expect_err("it may have been done").calls(), sends), (1, 1), "{unknown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_not_used_where_the_api_recovers() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 5) });
    let calls = AtomicU32::new(0);
    let send = async || match calls.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
        call => Ok(call),
    };
    let answer = limiter.run(send).when(|_| true).fallback(|_| async { unreachable!("there is an answer") }).await;
    let answer: Sourced<u32> = answer.expect("an answer");
    assert_eq!((answer.is_fallback(), answer.into_inner()), (false, 2));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_is_an_ok_is_no_answer() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 1), ..fixed(vec![], None, 5) });
    let status = |status| async move { Ok::<_, io::Error>(Response::builder().status(status).body("").expect("one")) };
    let last = |last: Result<Response<&'static str>, RunError<io::Error>>| async move {
        last.map(|last| last.status().as_u16())
    };
    let down = limiter.run(|| status(503)).fallback(last).await.expect("the fallback's");
    assert!(matches!(down, Sourced::Fallback(Ok(503))), "{down:?}");
    let bad = limiter.run(|| status(400)).fallback(last).await.expect("a final answer");
    assert!(matches!(&bad, Sourced::Answer(answer) if answer.status() == 400), "{bad:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_local_limit_is_no_outage_and_an_open_breaker_is_one() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 0), ..fixed(vec![Quota::per_hour(60)], None, 5) });
    let run = |fails: bool, item| {
        let answer = move || if fails { Err(io::Error::from(io::ErrorKind::ConnectionReset)) } else { Ok(()) };
        let send = move || std::future::ready(answer());
        limiter.run(send).item(item).within(S).fallback(|_| async { "a guess" })
    };
    let mut item = 0;
    while !matches!(limiter.snapshot().scopes.first(), Some(scope) if scope.failing_since.is_some()) {
        assert_eq!(run(true, item).await.expect("a guess"), Sourced::Fallback("a guess"));
        item += 1;
        assert!(item < 60, "the breaker opens");
    }
    let sent = limiter.snapshot().account.totals.sends;
    assert_eq!(run(false, item).await.expect("a guess"), Sourced::Fallback("a guess"), "nothing leaves");
    assert_eq!(limiter.snapshot().account.totals.sends, sent);

    let full = super::limiter(fixed(vec![Quota::per_hour(1)], None, 5));
    let send = async || Ok::<_, io::Error>(());
    let run = || full.run(send).within(S).fallback(|_| async { "a guess" });
    assert_eq!(run().await.expect("room"), Sourced::Answer(()));
    let late = run().await.expect_err("an hour is too long");
    assert!(matches!(late, RunError::Limiter(Error::DeadlineExceeded { .. })), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn inside_another_run_the_outer_fallback_is_used() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 5) });
    let calls = AtomicU32::new(0);
    let send = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset))
    };
    let inner = async || {
        let never = limiter.run(send).fallback(|_| async { unreachable!("the outer run tries again") }).await;
        never.map(|_: Sourced<(), ()>| ()).map_err(|error| error.into_operation().expect("it was called"))
    };
    let outer = limiter.run(inner).fallback(|_| async { "a guess" }).await.expect("a guess");
    assert_eq!((outer, calls.into_inner()), (Sourced::Fallback("a guess"), 3));
}

#[test]
fn a_program_without_async_has_it_too() {
    let limiter = limiter(PacerConfig { retry: backing_off(S / 1_000, 1), ..fixed(vec![], None, 5) });
    let send = || Err::<(), _>(io::Error::from(io::ErrorKind::ConnectionReset));
    let value = limiter.blocking().run(send).fallback(|_| std::future::ready("a guess")).call();
    assert_eq!(value.expect("a guess"), Sourced::Fallback("a guess"));
}

/// It goes wherever its operation and its fallback go.
#[test]
fn it_can_be_spawned_and_holds_nothing_while_it_runs() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    block_on(async {
        let limiter = limiter(PacerConfig { retry: backing_off(S, 0), ..fixed(vec![], None, 1) });
        let down = async || Err::<(), io::Error>(io::ErrorKind::ConnectionReset.into());
        let (falls, others) = (limiter.clone(), limiter.clone());
        let falls = tokio::spawn(async move {
            let slow = |_| async { tokio::time::sleep(3_600 * S).await };
            is_send(falls.run(down).fallback(slow)).await
        });
        tokio::time::sleep(S).await;
        let began = others.now();
        others.run(async || Ok::<_, io::Error>(())).await.expect("the only place is free");
        assert!(others.now() - began < S);
        assert!(falls.await.expect("no panic").expect("its value").is_fallback());
    });
}
