//! What takes the place of an answer while an upstream stays down, and what does not.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::Request;
use axum::response::Response;
use paceline::PauseCause;
use paceline_gateway::{Bounds, ClientConfig, Gateway};

use crate::support::{Calls, Served, answer, backend, client, counted, serve_to, upstream};

const QUICK: &str = "retry = { base = \"1ms\", cap = \"2ms\", max_retries = 3 }";

fn quick(fallback_to: &str) -> String {
    format!("{QUICK}\nfallback_to = {fallback_to}")
}

/// A server that says what it was asked.
async fn echo() -> SocketAddr {
    upstream(|request: Request| async move {
        let kept: Vec<_> = ["authorization", "x-kept", "x-paceline-priority"]
            .into_iter()
            .map(|name| {
                request.headers().get(name).map_or("-", |value| value.to_str().expect("it is there")).to_owned()
            })
            .collect();
        let path = request.uri().path().to_owned();
        let body = to_bytes(request.into_body(), 1 << 20).await.expect("it is there");
        answer(
            200,
            &[],
            format!("{path} {} {}", kept.join(" "), String::from_utf8(body.to_vec()).expect("it is there")),
        )
    })
    .await
}

/// The status, what took the place of the upstream, the calls, and the body.
async fn got(request: reqwest::RequestBuilder) -> (u16, Option<String>, String, String) {
    let got = request.send().await.expect("it is there");
    let header = |name: &str| got.headers().get(name).map(|value| value.to_str().expect("it is there").to_owned());
    let (fallback, calls) = (header("x-paceline-fallback"), header("x-paceline-attempts").expect("it is there"));
    (got.status().as_u16(), fallback, calls, got.text().await.expect("it is there"))
}

#[tokio::test]
async fn a_server_that_fails_gives_way_once_its_retries_are_used_up() {
    let (down, calls) = counted(|_| answer(503, &[], "down")).await;
    let (gone, ..) = counted(|_| answer(502, &[], "gone")).await;
    let steps = quick("[\"gone\", \"other:mini\"]");
    let served =
        Served::all(&[("api", down, &steps), ("gone", gone, QUICK), ("other", echo().await, "")], Bounds::default());
    let (status, fallback, sent, body) =
        got(served.post().header("authorization", "Bearer client").header("x-kept", "1")).await;
    assert_eq!(
        (status, fallback.as_deref(), sent.as_str()),
        (200, Some("other/mini"), "6"),
        "4, 1 and 1: one budget of retries"
    );
    assert_eq!(calls.count(), 4);
    let expected = "/v1/chat/completions Bearer [key]*********** 1 - {\"model\":\"mini\",\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    assert_eq!(body, expected, "each upstream has its own key, which no client sees, and no other byte changes");
}

#[tokio::test]
async fn what_stays_down_is_the_upstreams_own_answer_where_all_do() {
    let (down, _) = counted(|_| answer(503, &[("x-odd", "1")], "down")).await;
    let (gone, _) = counted(|_| answer(502, &[], "gone")).await;
    let steps = quick("[\"gone\"]");
    let served = Served::all(&[("api", down, &steps), ("gone", gone, QUICK)], Bounds::default());
    let (status, fallback, sent, body) = got(served.post()).await;
    assert_eq!((status, fallback, sent.as_str(), body.as_str()), (503, None, "5", "down"));
}

#[tokio::test]
async fn a_fallback_leads_a_key_to_nothing_that_is_not_its_own() {
    let (down, _) = counted(|_| answer(503, &[], "down")).await;
    let steps = quick("[\"other:mini\"]");
    let served = Served::all(&[("api", down, &steps), ("other", echo().await, "")], Bounds::default());
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    let models = |name: &str, models: &[&str]| ClientConfig { models: list(models), ..client(name, &[]) };
    let paths = |name: &str, paths: &[&str]| ClientConfig { paths: list(paths), ..client(name, &[]) };
    let chat = ["/api/v1/chat/completions", "/other/v1/chat/completions"];
    let clients = vec![
        models("m", &["m"]),
        models("both", &["m", "mini"]),
        paths("api", &chat[..1]),
        paths("paths", &chat),
        client("all", &[]),
    ];
    serve_to(&served, clients);
    for (key, expected) in [("m", 503), ("both", 200), ("api", 503), ("paths", 200), ("all", 200)] {
        let (status, ..) = got(served.post().header("authorization", format!("Bearer pk-{key}"))).await;
        assert_eq!(status, expected, "{key}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_stopped_account_a_used_up_quota_and_a_long_pause_give_way_at_once() {
    for (status, headers, body) in [
        (401, &[][..], r#"{"error":{"message":"no","code":"invalid_api_key"}}"#),
        (429, &[], r#"{"error":{"message":"no credit","type":"insufficient_quota","code":"insufficient_quota"}}"#),
        (429, &[("retry-after", "3000")], r#"{"error":{"message":"later","code":"rate_limit_exceeded"}}"#),
    ] {
        let (down, calls) = counted(move |_| answer(status, headers, body)).await;
        let steps = quick("[\"other\"]");
        let served = Served::all(&[("api", down, &steps), ("other", echo().await, "")], Bounds::default());
        for _ in 0..3 {
            assert_eq!(
                got(served.post().header("x-paceline-deadline", "20s")).await.1.as_deref(),
                Some("other"),
                "{body}"
            );
        }
        assert_eq!(calls.count(), 1, "{body}");
    }
}

/// With keys, too: what the upstream asks of one client alone is no reason to give that one less.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_client_that_alone_was_told_to_wait_or_refused_gives_way_as_all_would() {
    let throttled = r#"{"error":{"message":"later","code":"rate_limit_exceeded"}}"#;
    let key = r#"{"error":{"message":"no","code":"invalid_api_key"}}"#;
    for (status, headers, body) in [
        (429, &[("retry-after", "3600")][..], throttled),
        (429, &[("retry-after", "90")], throttled),
        (429, &[("retry-after", "30")], throttled),
        (503, &[("retry-after", "3600")], "{}"),
        (401, &[], key),
    ] {
        for keys in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
            let (down, calls) = counted(move |_| answer(status, headers, body)).await;
            let steps = quick("[\"other\"]");
            let served = Served::all(&[("api", down, &steps), ("other", echo().await, "")], Bounds::default());
            serve_to(&served, keys.iter().map(|key| client(key, &[])).collect());
            // A wait that was told is heeded at once; a key is doubted once two were refused.
            let tells = !headers.is_empty();
            let first = if tells { &keys[..1] } else { keys };
            for key in first.iter().chain(&["a", "a"]) {
                let post = served.post().header("x-paceline-key", format!("pk-{key}"));
                let (status, fallback, ..) = got(post.header("x-paceline-deadline", "3s")).await;
                assert_eq!((status, fallback.as_deref()), (200, Some("other")), "{key}: {headers:?} {body} {keys:?}");
            }
            assert!(!tells || calls.count() == 1, "{headers:?} {keys:?}");
        }
    }
}

#[tokio::test]
async fn waits_for_limits_and_wrong_requests_do_not_fall_back() {
    let steps = quick("[\"other\"]");
    // A pause that fits in the deadline is waited for.
    let (api, _) = counted(|call| match call {
        0 => answer(429, &[("retry-after-ms", "20")], r#"{"error":{"code":"rate_limit_exceeded"}}"#),
        1 => answer(200, &[], "ours"),
        _ => answer(400, &[], r#"{"error":{"message":"wrong","code":"invalid"}}"#),
    })
    .await;
    let other = echo().await;
    let served = Served::all(&[("api", api, &steps), ("other", other, "")], Bounds::default());
    assert_eq!(got(served.post()).await.1, None);
    let (status, fallback, ..) = got(served.post()).await;
    assert_eq!((status, fallback), (400, None), "what is wrong is wrong elsewhere");
    // A limit that is known here is no outage, and neither is a hold by the program.
    let (api, _) = counted(|_| answer(200, &[], "ours")).await;
    let limited = format!("{steps}\nlimits = [\"1 per 1h\"]");
    let served = Served::all(&[("api", api, &limited), ("other", other, "")], Bounds::default());
    assert_eq!(got(served.post()).await.0, 200);
    let (status, fallback, ..) = got(served.post()).await;
    assert_eq!((status, fallback), (429, None));
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(7_200), PauseCause::Program);
    assert_eq!(got(served.post()).await.1, None);
}

#[tokio::test]
async fn a_call_that_may_have_been_done_is_made_nowhere_else() {
    let (down, _) = counted(|_| answer(504, &[], "down")).await;
    for (unknown, fallback) in [("hold", None), ("fail", None), ("resend", Some("other"))] {
        let settings = format!("{}\nprovider = \"generic\"\nunknown_outcome = \"{unknown}\"", quick("[\"other\"]"));
        let served = Served::all(
            &[("api", down, &settings), ("other", echo().await, "provider = \"generic\"")],
            Bounds::default(),
        );
        let (.., found, _, _) = got(served.client.post(format!("{}/v1/orders", served.url)).body("{}")).await;
        assert_eq!(found.as_deref(), fallback, "{unknown}");
    }
}

#[tokio::test]
async fn files_and_lists_of_an_account_are_not_asked_of_another() {
    let (down, _) = counted(|_| answer(503, &[], "down")).await;
    let steps = quick("[\"other\"]");
    let served = Served::all(&[("api", down, &steps), ("other", echo().await, "")], Bounds::default());
    for request in [
        served.client.get(format!("{}/v1/files/f-1", served.url)),
        served.client.post(format!("{}/v1/batches", served.url)),
    ] {
        let (status, fallback, ..) = got(request).await;
        assert_eq!((status, fallback), (503, None));
    }
}

#[tokio::test]
async fn a_file_answers_where_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("down.json");
    std::fs::write(&file, "{\"choices\":[]}").unwrap();
    let (down, _) = counted(|_| answer(500, &[], "down")).await;
    let steps = quick(&format!("[\"gone:m\", \"static:203:{}\"]", file.display()));
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let served = Served::all(&[("api", down, &steps), ("gone", nowhere, QUICK)], Bounds::default());
    let got = served.post().header("x-paceline-deadline", "300ms").send().await.unwrap();
    assert_eq!((got.status().as_u16(), &got.headers()["content-type"]), (203, &"application/json".parse().unwrap()));
    assert_eq!(got.headers()["x-paceline-fallback"], "static");
    assert_eq!(got.text().await.unwrap(), "{\"choices\":[]}");
}

#[tokio::test]
async fn the_clients_deadline_and_retries_count_for_all_steps_together() {
    let (down, first) = counted(|_| answer(503, &[], "down")).await;
    let (gone, second) =
        counted(|call| if call < 2 { answer(503, &[], "gone") } else { answer(200, &[], "late") }).await;
    let steps = quick("[\"gone\"]");
    let served = Served::all(&[("api", down, &steps), ("gone", gone, QUICK)], Bounds::default());
    assert_eq!(got(served.post().header("x-paceline-retries", "0")).await.0, 503);
    assert_eq!((first.count(), second.count()), (1, 1));
    // Where the account is stopped no retry was used, so all are left.
    served.limiter.stop(None, "the bill is not paid");
    let (status, fallback, calls, _) = got(served.post().header("x-paceline-retries", "1")).await;
    assert_eq!((status, fallback.as_deref(), calls.as_str()), (200, Some("gone"), "2"));
    assert_eq!((first.count(), second.count()), (1, 3));
}

#[tokio::test]
async fn steps_that_cannot_be_taken_stop_the_start() {
    let at: SocketAddr = "127.0.0.1:1".parse().unwrap();
    for (steps, other, expected) in [
        (
            "[\"nobody\"]",
            "",
            "upstream.api.fallback_to = \"nobody\": expected an upstream that is served here: api, other",
        ),
        (
            "[\"other:m\"]",
            "provider = \"anthropic\"",
            "expected an upstream that takes calls for openai; those for anthropic have another form",
        ),
        (
            "[\"static:/no/such.json\"]",
            "",
            "upstream.api.fallback_to = \"static:/no/such.json\": expected a file that can be read",
        ),
    ] {
        let bounds = Bounds::default();
        let backends = ["api", "other"].map(|name| {
            let settings = if name == "api" { format!("fallback_to = {steps}") } else { other.to_owned() };
            backend(name, at, &settings, &bounds)
        });
        let error = match backends {
            [Ok(api), Ok(other)] => Gateway::new([api, other], bounds).err().expect(steps),
            [Err(error), _] | [_, Err(error)] => error,
        };
        assert!(error.to_string().contains(expected), "{error}");
    }
}

fn completion() -> Response {
    let body = r#"{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"yes"}}]}"#;
    answer(200, &[("content-type", "application/json")], body)
}

/// The primary fails as long as `down`, and both upstreams answer.
async fn failing_while(down: &Arc<AtomicBool>) -> (SocketAddr, Calls) {
    let down = Arc::clone(down);
    counted(move |_| if down.load(Ordering::SeqCst) { answer(503, &[], "down") } else { completion() }).await
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn an_upstream_that_stays_down_is_waited_for_once_and_then_tested_by_a_call_in_a_while() {
    let down = Arc::new(AtomicBool::new(true));
    let (api, calls) = failing_while(&down).await;
    let steps = "retry = { base = \"1ms\", cap = \"50ms\", max_retries = 100 }\nfallback_to = [\"other\"]";
    let served =
        Served::all(&[("api", api, steps), ("other", counted(|_| completion()).await.0, "")], Bounds::default());
    let began = served.limiter.now();
    let first = got(served.post().header("x-paceline-deadline", "300ms")).await;
    assert_eq!(first.1.as_deref(), Some("other"));
    let before = calls.count();
    assert!(before >= 5, "{before} calls in 300 ms");
    // Its deadline is far: it would wait for all of it.
    for _ in 0..30 {
        let (status, fallback, ..) = got(served.post()).await;
        assert_eq!((status, fallback.as_deref()), (200, Some("other")));
    }
    let tests = calls.count() - before;
    let took = served.limiter.now() - began;
    assert!(tests as u64 <= 1 + took.as_secs(), "{tests} tests in {took:?}");
    down.store(false, Ordering::SeqCst);
    while got(served.post()).await.1.is_some() {
        tokio::task::yield_now().await;
    }
    assert_eq!(got(served.post()).await.1, None, "its upstream's own, from the first answer on");
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn requests_that_wait_for_an_upstream_fall_back_once_it_is_known_to_stay_down() {
    let down = Arc::new(AtomicBool::new(true));
    let (api, _) = failing_while(&down).await;
    let steps = "retry = { base = \"50s\", cap = \"50s\", max_retries = 5 }\nfallback_to = [\"other\"]";
    let served =
        Served::all(&[("api", api, steps), ("other", counted(|_| completion()).await.0, "")], Bounds::default());
    // Its call has failed, and it waits for the next.
    let waits = tokio::spawn(served.post().send());
    while served.limiter.snapshot().account.totals.of(paceline::Class::Overloaded) < 1 {
        tokio::task::yield_now().await;
    }
    for _ in 0..5 {
        assert_eq!(got(served.post().header("x-paceline-retries", "0")).await.1.as_deref(), Some("other"));
    }
    let waited = waits.await.expect("no panic").expect("an answer");
    assert_eq!(waited.headers()["x-paceline-fallback"], "other");
}

#[tokio::test]
async fn a_request_whose_fallbacks_fail_too_waits_for_its_own_upstream() {
    let down = Arc::new(AtomicBool::new(true));
    let (api, calls) = failing_while(&down).await;
    let (gone, _) = counted(|_| answer(503, &[], "gone")).await;
    let steps = "retry = { base = \"1ms\", cap = \"2ms\", max_retries = 100 }\nfallback_to = [\"gone\"]";
    let served = Served::all(&[("api", api, steps), ("gone", gone, QUICK)], Bounds::default());
    let (status, ..) = got(served.post().header("x-paceline-retries", "10")).await;
    assert_eq!(status, 503);
    let before = calls.count();
    let waits = tokio::spawn(served.post().send());
    while calls.count() < before + 3 {
        tokio::task::yield_now().await;
    }
    down.store(false, Ordering::SeqCst);
    let waited = waits.await.expect("no panic").expect("an answer");
    assert_eq!((waited.status().as_u16(), waited.headers().get("x-paceline-fallback")), (200, None));
}

#[tokio::test]
async fn a_step_whose_call_may_have_been_done_is_named() {
    let (down, _) = counted(|_| answer(503, &[], "down")).await;
    let (lost, _) = counted(|_| answer(504, &[], "lost")).await;
    for (steps, expected) in [("[\"lost:dear\"]", (503, None)), ("[\"lost:dear\", \"other\"]", (200, Some("other")))] {
        let served = Served::all(
            &[("api", down, &quick(steps)), ("lost", lost, QUICK), ("other", counted(|_| completion()).await.0, "")],
            Bounds::default(),
        );
        let got = served.post().header("x-paceline-retries", "0").send().await.unwrap();
        let header = |name: &str| got.headers().get(name).map(|value| value.to_str().unwrap());
        assert_eq!((got.status().as_u16(), header("x-paceline-fallback")), expected);
        assert_eq!((header("x-paceline-unknown"), header("x-paceline-unknown-at")), (Some("1"), Some("lost/dear")));
    }
}

#[tokio::test]
async fn what_an_upstream_says_of_a_fallback_is_not_said_of_this_one() {
    let fields = [
        ("x-paceline-fallback", "static"),
        ("x-paceline-unknown", "7"),
        ("x-paceline-unknown-at", "x"),
        ("x-paceline-retries", "9"),
        ("x-paceline-of-tomorrow", "1"),
        ("x-paceline-attempts", "7"),
    ];
    for (status, body) in [(200, "{}"), (404, "{}"), (500, "{}")] {
        let at = counted(move |_| answer(status, &fields, body)).await.0;
        let served = Served::new(at, "retry = { max_retries = 0 }", Bounds::default());
        let got = served.post().send().await.unwrap();
        // The retries that a gateway spent there count here too.
        let spent = got.headers().get("x-paceline-retries").map(|spent| spent.to_str().unwrap());
        assert_eq!(spent, (status == 500).then_some("9"));
        let is_its_own = |(name, value): &(&str, &str)| {
            *name == "x-paceline-retries" || got.headers().get(*name).is_none_or(|own| own != value)
        };
        assert!(fields.iter().all(is_its_own), "{status}: {:?}", got.headers());
        assert_eq!(got.headers()["x-paceline-attempts"], "1");
    }
}
