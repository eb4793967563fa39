//! What the head of a stream announces acts while the stream runs.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use http::{HeaderMap, Response};
use paceline::Admit;
use paceline_providers::Provider;

use super::*;

/// The head of an answer after which nothing is left for half a minute.
fn used_up() -> HeaderMap {
    let fields = [("limit-requests", "1"), ("remaining-requests", "0"), ("reset-requests", "30s")];
    let field = |(name, value): (&str, &str)| {
        let name = format!("x-ratelimit-{name}").parse().expect("a name");
        (name, value.parse().expect("a value"))
    };
    fields.into_iter().map(field).collect()
}

fn openai() -> Limiter {
    limiter(PacerConfig { start: Some(1_000.0), ..PacerConfig::default() }).with_provider(Provider::OpenAi)
}

async fn waits_already(waiting: impl Future) {
    let mut waiting = pin!(waiting);
    poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn others_wait_for_a_limit_that_a_running_stream_has_announced() {
    let limiter = openai();
    let start = limiter.now();
    let stream = limiter.acquire(request(&limiter)).await.expect("the first");
    tokio::time::advance(S).await;
    assert_eq!(limiter.admit(&request(&limiter)), Admit::Now, "nothing is known of a limit");
    stream.observe(&used_up());
    waits_already(limiter.acquire(request(&limiter))).await;
    limiter.acquire(request(&limiter)).await.expect("after its reset").complete(success());
    let waited = limiter.now() - start;
    assert!((29 * S..=31 * S).contains(&waited), "{waited:?}");
    stream.complete(success());
}

#[tokio::test(start_paused = true)]
async fn an_operation_observes_the_head_of_its_own_answer() {
    let limiter = openai();
    let stream = async || {
        limiter.observe(&used_up());
        waits_already(limiter.acquire(request(&limiter))).await;
        Ok::<_, io::Error>(Response::new(String::new()))
    };
    limiter.run(stream).scope("test").await.expect("a success");
    assert!(limiter.try_acquire(request(&limiter)).is_err(), "half a minute is not over");
    limiter.observe(&HeaderMap::new());
}

#[tokio::test(start_paused = true)]
async fn outside_of_an_operation_there_is_nothing_to_observe() {
    let limiter = openai();
    limiter.observe(&used_up());
    limiter.try_acquire(request(&limiter)).expect("nothing is known of a limit").complete(success());
}
