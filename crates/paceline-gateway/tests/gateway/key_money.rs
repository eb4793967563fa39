//! Limits of clients in money: what calls cost at the prices of their models, and that none passes whose cost nothing tells.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use http::Response;
use paceline_gateway::{Bounds, Clients};
use serde_json::{Value, json};

use crate::support::{Served, answer, client, serve_to, upstream};

const PRICES: &str = r#"price = { m = "in=2,out=10", dear = "in=20,out=100" }"#;

/// A server whose answers tell that many tokens, and whose clients are bounded by that limit.
async fn served(usage: Value, limit: &str, settings: &str) -> Served {
    let text = json!({"choices": [], "usage": usage}).to_string();
    let api = upstream(move |_: Request| std::future::ready(answer(200, &[], text.clone())));
    let served = Served::new(api.await, settings, Bounds::default());
    serve_to(&served, vec![client("ci", &[limit])]);
    served
}

async fn post(served: &Served, path: &str, body: &Value) -> (u16, Value) {
    let request = served.client.post(format!("{}{path}", served.url)).header("x-paceline-key", "pk-ci");
    let got = request.header("x-paceline-deadline", "2s").body(body.to_string()).send().await.expect("an answer");
    (got.status().as_u16(), got.json().await.expect("JSON"))
}

async fn chat(served: &Served, model: &str, max_tokens: u64) -> (u16, Value) {
    post(served, "/v1/chat/completions", &json!({"model": model, "max_tokens": max_tokens, "messages": []})).await
}

/// What counts of the first limit, in billionths, once nothing is under way.
async fn used(served: &Served) -> u64 {
    loop {
        let clients = served.gateway.clients();
        let account = clients.limiters().map(|(_, limiter)| limiter.snapshot().account).next().expect("one client");
        if account.concurrency.in_flight == 0 {
            return account.quotas[0].used;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_counts_with_what_its_answer_cost_and_is_refused_where_that_is_used_up() {
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 800,
        "prompt_tokens_details": {"cached_tokens": 500}});
    let prices = r#"price = { m = "in=2,cached=1,out=10" }"#;
    let served = served(usage, "$0.021 per 1h", prices).await;
    assert_eq!(chat(&served, "m", 900).await.0, 200);
    assert_eq!(used(&served).await, 500 * 2_000 + 500 * 1_000 + 800 * 10_000, "to the billionth, with its cache");
    assert_eq!(chat(&served, "m", 900).await.0, 200);
    let (status, body) = chat(&served, "m", 900).await;
    let error = &body["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(status == 429 && error["code"] == "wait_too_long", "{body}");
    assert!(message.contains("the limit of this key, 0.0210 money per 1h (0.0190 of it is used)"), "{body}");
    assert!(error["wait_ms"].as_u64().is_some_and(|wait| wait > 3_000_000), "{body}");
    let (status, body) = chat(&served, "m", 2_500).await;
    let message = body["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 413 && body["error"]["code"] == "too_large", "{body}");
    assert!(message.contains("money, the limit is 0.0210: it can never start"), "{body}");
    let state = served.client.get(format!("{}/api/state", served.origin())).header("x-paceline-key", "pk-ci");
    let state: Value = state.send().await.expect("an answer").json().await.expect("JSON");
    let row = &state["clients"][0];
    assert_eq!((&row["cost"], &row["limits"][0]["dimension"]), (&json!(0.019), &json!("money")), "{row}");
    assert_eq!((&row["limits"][0]["limit"], &row["limits"][0]["remaining"]), (&json!(0.021), &json!(0.002)), "{row}");
    let metrics = served.client.get(format!("{}/metrics", served.origin())).header("x-paceline-key", "pk-ci");
    let metrics = metrics.send().await.expect("an answer").text().await.expect("text");
    let left = |line: &&str| line.contains("dimension=\"money\"") && line.ends_with(" 0.002");
    assert!(metrics.lines().any(|line| left(&line)), "{metrics}");
}

#[tokio::test]
async fn a_refused_call_costs_nothing_and_one_that_tells_nothing_its_bound() {
    let api = upstream(|request: Request| async move {
        let body = to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        match body.windows(4).any(|part| part == b"null") {
            true => answer(400, &[], r#"{"error":{"message":"no"}}"#),
            false => answer(200, &[], r#"{"choices":[]}"#),
        }
    });
    let served = Served::new(api.await, PRICES, Bounds::default());
    serve_to(&served, vec![client("ci", &["$5 per 1h"])]);
    let wrong = json!({"model": "m", "max_tokens": 100, "messages": null});
    assert_eq!((post(&served, "/v1/chat/completions", &wrong).await.0, used(&served).await), (400, 0));
    assert_eq!(chat(&served, "m", 100).await.0, 200);
    let used = used(&served).await;
    assert!((100 * 10_000..100 * 10_000 + 100 * 2_000).contains(&used), "its bound and its prompt: {used}");
}

/// 900 tokens of the answer where one was asked for: 0.009 each.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_keeps_to_the_money_of_its_key_where_the_server_ignores_max_tokens() {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 890});
    for bound in [json!(1), Value::Null] {
        let served = served(usage.clone(), "$0.02 per 1h", PRICES).await;
        let body = json!({"model": "m", "max_tokens": bound, "messages": []});
        let all = futures_util::future::join_all((0..20).map(|_| post(&served, "/v1/chat/completions", &body))).await;
        let passed = all.iter().filter(|(status, _)| *status == 200).count();
        assert_eq!(passed, 2, "as under 2000 tokens: {all:?}");
        assert_eq!(used(&served).await, passed as u64 * (10 * 2_000 + 890 * 10_000));
    }
}

#[tokio::test]
async fn no_call_passes_whose_cost_nothing_tells() {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 10});
    let priced = served(usage.clone(), "$5 per 1h", PRICES).await;
    let prompt = |more: Value| {
        let mut body = json!({"model": "m", "max_tokens": 9, "messages": []});
        more.as_object().into_iter().flatten().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    for (path, body, expected) in [
        (
            "/v1/chat/completions",
            prompt(json!({"model": "new"})),
            Some("the model \"new\" has no price at the upstream api"),
        ),
        (
            "/v1/chat/completions",
            prompt(json!({"models": ["new"]})),
            Some("set `\"new\" = \"in=...,out=...\"` in the table [upstream.api.price]"),
        ),
        (
            "/v1/chat/completions",
            json!({"max_tokens": 9, "messages": []}),
            Some("a request that names no model has no price"),
        ),
        (
            "/v1/images/generations",
            json!({"model": "m", "prompt": "a"}),
            Some("/v1/images/generations what it costs, for it has no tokens"),
        ),
        ("/v1/chat/completions", prompt(json!({})), None),
    ] {
        let (status, answered) = post(&priced, path, &body).await;
        let message = answered["error"]["message"].as_str().unwrap_or_default();
        match expected {
            Some(words) => assert!(status == 403 && message.contains(words), "{body}: {answered}"),
            None => assert_eq!(status, 200, "{answered}"),
        }
    }
    let list = priced.client.get(format!("{}/v1/models", priced.url)).header("x-paceline-key", "pk-ci");
    assert_eq!(list.send().await.expect("an answer").status(), 200, "it costs nothing");
    let unpriced = served(usage, "$5 per 1h", "").await;
    assert_eq!(chat(&unpriced, "m", 9).await.0, 403, "the upstream has no prices");
}

#[tokio::test]
async fn a_call_that_names_several_models_costs_what_the_dearest_does() {
    let served = served(json!({"prompt_tokens": 0, "completion_tokens": 10}), "$5 per 1h", PRICES).await;
    let body =
        json!({"model": "m", "models": ["dear"], "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]});
    assert_eq!(post(&served, "/v1/chat/completions", &body).await.0, 200);
    assert!(used(&served).await >= 10 * 100_000);
}

#[tokio::test]
async fn what_was_spent_stays_over_a_reload_and_a_restart() {
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 100});
    let served = served(usage, "$0.004 per 1h", PRICES).await;
    assert_eq!(chat(&served, "m", 100).await.0, 200);
    assert_eq!(used(&served).await, 3_000_000);
    let other = Clients::with_keys(vec![client("ci", &["$0.005 per 1h"])], &served.gateway.clients()).expect("limits");
    served.gateway.replace_clients(other);
    assert_eq!(used(&served).await, 3_000_000);
    let states: Vec<_> = served.gateway.clients().states().map(|(_, state)| state).collect();
    let text = serde_json::to_string(&states[0]).expect("numbers and words");
    serve_to(&served, vec![client("ci", &["$0.005 per 1h"])]);
    assert_eq!(used(&served).await, 0, "another gateway");
    for (_, limiter) in served.gateway.clients().limiters() {
        limiter.restore(&serde_json::from_str(&text).expect("the same")).expect("a known version");
    }
    assert_eq!(used(&served).await, 3_000_000);
    assert_eq!(chat(&served, "m", 300).await.0, 429, "2000 are left, and it may cost 3000");
}

/// What came of an answer that its client gives up costs as much.
#[tokio::test]
async fn an_answer_that_is_given_up_costs_what_came_of_it() {
    let event = json!({"choices": [{"index": 0, "delta": {"content": "word ".repeat(160)}}]});
    let first = format!("data: {event}\n\n");
    let api = upstream(move |_: Request| {
        let begins = futures_util::stream::iter([Ok::<_, std::io::Error>(first.clone())]);
        let body = Body::from_stream(futures_util::StreamExt::chain(begins, futures_util::stream::pending()));
        std::future::ready::<Response<Body>>(answer(200, &[("content-type", "text/event-stream")], body))
    });
    let served = Served::new(api.await, PRICES, Bounds::default());
    serve_to(&served, vec![client("ci", &["$1 per 1h"])]);
    let body = json!({"model": "m", "max_tokens": 1, "stream": true, "messages": []}).to_string();
    let mut got = served.post().header("x-paceline-key", "pk-ci").body(body).send().await.expect("an answer");
    assert!(got.chunk().await.expect("a piece").is_some_and(|piece| piece.len() > 800));
    drop(got);
    let used = tokio::time::timeout(Duration::from_secs(30), used(&served)).await.expect("it ends");
    assert!((1_600_000..3_200_000).contains(&used), "200 to 300 tokens at 10 a million: {used}");
}
