//! Clients with keys of the gateway's: who may call, and under which limits of their own.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use futures_util::FutureExt as _;
use paceline::PauseCause;
use paceline_gateway::{Bounds, ClientConfig, Clients};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};

use crate::OK;
use crate::support::{KEY, NO_KEY, Served, answer, client, serve_to, upstream};

/// A gateway for these clients, and the keys that its upstream saw.
async fn served(clients: Vec<ClientConfig>) -> (Served, Arc<Mutex<Vec<String>>>) {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&keys);
    let api = upstream(move |request: Request| {
        let seen = Arc::clone(&seen);
        async move {
            let shown =
                request.headers().iter().filter(|(name, _)| *name == "authorization" || name.as_str().contains("key"));
            let shown: Vec<_> = shown.map(|(_, value)| value.to_str().expect("text").to_owned()).collect();
            seen.lock().await.push(shown.join(","));
            answer(200, &[], OK)
        }
    });
    let served = Served::new(api.await, "", Bounds::default());
    served.gateway.replace_clients(Clients::with_keys(clients, &Clients::OfThisMachine).expect("limits"));
    (served, keys)
}

async fn told(response: reqwest::Response) -> (u16, String, String) {
    let status = response.status().as_u16();
    let body: Value = response.json().await.expect("JSON");
    let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
    (status, text("code"), text("message"))
}

#[tokio::test]
async fn without_a_key_that_is_known_nothing_passes_but_health() {
    let (served, keys) = served(vec![client("ci", &[])]).await;
    for wrong in [None, Some("Bearer pk-other"), Some("Bearer ")] {
        let request = wrong.map_or(served.post(), |key| served.post().header("authorization", key));
        let (status, code, message) = told(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (401, "client_key"), "{message}");
        let expected = match wrong {
            None => "the request shows no key: ",
            Some(_) => "the key that the request shows is none of this gateway, or was revoked: ",
        };
        assert!(message.starts_with(expected), "{message}");
    }
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/api/state", 401)] {
        let got = served.client.get(served.origin() + path).send().await.unwrap();
        assert_eq!(got.status().as_u16(), status, "{path}");
    }
    let right = served.post().header("authorization", "Bearer pk-ci").header("host", "gateway.example");
    assert_eq!(right.send().await.unwrap().status().as_u16(), 200, "a name of another machine is no page of the web");
    let state = served.client.get(served.origin() + "/api/state").header("x-paceline-key", "pk-ci");
    assert_eq!(state.send().await.unwrap().status().as_u16(), 200);
    assert_eq!(*keys.lock().await, [KEY], "the client's key does not go on");
}

/// Else the provider gives one client the answer that it keeps for the other.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn two_clients_that_call_their_requests_alike_send_two_requests_under_the_upstreams_key() {
    let at = upstream(async |request: Request| {
        let field = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or("none");
        answer(200, &[], format!("{} {}", field("idempotency-key"), field("x-once")))
    });
    let at = at.await;
    for (settings, is_apart) in [("", true), ("idempotency_header = \"X-Once\"", true), (NO_KEY, false)] {
        let served = Served::new(at, settings, Bounds::default());
        let sent = async |key: &str| {
            let post = served.post().header("x-paceline-key", format!("pk-{key}")).header("idempotency-key", "LIVE");
            let post = if settings.contains("X-Once") { post.header("x-once", "ONCE") } else { post };
            post.send().await.expect("an answer").text().await.expect("a text")
        };
        let without_keys = sent("a").await;
        assert!(without_keys.starts_with("LIVE ") && !without_keys.contains('-'), "{without_keys}");
        serve_to(&served, ["a", "b"].map(|name| client(name, &[])).into());
        let [first, again, other] = [sent("a").await, sent("a").await, sent("b").await];
        assert_eq!(first, again, "the same request");
        let are_apart = first.split(' ').zip(other.split(' ')).all(|(a, b)| a != b || a == "none");
        assert_eq!(are_apart, is_apart, "{first} {other}");
        assert_eq!(first.contains("LIVE") || first.contains("ONCE"), !is_apart, "{first}");
    }
}

#[tokio::test]
async fn no_key_of_a_client_reaches_an_upstream_in_a_query() {
    let echo = |request: Request| async move { answer(200, &[], format!("{} {:?}", request.uri(), request.headers())) };
    let at = upstream(echo).await;
    for (settings, target, there) in [
        ("", "/v1/models?a=1&key=pk-ci&x=Bearer%20pk-ci", "/v1/models?a=1 "),
        ("", "/v1/models?key=sk-of-another&api%5Fkey=x", "/v1/models "),
        ("provider = \"generic\"", "/v1/entry?key=pk-ci&a=%2f", "/v1/entry?a=%2f "),
        ("provider = \"generic\"", "/v1/entry?key=of-the-entry", "/v1/entry?key=of-the-entry "),
        (NO_KEY, "/v1/models?key=sk-of-the-upstream", "/v1/models?key=sk-of-the-upstream "),
    ] {
        let served = Served::new(at, settings, Bounds::default());
        served.gateway.replace_clients(Clients::with_keys(vec![client("ci", &[])], &Clients::OfThisMachine).unwrap());
        let get = served.client.get(served.url.clone() + target).header("x-paceline-key", "pk-ci");
        let get = get.header("x-original-url", "/admin");
        let (status, text) = {
            let got = get.header("x-mine", "pk-ci").send().await.unwrap();
            (got.status().as_u16(), got.text().await.unwrap())
        };
        assert!(status == 200 && text.starts_with(there) && !text.contains("pk-ci"), "{target}: {text}");
        assert_eq!(text.contains("x-original-url"), settings == NO_KEY, "{target}: {text}");
    }
    // Google's clients show their key there alone.
    let served = Served::new(at, "provider = \"gemini\"", Bounds::default());
    served.gateway.replace_clients(Clients::with_keys(vec![client("ci", &[])], &Clients::OfThisMachine).unwrap());
    let got = served.client.get(format!("{}/v1beta/models?key=pk-ci", served.url)).send().await.unwrap();
    assert_eq!(got.status().as_u16(), 200);
    let other = served.client.get(format!("{}/v1beta/models?key=pk-none", served.url)).send().await.unwrap();
    assert_eq!(told(other).await.0, 401);
}

#[tokio::test]
async fn a_request_with_a_key_in_its_path_or_as_its_model_is_refused_and_the_key_is_shown_to_no_one() {
    let key = "pl_0f1e2d3c4b5a69788796a5b4c3d2e1f0";
    let mut owner = client("owner", &[]);
    owner.key = paceline_gateway::KeyHash::of(key);
    let bounded = ClientConfig { models: vec!["m".into()], ..client("bounded", &[]) };
    let (served, keys) = served(vec![owner, client("reader", &[]), bounded]).await;
    let prompt = |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    for (path, model, shown) in [
        (format!("/v1/models/{key}"), "m", key),
        (format!("/v1/models/ft-{key}"), "m", key),
        (format!("/v1/models/%70{}", &key[1..]), "m", "pk-reader"),
        ("/v1/chat/completions".to_owned(), key, key),
        ("/v1/chat/completions".to_owned(), key, "pk-reader"),
        ("/v1/chat/completions".to_owned(), key, "pk-bounded"),
        ("/v1/chat/completions".to_owned(), &format!("org/{key}:free"), key),
    ] {
        let post = served.client.post(served.url.clone() + &path).header("x-paceline-key", shown).body(prompt(model));
        let (status, code, message) = told(post.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (400, "bad_request"), "{path} {model}: {message}");
        assert!(message.starts_with("a key of a client stands in the ") && !message.contains(key), "{message}");
    }
    for path in ["/metrics", "/api/state"] {
        let shown = served.client.get(served.origin() + path).header("x-paceline-key", "pk-reader");
        let text = shown.send().await.unwrap().text().await.unwrap();
        assert!(text.contains("bad_request") && !text.contains(&key[3..]), "{path}: {text}");
    }
    assert!(keys.lock().await.is_empty(), "no upstream got one");
}

#[tokio::test]
async fn a_client_has_limits_of_its_own_and_others_do_not_wait_for_it() {
    let (served, _) = served(vec![
        client("ci", &["1 per 1h"]),
        client("web", &[]),
        client("spaced", &["5rpm"]),
        client("tokens", &["20 tokens per 1h"]),
    ])
    .await;
    let post = |key: &str| served.post().header("x-api-key", format!("pk-{key}"));
    assert_eq!(post("ci").send().await.unwrap().status().as_u16(), 200);
    let (status, code, message) = told(post("ci").send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (429, "wait_too_long"));
    assert!(message.starts_with("the key ci: the request must wait "), "{message}");
    assert!(message.contains("more for the limit of this key, 1 request per 1h, and its"), "{message}");
    assert_eq!(post("web").send().await.unwrap().status().as_u16(), 200);

    // Requests are spaced under a limit of a minute or less, and the refusal says so.
    assert_eq!(post("spaced").send().await.unwrap().status().as_u16(), 200);
    let second = post("spaced").header("x-paceline-deadline", "1s").send().await.unwrap();
    let (status, _, message) = told(second).await;
    let expected = "s more for the limit of this key, 5 requests per 60s, one each 12s, and its deadline is sooner";
    assert!(status == 429 && message.contains(expected), "{message}");

    // All of a limit may leave at once where its burst says so.
    let mut all_at_once = client("burst", &["5rpm"]);
    all_at_once.limits.as_mut().expect("limits").limits.burst = Some(5);
    let clients =
        [all_at_once, client("web", &[]), client("ci", &["1 per 1h"]), client("tokens", &["20 tokens per 1h"])];
    served.gateway.replace_clients(Clients::with_keys(clients.into(), &served.gateway.clients()).unwrap());
    for expected in [200, 200, 200, 200, 200, 429] {
        let got = post("burst").header("x-paceline-deadline", "1s").send().await.unwrap();
        assert_eq!(got.status().as_u16(), expected);
    }

    // An answer used eight tokens; what requests reserve is settled by that.
    let (mut passed, mut refused) = (0, 0);
    for _ in 0..8 {
        let status = post("tokens").send().await.unwrap();
        let passes = status.status().as_u16() == 200;
        drop(status.bytes().await.unwrap());
        if passes { passed += 1 } else { refused += 1 }
    }
    assert!((1..=3).contains(&passed) && refused >= 5, "{passed} of 8 passed");

    // A new configuration keeps what was used.
    let before = served.gateway.clients();
    let more = Clients::with_keys(vec![client("ci", &["2 per 1h"])], &before).unwrap();
    served.gateway.replace_clients(more);
    assert_eq!(post("ci").send().await.unwrap().status().as_u16(), 200);
    assert_eq!(post("ci").send().await.unwrap().status().as_u16(), 429);
    assert_eq!(post("web").send().await.unwrap().status().as_u16(), 401, "revoked");
}

#[tokio::test]
async fn tokens_that_were_not_used_come_back_to_a_client_though_not_from_the_provider() {
    let api = upstream(|_: Request| async { answer(200, &[], OK) });
    let served = Served::new(api.await, "charge = { refunds = false }", Bounds::default());
    let clients = vec![client("ci", &["2000 tokens per 1h"])];
    served.gateway.replace_clients(Clients::with_keys(clients, &Clients::OfThisMachine).expect("limits"));
    let body = json!({"model": "m", "max_tokens": 900, "messages": []}).to_string();
    for _ in 0..4 {
        let response = served.post().header("x-api-key", "pk-ci").body(body.clone()).send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(status, 200, "{text}");
    }
}

#[tokio::test]
async fn what_was_never_sent_takes_nothing_of_the_limits_of_its_client() {
    let (served, _) = served(vec![client("ci", &["1 per 1h"])]).await;
    let post = || served.post().header("x-api-key", "pk-ci");
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(100), PauseCause::Program);
    for _ in 0..3 {
        let (status, _, message) = told(post().header("x-paceline-deadline", "1s").send().await.unwrap()).await;
        assert!(status == 429 && message.starts_with("upstream api: the request must wait"), "{message}");
    }
    served.limiter.resume(None);
    let clients = served.gateway.clients();
    while clients.limits_change().now_or_never().is_some() {}
    assert_eq!(post().send().await.unwrap().status().as_u16(), 200);
    assert!(clients.limits_change().now_or_never().is_some(), "what keeps the counts is told at once");
    let (status, _, message) = told(post().send().await.unwrap()).await;
    assert!(status == 429 && message.starts_with("the key ci: the request must wait"), "{message}");
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_takes_nothing_of_the_limits_of_a_client() {
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::new(nowhere, "retry = { max_retries = 1, base = \"1ms\", cap = \"2ms\" }", Bounds::default());
    let limited = vec![client("ci", &["1 per 1h"])];
    served.gateway.replace_clients(Clients::with_keys(limited, &Clients::OfThisMachine).expect("limits"));
    for _ in 0..3 {
        let request = served.post().header("x-api-key", "pk-ci").header("x-paceline-deadline", "200ms");
        let (status, code, message) = told(request.send().await.unwrap()).await;
        assert!(status != 429 || !message.starts_with("the key ci"), "{code}: {message}");
    }
}

#[tokio::test]
async fn a_client_names_its_models_and_its_priority_is_its_own() {
    let only = ClientConfig { models: vec!["gpt-*".into()], is_batch: true, ..client("ci", &[]) };
    let (served, _) = served(vec![only]).await;
    let (status, code, message) = told(served.post().header("x-api-key", "pk-ci").send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (403, "client_key"));
    assert_eq!(
        message,
        "the request names the model \"m\": the key ci is for gpt-*; name one of those, or ask who runs the gateway for another key"
    );
    let right = served.post().header("x-api-key", "pk-ci").body(r#"{"model":"gpt-5"}"#);
    assert_eq!(right.send().await.unwrap().status().as_u16(), 200);
    let page = served.client.get(served.origin() + "/metrics").header("x-api-key", "pk-ci").send().await.unwrap();
    let page = page.text().await.unwrap();
    assert!(page.contains(r#"paceline_wait_seconds_count{priority="batch",upstream="api"} 2"#), "{page}");
    assert!(!page.contains("pk-ci"));
}

#[tokio::test]
async fn who_follows_the_state_sees_no_more_of_it_once_the_key_is_revoked() {
    let (served, _) = served(vec![client("ci", &[]), client("ops", &[])]).await;
    let follow = |key: &'static str| {
        served.client.get(served.origin() + "/api/events?changes").header("x-paceline-key", key).send()
    };
    let (mut revoked, mut other) = (follow("pk-ci").await.unwrap(), follow("pk-ops").await.unwrap());
    for stream in [&mut revoked, &mut other] {
        assert!(stream.chunk().await.unwrap().is_some(), "the first event");
    }
    let left = Clients::with_keys(vec![client("ops", &[])], &served.gateway.clients()).unwrap();
    served.gateway.replace_clients(left);
    assert_eq!(revoked.headers()["connection"], "close", "nothing of it stays open");
    while revoked.chunk().await.unwrap().is_some() {}
    let post = served.post().header("authorization", "Bearer pk-ops").send().await.unwrap();
    assert_eq!(post.status().as_u16(), 200);
    assert!(other.chunk().await.unwrap().is_some(), "this one goes on");
}

#[tokio::test]
async fn one_client_does_not_take_all_places_of_those_who_follow_the_state() {
    let (served, _) = served(vec![client("ci", &[]), client("ops", &[])]).await;
    let follow =
        |key: &'static str| served.client.get(served.origin() + "/api/events").header("x-paceline-key", key).send();
    let mut streams = Vec::new();
    let refused = loop {
        let got = follow("pk-ci").await.unwrap();
        if got.status() != 200 {
            break got;
        }
        streams.push(got);
    };
    assert_eq!((streams.len(), refused.status().as_u16()), (8, 429));
    assert_eq!(follow("pk-ops").await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn who_follows_the_state_without_a_key_sees_no_more_of_it_once_clients_have_keys() {
    let (served, _) = served(Vec::new()).await;
    served.gateway.replace_clients(Clients::OfThisMachine);
    let mut events = served.client.get(served.origin() + "/api/events").send().await.unwrap();
    assert!(events.chunk().await.unwrap().is_some());
    served.gateway.replace_clients(Clients::with_keys(vec![client("ci", &[])], &Clients::OfThisMachine).unwrap());
    while events.chunk().await.unwrap().is_some() {}
}

#[tokio::test]
async fn a_host_names_an_upstream_and_has_all_of_its_paths() {
    let echo = |request: Request| async move { answer(200, &[], request.uri().to_string()) };
    let served = Served::new(upstream(echo).await, "", Bounds::default());
    let get = async |host: &str, path: &str| {
        let got = served.client.get(served.origin() + path).header("host", host).send().await.unwrap();
        (got.status().as_u16(), got.text().await.unwrap())
    };
    for (path, there) in [("/v1/x?y=1", "/v1/x?y=1"), ("/metrics", "/v1/metrics"), ("/api/state", "/v1/api/state")] {
        assert_eq!(get("api.localhost:4747", path).await, (200, there.to_owned()));
    }
    assert_eq!(get("localhost:4747", "/healthz").await, (200, "ok\n".to_owned()));
    let (status, text) = get("api.elsewhere.example", "/v1/x").await;
    assert!(status == 403 && text.contains("foreign_page"), "a name of the web is no name of this machine: {text}");
}

#[tokio::test]
async fn one_client_cannot_stop_the_others_and_what_two_were_refused_is_believed_once_a_third_is_refused_too() {
    let no_credit = r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
    let api = upstream(move |request: Request| async move {
        match request.headers().get("x-odd").map(|odd| odd.as_bytes()) {
            Some(b"key") => answer(401, &[], r#"{"error":{"code":"invalid_api_key","message":"no"}}"#),
            Some(_) => answer(429, &[], no_credit),
            None => answer(200, &[], OK),
        }
    });
    let served = Served::new(api.await, "", Bounds::default());
    let clients = ["ci", "web", "app"].map(|name| client(name, &[])).into();
    served.gateway.replace_clients(Clients::with_keys(clients, &Clients::OfThisMachine).expect("limits"));
    let status = |key: &str, odd: Option<&str>| {
        let request = served.post().header("x-api-key", format!("pk-{key}")).header("x-paceline-deadline", "1s");
        let request = odd.into_iter().fold(request, |request, odd| request.header("x-odd", odd));
        async { request.send().await.unwrap().status().as_u16() }
    };
    // Its first requests of all, and however many.
    for odd in ["key", "quota", "key", "quota", "key"] {
        assert_eq!(status("ci", Some(odd)).await, if odd == "key" { 401 } else { 429 });
        assert_eq!(status("web", None).await, 200, "{odd}");
    }
    assert_eq!((status("ci", Some("key")).await, status("web", Some("key")).await), (401, 401));
    assert_eq!((status("app", None).await, status("ci", None).await), (429, 429), "two were refused: a moment's pause");
    served.limiter.resume(None);
    assert_eq!(status("ci", None).await, 429, "it tests nothing itself");
    assert_eq!(status("app", Some("key")).await, 401, "the third one");
    assert_eq!((status("app", None).await, status("ci", None).await), (503, 429), "it is stopped");
}

#[tokio::test]
async fn work_that_no_limit_of_its_own_sees_is_refused_to_a_client_with_limits_or_models() {
    let models = ClientConfig { models: vec!["m".to_owned()], ..client("models", &[]) };
    let clients =
        vec![client("tokens", &["9k tokens per 1h"]), client("calls", &["60rpm"]), models, client("free", &[])];
    let (served, seen) = served(clients).await;
    let background = r#"{"model":"m","input":"hi","background":true}"#;
    for (key, method, path, body, expected) in [
        ("tokens", "POST", "/v1/batches", r#"{"model":"m"}"#, 403),
        ("tokens", "POST", "/v1/%62atches", "{}", 403),
        ("calls", "POST", "/v1/files", "{}", 403),
        ("models", "POST", "/v1/batches", r#"{"model":"m","input_file_id":"f"}"#, 403),
        ("models", "POST", "/v1/fine_tuning/jobs", r#"{"model":"m","training_file":"f"}"#, 403),
        ("tokens", "POST", "/v1beta/models/m:batchGenerateContent", "{}", 403),
        ("tokens", "GET", "/v1/batches", "", 403),
        ("calls", "GET", "/v1/files/f/content", "", 403),
        ("models", "GET", "/v1/chat/completions", "", 403),
        ("tokens", "GET", "/v1/models", "", 200),
        ("calls", "GET", "/v1/responses/resp_1", "", 200),
        ("free", "GET", "/v1/files", "", 200),
        ("free", "POST", "/v1/batches", "{}", 200),
        ("tokens", "POST", "/v1/responses", background, 403),
        ("tokens", "POST", "/v1/chat/completions", r#"{"model":"m","deferred":true}"#, 403),
        ("calls", "POST", "/v1/responses", background, 200),
        ("models", "POST", "/v1/responses", background, 200),
        ("tokens", "POST", "/v1/responses", r#"{"model":"m","input":"hi","background":false}"#, 200),
    ] {
        let request = served.client.request(method.parse().expect("a method"), served.url.clone() + path);
        let request = request.header("x-paceline-key", format!("pk-{key}")).body(body);
        let (status, code, message) = told(request.send().await.unwrap()).await;
        assert_eq!(status, expected, "{key} {path}: {message}");
        let words = format!("the key {key} has limits, models or paths of its own, which batches");
        let later = format!("the key {key} has a limit on tokens or in money, which an answer that another call");
        assert!(status == 200 || code == "client_key", "{code}");
        let reads = format!("the key {key} has limits, models or paths of its own: it may read models, single answers");
        let all = [words, later, reads];
        assert!(status == 200 || all.iter().any(|words| message.starts_with(words)), "{message}");
    }
    assert_eq!(seen.lock().await.len(), 7, "the others went nowhere");
    let own = served.client.post(served.origin() + "/v1/batches").header("x-paceline-key", "pk-calls").body("{}");
    assert_eq!(told(own.send().await.unwrap()).await.0, 404, "this gateway has none of its own");
}

#[tokio::test]
async fn what_is_left_of_a_clients_limits_is_told_before_its_first_call_and_after_it() {
    let clients =
        vec![client("a", &["5 per 1h", "10k tokens per 24h"]), client("idle", &["7 per 1h"]), client("free", &[])];
    let (served, _) = served(clients).await;
    let page = async |path: &str| {
        let got = served.client.get(served.origin() + path).header("x-paceline-key", "pk-free").send().await.unwrap();
        got.text().await.unwrap()
    };
    let left = |state: &str, of: &str| {
        let state: Value = serde_json::from_str(state).expect("JSON");
        let rows = state["clients"].as_array().expect("rows").iter();
        let row: Vec<_> = rows.filter(|row| row["client"] == of).cloned().collect();
        let [row] = &row[..] else { panic!("a row of {of}: {state}") };
        (row["upstream"].clone(), row["limits"][0]["remaining"].clone())
    };
    let metric = |page: &str, name: &str, labels: &str| {
        let line = format!("paceline_client_limit{name}{{{labels}}} ");
        let found = page.lines().find_map(|each| each.strip_prefix(&line));
        found.unwrap_or_else(|| panic!("{line} is not in\n{page}")).to_owned()
    };
    let of_a = r#"client="a",dimension="requests",window_seconds="3600""#;
    assert_eq!(left(&page("/api/state").await, "a"), (json!(""), json!(5)));
    assert_eq!(metric(&page("/metrics").await, "_remaining", of_a), "5");
    assert_eq!(served.post().bearer_auth("pk-a").send().await.unwrap().status().as_u16(), 200);
    let state = page("/api/state").await;
    assert_eq!((left(&state, "a"), left(&state, "idle")), ((json!("api"), json!(4)), (json!(""), json!(7))));
    let metrics = page("/metrics").await;
    assert_eq!([metric(&metrics, "", of_a), metric(&metrics, "_remaining", of_a)], ["5", "4"]);
    let tokens = metric(&metrics, "_remaining", r#"client="a",dimension="tokens",window_seconds="86400""#);
    assert!(tokens.parse::<u64>().unwrap() < 10_000, "{tokens}");
    assert!(!metrics.contains(r#"_limit{client="free""#), "{metrics}");
}

#[tokio::test]
async fn a_former_key_ends_by_itself_and_so_do_requests_that_wait_by_it() {
    let soon = paceline::clock::wall() + Duration::from_secs(2);
    let former = Some((paceline_gateway::KeyHash::of("pk-old"), soon));
    let (served, keys) = served(vec![ClientConfig { former, ..client("a", &["2 per 1h"]) }, client("b", &[])]).await;
    let post = async |key: &str| {
        let request = served.post().bearer_auth(key).header("x-paceline-deadline", "2h");
        told(request.send().await.unwrap()).await
    };
    assert_eq!([post("pk-a").await.0, post("pk-old").await.0], [200; 2]);
    let (status, code, message) = post("pk-old").await;
    assert_eq!((status, code.as_str()), (401, "client_key"), "it waits for the limit that both have: {message}");
    assert!(message.starts_with("the key was revoked while the request waited"), "{message}");
    assert_eq!(post("pk-old").await.0, 401);
    let state = served.client.get(served.origin() + "/api/state").bearer_auth("pk-b").send().await.unwrap();
    let state: Value = state.json().await.unwrap();
    let rows = state["clients"].as_array().unwrap().iter().filter(|row| row["client"] == "a").collect::<Vec<_>>();
    assert_eq!((rows.len(), &rows[0]["requests"]), (1, &json!(3)), "one client: {rows:?}");
    assert_eq!(keys.lock().await.len(), 2);
}

/// What an operator does short of revoking a key holds for requests that wait, too.
#[tokio::test]
async fn what_a_client_may_do_now_holds_for_its_requests_that_wait() {
    for (now, expected) in [
        (ClientConfig { models: vec!["other".to_owned()], ..client("a", &[]) }, [200, 403, 403, 403]),
        (ClientConfig { paths: vec!["/api/v1/models".to_owned()], ..client("a", &[]) }, [200, 403, 403, 403]),
        (client("a", &["1 per 1h"]), [200, 200, 429, 429]),
        (client("a", &["9 concurrent"]), [200; 4]),
    ] {
        let (go, came) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (may, seen) = (Arc::clone(&go), Arc::clone(&came));
        let api = upstream(move |_: Request| {
            let (may, seen) = (Arc::clone(&may), Arc::clone(&seen));
            async move {
                seen.add_permits(1);
                may.acquire().await.expect("it is open").forget();
                answer(200, &[], OK)
            }
        });
        let served = Served::new(api.await, "concurrency = 1", Bounds::default());
        serve_to(&served, vec![client("a", &[])]);
        let post = || tokio::spawn(served.post().bearer_auth("pk-a").send());
        let first = post();
        came.acquire().await.expect("it is open").forget();
        let others: Vec<_> = (0..3).map(|_| post()).collect();
        while served.limiter.snapshot().account.waiting < 3 {
            tokio::task::yield_now().await;
        }
        let now = Clients::with_keys(vec![now], &served.gateway.clients()).expect("limits");
        served.gateway.replace_clients(now);
        go.add_permits(4);
        let mut statuses = Vec::new();
        for call in [first].into_iter().chain(others) {
            statuses.push(call.await.expect("no panic").expect("an answer").status().as_u16());
        }
        statuses.sort_unstable();
        assert_eq!(statuses, expected);
    }
}
