//! What operates a gateway: its metrics, its state, whether it is ready, and how it ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::Request;
use futures_util::StreamExt as _;
use paceline_gateway::Bounds;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::page::SCOPE;
use crate::support::{Served, answer, client, counted, serve_to, upstream};
use crate::{OK, bounds};

/// A page of the gateway's own.
pub(crate) async fn page(served: &Served, path: &str) -> (u16, String) {
    let got = served.client.get(served.origin() + path).send().await.expect("an answer");
    (got.status().as_u16(), got.text().await.expect("a body"))
}

pub(crate) async fn state(served: &Served) -> Value {
    serde_json::from_str(&page(served, "/api/state").await.1).expect("JSON")
}

/// An upstream that tells of each call, and answers when it may.
async fn slow() -> (SocketAddr, Arc<Semaphore>, Arc<Semaphore>) {
    let (arrived, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (seen, may) = (Arc::clone(&arrived), Arc::clone(&go));
    let api = upstream(move |_: Request| {
        let (seen, may) = (Arc::clone(&seen), Arc::clone(&may));
        async move {
            seen.add_permits(1);
            may.acquire().await.expect("it is open").forget();
            answer(200, &[], OK)
        }
    });
    (api.await, arrived, go)
}

#[track_caller]
fn assert_line(page: &str, line: &str) {
    assert!(page.lines().any(|each| each == line), "{line}\nis not in\n{page}");
}

#[tokio::test]
async fn metrics_count_requests_once_and_read_the_rest_from_the_limiter() {
    let announced = [
        ("x-ratelimit-limit-requests", "90"),
        ("x-ratelimit-remaining-requests", "80"),
        ("x-ratelimit-reset-requests", "40s"),
    ];
    let (api, _) = counted(move |n| match n {
        0 => answer(500, &[], "broken"),
        1 => answer(200, &announced, OK),
        _ => answer(400, &[], r#"{"error":{"message":"no such parameter","type":"invalid_request_error"}}"#),
    })
    .await;
    let settings = "rpm = 600\nretry = { base = \"1ms\", cap = \"2ms\" }";
    let served = Served::new(api, settings, Bounds::default());
    assert_eq!(served.post().send().await.unwrap().text().await.unwrap(), OK);
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 400);
    let refused = served.post().header("x-paceline-priority", "high").send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);
    let (status, page) = page(&served, "/metrics").await;
    assert_eq!(status, 200);
    let scope = r#"scope="/v1/chat/completions m",upstream="api""#;
    for line in [
        &format!(r#"paceline_requests_total{{class="success",{scope}}} 1"#),
        &format!(r#"paceline_requests_total{{class="invalid",{scope}}} 1"#),
        &format!(r#"paceline_requests_total{{class="transient",{scope}}} 0"#),
        r#"paceline_requests_total{class="refused",scope="",upstream="api"} 1"#,
        r#"paceline_refusals_total{code="bad_request",upstream="api"} 1"#,
        &format!(r#"paceline_tokens_total{{direction="in",{scope}}} 3"#),
        &format!(r#"paceline_tokens_total{{direction="out",{scope}}} 5"#),
        &format!(r#"paceline_waiting{{priority="batch",{scope}}} 0"#),
        &format!(r#"paceline_in_flight{{{scope}}} 0"#),
        r#"paceline_limit{dimension="requests",origin="configured",scope="",upstream="api",window_seconds="60"} 600"#,
        r#"paceline_limit_remaining{dimension="requests",origin="configured",scope="",upstream="api",window_seconds="60"} 597"#,
        r#"paceline_scope_state{scope="/v1/chat/completions m",state="open",upstream="api"} 1"#,
        r#"paceline_upstream_seconds_count{upstream="api"} 3"#,
        r#"paceline_wait_seconds_count{priority="interactive",upstream="api"} 3"#,
        "# TYPE paceline_wait_seconds histogram",
        "# TYPE paceline_requests_total counter",
    ] {
        assert_line(&page, line);
    }
    assert!(page.contains(r#"origin="announced""#) && !page.contains("sk-real"), "{page}");
}

#[tokio::test]
async fn the_state_says_what_a_scope_waits_for_and_until_when() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "limits = [\"1 per 1h\"]", Bounds::default());
    assert!(served.post().send().await.unwrap().status().is_success());
    let waiting = served.post().header("x-paceline-deadline", "2h").header("x-paceline-priority", "batch");
    let waiting = tokio::spawn(waiting.send());
    let state = loop {
        let state = state(&served).await;
        if state["upstreams"][0]["account"]["waiting"] == 1 {
            break state;
        }
    };
    let upstream = &state["upstreams"][0];
    assert_eq!((&upstream["name"], &state["draining"]), (&"api".into(), &false.into()));
    let scope = &upstream["scopes"][0];
    assert_eq!((&scope["state"], &scope["totals"]["by_class"]["success"]), (&"paced".into(), &1.into()));
    assert_eq!(
        (&scope["waiting_by_priority"]["batch"], &scope["waiting_by_priority"]["interactive"]),
        (&1.into(), &0.into())
    );
    let told = scope["explain"].as_str().unwrap();
    assert!(told.starts_with("the next call waits ") && told.ends_with("for the limit of 1 request per 1h"), "{told}");
    assert!(scope["waits_until"].is_string() && upstream["account"]["quotas"][0]["remaining"] == 0, "{state:#}");
    waiting.abort();
}

#[tokio::test]
async fn events_tell_the_state_at_once_and_when_it_changes() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let mut served = Served::new(api, "", Bounds::default());
    let events = served.client.get(served.origin() + "/api/events").send().await.unwrap();
    assert_eq!(events.headers()["content-type"], "text/event-stream");
    let mut events = events.bytes_stream();
    let sends = |event: &[u8]| {
        let text = std::str::from_utf8(event).unwrap().strip_prefix("event: state\ndata: ").unwrap();
        let state: Value = serde_json::from_str(text.trim_end()).unwrap();
        state["upstreams"][0]["account"]["totals"]["sends"].as_u64().unwrap()
    };
    assert_eq!(sends(&events.next().await.unwrap().unwrap()), 0);
    served.post().send().await.unwrap().bytes().await.unwrap();
    assert_eq!(sends(&events.next().await.unwrap().unwrap()), 1, "the next event is that change");
    served.end();
    while events.next().await.is_some() {}
    served.ended.await.unwrap();
}

#[tokio::test]
async fn programs_that_follow_the_state_are_bounded() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    let mut streams = Vec::new();
    let refused = loop {
        let got = served.client.get(served.origin() + "/api/events").send().await.unwrap();
        if got.status() != 200 {
            break got;
        }
        streams.push(got);
    };
    assert_eq!((streams.len(), refused.status().as_u16()), (32, 429));
}

#[tokio::test]
async fn a_stopped_upstream_beside_another_has_a_line_of_its_own() {
    let (bad, _) = counted(|_| answer(401, &[], r#"{"error":{"code":"invalid_api_key","message":"no"}}"#)).await;
    let (good, _) = counted(|_| answer(200, &[], "{}")).await;
    let served = Served::all(&[("api", bad, ""), ("other", good, "")], Bounds::default());
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 401);
    let (status, text) = page(&served, "/readyz").await;
    assert!(status == 200 && text.starts_with("ready\napi: stopped until a person acts: "), "{text}");
}

#[tokio::test]
async fn a_gateway_is_ready_until_every_upstream_is_stopped() {
    let (api, _) = counted(|_| answer(401, &[], r#"{"error":{"code":"invalid_api_key","message":"no"}}"#)).await;
    let served = Served::new(api, "", Bounds::default());
    assert_eq!(page(&served, "/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 401);
    let (status, text) = page(&served, "/readyz").await;
    assert!(
        status == 503 && text.starts_with("not ready: every upstream is stopped until a person acts: api: "),
        "{text}"
    );
    assert_eq!(page(&served, "/healthz").await, (200, "ok\n".to_owned()), "it lives all the same");
    let refused = served.client.post(served.origin() + "/readyz").send().await.unwrap();
    assert_eq!((refused.status().as_u16(), &refused.headers()["allow"]), (405, &"GET, HEAD".parse().unwrap()));
}

#[tokio::test]
async fn a_gateway_that_ends_answers_what_is_in_flight_and_sends_back_what_waits() {
    let (api, arrived, go) = slow().await;
    let quick = bounds(|bounds| bounds.drain_held = Duration::ZERO);
    let mut served = Served::new(api, "concurrency = 1", quick);
    let in_flight = tokio::spawn(served.post().send());
    arrived.acquire().await.unwrap().forget();
    let held = tokio::spawn(served.post().send());
    while served.limiter.snapshot().account.waiting == 0 {
        tokio::task::yield_now().await;
    }
    served.end();
    let held = held.await.unwrap().unwrap();
    assert_eq!((held.status().as_u16(), held.headers()["retry-after"].to_str().unwrap()), (503, "1"));
    assert_eq!(held.headers()["connection"], "close", "the client comes back on another connection");
    let told: Value = held.json().await.unwrap();
    assert_eq!((&told["error"]["code"], &told["error"]["type"]), (&"closing".into(), &"paceline".into()), "{told}");
    go.add_permits(1);
    assert_eq!(in_flight.await.unwrap().unwrap().text().await.unwrap(), OK);
    assert_eq!(served.ended.await.unwrap(), 0, "nothing was cut off");
}

#[tokio::test]
async fn a_gateway_that_ends_counts_the_requests_that_it_cuts_off() {
    let (api, arrived, _go) = slow().await;
    let none = bounds(|bounds| (bounds.drain, bounds.drain_held) = (Duration::ZERO, Duration::ZERO));
    let mut served = Served::new(api, "", none);
    let in_flight: Vec<_> = (0..2).map(|_| tokio::spawn(served.post().send())).collect();
    arrived.acquire_many(2).await.unwrap().forget();
    served.end();
    assert_eq!(served.ended.await.unwrap(), 2);
    drop(in_flight);
}

#[tokio::test]
async fn a_request_that_gets_its_turn_while_the_gateway_ends_is_answered() {
    let (api, arrived, go) = slow().await;
    let mut served = Served::new(api, "concurrency = 1", Bounds::default());
    let calls: Vec<_> = (0..2).map(|_| tokio::spawn(served.post().send())).collect();
    arrived.acquire().await.unwrap().forget();
    while served.limiter.snapshot().account.waiting == 0 {
        tokio::task::yield_now().await;
    }
    served.end();
    go.add_permits(2);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status().as_u16(), 200);
    }
    served.ended.await.unwrap();
}

/// Real time that a test does not wait for.
pub(crate) async fn passes(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn an_upstream_that_takes_calls_and_answers_none_is_told_of_also_where_clients_give_up() {
    let (api, arrived, go) = slow().await;
    let served = Served::new(api, "", Bounds::default());
    let metric = |page: &str, name: &str| -> f64 {
        let name = format!("paceline_{name}_seconds{{");
        let line = page.lines().find(|line| line.starts_with(&name)).expect("the scope is there");
        line.rsplit_once(' ').expect("it has a value").1.parse().expect("a number")
    };
    for _ in 0..3 {
        let call = tokio::spawn(served.post().send());
        arrived.acquire().await.unwrap().forget();
        passes(Duration::from_secs(12)).await;
        // Clocks look a tenth of a second later.
        while metric(&page(&served, "/metrics").await.1, "unanswered") < 12.0 {}
        call.abort();
        while served.limiter.snapshot().account.concurrency.in_flight > 0 {
            tokio::task::yield_now().await;
        }
    }
    let (_, metrics) = page(&served, "/metrics").await;
    assert!(metric(&metrics, "unanswered") == 0.0 && (36.0..40.0).contains(&metric(&metrics, "silent")), "{metrics}");
    let words = "the server is silent: no answer to 3 calls in 30s";
    assert_eq!(page(&served, "/readyz").await, (200, format!("ready\napi: {words}\n")));
    let scope = &state(&served).await["upstreams"][0]["scopes"][0];
    assert_eq!(
        (&scope["explain"], &scope["trouble"], &scope["silent"]["calls"]),
        (&words.into(), &2.into(), &3.into())
    );
    assert_eq!(scope["word"], "closed");
    assert_line(&metrics, &is_in_state(SCOPE, "closed"));
    go.add_permits(4);
    assert_eq!(served.post().send().await.unwrap().text().await.unwrap(), OK);
    assert_eq!(page(&served, "/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(metric(&page(&served, "/metrics").await.1, "silent"), 0.0);
}

/// For how long a scope is said to fail, or the whole upstream.
fn failing(page: &str, scope: &str) -> Option<f64> {
    let name = format!("paceline_failing_seconds{{scope=\"{scope}\",upstream=\"api\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&name)).map(|value| value.parse().expect("a number"))
}

#[tokio::test]
async fn an_upstream_that_is_down_is_told_of_also_where_clients_give_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let api = listener.local_addr().unwrap();
    drop(listener);
    let served = Served::new(api, "", Bounds::default());
    assert_eq!(page(&served, "/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(failing(&page(&served, "/metrics").await.1, ""), Some(0.0));
    let call = tokio::spawn(served.post().send());
    while page(&served, "/readyz").await.1 == "ready\n" {
        passes(Duration::from_millis(500)).await;
    }
    call.abort();
    let begins = page(&served, "/readyz").await.1;
    assert!(
        begins.starts_with("ready\napi: the upstream has answered no call for some seconds: no connection"),
        "{begins}"
    );
    let whole = async || state(&served).await["upstreams"][0].clone();
    let before = whole().await;
    let words = "the upstream has answered no call for some seconds: no connection";
    for scope in [&before["account"], &before["scopes"][0]] {
        assert!(scope["trouble"] == 2 && scope["explain"].as_str().is_some_and(|why| why.contains(words)), "{scope}");
    }
    passes(Duration::from_secs(320)).await;
    let after = whole().await;
    for scope in [&after["account"], &after["scopes"][0]] {
        let why = scope["explain"].as_str().unwrap_or_default();
        assert!(scope["trouble"] == 4 && why.contains("the upstream has answered no call for 5m "), "{scope}");
    }
    assert!(after["explain"].as_str().is_some_and(|why| why.contains(": no connection")), "{after}");
    let (metrics, ready) = (page(&served, "/metrics").await.1, page(&served, "/readyz").await);
    assert!(failing(&metrics, "") > Some(320.0), "{metrics}");
    for scope in ["", SCOPE] {
        assert_line(&metrics, &is_in_state(scope, "down"));
    }
    let words = "ready\napi: the upstream has answered no call for 5m ";
    assert!(ready.0 == 200 && ready.1.starts_with(words) && ready.1.contains(": no connection"), "{ready:?}");
    let again = std::net::TcpListener::bind(api).unwrap();
    again.set_nonblocking(true).unwrap();
    let answers = axum::Router::new().fallback(|| async { OK });
    tokio::spawn(async move { axum::serve(tokio::net::TcpListener::from_std(again).unwrap(), answers).await });
    assert_eq!(served.post().send().await.unwrap().text().await.unwrap(), OK);
    assert_eq!(page(&served, "/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(failing(&page(&served, "/metrics").await.1, ""), Some(0.0));
    assert_eq!(whole().await["account"]["trouble"], 0);
}

/// A scope of an account that is stopped lets nothing leave either.
#[tokio::test]
async fn the_metrics_the_page_and_readiness_have_one_word_for_a_scope() {
    let (api, _) = counted(|_| answer(401, &[], r#"{"error":{"code":"invalid_api_key","message":"no"}}"#)).await;
    let served = Served::new(api, "", Bounds::default());
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 401);
    let (status, ready) = page(&served, "/readyz").await;
    assert!(status == 503 && ready.contains("stopped until a person acts"), "{ready}");
    let (_, metrics) = page(&served, "/metrics").await;
    let upstream = &state(&served).await["upstreams"][0];
    for (name, scope) in [("", &upstream["account"]), (SCOPE, &upstream["scopes"][0])] {
        assert_eq!(scope["word"], "stopped", "{name}");
        assert_line(&metrics, &is_in_state(name, "stopped"));
    }
    let in_force = metrics.lines().filter(|line| line.starts_with("paceline_scope_state{") && line.ends_with(" 1"));
    assert_eq!(in_force.count(), 2, "one state of each: {metrics}");
}

fn is_in_state(scope: &str, state: &str) -> String {
    format!(r#"paceline_scope_state{{scope="{scope}",state="{state}",upstream="api"}} 1"#)
}

/// The server answers: it is the key that it refuses, if it refuses it to all.
#[tokio::test]
async fn while_a_refused_key_is_tested_that_is_said_and_no_server_fails() {
    let (api, _) = counted(|_| answer(401, &[], r#"{"error":{"code":"invalid_api_key","message":"no"}}"#)).await;
    let served = Served::new(api, "", Bounds::default());
    serve_to(&served, ["ana", "bob", "cy"].map(|name| client(name, &[])).into());
    for name in ["ana", "bob"] {
        assert_eq!(served.post().bearer_auth(format!("pk-{name}")).send().await.unwrap().status().as_u16(), 401);
    }
    let got = served.client.get(served.origin() + "/api/state").bearer_auth("pk-ana").send().await.unwrap();
    let upstream = got.json::<Value>().await.unwrap()["upstreams"][0].clone();
    let words = ": two clients' calls were refused (401); then a call of a third one is tried";
    for scope in [&upstream["account"], &upstream["scopes"][0]] {
        let why = scope["explain"].as_str().unwrap_or_default();
        assert!(scope["trouble"] == 2 && why.starts_with("nothing leaves for ") && why.ends_with(words), "{scope}");
    }
}

/// With the key of a client.
async fn metrics_of_ana(served: &Served) -> String {
    let got = served.client.get(served.origin() + "/metrics").bearer_auth("pk-ana").send().await.expect("an answer");
    got.text().await.expect("a body")
}

/// Three clients call it for so many seconds, each a request after the other of which it waits ten seconds for the answer.
async fn three_call(served: &Served, seconds: u64) {
    for second in 0..seconds {
        if second % 10 == 0 {
            for name in ["ana", "bob", "cy"] {
                let request = served.post().bearer_auth(format!("pk-{name}")).timeout(Duration::from_secs(10));
                tokio::spawn(request.send());
            }
        }
        passes(Duration::from_secs(1)).await;
        page(served, "/healthz").await;
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_every_call_for_minutes_is_told_of_and_a_limit_that_comes_back_is_not() {
    for (asked, is_told) in [(None, true), (Some("20"), true), (Some("3600"), false)] {
        let mends = Arc::new(AtomicBool::new(false));
        let mended = Arc::clone(&mends);
        let (api, calls) = counted(move |_| match (mended.load(Ordering::SeqCst), asked) {
            (true, _) => answer(200, &[], OK),
            (false, None) => answer(429, &[], r#"{"error":{"code":"rate_limit_exceeded"}}"#),
            (false, Some(asked)) => answer(429, &[("retry-after", asked)], ""),
        })
        .await;
        let served = Served::new(api, "", Bounds::default());
        serve_to(&served, ["ana", "bob", "cy"].map(|name| client(name, &[])).into());
        three_call(&served, 100).await;
        assert_eq!(page(&served, "/readyz").await, (200, "ready\n".to_owned()), "a limit may be like that");
        three_call(&served, 230).await;
        let (metrics, ready) = (metrics_of_ana(&served).await, page(&served, "/readyz").await);
        if !is_told {
            assert_eq!((ready, failing(&metrics, "")), ((200, "ready\n".to_owned()), Some(0.0)));
            continue;
        }
        assert!(failing(&metrics, "") > Some(300.0) && calls.count() < 60, "{metrics}");
        let words = "ready\napi: the upstream has refused every call for 5m ";
        let why = if asked.is_none() { ": rate_limit_exceeded\n" } else { ": status 429\n" };
        assert!(ready.0 == 200 && ready.1.starts_with(words) && ready.1.ends_with(why), "{ready:?}");
        mends.store(true, Ordering::SeqCst);
        three_call(&served, 120).await;
        let (metrics, ready) = (metrics_of_ana(&served).await, page(&served, "/readyz").await);
        assert_eq!((ready, failing(&metrics, "")), ((200, "ready\n".to_owned()), Some(0.0)));
    }
}
