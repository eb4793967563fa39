//! The gateway before servers that the tests make: what clients get, what upstreams see, and what becomes of those who wait.

mod attacks;
mod bodies;
mod chained;
mod clients;
mod fallback;
mod held_by_keys;
mod key_bodies;
mod key_counts;
mod key_money;
mod key_tokens;
mod long_waits;
mod operation;
mod page;
mod queue;
mod slow;
mod support;

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::{StreamExt as _, stream};
use paceline::PauseCause;
use paceline_gateway::Bounds;
use serde_json::Value;
use support::{KEY, NO_KEY, OnDrop, Served, answer, counted, upstream};
use tokio::sync::Semaphore;

const OK: &str = r#"{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":5}}  "#;

fn bounds(change: impl FnOnce(&mut Bounds)) -> Bounds {
    let mut bounds = Bounds::default();
    change(&mut bounds);
    bounds
}

#[tokio::test]
async fn an_answer_is_the_upstreams_byte_for_byte_and_the_key_is_ours() {
    let api = upstream(|request: Request| async move {
        let headers = request.headers().clone();
        let path = request.uri().to_string();
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        assert_eq!(
            (headers["authorization"].to_str().unwrap(), &headers["accept-encoding"]),
            (KEY, &"identity".parse().unwrap())
        );
        assert_eq!((headers["x-kept"].to_str().unwrap(), path.as_str()), ("1", "/v1/chat/completions?x=1"));
        assert!(!headers.contains_key("x-paceline-priority") && body.starts_with(b"{\"model\""));
        answer(200, &[("x-ratelimit-remaining-requests", "17"), ("x-odd", "A  b")], OK)
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let request = served.client.post(format!("{}/v1/chat/completions?x=1", served.url)).body(r#"{"model":"m"}"#);
    let request =
        request.header("authorization", "Bearer any").header("x-paceline-priority", "batch").header("x-kept", "1");
    let got = request.send().await.unwrap();
    assert_eq!((got.status().as_u16(), got.headers()["x-odd"].to_str().unwrap()), (200, "A  b"));
    assert_eq!(got.headers()["x-ratelimit-remaining-requests"], "17");
    assert_eq!(got.headers()["x-paceline-attempts"], "1");
    assert!(got.headers()["x-paceline-waited-ms"].to_str().unwrap().parse::<u64>().is_ok());
    assert_eq!(got.bytes().await.unwrap(), OK);
}

#[tokio::test]
async fn every_method_and_path_passes() {
    let api = upstream(|request: Request| async move {
        let text = format!("{} {}", request.method(), request.uri());
        answer(
            if request.method() == "DELETE" { 204 } else { 200 },
            &[],
            if request.method() == "DELETE" { String::new() } else { text },
        )
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    for (method, status) in
        [("GET", 200), ("DELETE", 204), ("PUT", 200), ("PATCH", 200), ("OPTIONS", 200), ("HEAD", 200)]
    {
        let request = served.client.request(method.parse().unwrap(), format!("{}/v1/files/7?x=%2F", served.url));
        let got = request.send().await.unwrap();
        assert_eq!(got.status().as_u16(), status, "{method}");
        let text = got.text().await.unwrap();
        let expected =
            if matches!(method, "DELETE" | "HEAD") { String::new() } else { format!("{method} /v1/files/7?x=%2F") };
        assert_eq!(text, expected);
    }
    assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0, "each call was reported");
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn what_may_pass_is_sent_again_and_the_client_sees_the_success_alone() {
    let (api, _) = counted(move |call| match call {
        0 => answer(429, &[("retry-after-ms", "20")], r#"{"error":{"code":"rate_limit_exceeded"}}"#),
        1 => answer(503, &[("retry-after-ms", "20")], "overloaded"),
        _ => answer(200, &[], OK),
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let got = served.post().send().await.unwrap();
    assert_eq!((got.status().as_u16(), got.headers()["x-paceline-attempts"].to_str().unwrap()), (200, "3"));
    let waited: u64 = got.headers()["x-paceline-waited-ms"].to_str().unwrap().parse().unwrap();
    assert!(waited >= 40, "{waited} ms");
}

#[tokio::test]
async fn a_refusal_that_outlasts_the_deadline_is_passed_on_with_every_hint() {
    let refusal = r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#;
    let (api, calls) = counted(move |_| {
        answer(429, &[("retry-after", "3600"), ("x-ratelimit-reset-requests", "1h0m0s"), ("x-odd", "1")], refusal)
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let got = served.post().header("x-paceline-deadline", "5s").send().await.unwrap();
    let header = |name: &str| got.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(
        (got.status().as_u16(), header("retry-after"), header("x-odd")),
        (429, "3600".to_owned(), "1".to_owned())
    );
    assert_eq!(header("x-ratelimit-reset-requests"), "1h0m0s");
    assert_eq!(got.text().await.unwrap(), refusal);
    // The next ones know: they are refused here, at once, and told when to come back.
    let got = served.post().send().await.unwrap();
    assert_eq!((got.status().as_u16(), &got.headers()["retry-after"]), (429, &"60".parse().unwrap()));
    let body: Value = serde_json::from_slice(&got.bytes().await.unwrap()).unwrap();
    assert_eq!(
        (body["error"]["type"].as_str(), body["error"]["code"].as_str()),
        (Some("paceline"), Some("wait_too_long"))
    );
    assert_eq!(body["error"]["retry_after_ms"], 60_000);
    assert_eq!(calls.count(), 1);
}

#[tokio::test]
async fn layers_that_retry_share_one_budget() {
    let (api, calls) = counted(move |_| answer(500, &[], "broken")).await;
    let backoff = "retry = { base = \"1ms\", cap = \"2ms\" }";
    let served = Served::new(api, backoff, Bounds::default());
    for (asked, expected) in [("0", 1), ("2", 3), ("99", 8)] {
        let before = calls.count();
        let got = served.post().header("x-paceline-retries", asked).send().await.unwrap();
        let header = |name: &str| got.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(
            (got.status().as_u16(), header("x-should-retry")),
            (500, "false".to_owned()),
            "no client repeats that"
        );
        assert_eq!((calls.count() - before, header("x-paceline-attempts")), (expected, expected.to_string()));
        assert_eq!(header("x-paceline-retries"), (expected - 1).to_string());
        served.limiter.resume(None);
    }
}

#[tokio::test]
async fn events_reach_the_client_one_by_one_and_the_last_tells_the_usage() {
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let api = upstream(move |_: Request| {
        let gate = Arc::clone(&gate);
        async move {
            let events = [
                "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
                "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
                "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":700,\"completion_tokens\":300}}\n\ndata: [DONE]\n\n",
            ];
            let events = stream::iter(events).then(move |event| {
                let gate = Arc::clone(&gate);
                async move {
                    gate.acquire().await.unwrap().forget();
                    Ok::<_, std::io::Error>(event)
                }
            });
            answer(200, &[("content-type", "text/event-stream")], Body::from_stream(events))
        }
    })
    .await;
    let served = Served::new(api, "limits = [\"100k tpm\"]", Bounds::default());
    let mut got = served.post().send().await.unwrap();
    for _ in 0..3 {
        assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 1, "a stream keeps its place");
        opens.add_permits(1);
        assert!(got.chunk().await.unwrap().unwrap().starts_with(b"data: "));
    }
    assert_eq!(got.chunk().await.unwrap(), None);
    let account = served.limiter.snapshot().account;
    assert_eq!((account.concurrency.in_flight, account.quotas[0].remaining), (0, 99_000));
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_its_place_and_cancels_the_call() {
    let (gone, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (dropped, arrived) = (Arc::clone(&gone), Arc::clone(&came));
    let api = upstream(move |request: Request| {
        let (guard, arrived) = (OnDrop(Arc::clone(&dropped)), Arc::clone(&arrived));
        async move {
            arrived.add_permits(1);
            if request.uri().path().ends_with("/waits") {
                let _kept = &guard;
                std::future::pending::<()>().await;
            }
            let endless = stream::iter([Ok::<_, std::io::Error>("data: {}\n\n")]).chain(stream::pending());
            answer(
                200,
                &[("content-type", "text/event-stream")],
                Body::from_stream(endless.map(move |event| {
                    let _ = &guard;
                    event
                })),
            )
        }
    })
    .await;
    let served = Served::new(api, "concurrency = 1", Bounds::default());
    // Before the head of its answer.
    let waiting = served.client.post(format!("{}/v1/waits", served.url)).body("{}");
    let waiting = tokio::spawn(waiting.send());
    came.acquire().await.unwrap().forget();
    // In the queue, behind it.
    let queued = tokio::spawn(served.post().send());
    while served.limiter.snapshot().account.waiting == 0 {
        tokio::task::yield_now().await;
    }
    queued.abort();
    while served.limiter.snapshot().account.waiting > 0 {
        tokio::task::yield_now().await;
    }
    waiting.abort();
    gone.acquire().await.unwrap().forget();
    // While its answer streams.
    let mut streaming = served.post().send().await.unwrap();
    assert!(streaming.chunk().await.unwrap().is_some());
    drop(streaming);
    gone.acquire().await.unwrap().forget();
    while served.limiter.snapshot().account.concurrency.in_flight > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(came.available_permits(), 1, "what hung up in the queue was never sent");
}

#[tokio::test]
async fn a_body_that_is_too_large_to_hold_streams_through_once() {
    let api = upstream(|request: Request| async move {
        let length = request.headers().get("content-length").map(|length| length.to_str().unwrap().to_owned());
        let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
        answer(500, &[], format!("{length:?} {}", body.len()))
    })
    .await;
    let served = Served::new(api, "", bounds(|bounds| bounds.largest_body = 1_000));
    let got = served.client.post(format!("{}/v1/files", served.url)).body(vec![b'x'; 100_000]).send().await.unwrap();
    assert_eq!(got.headers()["x-paceline-attempts"], "1", "what is gone cannot be sent again");
    assert_eq!(got.text().await.unwrap(), "Some(\"100000\") 100000");
    for part in [1_000, 1_001] {
        let parts = stream::iter((0..100).map(move |_| Ok::<_, std::io::Error>(vec![b'y'; part])));
        let request = served.client.post(format!("{}/v1/files", served.url)).body(reqwest::Body::wrap_stream(parts));
        assert_eq!(request.send().await.unwrap().text().await.unwrap(), format!("None {}", 100 * part));
    }
}

#[tokio::test]
async fn clients_take_turns_and_batches_wait_behind_them() {
    let order = Arc::new(std::sync::Mutex::new(String::new()));
    let seen = Arc::clone(&order);
    let api = upstream(move |request: Request| {
        let who = request.headers()["x-who"].to_str().unwrap().to_owned();
        seen.lock().unwrap().push_str(&who);
        async move { answer(200, &[], OK) }
    })
    .await;
    let served = Served::new(api, "concurrency = 1", Bounds::default());
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(100), PauseCause::Program);
    let mut waiting = Vec::new();
    for (who, count, priority, shown) in [
        ("z", 3, "batch", "authorization"),
        ("a", 6, "interactive", "authorization"),
        ("b", 2, "interactive", "x-paceline-client"),
        ("c", 1, "interactive", "x-api-key"),
    ] {
        for _ in 0..count {
            let request = served.post().header(shown, who).header("x-who", who).header("x-paceline-priority", priority);
            waiting.push(tokio::spawn(request.send()));
            while served.limiter.snapshot().account.waiting < waiting.len() as u64 {
                tokio::task::yield_now().await;
            }
        }
    }
    served.limiter.resume(None);
    for one in waiting {
        assert_eq!(one.await.unwrap().unwrap().status().as_u16(), 200);
    }
    assert_eq!(*order.lock().unwrap(), "abcabaaaazzz");
}

#[tokio::test]
async fn one_interactive_request_leaves_at_once_beside_long_batches() {
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let api = upstream(move |request: Request| {
        let (gate, is_long) = (Arc::clone(&gate), request.headers().contains_key("x-long"));
        async move {
            if is_long {
                gate.acquire().await.unwrap().forget();
            }
            answer(200, &[], OK)
        }
    })
    .await;
    for (reserve, status) in [("0.05", 200), ("0", 429)] {
        let settings = format!("pace = \"fixed\"\nconcurrency = 4\ninteractive_reserve = {reserve}");
        let served = Served::new(api, &settings, Bounds::default());
        let send = || served.post().header("x-paceline-priority", "batch").header("x-long", "1").send();
        let long: Vec<_> = (0..6).map(|_| tokio::spawn(send())).collect();
        while served.limiter.snapshot().account.waiting < if reserve == "0" { 2 } else { 3 } {
            tokio::task::yield_now().await;
        }
        let got = served.post().header("x-paceline-deadline", "100ms").send().await.unwrap();
        assert_eq!(got.status().as_u16(), status, "reserve {reserve}");
        opens.add_permits(6);
        for one in long {
            assert_eq!(one.await.unwrap().unwrap().status().as_u16(), 200);
        }
    }
}

#[tokio::test]
async fn wrong_paths_and_wishes_reach_no_upstream() {
    let (api, calls) = counted(move |_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    let root = served.url.trim_end_matches("/api").to_owned();
    let get = |path: &str| served.client.get(format!("{root}{path}"));
    for (request, status, code) in [
        (get("/other/v1"), 404, "unknown_route"),
        (get("/api/v1/..%2fadmin"), 400, "bad_request"),
        (get("/api/v1/x").header("x-paceline-deadline", "soon"), 400, "bad_request"),
        (get("/api/v1/x").header("upgrade", "websocket").header("connection", "upgrade"), 501, "unsupported"),
    ] {
        let got = request.send().await.unwrap();
        let found = got.status().as_u16();
        let body: Value = serde_json::from_slice(&got.bytes().await.unwrap()).unwrap();
        assert_eq!((found, body["error"]["code"].as_str().unwrap()), (status, code), "{body}");
    }
    assert_eq!(calls.count(), 0);
    assert_eq!(get("/healthz").send().await.unwrap().text().await.unwrap(), "ok\n");
}

#[tokio::test]
async fn a_bad_key_stops_the_upstream_and_is_never_shown() {
    let (api, calls) = counted(move |_| {
        answer(
            401,
            &[],
            r#"{"error":{"message":"Incorrect API key provided: a3f8c9d2e1b04711","code":"invalid_api_key"}}"#,
        )
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let first = served.post().send().await.unwrap();
    assert_eq!(first.status().as_u16(), 401);
    let text = first.text().await.unwrap();
    assert!(!text.contains("4711") && text.contains("[key]"), "{text}");
    let second = served.post().send().await.unwrap();
    assert_eq!((second.status().as_u16(), &second.headers()["x-should-retry"]), (503, &"false".parse().unwrap()));
    let text = second.text().await.unwrap();
    assert!(text.contains("scope_stopped") && !text.contains("4711"), "{text}");
    assert_eq!(calls.count(), 1);
    let known = format!("{:?}", served.limiter.export());
    assert!(known.contains("Incorrect API key") && !known.contains("e1b04711"), "{known}");
}

#[tokio::test]
async fn the_key_of_one_client_is_told_to_no_other() {
    let api = upstream(|request: Request| async move {
        let key = request.headers()["authorization"].to_str().unwrap().trim_start_matches("Bearer ").to_owned();
        answer(
            401,
            &[],
            format!(r#"{{"error":{{"message":"Incorrect API key provided: {key}","code":"invalid_api_key"}}}}"#),
        )
    })
    .await;
    let served = Served::new(api, NO_KEY, Bounds::default());
    let first = served.post().header("authorization", "Bearer 77c2-own-8899").send().await.unwrap();
    assert_eq!(first.status().as_u16(), 401);
    let text =
        served.post().header("authorization", "Bearer another-key-1").send().await.unwrap().text().await.unwrap();
    assert!(!text.contains("8899"), "{text}");
    assert!(!format!("{:?}", served.limiter.export()).contains("8899"));
}

#[tokio::test]
async fn a_compressed_refusal_is_read_and_repeats_no_key() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed
        .write_all(br#"{"error":{"message":"no such model for a3f8c9d2e1b04711","code":"model_not_found"}}"#)
        .unwrap();
    let packed = packed.finish().unwrap();
    let api = upstream(move |_: Request| {
        let packed = packed.clone();
        async move { answer(400, &[("content-encoding", "gzip")], packed) }
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let got = served.post().send().await.unwrap();
    assert_eq!((got.status().as_u16(), got.headers().get("content-encoding")), (400, None));
    assert_eq!(
        got.text().await.unwrap(),
        r#"{"error":{"message":"no such model for [key]","code":"model_not_found"}}"#
    );
}

#[tokio::test]
async fn no_page_of_the_web_spends_the_key() {
    let (api, calls) = counted(move |_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    for (name, value) in
        [("host", "evil.example"), ("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")]
    {
        assert_eq!(served.post().header(name, value).send().await.unwrap().status().as_u16(), 403, "{name}");
    }
    assert_eq!(calls.count(), 0);
    let offer = served.post().header("connection", "upgrade, http2-settings").header("upgrade", "h2c");
    assert_eq!(offer.send().await.unwrap().status().as_u16(), 200, "an offer of HTTP/2 is ignored");
}

#[tokio::test]
async fn a_server_that_is_down_is_a_502_at_the_deadline() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::new(nowhere, "retry = { base = \"1ms\", cap = \"2ms\" }", Bounds::default());
    let got = served.post().header("x-paceline-deadline", "100ms").send().await.unwrap();
    assert_eq!(got.status().as_u16(), 502);
    let body: Value = serde_json::from_slice(&got.bytes().await.unwrap()).unwrap();
    assert_eq!(body["error"]["code"], "no_connection");
    assert!(body["error"]["message"].as_str().unwrap().contains("no connection"), "{body}");
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn answers_under_way_are_finished_when_the_gateway_ends() {
    let (gate, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (opens, arrived) = (Arc::clone(&gate), Arc::clone(&came));
    let api = upstream(move |_: Request| {
        let (gate, came) = (Arc::clone(&gate), Arc::clone(&came));
        async move {
            came.add_permits(1);
            gate.acquire().await.unwrap().forget();
            answer(200, &[], OK)
        }
    })
    .await;
    let mut served = Served::new(api, "", Bounds::default());
    let calls: Vec<_> = (0..20).map(|_| tokio::spawn(served.post().send())).collect();
    arrived.acquire_many(20).await.unwrap().forget();
    served.end();
    opens.add_permits(20);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().text().await.unwrap(), OK);
    }
    (&mut served.ended).await.unwrap();
    assert!(served.post().send().await.is_err(), "nothing listens any more");
}

#[tokio::test]
async fn what_one_odd_request_is_refused_stops_nothing() {
    let refusal = r#"{"error":{"message":"You have insufficient permissions","code":"invalid_api_key"}}"#;
    let api = upstream(move |request: Request| async move {
        match request.uri().path() {
            "/v1/organization/users" => answer(401, &[], refusal),
            _ if request.headers().contains_key("x-revoked") => answer(401, &[], refusal),
            _ => answer(200, &[], OK),
        }
    });
    let served = Served::new(api.await, "", Bounds::default());
    let odd = || served.client.get(format!("{}/v1/organization/users", served.url));
    let status = |request: reqwest::RequestBuilder| async { request.send().await.unwrap().status().as_u16() };
    assert_eq!(status(served.post()).await, 200);
    assert_eq!(status(odd()).await, 401, "the answer of the API");
    assert_eq!(status(served.post()).await, 200);
    // Twice with nothing between them: its own scope alone.
    assert_eq!((status(odd()).await, status(odd()).await, status(odd()).await), (401, 401, 503));
    assert_eq!(status(served.post()).await, 200);
    // A key that is revoked while the gateway runs.
    let revoked = || served.post().header("x-revoked", "yes");
    assert_eq!((status(revoked()).await, status(revoked()).await, status(revoked()).await), (401, 401, 503));
    assert_eq!(status(served.post()).await, 503, "the whole upstream");
}
