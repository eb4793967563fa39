//! Clients under the limiter, with axum behind nginx.

use std::convert::Infallible;
use std::thread;

use async_openai::config::OpenAIConfig;
use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use cookbook::openai::{answers, openai, paced};
use futures_util::{StreamExt as _, future, stream};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use paceline::{ByHead, Limiter, PaceLayer, PacerConfig, Quota};
use paceline_http::{PaceMiddleware, client_to, operation};
use reqwest_middleware::ClientBuilder;
use tower::{ServiceBuilder, ServiceExt as _};

use super::nginx::Nginx;
use super::serve;

const CALLS: usize = 50;

/// A little less than nginx lets through, so that it has nothing to refuse.
fn told() -> Limiter {
    Limiter::new(Quota::per_second(19).burst(19)).expect("valid")
}

/// A server that answers with a stream, and nginx before it.
pub(crate) async fn limited() -> Nginx {
    let parts = || async { Body::from_stream(stream::iter(["one ", "two"]).map(Ok::<_, Infallible>)).into_response() };
    let completion = r#"{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[]}"#;
    let chat = move || async move { ([("content-type", "application/json")], completion) };
    Nginx::limiting_rate(&serve(Router::new().route("/", get(parts)).route("/chat/completions", post(chat))).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn hyper_under_a_layer_shares_one_pace_over_all_clones_and_keeps_streams() {
    let nginx = limited().await;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let service = ServiceBuilder::new().layer(PaceLayer::new(told()).by_head()).service(client);
    let calls = (0..CALLS).map(|_| {
        let request = Request::get(&nginx.url).body(Full::default()).expect("a request");
        tokio::spawn(service.clone().oneshot(request))
    });
    for call in future::join_all(calls).await {
        let answer = call.expect("no panic").expect("an answer");
        assert_eq!(
            (answer.status().as_u16(), &answer.into_body().collect().await.expect("whole").to_bytes()[..]),
            (200, &b"one two"[..])
        );
    }
    assert_eq!(nginx.counts("429"), (CALLS, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_with_ureq_share_one_pace() {
    let nginx = limited().await;
    let (limiter, url) = (told(), nginx.url.clone());
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let calls = || {
        for _ in 0..CALLS / 10 {
            let answer = limiter.blocking().run(|| agent.get(&url).call()).read_by(ByHead).call().expect("an answer");
            assert_eq!(answer.into_body().read_to_string().expect("whole"), "one two");
        }
    };
    tokio::task::block_in_place(|| {
        thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(calls);
            }
        })
    });
    assert_eq!(nginx.counts("429"), (CALLS, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_reqwest_middleware_learns_a_limit_that_it_was_not_told() {
    let nginx = limited().await;
    let limiter = Limiter::new(PacerConfig::default()).expect("valid");
    let client = ClientBuilder::new(client_to(&nginx.url).build().expect("a client"))
        .with(PaceMiddleware::new(limiter.clone()))
        .build();
    for answer in future::join_all((0..CALLS).map(|_| client.get(&nginx.url).send())).await {
        assert_eq!(answer.expect("an answer").text().await.expect("whole"), "one two");
    }
    let (calls, refused) = nginx.counts("429");
    assert_eq!(calls, CALLS + refused);
    assert_eq!(limiter.snapshot().account.totals.sends, calls as u64, "every call took a permit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_reqwest_is_an_operation() {
    let nginx = limited().await;
    let (limiter, client) = (told(), client_to(&nginx.url).build().expect("a client"));
    for answer in future::join_all((0..CALLS).map(|_| limiter.run(operation(client.get(&nginx.url))))).await {
        assert_eq!(answer.expect("an answer").body(), "one two");
    }
    assert_eq!(nginx.counts("429"), (CALLS, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn async_openai_stays_as_it_is_and_no_prompt_fails() {
    let nginx = limited().await;
    let limiter = Limiter::new(PacerConfig::default()).expect("valid");
    let http = paced(client_to(&nginx.url).build().expect("a client"), &limiter).build();
    let client = openai(OpenAIConfig::new().with_api_base(&nginx.url).with_api_key("none"), http);
    let prompt = serde_json::from_str(r#"{"model":"m","messages":[{"role":"user","content":"Is this spam?"}]}"#)
        .expect("a request");
    let answered: Vec<_> = answers(&client, vec![prompt; CALLS]).collect().await;
    assert!(answered.iter().all(Result::is_ok), "{answered:?}");
    let (calls, refused) = nginx.counts("429");
    assert_eq!(
        (calls, limiter.snapshot().account.totals.sends),
        (CALLS + refused, calls as u64),
        "nothing else retries"
    );
}
