//! Bodies that are too long, too slow, or too many.

use std::time::Duration;

use paceline_gateway::Bounds;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::impatient;
use super::raw::{OK, Raw, connected};
use crate::support::{Served, answer, upstream};

#[tokio::test]
async fn a_body_that_trickles_in_is_refused_however_long_its_deadline_is() {
    let raw = Raw::new(|_| OK.to_vec());
    let mut bounds = impatient();
    bounds.largest_body = 1_000;
    // A body above that goes on as it comes, and the server answers only once it is whole.
    bounds.first_byte = Duration::from_secs(600);
    let served = Served::new(raw.address, "", bounds);
    for (length, framing) in
        [(500, "content-length: 500"), (100_000, "content-length: 100000"), (500, "transfer-encoding: chunked")]
    {
        let mut stream = connected(&served).await;
        let head = format!("POST /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\nx-paceline-deadline: 23h\r\n{framing}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reads, mut writes) = stream.into_split();
        let trickles = tokio::spawn(async move {
            let mut every = tokio::time::interval(Duration::from_millis(20));
            for _ in 0..length {
                every.tick().await;
                let byte = if framing.starts_with('t') { &b"1\r\nx\r\n"[..] } else { b"x" };
                if writes.write_all(byte).await.is_err() {
                    return;
                }
            }
        });
        let mut text = Vec::new();
        let _ = reads.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("HTTP/1.1 408") && text.contains("trickles in"), "{framing}: {text}");
        trickles.abort();
    }
    let account = served.limiter.snapshot().account;
    assert_eq!((account.concurrency.in_flight, account.failing_since), (0, None), "the server is not to blame");
}

/// Each would be one scope of the pacer: a name of megabytes, and thousands of names.
#[tokio::test]
async fn names_of_models_take_no_memory_without_bound() {
    let raw = Raw::new(|_| OK.to_vec());
    let served = Served::new(raw.address, "", Bounds::default());
    for model in ["m".repeat(1 << 20), "n".repeat(1 << 20)] {
        let body = format!(r#"{{"model":"{model}","messages":[]}}"#);
        let got = served.client.post(format!("{}/v1/chat/completions", served.url)).body(body).send().await.unwrap();
        assert_eq!(got.status().as_u16(), 200);
    }
    let got = served.client.get(format!("{}/v1/{}", served.url, "x".repeat(1_000))).send().await.unwrap();
    assert_eq!(got.status().as_u16(), 200);
    let scopes: Vec<_> = served.limiter.snapshot().scopes.iter().map(|scope| scope.name.to_string()).collect();
    assert_eq!(scopes, ["other"]);
}

#[tokio::test]
async fn what_is_held_counts_until_the_answer_has_ended() {
    let (gate, opens) = {
        let gate = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        (std::sync::Arc::clone(&gate), gate)
    };
    let api = upstream(move |_| {
        let gate = std::sync::Arc::clone(&gate);
        async move {
            let parts = futures_util::stream::once(async { Ok::<_, std::io::Error>("{") });
            let rest = futures_util::stream::once(async move {
                gate.acquire().await.unwrap().forget();
                Ok("}")
            });
            answer(200, &[], axum::body::Body::from_stream(futures_util::StreamExt::chain(parts, rest)))
        }
    })
    .await;
    let mut bounds = paceline_gateway::Bounds::default();
    bounds.held_bytes = 1_500;
    let served = Served::new(api, "", bounds);
    let post = || served.client.post(format!("{}/x", served.url)).body("x".repeat(1_000));
    let first = post().send().await.unwrap();
    assert_eq!(first.status().as_u16(), 200);
    let second = post().send().await.unwrap();
    assert_eq!(second.status().as_u16(), 429);
    let body: Value = serde_json::from_slice(&second.bytes().await.unwrap()).unwrap();
    assert_eq!(body["error"]["code"], "queue_full");
    opens.add_permits(2);
    assert_eq!(first.text().await.unwrap(), "{}");
    assert_eq!(post().send().await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_body_of_a_gigabyte_passes_through_and_is_not_held() {
    const LENGTH: usize = 1 << 30;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let came = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut piece, mut came) = (vec![0; 1 << 20], 0);
        loop {
            let read = stream.read(&mut piece).await.unwrap();
            came += read;
            if read == 0 {
                return came;
            }
            if came >= LENGTH && piece[..read].ends_with(b"xend") {
                stream.write_all(OK).await.unwrap();
            }
        }
    });
    let mut bounds = paceline_gateway::Bounds::default();
    bounds.held_bytes = 64 << 20;
    let served = Served::new(address, "", bounds);
    let mut stream = connected(&served).await;
    let head =
        format!("POST /api/x HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {LENGTH}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..1_023 {
        stream.write_all(&piece).await.unwrap();
    }
    stream.write_all(&piece[4..]).await.unwrap();
    stream.write_all(b"xend").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    drop(served);
    came.abort();
}
