//! How many connections to one of many hosts calls open.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{HeaderMap, Response};
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use paceline_config::{Config, Environment, Overrides};
use paceline_http::{Call, Sender};
use tokio::net::TcpListener;
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

#[tokio::test]
async fn a_burst_of_calls_opens_few_connections_and_as_many_as_it_needs() {
    let file = "[upstream.a]\nbase_url = 'http://127.0.0.1:9'\nscope = 'host'";
    let config = Config::parse("paceline.toml".as_ref(), file, Environment::default(), Overrides::default()).unwrap();
    let upstream = config.upstream_of("a").unwrap();
    let sender = Sender::to(&upstream, HeaderMap::new(), Duration::from_secs(60)).unwrap();
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
