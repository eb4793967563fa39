//! How many connections to one of many hosts calls open.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Method, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use paceline::Clock;
use paceline_config::{Config, Environment, Overrides};
use paceline_http::{Call, NoAnswer, Sender};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;

use crate::support::send;

/// A host that answers once so many calls are there, which takes each its own connection; and how many connections it got.
async fn host(together: usize) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (accepted, barrier) = (Arc::<AtomicUsize>::default(), Arc::new(Barrier::new(together)));
    let count = Arc::clone(&accepted);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            let barrier = Arc::clone(&barrier);
            tokio::spawn(async move {
                let answer = service_fn(|_| async {
                    barrier.wait().await;
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"{}"))))
                });
                let connection = hyper::server::conn::http1::Builder::new();
                let _ = connection.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    (url, accepted)
}

fn of_many_hosts() -> Sender {
    let file = "[upstream.a]\nbase_url = 'http://127.0.0.1:9'\nscope = 'host'";
    let config = Config::parse("paceline.toml".as_ref(), file, Environment::default(), Overrides::default()).unwrap();
    let upstream = config.upstream_of("a").unwrap();
    Sender::to(&upstream, HeaderMap::new(), Duration::from_secs(60)).unwrap()
}

#[tokio::test]
async fn a_burst_of_calls_opens_few_connections_and_as_many_as_it_needs() {
    let sender = of_many_hosts();
    for (together, calls, most) in [(1, 200, 60), (30, 30, 30)] {
        let (url, accepted) = host(together).await;
        let answers = join_all((0..calls).map(|item| {
            let (sender, call) = (&sender, Call::get(&url));
            async move { send(sender, item, &call).await.answer.is_ok() }
        }));
        assert!(answers.await.into_iter().all(|is_ok| is_ok));
        let accepted = accepted.load(Ordering::Relaxed);
        assert!(accepted <= most, "{accepted} connections for {calls} calls");
    }
}

/// Reads a request without a body.
async fn request(stream: &mut TcpStream) -> io::Result<()> {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        read.push(stream.read_u8().await?);
    }
    Ok(())
}

/// A server that closes each connection which it has kept as the second call comes on it, and all later ones as their first does.
#[tokio::test]
async fn a_call_whose_kept_connection_is_closed_goes_again_at_once_and_one_on_a_new_connection_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let call = Call::get(format!("http://{}/", listener.local_addr().unwrap()));
    tokio::spawn(async move {
        let (mut kept, _) = listener.accept().await.unwrap();
        request(&mut kept).await.unwrap();
        kept.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        request(&mut kept).await.unwrap();
        drop(kept);
        let (mut new, _) = listener.accept().await.unwrap();
        request(&mut new).await.unwrap();
    });
    let sender = of_many_hosts();
    assert!(send(&sender, 1, &call).await.answer.is_ok());
    // The connection is on its way back.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let kept = send(&sender, 2, &call).await;
    assert!(matches!(kept.answer, Err(NoAnswer::KeptBroken(_))), "{:?}", kept.answer);
    assert_eq!((kept.reading.class.as_str(), kept.reading.wait), ("transient", Some(Duration::ZERO)));
    let words = kept.answer.unwrap_err().to_string();
    assert!(!words.contains("https://"), "it has answered so: {words}");
    let new = send(&sender, 3, &call).await;
    assert!(matches!(new.answer, Err(NoAnswer::Broken { .. })), "{:?}", new.answer);
    assert_eq!(new.reading.wait, None);
}

/// A server that closes an idle connection as such a call comes would leave open whether it was done.
#[tokio::test]
async fn a_call_that_must_not_be_made_twice_goes_on_no_connection_that_was_idle_for_long() {
    let sender = of_many_hosts();
    let (url, accepted) = host(1).await;
    let charge = Call { method: Method::POST, ..Call::get(&url) };
    let other = Call::get(host(1).await.0);
    assert!(send(&sender, 1, &charge).await.answer.is_ok());
    let (clock, second) = (Clock::new(), Duration::from_secs(1));
    let began = clock.now();
    while clock.now() - began <= second {
        assert!(send(&sender, 2, &other).await.answer.is_ok());
    }
    assert!(send(&sender, 3, &charge).await.answer.is_ok());
    assert_eq!(accepted.load(Ordering::Relaxed), 2);
    assert!(send(&sender, 4, &Call::get(&url)).await.answer.is_ok());
    assert_eq!(accepted.load(Ordering::Relaxed), 3, "others have connections of their own");
}
