//! What a call counts with under the limits of its client where its answer tells no usage, or does not come: no client gets rid
//! of its limit by what it does not ask for, or by hanging up.

use std::io;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use http::Response;
use paceline_gateway::Bounds;
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::{Served, answer, client, serve_to, upstream};

/// What a key has counted, once nothing of it is under way.
pub(super) async fn used(served: &Served) -> u64 {
    loop {
        let clients = served.gateway.clients();
        let account = clients.limiters().map(|(_, limiter)| limiter.snapshot().account).next().expect("one client");
        if account.concurrency.in_flight == 0 {
            return account.quotas[0].limit - account.quotas[0].remaining;
        }
        tokio::task::yield_now().await;
    }
}

/// Text that the client sees, and what the server makes by its own account; `tells`: at the end, where it has one.
fn stream(text: &str, made: u64, tells: bool, ends: &str) -> Response<Body> {
    let event = json!({"choices": [{"index": 0, "delta": {"content": text}}]});
    let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": made}});
    let usage = if tells { format!("data: {usage}\n\n") } else { String::new() };
    let whole = format!("data: {event}\n\ndata: {last}\n\n{usage}{ends}");
    let open = futures_util::stream::pending();
    let whole = futures_util::stream::iter([Ok::<_, io::Error>(whole)]);
    let body = if ends.is_empty() { Body::from_stream(whole.chain(open)) } else { Body::from_stream(whole) };
    answer(200, &[("content-type", "text/event-stream")], body)
}

/// A server that does what the word after `#` in a prompt says; of a call that is `held` it says so, and answers nothing.
async fn served(limit: &str, held: &Arc<Semaphore>) -> Served {
    let held = Arc::clone(held);
    let at = upstream(move |request: Request| {
        let held = Arc::clone(&held);
        async move {
            let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
            let body = String::from_utf8_lossy(&body).into_owned();
            match body.split('#').nth(1) {
                Some("hold") => {
                    held.add_permits(1);
                    std::future::pending().await
                }
                Some("thinks") => stream("", 3_000, false, "data: [DONE]\n\n"),
                Some("writes") => stream(&"word ".repeat(8_000), 10_000, false, "data: [DONE]\n\n"),
                Some("tells") => stream("four", 30, true, "data: [DONE]\n\n"),
                Some("tells and stays") => stream("four", 30, true, ""),
                Some("stays") => stream("four", 3_000, false, ""),
                _ => answer(200, &[], r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":1}}"#),
            }
        }
    });
    let served = Served::new(at.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &[limit])]);
    served
}

fn post(served: &Served, does: &str, more: &str) -> reqwest::RequestBuilder {
    let body = format!(r##"{{"model":"m","messages":[{{"role":"user","content":"#{does}#"}}]{more}}}"##);
    served.post().header("x-paceline-key", "pk-ci").body(body)
}

async fn whole(served: &Served, does: &str, more: &str) {
    let got = post(served, does, more).send().await.expect("an answer");
    assert_eq!(got.status().as_u16(), 200, "{does}");
    drop(got.bytes().await);
}

/// Many short answers teach that answers are short; then many long ones are asked for at once, and given up before they begin.
#[tokio::test]
async fn calls_that_are_given_up_before_their_answer_count_with_long_ones() {
    let held = Arc::new(Semaphore::new(0));
    let served = served("1M tokens per 1h", &held).await;
    for _ in 0..45 {
        whole(&served, "is short", "").await;
    }
    let before = used(&served).await;
    let calls: Vec<_> = (0..40).map(|_| tokio::spawn(post(&served, "hold", "").send())).collect();
    drop(held.acquire_many(40).await.expect("all have left"));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    drop(join_all(calls).await);
    let (counted, made) = (used(&served).await - before, 40 * 7_200);
    assert!(counted >= made / 2 && counted < 40 * 4_300, "{counted} of {made}");
    let before = before + counted;
    let call = tokio::spawn(post(&served, "hold", r#","max_tokens":9"#).send());
    drop(held.acquire_many(41).await.expect("it has left"));
    call.abort();
    drop(call.await);
    let counted = used(&served).await - before;
    assert!((9..1_000).contains(&counted), "a bound is believed: {counted}");
}

#[tokio::test]
async fn streams_that_tell_no_usage_count_with_long_answers_or_their_text() {
    let held = Arc::new(Semaphore::new(0));
    let served = served("1M tokens per 1h", &held).await;
    for _ in 0..10 {
        whole(&served, "tells", r#","stream":true"#).await;
    }
    let before = used(&served).await;
    assert_eq!(before, 400, "what they told counts exactly");
    join_all((0..8).map(|_| whole(&served, "thinks", r#","stream":true"#))).await;
    let counted = used(&served).await - before;
    assert!((8 * 3_000..8 * 4_300).contains(&counted), "{counted}");
    for (does, more, expected) in [
        ("thinks", r#","n":2"#, 8_192),
        ("thinks", r#","max_tokens":50"#, 50),
        ("writes", "", 10_000),
        ("writes", r#","max_tokens":50"#, 10_000),
        ("tells", "", 40),
        ("tells", r#","max_tokens":500"#, 40),
    ] {
        let before = used(&served).await;
        whole(&served, does, more).await;
        let counted = used(&served).await - before;
        assert!((expected..expected + 100).contains(&counted), "{does}{more}: {counted}");
    }
}

#[tokio::test]
async fn a_stream_that_is_given_up_counts_exactly_once_it_has_told_all() {
    let held = Arc::new(Semaphore::new(0));
    for (does, expected) in [("tells and stays", 40), ("stays", 4_096)] {
        let served = served("1M tokens per 1h", &held).await;
        let mut got = post(&served, does, r#","stream":true"#).send().await.expect("an answer");
        assert!(got.chunk().await.expect("a piece").is_some());
        drop(got);
        let counted = used(&served).await;
        assert!((expected..expected + 100).contains(&counted), "{does}: {counted}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn short_answers_let_no_hundred_long_ones_leave_at_once() {
    let held = Arc::new(Semaphore::new(0));
    let served = served("20k tokens per 1h", &held).await;
    for _ in 0..45 {
        whole(&served, "is short", "").await;
    }
    let calls = (0..60).map(|_| post(&served, "hold", "").header("x-paceline-deadline", "1s").send());
    let calls: Vec<_> = calls.map(tokio::spawn).collect();
    let refused = || calls.iter().filter(|call| call.is_finished()).count();
    while refused() + held.available_permits() < 60 {
        tokio::task::yield_now().await;
    }
    assert!((5..=10).contains(&held.available_permits()), "{}", held.available_permits());
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_client_with_few_tokens_still_sends_ordinary_calls_at_once() {
    let held = Arc::new(Semaphore::new(0));
    let served = served("20k tokens per 1h", &held).await;
    for _ in 0..10 {
        whole(&served, "is short", "").await;
    }
    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(post(&served, "hold", "").send())).collect();
    drop(held.acquire_many(8).await.expect("all have left, though eight long answers would be more than is left"));
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    drop(join_all(calls).await);
    assert_eq!(used(&served).await, 20_000);
    let got = post(&served, "is short", "").header("x-paceline-deadline", "1s").send().await.expect("an answer");
    assert_eq!(got.status().as_u16(), 429, "nothing is left");
}

/// One that reserves nearly a whole window of the upstream would hold up the calls of others for as long.
#[tokio::test]
async fn a_limit_of_a_minute_bounds_what_one_call_may_reserve() {
    let held = Arc::new(Semaphore::new(0));
    let served = served("50k tokens per 1m", &held).await;
    let got = post(&served, "is short", r#","max_tokens":190000"#).send().await.expect("an answer");
    assert_eq!(got.status().as_u16(), 413);
    whole(&served, "is short", r#","max_tokens":40000"#).await;
}
