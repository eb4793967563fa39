//! A client of `reqwest-middleware` whose requests are paced.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Extensions;
use paceline::{
    Backoff, Class, Cost, Dimension, Error, Growth, Jitter, Limiter, Pace, PacerConfig, Quota, Request, Retry,
};
use paceline_http::{NoAnswer, PaceMiddleware, client_to};
use paceline_providers::Provider;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware, Middleware, Next};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{Server, answer, ok, with};

fn limiter() -> Limiter {
    let growth = Growth::Constant { delay: Duration::from_millis(1) };
    let retry = Retry { max_retries: 2, backoff: Backoff { growth, jitter: Jitter::None }, ..Retry::default() };
    Limiter::new(PacerConfig { pace: Pace::None, retry, ..PacerConfig::default() }).unwrap()
}

fn client(url: &str, limiter: &Limiter) -> ClientWithMiddleware {
    ClientBuilder::new(client_to(url).build().unwrap()).with(PaceMiddleware::new(limiter.clone())).build()
}

#[tokio::test]
async fn each_try_is_paced_and_the_last_answer_comes_back_whole() {
    let server = Server::new(|arrival| match arrival.before {
        0 => Some(answer(503, "")),
        1 => Some(answer(429, "")),
        2 => Some(ok("done")),
        _ => Some(answer(404, "not here")),
    })
    .await;
    let limiter = limiter();
    let client = client(&server.url, &limiter);
    let done = client.post(&server.url).body("{}").send().await.unwrap();
    assert_eq!((done.status().as_u16(), &*done.text().await.unwrap()), (200, "done"));
    let totals = limiter.snapshot().account.totals;
    assert_eq!((totals.sends, totals.retries, totals.deferrals), (3, 1, 1));

    let missing = client.get(format!("{}/x", server.url)).send().await.unwrap();
    assert_eq!((missing.status().as_u16(), missing.url().path()), (404, "/x"));
    assert_eq!(missing.text().await.unwrap(), "not here");
    assert_eq!(server.arrivals().len(), 4);
}

#[tokio::test]
async fn a_gateway_spends_the_retries_of_its_client() {
    for of_gateway in 0..3_u32 {
        let server = Server::new(move |arrival| {
            let left: u32 = arrival.headers["x-paceline-retries"].to_str().unwrap().parse().unwrap();
            let spent = left.min(of_gateway);
            let failed = with(answer(500, "broken"), "x-paceline-retries", &spent.to_string());
            Some(with(failed, "x-paceline-attempts", &(1 + spent).to_string()))
        })
        .await;
        let pace = PaceMiddleware::new(limiter()).through_gateway();
        let client = ClientBuilder::new(client_to(&server.url).build().unwrap()).with(pace).build();
        let failed = client.get(&server.url).send().await.unwrap();
        let told: Vec<_> =
            server.arrivals().iter().map(|arrival| arrival.headers["x-paceline-retries"].clone()).collect();
        let expected = match of_gateway {
            0 => vec!["2", "1", "0"],
            1 => vec!["2", "0"],
            _ => vec!["2"],
        };
        assert_eq!(failed.status().as_u16(), 500);
        assert_eq!(told, expected, "three calls at the API");
    }
}

/// By its head it would be a refusal by a limit, to be sent again for ever.
#[tokio::test]
async fn the_body_of_a_refusal_decides_what_it_means() {
    let unpaid = r#"{"error":{"message":"no credit","code":"insufficient_quota"}}"#;
    let server = Server::new(move |_| Some(answer(429, unpaid))).await;
    let limiter = limiter().with_provider(Provider::OpenAi);
    let client = client(&server.url, &limiter);
    let refused = client.get(&server.url).send().await.unwrap();
    assert_eq!((refused.status().as_u16(), &*refused.text().await.unwrap()), (429, unpaid));
    assert_eq!(limiter.snapshot().account.totals.by_class[Class::Account as usize], 1);
    let stopped = client.get(&server.url).send().await.unwrap_err();
    let reqwest_middleware::Error::Middleware(stopped) = stopped else { panic!("{stopped}") };
    assert!(matches!(stopped.downcast_ref(), Some(Error::Stopped { .. })), "{stopped}");
    assert_eq!(server.arrivals().len(), 1);
}

#[tokio::test]
async fn the_body_of_a_success_is_left_to_the_caller() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (go_on, told) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1_000]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nabc").await.unwrap();
        told.await.unwrap();
        stream.write_all(b"def").await.unwrap();
    });
    let response = client(&url, &limiter()).get(&url).send().await.unwrap();
    go_on.send(()).unwrap();
    assert_eq!(response.text().await.unwrap(), "abcdef");
}

#[tokio::test]
async fn a_success_that_is_read_whole_tells_what_it_cost_and_what_it_refused() {
    let server = Server::new(|arrival| {
        Some(ok(match arrival.before {
            0 => r#"{"error":{"message":"slow down","code":429}}"#,
            _ => r#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#,
        }))
    })
    .await;
    let config =
        PacerConfig::default().with_pace(Pace::Fixed).with_quota(Quota::per_minute(1_000).of(Dimension::Tokens));
    let limiter = Limiter::new(config).unwrap();
    let pace = PaceMiddleware::new(limiter.clone()).whole().describe(|limiter, _: &reqwest::Request| {
        Request::new(limiter.scope("chat"), Cost::request().with(Dimension::Tokens, 500))
    });
    let client = ClientBuilder::new(client_to(&server.url).build().unwrap()).with(pace).build();
    let answer = client.get(&server.url).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), r#"{"usage":{"prompt_tokens":9,"completion_tokens":2}}"#);
    let snapshot = limiter.snapshot();
    // What the refused call reserved may have counted: 500 of the tokens. The other cost 11.
    assert_eq!((snapshot.account.totals.deferrals, snapshot.account.quotas[0].remaining), (1, 489));
}

#[tokio::test]
async fn what_comes_without_an_answer_is_sent_again_or_refused() {
    let limiter = limiter();
    let server = Server::new(|arrival| (arrival.before == 0).then(|| ok("{}"))).await;
    let client = client(&server.url, &limiter);
    let response = client.get(&server.url).send().await.unwrap();
    let silent = client.get(&server.url).timeout(Duration::from_millis(1)).send().await.unwrap_err();
    assert!(silent.is_timeout(), "{silent}");
    assert_eq!(limiter.snapshot().account.totals.by_class[Class::Transient as usize], 3);

    let streamed = client.post(&server.url).body(reqwest::Body::from(response)).send().await.unwrap_err();
    let reqwest_middleware::Error::Middleware(streamed) = streamed else { panic!("{streamed}") };
    assert_eq!(streamed.downcast_ref(), Some(&NoAnswer::Streamed));
    assert_eq!(limiter.snapshot().account.totals.by_class[Class::Invalid as usize], 1);
}

/// Counts the tries in the extensions of the request.
#[derive(Clone, Default)]
struct Tries(Arc<Mutex<Vec<u32>>>);

#[async_trait::async_trait]
impl Middleware for Tries {
    async fn handle(
        &self,
        request: reqwest::Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<reqwest::Response> {
        let tries = extensions.get::<u32>().copied().unwrap_or_default() + 1;
        extensions.insert(tries);
        self.0.lock().unwrap().push(tries);
        next.run(request, extensions).await
    }
}

#[tokio::test]
async fn a_middleware_behind_it_sees_every_try_and_each_request_names_its_scope() {
    let server = Server::new(|arrival| Some(if arrival.before == 0 { answer(503, "") } else { ok("{}") })).await;
    let (limiter, tries) = (limiter(), Tries::default());
    let pace = PaceMiddleware::new(limiter.clone()).describe(|limiter, request: &reqwest::Request| {
        Request::new(limiter.scope(request.url().path()), Cost::request())
    });
    let client = ClientBuilder::new(client_to(&server.url).build().unwrap()).with(pace).with(tries.clone()).build();
    // Inside a run of the same limiter it makes one send, and the outer one decides.
    let whole = limiter.run(async || client.get(format!("{}/a", server.url)).send().await);
    let whole = whole.scope("/a").read(|result, _| match result {
        Ok(response) if response.status() == 200 => paceline::Outcome::new(Class::Success),
        _ => paceline::Outcome::new(Class::Transient),
    });
    assert_eq!(whole.await.unwrap().status(), 200);
    client.get(format!("{}/b", server.url)).send().await.unwrap();
    assert_eq!(*tries.0.lock().unwrap(), [1, 1, 1]);
    let sends: Vec<_> =
        limiter.snapshot().scopes.iter().map(|scope| (scope.name.to_string(), scope.totals.sends)).collect();
    assert_eq!(sends, [("/a".to_owned(), 2), ("/b".to_owned(), 1)]);
}
