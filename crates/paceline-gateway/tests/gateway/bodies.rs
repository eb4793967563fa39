//! Bodies that are held: what one client leaves of their room to others, and that no one waits for the reading of large ones.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::Duration;

use axum::extract::Request;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use paceline::PauseCause;
use paceline_gateway::Bounds;
use serde_json::Value;
use tokio::runtime::Builder;

use crate::support::{Served, answer, client, counted, serve_to, upstream};
use crate::{OK, bounds};

fn post(served: &Served, key: &str, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
    let request = served.client.post(format!("{}/v1/chat/completions", served.url));
    request.header("x-paceline-key", format!("pk-{key}")).body(body)
}

#[tokio::test]
async fn what_would_not_fit_is_refused_before_it_waits() {
    let api = upstream(|_: Request| async move { answer(200, &[], OK) }).await;
    let served = Served::new(api, "", bounds(|bounds| (bounds.queue, bounds.held_bytes) = (1, 2_000)));
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(100), PauseCause::Program);
    let code =
        |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["error"]["code"].as_str().unwrap().to_owned();
    let large = served.client.post(format!("{}/v1/x", served.url)).body(vec![b'x'; 3_000]).send().await.unwrap();
    assert_eq!((large.status().as_u16(), code(&large.bytes().await.unwrap())), (429, "queue_full".to_owned()));
    let waiting = tokio::spawn(served.post().send());
    while served.limiter.snapshot().account.waiting == 0 {
        tokio::task::yield_now().await;
    }
    let second = served.post().send().await.unwrap();
    assert_eq!((second.status().as_u16(), code(&second.bytes().await.unwrap())), (429, "queue_full".to_owned()));
    served.limiter.resume(None);
    assert_eq!(waiting.await.unwrap().unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn bodies_of_a_client_whose_limit_is_used_up_leave_room_to_others() {
    let api = upstream(|_: Request| async move { answer(200, &[], OK) }).await;
    let served = Served::new(api, "", bounds(|bounds| bounds.held_bytes = 400_000));
    serve_to(&served, vec![client("greedy", &["5 per 1h"]), client("other", &[])]);
    for _ in 0..5 {
        assert_eq!(post(&served, "greedy", "x").send().await.unwrap().status().as_u16(), 200);
    }
    let body = || "x".repeat(20_000);
    let greedy = || post(&served, "greedy", body()).header("x-paceline-deadline", "1d").send();
    let waiting: Vec<_> = (0..30).map(|_| tokio::spawn(greedy())).collect();
    while waiting.iter().filter(|one| one.is_finished()).count() < 15 {
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        assert_eq!(post(&served, "other", body()).send().await.unwrap().status().as_u16(), 200);
    }
    let refused = greedy().await.unwrap();
    assert_eq!(refused.status().as_u16(), 429);
    let body: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert_eq!(body["error"]["code"], "queue_full");
    assert!(body["error"]["message"].as_str().unwrap().contains("of this client's requests"), "{body}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Of which 9,000 of one client may wait, of 64 KiB each.
#[tokio::test]
async fn long_heads_of_requests_that_wait_count_among_what_is_held() {
    let api = upstream(|_: Request| async move { answer(200, &[], OK) }).await;
    let served = Served::new(api, "", bounds(|bounds| bounds.held_bytes = 1 << 20));
    serve_to(&served, vec![client("greedy", &["1 per 1h"]), client("other", &[])]);
    assert_eq!(post(&served, "greedy", "x").send().await.unwrap().status().as_u16(), 200);
    let greedy = || {
        let with = |request: reqwest::RequestBuilder, n| request.header(format!("x-{n}"), "y".repeat(4_000));
        (0..10).fold(post(&served, "greedy", "x"), with).header("x-paceline-deadline", "1d").send()
    };
    let waiting: Vec<_> = (0..30).map(|_| tokio::spawn(greedy())).collect();
    while waiting.iter().filter(|one| one.is_finished()).count() < 10 {
        tokio::task::yield_now().await;
    }
    let refused = greedy().await.unwrap();
    assert_eq!(refused.status().as_u16(), 429);
    let body: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert!(body["error"]["message"].as_str().unwrap().contains("of this client's requests"), "{body}");
    let other = post(&served, "other", "x").send().await.unwrap();
    assert_eq!(other.status().as_u16(), 200, "they leave room to others");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn no_large_body_is_taken_for_a_request_that_would_wait_beyond_its_deadline() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let served = Served::new(api, "", Bounds::default());
    serve_to(&served, vec![client("used", &["1 per 1h"])]);
    assert_eq!(post(&served, "used", "x").send().await.unwrap().status().as_u16(), 200);
    // Not a byte of it ever comes.
    let silent = reqwest::Body::wrap_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let refused = post(&served, "used", silent).send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 429);
    let body: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    assert_eq!((&body["error"]["code"], calls.count()), (&"wait_too_long".into(), 1), "{body}");
}

/// Its only thread for work that blocks does nothing until it is told to.
fn with_a_busy_reader<F: Future>(test: impl FnOnce(mpsc::Sender<()>) -> F) {
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build().expect("a runtime");
    let (goes_on, goes) = mpsc::channel();
    runtime.spawn_blocking(move || goes.recv());
    runtime.block_on(test(goes_on));
}

#[test]
fn others_are_served_while_a_large_body_is_read() {
    with_a_busy_reader(|goes_on| async move {
        let (api, calls) = counted(|_| answer(200, &[], OK)).await;
        let served = Served::new(api, "", Bounds::default());
        let mut known = client("a", &["1M tokens per 1h", "1000 per 1h"]);
        known.models = vec!["m".to_owned()];
        serve_to(&served, vec![known]);
        let text = "word ".repeat(20_000);
        let large = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{text}"}}]}}"#);
        let large = tokio::spawn(post(&served, "a", large).send());
        for others in 1..20 {
            let health = served.client.get(format!("{}/healthz", served.origin())).send().await.unwrap();
            assert_eq!(health.status().as_u16(), 200);
            let small = post(&served, "a", r#"{"model":"m","messages":[]}"#).send().await.unwrap();
            assert_eq!((small.status().as_u16(), calls.count()), (200, others), "the large one is not read yet");
        }
        goes_on.send(()).unwrap();
        assert_eq!(large.await.unwrap().unwrap().status().as_u16(), 200);
        assert_eq!(calls.count(), 20);
    });
}

#[test]
fn a_large_body_of_a_client_that_has_gone_is_not_sent() {
    with_a_busy_reader(|goes_on| async move {
        let (api, calls) = counted(|_| answer(200, &[], OK)).await;
        let served = Served::new(api, "", Bounds::default());
        serve_to(&served, vec![client("a", &[])]);
        let gone = post(&served, "a", "x".repeat(100_000)).timeout(Duration::from_millis(50)).send().await;
        assert!(gone.is_err());
        goes_on.send(()).unwrap();
        let last = post(&served, "a", "x".repeat(100_000)).send().await.unwrap();
        assert_eq!((last.status().as_u16(), calls.count()), (200, 1));
    });
}

#[test]
fn others_are_served_while_a_large_failure_is_read() {
    with_a_busy_reader(|goes_on| async move {
        let (api, calls) = counted(|_| answer(400, &[], format!("{} a3f8c9d2e1b04711", "x".repeat(100_000)))).await;
        let served = Served::new(api, "", Bounds::default());
        serve_to(&served, vec![client("a", &[])]);
        let large = tokio::spawn(post(&served, "a", r#"{"model":"m","messages":[]}"#).send());
        for _ in 0..20 {
            let health = served.client.get(format!("{}/healthz", served.origin())).send().await.unwrap();
            assert_eq!(health.status().as_u16(), 200);
        }
        assert_eq!((calls.count(), large.is_finished()), (1, false), "it is not read yet");
        goes_on.send(()).unwrap();
        let failed = large.await.unwrap().unwrap();
        assert_eq!(failed.status().as_u16(), 400);
        assert!(failed.text().await.unwrap().ends_with("x [key]"), "it repeats no key");
    });
}

#[tokio::test]
async fn a_failure_that_is_too_long_keeps_its_status_and_is_told() {
    let packed = |length: usize| {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&vec![b'x'; length]).expect("in memory");
        gzip.finish().expect("in memory")
    };
    for (length, gzip, is_whole) in
        [(3 << 20, false, true), (3 << 20, true, true), (5 << 20, false, false), (5 << 20, true, false)]
    {
        let body = if gzip { packed(length) } else { vec![b'x'; length] };
        let coding: &[(&str, &str)] = if gzip { &[("content-encoding", "gzip")] } else { &[] };
        let (api, _) = counted(move |_| answer(400, coding, body.clone())).await;
        let served = Served::new(api, "", Bounds::default());
        serve_to(&served, vec![client("a", &[])]);
        let failed = post(&served, "a", r#"{"model":"m","messages":[]}"#).send().await.unwrap();
        assert_eq!((failed.status().as_u16(), failed.headers().get("content-encoding")), (400, None));
        let body = failed.text().await.unwrap();
        let told = "the upstream answered 400 Bad Request with more than is held of a failure (4194304 bytes";
        let is_as_expected = if is_whole { body.len() == length } else { body.contains(told) };
        assert!(is_as_expected, "{length} {gzip}: {} bytes", body.len());
    }
}

/// Answers that were read whole, and that no one takes.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn what_answers_hold_for_one_client_leaves_room_to_others() {
    const LONG: usize = 10 << 20;
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    let json = format!("{{\"a\":\"{}\"}}", "x".repeat(LONG - 8));
    gzip.write_all(json.as_bytes()).expect("in memory");
    let gzip = gzip.finish().expect("in memory");
    let (api, _) = counted(move |_| answer(200, &[("content-encoding", "gzip")], gzip.clone())).await;
    let served = Served::new(api, "", bounds(|bounds| bounds.held_bytes = 36 << 20));
    serve_to(&served, vec![client("a", &[]), client("b", &[])]);
    let ask = async |key: &str| {
        let got = post(&served, key, r#"{"model":"m","messages":[]}"#).send().await.unwrap();
        (got.status().as_u16(), got)
    };
    let (first, second) = (ask("a").await, ask("a").await);
    assert_eq!([first.0, second.0], [200; 2]);
    let (status, refused) = ask("a").await;
    let text = refused.text().await.unwrap();
    assert!(status == 502 && text.contains("there is no room for so long an answer"), "{status}: {text}");
    let other = ask("b").await;
    assert_eq!((other.0, other.1.bytes().await.unwrap().len()), (200, LONG));
    for held in [first, second] {
        assert_eq!(held.1.bytes().await.unwrap().len(), LONG);
    }
    assert_eq!(ask("a").await.0, 200, "what was taken is held no more");
}
