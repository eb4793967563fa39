//! A loop inside a loop.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use paceline::RunError;

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
    let layer = async || limiter.run(send).await;
    let failed = limiter.run(layer).await.expect_err("it never works");
    let inner = failed.into_operation().expect("the layer was called").into_operation().expect("it was sent");
    assert_eq!(inner.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(calls.into_inner(), 3, "1 + 2 retries, not 3 x 3");
    assert_eq!(limiter.snapshot().account.totals.sends, 3);
}

#[tokio::test(start_paused = true)]
async fn every_send_inside_takes_a_permit_without_waiting_for_ones_own() {
    let limiter = limiter(fixed(vec![], None, 1));
    let other = Request::new(limiter.scope("other"), Cost::request());
    let layer = async || {
        for request in [request(&limiter), request(&limiter), other.clone()] {
            limiter.run(async || Ok::<(), io::Error>(())).request(request).await?;
        }
        Ok::<(), RunError<io::Error>>(())
    };
    limiter.run(layer).request(request(&limiter)).await.expect("all three");
    let account = limiter.snapshot().account;
    assert_eq!((account.totals.sends, account.concurrency.in_flight), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_the_outer_layer_mends_is_no_failure() {
    let limiter = limiter(PacerConfig { retry: backing_off(S, 2), ..fixed(vec![], None, 1) });
    let layer = async || {
        limiter.run(async || Err::<(), _>(reset())).await.expect_err("the cable is cut");
        Ok::<(), io::Error>(())
    };
    limiter.run(layer).await.expect("mended");
    assert_eq!(limiter.snapshot().account.totals.sends, 1);
}

#[tokio::test(start_paused = true)]
async fn another_limiter_in_between_does_not_hide_the_outer_one() {
    let (a, b) = (limiter(fixed(vec![], None, 1)), limiter(fixed(vec![], None, 1)));
    let send = async || Ok::<(), io::Error>(());
    let inner = async || a.run(send).await;
    let middle = async || b.run(inner).await;
    a.run(middle).await.expect("no deadlock");
    assert_eq!((a.snapshot().account.totals.sends, b.snapshot().account.totals.sends), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_send_inside_counts_in_its_own_scope() {
    let limiter = limiter(fixed(vec![], None, 1));
    let other = limiter.scope("other");
    let layer = async || limiter.run(async || Ok::<(), io::Error>(())).scope(&other).await;
    limiter.run(layer).scope("test").await.expect("sent");
    let sends: Vec<_> =
        limiter.snapshot().scopes.iter().map(|scope| (scope.name.clone(), scope.totals.sends)).collect();
    assert_eq!(sends, [("other".into(), 1), ("test".into(), 0)]);
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_has_every_place_does_not_wait_for_another() {
    let config = PacerConfig { tier_places: vec![("narrow".into(), 1)], ..fixed(vec![], None, 2) };
    let limiter = limiter(config);
    let narrow = Request::new(limiter.scope("narrow"), Cost::request());
    let asks = async |request: Request| limiter.acquire(request).await.map(|permit| drop(permit.complete(success())));
    // Each has a place of its own.
    limiter
        .run(async || asks(narrow.clone()).await.map_err(|_| reset()))
        .request(request(&limiter))
        .await
        .expect("two");
    let refused = limiter.run(async || match asks(narrow.clone()).await {
        Err(error) => Ok::<_, io::Error>(error),
        Ok(()) => Err(reset()),
    });
    let refused = refused.request(narrow.clone()).read(|_, _| success()).await.expect("it says why");
    assert_eq!(refused, paceline::Error::OwnPlace { places: 1 });
    assert!(refused.to_string().contains("it would wait for itself; use run inside it"), "{refused}");
    // A place that another task has becomes free.
    let held = limiter.try_acquire(request(&limiter)).expect("the second place");
    let waits = limiter.run(async || asks(request(&limiter)).await.map_err(|_| reset())).request(request(&limiter));
    let completes = async {
        tokio::time::sleep(S).await;
        held.complete(success())
    };
    tokio::join!(waits, completes).0.expect("it waited");
    assert_eq!(limiter.snapshot().account.waiting, 0, "nothing of it is left");
}
