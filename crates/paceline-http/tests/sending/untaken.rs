//! Servers that say by HTTP/2 that they have not taken a call: it goes again and spends no retry. Of all others nothing is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use paceline::{Class, GiveUp, Limiter, NextAction, Pace, PacerConfig, Request, Retry};
use paceline_http::{Exchange, NoAnswer, Sender, SenderConfig, client_to, is_unknown};
use paceline_providers::Provider;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::post;

/// How a server ends a stream that it was asked on.
#[derive(Clone, Copy)]
enum Ends {
    Answered,
    Reset(Reason),
}

/// A server of HTTP/2 that treats the calls of all of its connections so, in order.
async fn server(ends: &'static [Ends]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let calls = Arc::clone(&calls);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((_, answer))) = connection.accept().await {
                    end(answer, ends[calls.fetch_add(1, Ordering::Relaxed)]);
                }
            });
        }
    });
    url
}

fn end(mut answer: SendResponse<Bytes>, ends: Ends) {
    match ends {
        Ends::Reset(reason) => answer.send_reset(reason),
        Ends::Answered => {
            let mut body = answer.send_response(http::Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"{}"), true).unwrap();
        }
    }
}

/// One that answers the first call on a connection with this GOAWAY, and closes it.
async fn leaving(last: u32, reason: u32) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            let go_away = [&[0, 0, 8, 7, 0, 0, 0, 0, 0][..], &last.to_be_bytes(), &reason.to_be_bytes()].concat();
            stream.write_all(&settings).await.unwrap();
            let mut seen = Vec::new();
            while !has_head(&seen) {
                let mut part = [0; 1024];
                let len = stream.read(&mut part).await.unwrap();
                seen.extend_from_slice(&part[..len]);
            }
            stream.write_all(&go_away).await.unwrap();
            stream.shutdown().await.unwrap();
            // What is closed with unread bytes is reset, and takes back what it has said.
            let _ = stream.read_to_end(&mut seen).await;
        }
    });
    url
}

/// Whether a frame with the head of a request is among what a client sent.
fn has_head(seen: &[u8]) -> bool {
    let mut left = seen.get(24..).unwrap_or_default();
    while let [a, b, c, kind, ..] = left {
        if *kind == 1 {
            return true;
        }
        let length = 9 + u32::from_be_bytes([0, *a, *b, *c]) as usize;
        left = left.get(length..).unwrap_or_default();
    }
    false
}

fn sender_to(url: &str) -> Sender {
    let client = client_to(url).http2_prior_knowledge();
    Sender::new(client, SenderConfig::new(url, Provider::OpenAi)).unwrap()
}

/// One call of an item that has no retry.
async fn sent(sender: &Sender) -> Exchange {
    let retry = Retry { max_retries: 0, ..Retry::default() };
    let limiter = Limiter::new(PacerConfig { pace: Pace::None, retry, ..PacerConfig::default() }).unwrap();
    let call = post("/v1/chat/completions", r#"{"model":"m"}"#);
    let request = Request { item: Some(1), ..Request::new(limiter.scope("chat"), sender.charge("chat", &call)) };
    sender.send(limiter.acquire(request).await.unwrap(), &call, std::future::pending()).await
}

#[tokio::test]
async fn a_call_that_was_not_taken_goes_again_and_spends_no_retry() {
    let refused = server(&[Ends::Reset(Reason::REFUSED_STREAM), Ends::Answered]).await;
    for (url, expected) in [
        (
            &refused,
            "the server did not take the call: it refused the stream (refused stream before processing any application logic)",
        ),
        (&leaving(0, 0).await, "the server did not take the call: it ends the connection (not a result of an error)"),
        (
            &leaving(0, 11).await,
            "the server did not take the call: it ends the connection (detected excessive load generating behavior)",
        ),
    ] {
        let sender = sender_to(url);
        let exchange = sent(&sender).await;
        assert_eq!(exchange.answer.as_ref().map_err(ToString::to_string).unwrap_err(), expected);
        assert!(matches!(exchange.action, NextAction::Retry { .. }), "{:?}", exchange.action);
        assert!(exchange.reading.unsent && !is_unknown(&exchange.answer, &exchange.reading));
        assert_eq!(exchange.reading.class, Class::Transient);
        assert_eq!(exchange.used().map(|used| used.output_tokens), Some(0), "it is not billed");
    }
    let exchange = sent(&sender_to(&refused)).await;
    assert_eq!(exchange.status(), Some(200));
}

/// The server may have done what it was asked.
#[tokio::test]
async fn of_a_call_that_may_have_been_taken_nothing_is_known() {
    let reset = server(&[Ends::Reset(Reason::INTERNAL_ERROR)]).await;
    let cancelled = server(&[Ends::Reset(Reason::CANCEL)]).await;
    for url in [reset, cancelled, leaving(1, 0).await, leaving(i32::MAX as u32, 0).await] {
        let exchange = sent(&sender_to(&url)).await;
        assert!(matches!(exchange.answer, Err(NoAnswer::Broken { .. })), "{:?}", exchange.answer);
        assert!(is_unknown(&exchange.answer, &exchange.reading));
        let is_over = matches!(exchange.action, NextAction::GiveUp { reason: GiveUp::Retries, .. });
        assert!(is_over, "{:?}", exchange.action);
    }
}
