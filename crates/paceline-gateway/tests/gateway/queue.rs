//! Requests behind others: how many leave, and when a client is asked to come again.

use std::time::Duration;

use axum::extract::Request;
use paceline::PauseCause;
use paceline_gateway::Bounds;
use serde_json::Value;

use crate::OK;
use crate::support::{Served, answer, counted, upstream};

#[tokio::test(flavor = "multi_thread")]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn as_many_leave_at_once_as_the_limit_has_room_for() {
    for _ in 0..20 {
        let (api, calls) = counted(|_| answer(200, &[], OK)).await;
        let served = Served::new(api, "limits = ['5 per 1h']", Bounds::default());
        let at_once: Vec<_> = (0..8).map(|_| tokio::spawn(served.post().send())).collect();
        let mut statuses = Vec::new();
        for one in at_once {
            statuses.push(one.await.unwrap().unwrap().status().as_u16());
        }
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
        assert_eq!(calls.count(), 5);
    }
}

#[tokio::test]
async fn a_client_comes_again_once_the_queue_would_take_it() {
    let api = upstream(|_: Request| async move { answer(200, &[], OK) }).await;
    let served = Served::new(api, "limits = ['1 per 10s']\nburst = 1", Bounds::default());
    assert_eq!(served.post().send().await.unwrap().status().as_u16(), 200);
    let waiting: Vec<_> = (0..4).map(|_| tokio::spawn(served.post().send())).collect();
    while served.limiter.snapshot().account.waiting < 4 {
        tokio::task::yield_now().await;
    }
    let got = served.post().header("x-paceline-deadline", "20s").send().await.unwrap();
    assert_eq!(got.status().as_u16(), 429);
    let after: u64 = got.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    let body: Value = serde_json::from_slice(&got.bytes().await.unwrap()).unwrap();
    assert_eq!(
        (&body["error"]["limit"], &body["error"]["wait_ms"]),
        (&"older requests".into(), &Value::Null),
        "{body}"
    );
    assert!((30..=41).contains(&after), "it would wait for 50 to 60 s, so for 20 s in 30 to 40: {after} {body}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn one_client_cannot_fill_the_queue() {
    let (api, calls) = counted(|_| answer(200, &[], OK)).await;
    let mut bounds = Bounds::default();
    bounds.queue = 100;
    let served = Served::new(api, "", bounds);
    served.limiter.hold_for(None, served.limiter.now() + Duration::from_secs(60), PauseCause::Program);
    let post =
        |client: &str| served.post().header("x-paceline-client", client).header("x-paceline-deadline", "5m").send();
    let greedy: Vec<_> = (0..120).map(|_| tokio::spawn(post("greedy"))).collect();
    while served.limiter.snapshot().account.waiting < 90 || greedy.iter().filter(|one| one.is_finished()).count() < 30 {
        tokio::task::yield_now().await;
    }
    let person = tokio::spawn(post("person"));
    while served.limiter.snapshot().account.waiting < 91 {
        tokio::task::yield_now().await;
    }
    let refused = post("greedy").await.unwrap();
    assert_eq!(refused.status().as_u16(), 429);
    let body: Value = serde_json::from_slice(&refused.bytes().await.unwrap()).unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.starts_with("90 requests of this client wait for the upstream api already"), "{message}");
    assert_eq!((calls.count(), person.is_finished()), (0, false));
    greedy.iter().chain([&person]).for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_call_that_the_upstream_wants_later_than_its_deadline_is_answered_at_once() {
    let error = r#"{"error":{"message":"later","type":"requests","code":"rate_limit_exceeded"}}"#;
    let (api, calls) = counted(move |_| answer(429, &[("retry-after", "7200")], error)).await;
    let other = upstream(|_: Request| async move { answer(200, &[], OK) }).await;
    for (settings, status) in [("", 429), ("fallback_to = ['other']", 200)] {
        let served = Served::all(&[("api", api, settings), ("other", other, "")], Bounds::default());
        let before = calls.count();
        let got = served.post().header("x-paceline-deadline", "10s").send().await.unwrap();
        let header = |name: &str| got.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        assert_eq!((got.status().as_u16(), calls.count() - before), (status, 1));
        let waited: u64 = header("x-paceline-waited-ms").unwrap().parse().unwrap();
        assert!(waited < 10_000, "it is held for no time that leads to nothing: {waited}");
        assert_eq!(header("retry-after").as_deref(), (status == 429).then_some("7200"));
        let again = served.post().header("x-paceline-deadline", "10s").send().await.unwrap();
        assert_eq!((again.status().as_u16(), calls.count() - before), (status, 1), "nor does the next leave");
    }
}
