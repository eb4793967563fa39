//! The page for people: its files, and what it asks the gateway for.

use futures_util::StreamExt as _;
use paceline_gateway::Bounds;
use serde_json::Value;

use crate::OK;
use crate::operation::{page, state};
use crate::support::{Served, answer, client, counted, serve_to};

pub(crate) const SCOPE: &str = "/v1/chat/completions m";

#[tokio::test]
async fn the_page_is_whole_and_loads_nothing_from_elsewhere() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    let got = served.client.get(served.origin() + "/").send().await.unwrap();
    let policy = got.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(got.headers()["content-type"], "text/html; charset=utf-8");
    let html = got.text().await.unwrap();
    let links = ["src=\"", "href=\""].into_iter().flat_map(|name| html.split(name).skip(1));
    let links: Vec<_> =
        links.map(|rest| rest.split('"').next().unwrap()).filter(|link| !link.starts_with('#')).collect();
    assert!(links.len() > 5, "{links:?}");
    let mut files = Vec::new();
    for link in links {
        let (status, text) = page(&served, link).await;
        assert_eq!(status, 200, "{link}");
        files.push(text);
    }
    let imports = files.iter().flat_map(|text| text.split("from \"./").skip(1));
    for import in imports.map(|rest| rest.split('"').next().unwrap()) {
        assert_eq!(page(&served, &format!("/api/page/{import}")).await.0, 200, "{import}");
    }
    assert!(!html.contains("<script>") && !html.contains(" style=") && !html.contains(" onclick="));
}

/// Both have one origin: a script of an upstream could read the page, and the key that an operator typed there.
#[tokio::test]
async fn a_page_of_an_upstream_has_an_origin_of_its_own() {
    let own = [("content-type", "text/html"), ("content-security-policy", "default-src *"), ("x-kept", "1")];
    let of_origin = [
        "service-worker-allowed",
        "clear-site-data",
        "strict-transport-security",
        "alt-svc",
        "nel",
        "use-as-dictionary",
        "speculation-rules",
        "set-login",
        "accept-ch",
        "critical-ch",
        "sec-session-registration",
        "secure-session-registration",
    ];
    let fields = own.into_iter().chain(of_origin.map(|name| (name, "/"))).collect::<Vec<_>>();
    let (api, _) = counted(move |_| answer(200, &fields, "<script src=evil.js></script>")).await;
    let served = Served::new(api, "", Bounds::default());
    for request in [served.client.get(format!("{}/page", served.url)), served.post()] {
        let got = request.send().await.unwrap();
        let policies: Vec<_> = got.headers().get_all("content-security-policy").iter().collect();
        assert_eq!(policies, ["default-src *", "sandbox"], "browsers heed all of them");
        let left: Vec<_> = of_origin.iter().filter(|name| got.headers().contains_key(**name)).collect();
        assert!(left.is_empty() && got.headers().contains_key("x-kept"), "{left:?}");
    }
}

/// A link may have a client's key in it, and what comes back runs in the browser of an operator.
#[tokio::test]
async fn with_keys_of_clients_too_no_browser_is_led_to_an_upstream_or_keeps_a_script_of_it() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    let get = async |path: &str, name, value| {
        served.client.get(served.origin() + path).header(name, value).send().await.unwrap().status().as_u16()
    };
    let fields = [("sec-fetch-site", "cross-site"), ("service-worker", "script"), ("sec-fetch-dest", "serviceworker")];
    for clients in [None, Some(vec![client("ops", &[])])] {
        clients.into_iter().for_each(|clients| serve_to(&served, clients));
        for (name, value) in fields {
            assert_eq!(get("/api/v1/models?key=pk-ops", name, value).await, 403, "{name}");
            assert_eq!(get("/", name, value).await, 200, "the page is led to");
        }
    }
    assert_eq!(calls.count(), 0);
    assert_eq!(get("/api/v1/models?key=pk-ops", "sec-fetch-site", "same-site").await, 200);
    assert_eq!(get("/api/v1/models?key=pk-ops", "origin", "https://app.example").await, 200, "a key tells who it is");
}

/// A browser sends no origin with `<img src="http://localhost:4747/openai/v1/...">`.
#[tokio::test]
async fn without_keys_of_clients_an_image_of_another_port_of_this_machine_spends_nothing() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    let get = async |path: &str, site, destination| {
        let request = served.client.get(served.origin() + path).header("sec-fetch-site", site);
        request.header("sec-fetch-dest", destination).send().await.unwrap().status().as_u16()
    };
    for clients in [paceline_gateway::Clients::OfThisMachine, paceline_gateway::Clients::Anyone] {
        served.gateway.replace_clients(clients);
        assert_eq!(get("/api/v1/models", "same-site", "image").await, 403);
        assert_eq!(get("/metrics", "same-site", "document").await, 403);
        assert_eq!(get("/", "same-site", "document").await, 200, "a link leads to the page");
    }
    assert_eq!(calls.count(), 0);
    assert_eq!(get("/api/v1/models", "same-origin", "empty").await, 200);
    assert_eq!(get("/api/v1/models", "none", "document").await, 200, "a person typed it");
}

#[tokio::test]
async fn with_keys_of_clients_the_page_is_shown_and_its_state_is_not() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    serve_to(&served, vec![client("ops", &[])]);
    for (path, status) in [("/", 200), ("/api/page/page.js", 200)] {
        assert_eq!(page(&served, path).await.0, status, "{path}");
    }
    for path in ["/api/state", "/api/events?changes", "/api/history?upstream=api&scope="] {
        assert_eq!(page(&served, path).await.0, 401, "{path}");
        let got = served.client.get(served.origin() + path).header("x-paceline-key", "pk-ops").send().await.unwrap();
        assert_eq!(got.status().as_u16(), 200, "{path}");
    }
}

#[tokio::test]
async fn changes_tell_all_at_first_and_then_only_what_has_changed() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    served.limiter.scope("asleep");
    let events = served.client.get(served.origin() + "/api/events?changes").send().await.unwrap();
    let mut events = events.bytes_stream();
    let mut next = async || -> Value {
        let event = events.next().await.unwrap().unwrap();
        let text = std::str::from_utf8(&event).unwrap().strip_prefix("event: changes\ndata: ").unwrap();
        serde_json::from_str(text.trim_end()).unwrap()
    };
    let names = |changes: &Value| {
        let names = changes["scopes"].as_array().unwrap().iter();
        names.map(|scope| scope["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = next().await;
    assert_eq!((&first["first"], names(&first)), (&true.into(), vec![String::new(), "asleep".into()]));
    assert!(first["upstreams"][0]["name"] == "api" && first["scopes"][0]["quotas"].is_array());
    assert_eq!(served.post().send().await.unwrap().text().await.unwrap(), OK);
    let (mut told, mut has_client) = (Vec::new(), false);
    while !(told.contains(&SCOPE.to_owned()) && has_client) {
        let changes = next().await;
        assert_eq!(changes["first"], false);
        has_client |= changes["clients"][0]["tokens_out"] == 5;
        told.extend(names(&changes));
    }
    assert!(!told.contains(&"asleep".to_owned()), "{told:?}");
}

#[tokio::test]
async fn the_history_shows_the_present_step_at_once() {
    let (api, _) = counted(|n| match n {
        0 => answer(200, &[], OK),
        _ => answer(400, &[], "no"),
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    for _ in 0..2 {
        served.post().send().await.unwrap().bytes().await.unwrap();
    }
    for scope in ["", "%2Fv1%2Fchat%2Fcompletions%20m"] {
        let (status, text) = page(&served, &format!("/api/history?upstream=api&scope={scope}")).await;
        let history: Value = serde_json::from_str(&text).unwrap();
        let sum = |name: &str| history[name].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
        assert_eq!((status, sum("succeeded"), sum("failed"), sum("throttled")), (200, 1, 1, 0), "{text}");
        assert!(history["p95_ms"].as_array().unwrap().iter().any(Value::is_number), "{text}");
        assert_eq!((history["succeeded"].as_array().unwrap().len(), &history["step_s"]), (90, &10.into()));
    }
    assert_eq!(page(&served, "/api/history?upstream=api&scope=none").await.0, 404);
    assert_eq!(page(&served, "/api/history?upstream=none").await.0, 404);
}

#[tokio::test]
async fn the_state_tells_what_clients_used_and_what_was_decided() {
    let (api, _) = counted(|n| match n {
        0 => answer(
            429,
            &[("retry-after-ms", "20")],
            r#"{"error":{"message":"Slow down","code":"rate_limit_exceeded"}}"#,
        ),
        1 => answer(200, &[], OK),
        _ => answer(400, &[], r#"{"error":{"message":"no such parameter","type":"invalid_request_error"}}"#),
    })
    .await;
    let served = Served::new(api, "price = \"in=1000000,out=100000\"", Bounds::default());
    for _ in 0..2 {
        served.post().send().await.unwrap().bytes().await.unwrap();
    }
    let refused = served.post().header("x-paceline-priority", "high").send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);
    let state = state(&served).await;
    let client = &state["clients"][0];
    assert_eq!((&client["requests"], &client["tokens_in"], &client["cost"]), (&2.into(), &3.into(), &3.5.into()));
    let decisions: Vec<_> = state["decisions"].as_array().unwrap().iter().collect();
    let kinds: Vec<_> = decisions.iter().map(|decision| decision["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["bad_request", "invalid", "throttled"]);
    let text = |at: usize| decisions[at]["text"].as_str().unwrap();
    assert!(
        text(2).starts_with("rate limit hit (try 1), next try in ") && text(2).ends_with(": Slow down"),
        "{}",
        text(2)
    );
    assert!(text(1).starts_with("request refused, the answer is final (invalid): no such parameter"), "{}", text(1));
    assert!(text(0).starts_with("refused: x-paceline-priority"), "{}", text(0));
    assert_eq!(decisions[1]["scope"], SCOPE);
    assert_eq!(state["upstreams"][0]["scopes"][0]["trouble"], 0);
}

#[tokio::test]
async fn a_state_of_very_many_scopes_is_one_document() {
    let (api, _) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    (0..2_000).for_each(|number| drop(served.limiter.scope(&format!("m{number}"))));
    let got = served.client.get(served.origin() + "/api/state").send().await.expect("an answer");
    let text = got.text().await.expect("a text");
    let state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let upstream = &state["upstreams"][0];
    let scopes = upstream["scopes"].as_array().expect("scopes");
    assert!(text.len() > 1 << 20 && scopes.len() == 2_000, "{} bytes, {} scopes", text.len(), scopes.len());
    assert!(upstream["account"]["state"].is_string() && state["clients"].is_array() && state["draining"] == false);
}
