//! A loop inside a loop.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

#[tokio::test(start_paused = true)]
async fn two_layers_share_one_budget_and_one_place() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 1) });
    let calls = AtomicU32::new(0);
    let send = async || {
        calls.fetch_add(1, Ordering::Relaxed);
        Err::<(), _>(reset())
    };
    let layer = async || limiter.run(request(&limiter), send).await.expect("no local refusal");
    let result = limiter.run(request(&limiter), layer).await.expect("no local refusal");
    assert_eq!(result.expect_err("it never works").kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(calls.into_inner(), 3, "1 + 2 retries, not 3 x 3");
    assert_eq!(limiter.snapshot().account.totals.sends, 3);
}

#[tokio::test(start_paused = true)]
async fn every_send_inside_takes_a_permit_without_waiting_for_ones_own() {
    let limiter = limiter(fixed(vec![], None, 1));
    let other = Request::new(limiter.scope("other"), Cost::request());
    let layer = async || {
        for request in [request(&limiter), request(&limiter), other.clone()] {
            limiter.run(request, async || Ok::<(), io::Error>(())).await.expect("no local refusal")?;
        }
        Ok::<(), io::Error>(())
    };
    limiter.run(request(&limiter), layer).await.expect("no local refusal").expect("all three");
    let account = limiter.snapshot().account;
    assert_eq!((account.totals.sends, account.concurrency.in_flight), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_outer_layer_mends_is_no_failure() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 1) });
    let layer = async || {
        let failed = limiter.run(request(&limiter), async || Err::<(), _>(reset())).await.expect("no local refusal");
        assert!(failed.is_err());
        Ok::<(), io::Error>(())
    };
    limiter.run(request(&limiter), layer).await.expect("no local refusal").expect("mended");
    assert_eq!(limiter.snapshot().account.totals.sends, 1);
}

#[tokio::test(start_paused = true)]
async fn another_limiter_in_between_does_not_hide_the_outer_one() {
    let (a, b) = (limiter(fixed(vec![], None, 1)), limiter(fixed(vec![], None, 1)));
    let send = async || Ok::<(), io::Error>(());
    let inner = async || a.run(request(&a), send).await.expect("no local refusal");
    let middle = async || b.run(request(&b), inner).await.expect("no local refusal");
    a.run(request(&a), middle).await.expect("no local refusal").expect("no deadlock");
    assert_eq!((a.snapshot().account.totals.sends, b.snapshot().account.totals.sends), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_send_inside_counts_in_its_own_scope() {
    let limiter = limiter(fixed(vec![], None, 1));
    let other = Request::new(limiter.scope("other"), Cost::request());
    let layer = async || {
        let send = limiter.run(other.clone(), async || Ok::<(), io::Error>(()));
        send.await.expect("no local refusal")
    };
    limiter.run(request(&limiter), layer).await.expect("no local refusal").expect("sent");
    let sends: Vec<_> =
        limiter.snapshot().scopes.iter().map(|scope| (scope.name.clone(), scope.totals.sends)).collect();
    assert_eq!(sends, [("other".into(), 1), ("test".into(), 0)]);
}
