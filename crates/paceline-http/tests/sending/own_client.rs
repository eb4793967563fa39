//! A program that sends with `reqwest` itself, under `Limiter::run`.

use std::time::Duration;

use paceline::{Backoff, Class, Growth, Jitter, Limiter, Pace, PacerConfig, Retry, clock};
use paceline_http::{LARGEST_ANSWER, NoAnswer, client_to, operation, receive};
use paceline_providers::Provider;

use crate::support::{Server, answer, ok};

fn limiter() -> Limiter {
    let growth = Growth::Constant { delay: Duration::from_millis(1) };
    let retry = Retry { max_retries: 2, backoff: Backoff { growth, jitter: Jitter::None }, ..Retry::default() };
    Limiter::new(PacerConfig { pace: Pace::None, retry, ..PacerConfig::default() }).unwrap()
}

#[tokio::test]
async fn answers_are_read_without_a_word_about_them_in_the_program() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Some(answer(503, "{}")),
        1 => Some(answer(429, "{}")),
        _ => Some(ok(r#"{"all":"well"}"#)),
    })
    .await;
    let (limiter, client) = (limiter(), client_to(&server.url).build().unwrap());
    let whole = limiter.run(operation(client.get(&server.url))).await.unwrap();
    assert_eq!((whole.status().as_u16(), &whole.body()[..]), (200, &br#"{"all":"well"}"#[..]));
    let totals = limiter.snapshot().account.totals;
    assert_eq!((totals.sends, totals.retries, totals.deferrals), (3, 1, 1));
}

#[tokio::test]
async fn a_request_whose_body_can_be_sent_once_is_refused_before_it_is_sent() {
    let server = Server::new(|_| Some(ok("{}"))).await;
    let client = client_to(&server.url).build().unwrap();
    let response = client.get(&server.url).send().await.unwrap();
    let streamed = client.post(&server.url).body(reqwest::Body::from(response));
    let failed = limiter().run(operation(streamed)).await.unwrap_err();
    assert!(failed.is_fatal() && failed.calls() == 1);
    assert_eq!(failed.into_operation(), Ok(NoAnswer::Streamed));
    assert_eq!(server.arrivals().len(), 1);
}

#[tokio::test]
async fn errors_of_reqwest_mean_what_happened() {
    let server = Server::new(|arrival| match &*arrival.path {
        "/silent" => None,
        "/long" => Some(ok(&"x".repeat(100))),
        _ => Some(answer(429, "{}")),
    })
    .await;
    let client = client_to(&server.url).build().unwrap();
    let get = |path: &str| client.get(format!("{}{path}", server.url)).timeout(Duration::from_millis(40));
    let class = |error: &NoAnswer| error.reading(Provider::Generic, clock::wall()).class;

    let status = NoAnswer::from(get("/").send().await.unwrap().error_for_status().unwrap_err());
    assert_eq!(
        (status.to_string().as_str(), class(&status)),
        ("the server answered 429 Too Many Requests", Class::Throttled)
    );
    let silent = NoAnswer::from(get("/silent").send().await.unwrap_err());
    assert_eq!((&silent, class(&silent)), (&NoAnswer::Timeout(None), Class::Transient));
    let gone = NoAnswer::from(client.get("http://127.0.0.1:1").send().await.unwrap_err());
    assert!(gone.is_unsent() && gone.reading(Provider::Generic, clock::wall()).unsent);
    let long = receive(get("/long").send().await.unwrap(), 99).await.unwrap_err();
    assert_eq!((&long, class(&long)), (&NoAnswer::TooLarge(99), Class::Invalid));
}

/// The limit and the hint of an answer are lost with `error_for_status`, and its status is not.
#[tokio::test]
async fn a_status_as_an_error_is_sent_again_as_the_answer_would_be() {
    let server = Server::new(|arrival| Some(if arrival.before == 0 { answer(503, "") } else { ok("{}") })).await;
    let (limiter, client) = (limiter(), client_to(&server.url).build().unwrap());
    let call = || async { receive(client.get(&server.url).send().await?.error_for_status()?, LARGEST_ANSWER).await };
    assert!(limiter.run(call).await.is_ok());
    assert_eq!(server.arrivals().len(), 2);
}
