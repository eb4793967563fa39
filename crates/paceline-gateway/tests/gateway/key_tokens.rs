//! Limits of clients that count tokens: what one client sends changes nothing for another, and no server exceeds them by much.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::StreamExt as _;
use paceline_gateway::Bounds;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support::{Served, answer, client, serve_to, upstream};

async fn post(served: &Served, name: &str, body: &Value, deadline: &str) -> (u16, Value) {
    let request = served.post().header("x-paceline-key", format!("pk-{name}")).header("x-paceline-deadline", deadline);
    let got = request.body(body.to_string()).send().await.expect("an answer");
    (got.status().as_u16(), got.json().await.expect("JSON"))
}

/// The answer of a server that counts a token for four characters, and 1,100 for each picture.
async fn counts(request: Request) -> axum::response::Response {
    let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
    let has_picture = body.windows(9).any(|part| part == b"image_url");
    let input = if has_picture { 1_100 } else { 10 + body.len() / 4 };
    answer(200, &[], json!({"choices": [], "usage": {"prompt_tokens": input, "completion_tokens": 12}}).to_string())
}

#[tokio::test]
async fn prompts_with_pictures_of_one_client_change_nothing_for_the_prompts_of_another() {
    let served = Served::new(upstream(counts).await, "", Bounds::default());
    serve_to(&served, vec![client("vision", &[]), client("text", &["3k tokens per 1h"])]);
    let picture = json!({"type": "image_url", "image_url": {"url": "http://i/a.png"}});
    let picture = json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": [picture]}]});
    for _ in 0..12 {
        assert_eq!(post(&served, "vision", &picture, "5s").await.0, 200);
    }
    let text = "Summarise this text please. ".repeat(60);
    let text = json!({"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": text}]});
    for number in 0..6 {
        let (status, body) = post(&served, "text", &text, "5s").await;
        assert_eq!(status, 200, "{number}: {body}");
    }
    let (status, body) = post(&served, "text", &text, "5s").await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 429 && message.contains("3000 tokens per 1h, and its deadline is sooner"), "{body}");
    let waits = body["error"]["wait_ms"].as_u64().expect("nothing shortens it");
    assert!((3_000_000..=3_601_000).contains(&waits), "{waits}");
}

/// 20 prompts of text have shown that prompts are short; then come pictures, all at once.
#[tokio::test(flavor = "multi_thread")]
async fn pictures_after_text_keep_to_the_tokens_of_their_key() {
    let api = upstream(|request: Request| async move {
        let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        let has_picture = body.windows(9).any(|part| part == b"image_url");
        let input = if has_picture { 25_500 } else { 20 };
        answer(200, &[], json!({"choices": [], "usage": {"prompt_tokens": input, "completion_tokens": 10}}).to_string())
    });
    let served = Served::new(api.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["200k tokens per 24h"])]);
    let body =
        |content: Value| json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": content}]});
    for _ in 0..20 {
        assert_eq!(post(&served, "ci", &body(json!("what is it?")), "5s").await.0, 200);
    }
    let picture = body(json!([{"type": "image_url", "image_url": {"url": "http://i/a.png"}}]));
    let all = futures_util::future::join_all((0..60).map(|_| post(&served, "ci", &picture, "5s"))).await;
    let passed = all.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(passed, 7, "of 199,400 tokens: {all:?}");
    let waits = all.iter().filter(|(status, _)| *status == 429).map(|(_, body)| &body["error"]["wait_ms"]);
    assert!(
        waits.clone().count() == 53 && waits.clone().all(Value::is_u64),
        "nothing shortens it: {:?}",
        waits.collect::<Vec<_>>()
    );
}

/// Its server adds 30,000 tokens to each prompt. All have room by their first estimates, and wait for the upstream. One call is
/// out at a time: a second one would count with its estimate until its answer came.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_for_the_upstream_reserve_anew_once_answers_show_what_prompts_have() {
    let api = upstream(|_: Request| async {
        answer(200, &[], r#"{"choices":[],"usage":{"prompt_tokens":30000,"completion_tokens":10}}"#)
    });
    let settings = "pace = \"fixed\"\nconcurrency = 1";
    let served = Served::new(api.await, settings, Bounds::default());
    serve_to(&served, vec![client("ci", &["1M tokens per 24h"])]);
    let body = json!({"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]});
    let all = futures_util::future::join_all((0..60).map(|_| post(&served, "ci", &body, "5s"))).await;
    let passed = all.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(passed, 33, "30,010 tokens each: {all:?}");
    let clients = served.gateway.clients();
    let quotas = clients.with_limits().flat_map(|(_, quotas)| quotas).collect::<Vec<_>>();
    assert_eq!(quotas[0].used, 33 * 30_010);
}

#[tokio::test]
async fn an_estimate_refuses_no_request_and_is_told_as_one() {
    let served = Served::new(upstream(counts).await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["600 tokens per 1h"])]);
    let picture = json!({"type": "image_url", "image_url": {"url": "http://i/a.png"}});
    let picture = json!({"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": [picture]}]});
    let (status, body) = post(&served, "ci", &picture, "5s").await;
    assert_eq!(status, 200, "its limit is unused: {body}");
    let (status, body) = post(&served, "ci", &picture, "5s").await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 429 && message.contains("it is estimated at 1"), "{body}");
    assert!(message.contains(" tokens, after what answers of this model reported"), "{body}");
    let bound = json!({"model": "m", "max_tokens": 700, "messages": []});
    let (status, body) = post(&served, "ci", &bound, "5s").await;
    assert!(status == 413 && body.to_string().contains("it can never start"), "it says so itself: {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_keeps_to_the_tokens_of_its_key_where_the_server_ignores_max_tokens() {
    let api = upstream(|request: Request| async move {
        let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        tokio::time::sleep(Duration::from_millis(5)).await;
        if body.windows(4).any(|part| part == b"null") {
            return answer(400, &[], r#"{"error":{"message":"no"}}"#);
        }
        answer(200, &[], r#"{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":890}}"#)
    });
    let served = Served::new(api.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["2000 tokens per 1h"])]);
    let wrong = json!({"model": "m", "max_tokens": 1, "messages": null});
    assert_eq!(post(&served, "ci", &wrong, "5s").await.0, 400, "a refusal shows nothing");
    let body = json!({"model": "m", "max_tokens": 1, "messages": []});
    let all = (0..20).map(|number| {
        // Another name of a model is another scope of the upstream, and the same key.
        let mut body = body.clone();
        body["model"] = json!(format!("m{}", number % 7));
        let served = &served;
        async move { post(served, "ci", &body, "5s").await }
    });
    let all = futures_util::future::join_all(all).await;
    let passed = all.iter().filter(|(status, _)| *status == 200).count();
    assert_eq!(passed, 2, "900 tokens each: {all:?}");
}

#[tokio::test]
async fn an_answer_that_its_client_gives_up_counts_with_what_came_of_it() {
    let event = json!({"choices": [{"index": 0, "delta": {"content": "word ".repeat(160)}}]});
    let (first, more) = (format!("data: {event}\n\n"), Arc::new(Semaphore::new(0)));
    let api = upstream(move |_: Request| {
        let (first, more) = (first.clone(), Arc::clone(&more));
        async move {
            let begins = futures_util::stream::once(async move { Ok::<_, std::io::Error>(first) });
            let goes_on = futures_util::stream::once(async move {
                let _never = more.acquire().await;
                Ok(String::new())
            });
            answer(200, &[("content-type", "text/event-stream")], Body::from_stream(begins.chain(goes_on)))
        }
    });
    let served = Served::new(api.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["1000 tokens per 1h"])]);
    let counted = || {
        let clients = served.gateway.clients();
        let used = clients.limiters().map(|(_, limiter)| limiter.snapshot().account);
        used.map(|account| (account.concurrency.in_flight, 1_000 - account.quotas[0].remaining)).next().expect("one")
    };
    let body = json!({"model": "m", "max_tokens": 1, "stream": true, "messages": []}).to_string();
    let mut before = 0;
    for _ in 0..3 {
        let mut got =
            served.post().header("x-paceline-key", "pk-ci").body(body.clone()).send().await.expect("an answer");
        assert!(got.chunk().await.expect("a piece").is_some_and(|piece| piece.len() > 800));
        drop(got);
        while counted().0 > 0 {
            tokio::task::yield_now().await;
        }
        let used = counted().1;
        assert!((200..300).contains(&(used - before)), "800 characters, and a prompt: {before}, then {used}");
        before = used;
    }
}

/// A frame of AWS's binary streams.
fn frame(name: &str, payload: &str) -> Vec<u8> {
    let fields = [(":message-type", "event"), (":event-type", name)];
    let field = |(name, value): (&str, &str)| {
        [&[name.len() as u8], name.as_bytes(), &[7], &(value.len() as u16).to_be_bytes(), value.as_bytes()].concat()
    };
    let fields = fields.map(field).concat();
    let length = (16 + fields.len() + payload.len()) as u32;
    let head = [length.to_be_bytes(), (fields.len() as u32).to_be_bytes(), [0; 4]].concat();
    [&head[..], &fields, payload.as_bytes(), &[0; 4]].concat()
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_long_stream_of_frames_counts_with_what_its_end_tells() {
    let api = upstream(|_: Request| async move {
        let piece =
            frame("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"text":"word"},"p":"abcdefghijklmnop"}"#);
        let usage = r#"{"usage":{"inputTokens":6000,"outputTokens":14000,"totalTokens":20000}}"#;
        let last = [frame("messageStop", r#"{"stopReason":"end_turn"}"#), frame("metadata", usage)].concat();
        let pieces = std::iter::repeat_n(piece, 14_000).chain([last]).map(Ok::<_, std::io::Error>);
        answer(
            200,
            &[("content-type", "application/vnd.amazon.eventstream")],
            Body::from_stream(futures_util::stream::iter(pieces)),
        )
    });
    let served = Served::new(api.await, "", Bounds::default());
    serve_to(&served, vec![client("ci", &["1M tokens per 1h"])]);
    let body = json!({"model": "m", "max_tokens": 5, "messages": []}).to_string();
    let got = served.post().header("x-paceline-key", "pk-ci").body(body).send().await.expect("an answer");
    assert!(got.bytes().await.expect("all of it").len() > 1 << 20);
    let used = |served: &Served| {
        let clients = served.gateway.clients();
        let used = clients.limiters().map(|(_, limiter)| limiter.snapshot().account);
        used.map(|account| (account.concurrency.in_flight, 1_000_000 - account.quotas[0].remaining))
            .next()
            .expect("one")
    };
    while used(&served).0 > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(used(&served).1, 20_000);
}

/// It tells half of its usage, or one half twice: an answer of 20 tokens that may have 500.
#[tokio::test]
async fn an_answer_that_tells_half_of_its_usage_counts_with_the_bound_of_the_other_half() {
    for (usage, passed) in [
        (r#"{"prompt_tokens":10,"completion_tokens":20}"#, 9),
        (r#"{"prompt_tokens":10}"#, 5),
        (r#"{"prompt_tokens":10,"completion_tokens":"20"}"#, 5),
        (r#"{"prompt_tokens":10,"completion_tokens":-1}"#, 5),
        (r#"{"prompt_tokens":10,"completion_tokens":490,"completion_tokens":1}"#, 5),
    ] {
        for is_stream in [false, true] {
            let api = upstream(move |_: Request| async move {
                let body =
                    format!(r#"{{"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],"usage":{usage}}}"#);
                match is_stream {
                    true => answer(
                        200,
                        &[("content-type", "text/event-stream")],
                        format!("data: {body}\n\ndata: [DONE]\n\n"),
                    ),
                    false => answer(200, &[("content-type", "application/json")], body),
                }
            });
            let served = Served::new(api.await, "", Bounds::default());
            serve_to(&served, vec![client("ci", &["3k tokens per 1h", "9 per 1h"])]);
            let body = json!({"model": "m", "max_tokens": 500, "stream": is_stream, "messages": []}).to_string();
            let mut seen = 0;
            loop {
                let request = served.post().header("x-paceline-key", "pk-ci").header("x-paceline-deadline", "1s");
                let got = request.body(body.clone()).send().await.expect("an answer");
                if got.status() != 200 {
                    break;
                }
                assert!(got.bytes().await.is_ok());
                seen += 1;
            }
            assert_eq!(seen, passed, "{usage} {is_stream}");
        }
    }
}
