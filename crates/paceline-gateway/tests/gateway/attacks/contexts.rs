//! What a server adds to a prompt by itself, such as an earlier answer or a file: a call that ends before it told its usage
//! counts with it.

use std::io;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::StreamExt as _;
use http::Response;
use paceline_gateway::Bounds;
use serde_json::{Value, json};

use super::spending::used;
use crate::support::{Served, answer, client, serve_to, upstream};

/// Each answer adds a hundred tokens to what it goes on from; a file has 50,000, and an answer of which nothing is known 100,000.
fn tokens_of(body: &Value) -> u64 {
    let before = match body["previous_response_id"].as_str().and_then(|id| id.strip_prefix("resp_")) {
        Some(tokens) => tokens.parse().unwrap_or(100_000),
        None => 0,
    };
    before + 100 + if body["input"].to_string().contains("file_id") { 50_000 } else { 0 }
}

fn events(body: &Value) -> Response<Body> {
    let tokens = tokens_of(body);
    let id = format!("resp_{tokens}");
    let usage = json!({"input_tokens": tokens - 10, "output_tokens": 10, "total_tokens": tokens});
    let created = json!({"type": "response.created", "response": {"id": id, "object": "response", "usage": null}});
    let text = json!({"type": "response.output_text.delta", "delta": "some words"});
    let done = json!({"type": "response.completed", "response": {"id": id, "object": "response", "usage": usage}});
    let event = |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type"));
    let begin = futures_util::stream::iter([Ok::<_, io::Error>(event(&created) + &event(&text))]);
    let stays = body["metadata"]["stays"] == true;
    let end = futures_util::stream::iter((!stays).then(|| Ok(event(&done))));
    let open = futures_util::stream::pending();
    let stream = begin.chain(end);
    let body = if stays { Body::from_stream(stream.chain(open)) } else { Body::from_stream(stream) };
    answer(200, &[("content-type", "text/event-stream")], body)
}

async fn served() -> Served {
    let at = upstream(|request: Request| async move {
        let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        events(&serde_json::from_slice(&body).expect("JSON"))
    });
    let served = Served::new(at.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["10M tokens per 1h"])]);
    served
}

/// What a call counts: one whose client reads it to its end, or hangs up once it has read some of it.
async fn counted(served: &Served, stays: bool, more: &Value) -> u64 {
    let mut body =
        json!({"model": "m", "stream": true, "max_output_tokens": 16, "metadata": {"stays": stays}, "input": "hi"});
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
    let before = used(served).await;
    let request =
        served.client.post(format!("{}/v1/responses", served.url)).bearer_auth("pk-ci").body(body.to_string());
    let mut got = request.send().await.expect("an answer");
    assert_eq!(got.status().as_u16(), 200);
    let first = got.chunk().await.expect("a part").expect("some");
    assert!(!first.is_empty());
    if stays {
        drop(got);
    } else {
        drop(got.bytes().await);
    }
    used(served).await - before
}

fn of(expected: u64) -> std::ops::Range<u64> {
    expected..expected + 1_500
}

#[tokio::test]
async fn a_call_that_its_client_gives_up_counts_with_what_it_goes_on_from() {
    let served = served().await;
    assert_eq!(counted(&served, false, &json!({})).await, 100);
    // Nothing is known of it.
    for from in ["resp_other", "resp_strange"] {
        let counted = counted(&served, true, &json!({ "previous_response_id": from })).await;
        assert!(of(32_768).contains(&counted), "{from}: {counted}");
    }
    let short = counted(&served, true, &json!({"previous_response_id": "resp_100"})).await;
    assert!(of(100).contains(&short), "{short}");
    assert_eq!(counted(&served, false, &json!({"previous_response_id": "resp_unknown"})).await, 100_100);
    // Answers of which it is known how long they are, also where the one before was given up.
    for from in ["resp_100100", "resp_100200"] {
        let counted = counted(&served, true, &json!({ "previous_response_id": from })).await;
        assert!(of(100_100).contains(&counted), "{from}: {counted}");
    }
    let counted_unknown = counted(&served, true, &json!({"previous_response_id": "resp_unknown"})).await;
    assert!(of(100_090).contains(&counted_unknown), "{counted_unknown}");
}

#[tokio::test]
async fn so_does_one_with_a_file() {
    let served = served().await;
    let file = |name: &str| json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": name}]}]});
    let unknown = counted(&served, true, &file("file-1")).await;
    assert!((32_768..32_768 + 3_000).contains(&unknown), "{unknown}");
    assert_eq!(counted(&served, false, &file("file-1")).await, 50_100, "what is told counts exactly");
    let known = counted(&served, true, &file("file-1")).await;
    assert!((50_090..50_090 + 3_000).contains(&known), "{known}");
    let without = counted(&served, true, &json!({})).await;
    assert!(without < 100, "a call that names nothing counts as before: {without}");
}
