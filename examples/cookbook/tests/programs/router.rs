//! A router of `axum` in front of an API in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::routing::post;
use cookbook::router::paced;
use futures_util::future::join_all;
use paceline::testing::{MockAnswer, MockApi, block_on};
use paceline::{Limiter, Quota};
use tower::ServiceExt as _;

/// The bodies that handlers got.
type Seen = Arc<Mutex<Vec<String>>>;

async fn ask(State((api, seen)): State<(MockApi, Seen)>, body: String) -> Result<Response<Body>, StatusCode> {
    seen.lock().expect("no panic").push(body);
    let answer = api.call().await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(answer.map(Body::from))
}

fn router(api: &MockApi, seen: &Seen, limiter: &Limiter) -> Router {
    let router = Router::new().route("/ask", post(ask)).with_state((api.clone(), Arc::clone(seen)));
    paced(router, limiter.clone())
}

/// Status and text of the answer to a question.
async fn answer(router: &Router, question: impl Into<Body>) -> (StatusCode, String) {
    let request = Request::post("/ask").body(question.into()).expect("a request");
    let (head, body) = router.clone().oneshot(request).await.expect("a router always answers").into_parts();
    let text = to_bytes(body, 1 << 20).await.expect("a whole body");
    (head.status, String::from_utf8(text.into()).expect("text"))
}

#[test]
fn each_request_waits_for_its_turn_and_a_refused_one_is_made_again_with_its_body() {
    let api = MockApi::new(Quota::per_second(50)).expect("a limit");
    api.answer_next([MockAnswer::status(429).header("retry-after", "3"), MockAnswer::status(503)]);
    let seen = Seen::default();
    block_on(async {
        let limiter = Limiter::new(Quota::per_second(50)).expect("valid");
        let router = router(&api, &seen, &limiter);
        let answers = join_all((0..120).map(|_| answer(&router, "why?"))).await;
        assert!(answers.iter().all(|(status, _)| status.is_success()), "{answers:?}");
        assert_eq!(limiter.snapshot().account.totals.sends, 122);
    });
    api.calls().assert_at_most(50, Duration::from_secs(1));
    let seen = seen.lock().expect("no panic");
    assert!(seen.len() == 122 && seen.iter().all(|body| body == "why?"), "{seen:?}");
}

#[test]
fn a_client_whose_turn_would_come_too_late_and_one_with_a_large_body_are_told_so() {
    let api = MockApi::new(Quota::per_hour(1)).expect("a limit");
    let seen = Seen::default();
    block_on(async {
        let limiter = Limiter::new(Quota::per_hour(1)).expect("valid");
        let router = router(&api, &seen, &limiter);
        assert_eq!(answer(&router, "why?").await.0, StatusCode::OK);
        let (status, text) = answer(&router, "why?").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
        let (status, text) = answer(&router, vec![b'y'; (1 << 20) + 1]).await;
        assert_eq!((status, &*text), (StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded"));
    });
    assert_eq!(seen.lock().expect("no panic").len(), 1);
}
