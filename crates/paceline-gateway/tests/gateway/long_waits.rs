//! Waits of minutes or a day that one client is told, or two: whom they hold, and for how long.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use paceline::Clock;
use paceline_config::parse_duration;
use paceline_core::Instant;
use paceline_gateway::Bounds;
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::OK;
use crate::support::{Served, answer, client, serve_to, upstream};

const SLOW_DOWN: &str = r#"{"error":{"message":"slow down","code":"x"}}"#;

/// A server that answers with the status and the wait that the client's request names.
async fn served(settings: &str) -> Served {
    let at = upstream(|request: Request| async move {
        let told = request.headers().get("x-told").and_then(|told| told.to_str().ok()).unwrap_or_default();
        let (status, wait) = told.split_once(' ').unwrap_or((told, "86400"));
        match status {
            "429" | "503" => answer(status.parse().expect("a status"), &[("retry-after", wait)], SLOW_DOWN),
            "at-once" => answer(429, &[], SLOW_DOWN),
            "quota" => answer(429, &[], r#"{"error":{"message":"no credit","code":"insufficient_quota"}}"#),
            _ => answer(200, &[], OK),
        }
    });
    let served = Served::new(at.await, settings, Bounds::default());
    serve_to(&served, ["big", "other", "third", "last"].map(|name| client(name, &[])).into());
    served
}

/// The status, the calls that were made, and the message, of a request that waits for no more than a second.
async fn post(served: &Served, key: &str, model: &str, told: &str) -> (u16, String, String) {
    post_within(served, "1s", key, model, told).await
}

async fn post_within(
    served: &Served,
    deadline: &'static str,
    key: &str,
    model: &str,
    told: &str,
) -> (u16, String, String) {
    let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
    let request = served.post().body(body).header("x-paceline-key", format!("pk-{key}")).header("x-told", told);
    let got = request.header("x-paceline-deadline", deadline).send().await.expect("an answer");
    let (status, calls) =
        (got.status().as_u16(), got.headers()["x-paceline-attempts"].to_str().expect("a number").to_owned());
    let body: Value = got.json().await.expect("JSON");
    (status, calls, body["error"]["message"].as_str().unwrap_or_default().to_owned())
}

/// Whether nothing left, and the message says that the request must wait for what is left of so many seconds. They began after
/// that clock did.
fn waits((status, calls, message): &(u16, String, String), seconds: u64, since: &Clock) -> bool {
    let told = message.split_once("the request must wait ").and_then(|(_, rest)| rest.split_once(" more"));
    let Some(Ok(told)) = told.map(|(wait, _)| parse_duration(wait)) else { return false };
    let (whole, passed) = (Duration::from_secs(seconds), since.now() - Instant::ZERO);
    // In words it has no parts of a minute or a second.
    let cut_off = Duration::from_secs(if seconds < 3_600 { 1 } else { 60 });
    (*status, calls.as_str()) == (429, "0") && told <= whole && told + passed + cut_off >= whole
}

fn is_a_day(message: &str) -> bool {
    message.contains("the request must wait 1d 0h more") || message.contains("the request must wait 23h 59m")
}

/// What holds the scope of that model is over.
fn is_over(served: &Served, model: &str) {
    served.limiter.resume(None);
    served.limiter.resume(Some(&served.limiter.scope(&format!("/v1/chat/completions {model}"))));
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_long_wait_holds_the_others_for_a_moment_and_the_client_that_was_told_it_for_as_long() {
    for (told, status, whole, tested) in [
        ("429 86400", 429, 86_400, 300),
        ("503 86400", 503, 86_400, 300),
        ("429 3500", 429, 3_500, 300),
        ("429 120", 429, 120, 120),
    ] {
        let served = served("").await;
        let since = Clock::new();
        let refused = post(&served, "big", "m", told).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, "1"), "{told}");
        let held = post(&served, "other", "m", "well").await;
        assert!(waits(&held, 10, &since), "{told}: {}", held.2);
        assert_eq!(post(&served, "other", "another", "well").await.0, 200, "another scope");
        is_over(&served, "m");
        let away = post(&served, "big", "m", "well").await;
        assert!(waits(&away, whole, &since), "it is not the one that tests it: {}", away.2);
        assert_eq!(post(&served, "other", "m", "well").await.0, 200, "{told}");
        assert_eq!(post(&served, "third", "m", told).await.1, "1", "{told}");
        is_over(&served, "m");
        assert_eq!(post(&served, "other", "m", told).await.1, "1", "{told}");
        let held = post(&served, "last", "m", "well").await;
        assert!(waits(&held, tested, &since), "two clients are believed for so long: {}", held.2);
        is_over(&served, "m");
        assert_eq!(post(&served, "last", "m", told).await.1, "1", "{told}");
        let held = post(&served, "last", "m", "well").await;
        assert!(waits(&held, whole, &since), "three are believed: {}", held.2);
    }
}

/// The server may mean what that client asks for, or the client: a path where all paths are one scope, else a way to ask a model.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_short_wait_holds_the_client_that_was_told_it_and_the_others_for_a_sixth_of_it() {
    for settings in ["", "provider = \"generic\""] {
        let served = served(settings).await;
        let since = Clock::new();
        for key in ["big", "other"] {
            assert_eq!(post(&served, key, "m", "429 60").await.1, "1");
            let held = post(&served, "third", "m", "well").await;
            assert!(waits(&held, 10, &since), "{}", held.2);
            let away = post(&served, key, "m", "well").await;
            assert!(waits(&away, 60, &since), "it was told so: {}", away.2);
            served.limiter.resume(None);
            for scope in served.limiter.snapshot().scopes {
                served.limiter.resume(Some(&served.limiter.scope(&scope.name)));
            }
            assert_eq!(post(&served, "third", "m", "well").await.0, 200, "{key}");
        }
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_short_wait_that_one_client_after_another_is_told_is_one_of_all() {
    let served = served("").await;
    let since = Clock::new();
    for (key, seconds) in [("big", 10), ("other", 20), ("third", 60)] {
        assert_eq!(post(&served, key, "m", "429 60").await.1, "1");
        let held = post(&served, "last", "m", "well").await;
        assert!(waits(&held, seconds, &since), "{key}: {}", held.2);
        is_over(&served, "m");
    }
}

/// Else each of them would be told so again.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn what_a_client_is_told_holds_its_requests_that_wait_already() {
    for settings in ["", "provider = \"generic\""] {
        let goes_on = Arc::new(Semaphore::new(0));
        let waits = Arc::clone(&goes_on);
        let at = upstream(move |request: Request| {
            let waits = Arc::clone(&waits);
            async move {
                if !request.headers().contains_key("x-told") {
                    return answer(200, &[], OK);
                }
                waits.acquire().await.expect("open").forget();
                answer(429, &[("retry-after", "3")], SLOW_DOWN)
            }
        });
        let served = Served::new(at.await, &format!("concurrency = 1\n{settings}"), Bounds::default());
        serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
        let send = |told: &[&'static str], deadline: &'static str| {
            let request = served.post().body(r#"{"model":"m","messages":[]}"#).header("x-paceline-key", "pk-big");
            let request = request.header("x-paceline-deadline", deadline);
            let request = told.iter().fold(request, |request, told| request.header("x-told", *told));
            async move { request.send().await.expect("an answer").status().as_u16() }
        };
        let first = tokio::spawn(send(&["429"], "1s"));
        while served.limiter.snapshot().account.concurrency.in_flight < 1 {
            tokio::task::yield_now().await;
        }
        let second = tokio::spawn(send(&[], "2s"));
        while served.limiter.snapshot().account.waiting < 1 {
            tokio::task::yield_now().await;
        }
        goes_on.add_permits(1);
        assert_eq!([first.await.expect("sent"), second.await.expect("sent")], [429; 2], "{settings}");
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_client_that_another_one_speaks_against_holds_no_one_again_by_its_waits() {
    for told in ["429 86400", "503 86400", "429 61"] {
        let served = served("").await;
        for key in ["big", "other"] {
            assert_eq!(post(&served, key, "m", told).await.1, "1");
            is_over(&served, "m");
        }
        for key in ["big", "other"] {
            assert_eq!(post(&served, key, "m", told).await.1, "0", "it stays away");
        }
        for key in ["last", "third"] {
            assert_eq!(post(&served, key, "m", "well").await.0, 200, "{told}");
        }
    }
}

/// Two that were refused for want of credit.
#[tokio::test]
async fn two_keys_that_another_client_speaks_against_are_not_believed_again() {
    let served = served("").await;
    let since = Clock::new();
    assert_eq!(post(&served, "last", "m", "well").await.0, 200);
    for key in ["big", "other"] {
        assert_eq!(post(&served, key, "m", "quota").await.1, "1");
    }
    let held = post(&served, "last", "m", "well").await;
    assert!(waits(&held, 10, &since), "two are believed for a moment: {}", held.2);
    is_over(&served, "m");
    assert_eq!(post(&served, "last", "m", "well").await.0, 200);
    for _ in 0..3 {
        for key in ["big", "other"] {
            let away = post(&served, key, "m", "quota").await;
            assert!(waits(&away, 300, &since), "{}", away.2);
        }
        assert_eq!(post(&served, "last", "m", "well").await.0, 200, "they hold no one any more");
    }
}

#[tokio::test]
async fn a_client_that_is_told_to_wait_in_very_many_scopes_stays_away_from_all() {
    let served = served("").await;
    for number in 0..101 {
        assert_eq!(post(&served, "big", &format!("m{number}"), "503").await.1, "1");
    }
    let (status, calls, message) = post(&served, "big", "fresh", "well").await;
    assert_eq!((status, calls.as_str(), is_a_day(&message)), (429, "0", true), "{message}");
    assert_eq!(post(&served, "other", "fresh", "well").await.0, 200);
    let (_, calls, _) = post(&served, "big", "m0", "well").await;
    assert_eq!(calls, "0", "no earlier one is forgotten for a later one");
}

#[tokio::test]
async fn what_one_client_and_all_were_told_ends_once_a_person_lifts_it() {
    let served = served("").await;
    assert_eq!(post(&served, "big", "m", "503").await.1, "1");
    let (_, calls, message) = post(&served, "big", "m", "well").await;
    assert!(calls == "0" && is_a_day(&message), "{message}");
    served.limiter.stop(None, "no credit");
    assert_eq!(post(&served, "other", "fresh", "well").await.0, 503);
    served.gateway.upstreams()[0].lift_holds();
    for key in ["big", "other"] {
        assert_eq!(post(&served, key, "m", "well").await.0, 200, "{key}");
    }
}

#[tokio::test]
async fn a_fallback_takes_the_place_of_an_upstream_that_tells_one_client_to_wait_for_a_day() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("answer.json");
    std::fs::write(&file, "{}").expect("writable");
    for told in ["429", "503"] {
        let served = served(&format!("fallback_to = [\"static:203:{}\"]", file.display())).await;
        assert_eq!(post(&served, "big", "m", told).await.0, 203, "{told}");
    }
}

/// A limit of that path alone, which the client found there with its first call.
#[tokio::test]
async fn what_one_path_announces_to_one_client_for_an_hour_closes_no_other() {
    for sends_length in [true, false] {
        let at = upstream(move |request: Request| async move {
            if !request.uri().path().ends_with("/search") {
                return answer(200, &[], OK);
            }
            let [limit, left, reset] = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
            let fields = [(&*limit, "30"), (&*left, "0"), (&*reset, "3600")];
            match sends_length {
                true => answer(200, &fields, OK),
                false => {
                    let parts = futures_util::stream::iter([Ok::<_, std::io::Error>(OK)]);
                    answer(200, &fields, axum::body::Body::from_stream(parts))
                }
            }
        });
        let served = Served::new(at.await, "provider = \"generic\"", Bounds::default());
        serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
        let get = async |key: &str, path: &str| {
            let request =
                served.client.get(format!("{}{path}", served.url)).header("x-paceline-key", format!("pk-{key}"));
            let got = request.header("x-paceline-deadline", "1s").send().await.expect("an answer");
            (got.status().as_u16(), got.text().await.expect("a text"))
        };
        assert_eq!(get("big", "/search").await.0, 200);
        let (status, text) = get("other", "/things").await;
        assert_eq!(status, 200, "with a length {sends_length}: {text}");
        let (status, text) = get("big", "/things").await;
        let is_long = ["wait 1h 0m more", "wait 1h 00m more", "wait 59m"].iter().any(|wait| text.contains(wait));
        assert!(status == 429 && is_long, "the client itself was told so: {text}");
    }
}

/// A gateway to an API of which many paths are one scope, for the clients `big` and `other`. A path announces that its limit of a
/// minute is used up where `announces` says so.
async fn announcing(settings: &str, announces: fn(&str) -> bool) -> Served {
    let at = upstream(move |request: Request| async move {
        let fields = [("x-ratelimit-limit", "30"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "59")];
        let fields = if announces(request.uri().path()) { &fields[..] } else { &[] };
        answer(200, fields, OK)
    });
    let served = Served::new(at.await, &format!("provider = \"generic\"\n{settings}"), Bounds::default());
    serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
    served
}

async fn get(served: &Served, key: &str, path: &str) -> u16 {
    let request = served.client.get(format!("{}{path}", served.url)).header("x-paceline-key", format!("pk-{key}"));
    request.header("x-paceline-deadline", "1s").send().await.expect("an answer").status().as_u16()
}

#[tokio::test]
async fn a_limit_of_a_minute_that_one_path_alone_announces_closes_no_other() {
    let served = announcing("", |path| path.ends_with("/search")).await;
    assert_eq!(get(&served, "other", "/things").await, 200);
    assert_eq!(get(&served, "big", "/search").await, 200);
    for _ in 0..40 {
        assert_eq!(get(&served, "other", "/things").await, 200);
    }
    assert_eq!(get(&served, "big", "/things").await, 429, "the client itself was told so");
    // Where the paths of an API have limits of their own, an operator says so.
    let served = announcing("scope = \"endpoint\"", |path| path.ends_with("/search")).await;
    assert_eq!(get(&served, "big", "/search").await, 200);
    assert_eq!([get(&served, "other", "/things").await, get(&served, "big", "/things").await], [200; 2]);
    assert_eq!(get(&served, "other", "/search").await, 429);
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_limit_that_all_paths_announce_holds_all_clients() {
    let served = announcing("", |_| true).await;
    assert_eq!(get(&served, "big", "/search").await, 200);
    assert_eq!([get(&served, "other", "/things").await, get(&served, "other", "/search").await], [429; 2]);
}

#[tokio::test]
async fn what_one_path_refuses_teaches_no_pace_to_others_where_each_is_a_scope() {
    let at = upstream(|request: Request| async move {
        let status = if request.uri().path().ends_with("/search") { 429 } else { 200 };
        answer(status, &[], OK)
    });
    let settings = "provider = \"generic\"\nscope = \"endpoint\"";
    let served = Served::new(at.await, settings, Bounds::default());
    serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
    let refused = futures_util::future::join_all((0..8).map(|_| get(&served, "big", "/search"))).await;
    assert_eq!(refused, [429; 8]);
    for _ in 0..60 {
        assert_eq!(get(&served, "other", "/things").await, 200);
    }
}

/// One that asks for what has a limit of its own, such as a faster tier, whatever the others are told of their own.
#[tokio::test]
async fn a_small_limit_that_one_client_is_told_closes_its_model_for_no_other() {
    for others_are_told in [true, false] {
        let at = upstream(move |request: Request| async move {
            let own = request.headers().contains_key("x-told");
            let (limit, remaining, reset) = if own { ("3", "0", "59s") } else { ("10000", "9990", "1s") };
            let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}-requests"));
            let fields = [(&*names[0], limit), (&*names[1], remaining), (&*names[2], reset)];
            answer(200, if own || others_are_told { &fields } else { &[] }, OK)
        });
        let served = Served::new(at.await, "", Bounds::default());
        serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
        let ask = async |key: &str, own: bool| {
            let request = served.post().body(r#"{"model":"m","messages":[]}"#).header("x-paceline-deadline", "1s");
            let request = request.header("x-paceline-key", format!("pk-{key}"));
            let request = if own { request.header("x-told", "own") } else { request };
            request.send().await.expect("an answer").status().as_u16()
        };
        assert_eq!([ask("other", false).await, ask("big", true).await], [200; 2]);
        for _ in 0..20 {
            assert_eq!(ask("other", false).await, 200, "{others_are_told}");
        }
        assert_eq!(ask("big", true).await, 429, "the client itself was told so");
        assert_eq!(ask("other", false).await, 200);
    }
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_tier_of_its_own_that_refuses_without_a_time_teaches_no_pace_to_the_others() {
    let at = upstream(|request: Request| async move {
        let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.expect("a body");
        let status = if body.windows(4).any(|word| word == b"flex") { 429 } else { 200 };
        answer(status, &[], OK)
    });
    let served = Served::new(at.await, "", Bounds::default());
    serve_to(&served, ["big", "other"].map(|name| client(name, &[])).into());
    let ask = async |key: &str, tier: &str| {
        let body = format!(r#"{{"model":"m","service_tier":"{tier}","messages":[]}}"#);
        let request = served.post().body(body).header("x-paceline-key", format!("pk-{key}"));
        let request = request.header("x-paceline-deadline", "1s").header("x-paceline-retries", "0");
        request.send().await.expect("an answer").status().as_u16()
    };
    for _ in 0..5 {
        let refused = futures_util::future::join_all((0..8).map(|_| ask("big", "flex"))).await;
        assert_eq!(refused, [429; 8]);
        for _ in 0..20 {
            assert_eq!(ask("other", "auto").await, 200);
        }
    }
    let scopes = served.limiter.snapshot().scopes;
    let mut names: Vec<_> = scopes.iter().map(|scope| &*scope.name).collect();
    names.sort_unstable();
    assert_eq!(names, ["/v1/chat/completions m", "/v1/chat/completions m flex"]);
}

/// Of a limit of its own model tier, organisation or header a server need not say when it is over.
#[tokio::test]
async fn what_one_client_is_refused_again_and_again_while_others_pass_slows_that_client_alone() {
    let served = served("").await;
    let rate = || {
        let scope = served.limiter.scope("/v1/chat/completions m");
        served.limiter.scope_snapshot(&scope).and_then(|scope| scope.estimate).map(|estimate| estimate.rate)
    };
    let others_pass = async || {
        for _ in 0..3 {
            assert_eq!(post(&served, "other", "m", "well").await.0, 200);
        }
    };
    others_pass().await;
    while post_within(&served, "20ms", "big", "m", "at-once").await.1 == "0" {}
    others_pass().await;
    let before = rate().expect("a refusal teaches one");
    assert_eq!(post(&served, "big", "m", "at-once").await.0, 429);
    assert!(rate().expect("it stays") >= before, "{before} became {:?}", rate());
    let away = post_within(&served, "1ms", "big", "m", "well").await;
    assert!(away.0 == 429 && away.2.contains("has refused this client, or told it to wait"), "{}", away.2);
    assert_eq!(post(&served, "other", "m", "well").await.0, 200);
}

/// Else one answer to one client takes a model from all others for a month, which none of them tests.
#[tokio::test]
async fn a_limit_that_one_client_is_told_is_used_up_for_long_holds_the_others_for_a_moment() {
    const USED_UP: [(&str, &str); 3] = [
        ("x-ratelimit-limit-requests", "1"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "86400s"),
    ];
    const AND_WAIT: [(&str, &str); 4] = [USED_UP[0], USED_UP[1], USED_UP[2], ("retry-after", "86400")];
    for (status, headers, body) in [
        (200, &USED_UP[..], OK),
        (400, &USED_UP, SLOW_DOWN),
        (403, &USED_UP, SLOW_DOWN),
        (429, &USED_UP, SLOW_DOWN),
        (429, &AND_WAIT, SLOW_DOWN),
        (500, &USED_UP, SLOW_DOWN),
    ] {
        let at = upstream(move |_: Request| async move { answer(status, headers, body) });
        let served = Served::new(at.await, "retry = { max_retries = 0 }", Bounds::default());
        let since = Clock::new();
        serve_to(&served, ["big", "other", "third"].map(|name| client(name, &[])).into());
        assert_eq!(post(&served, "big", "m", "").await.0, status);
        let held = post(&served, "other", "m", "").await;
        assert!(waits(&held, 10, &since), "{status}: {}", held.2);
        let away = post(&served, "big", "m", "").await;
        assert!(is_a_day(&away.2), "{status}: {}", away.2);
        assert_eq!(post(&served, "other", "another", "").await.1, "1", "{status}");
    }
}
