//! Clients that are slow, and what they may not hold.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use futures_util::{StreamExt as _, stream};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use paceline_gateway::Bounds;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::bounds;
use crate::operation::{page, passes};
use crate::support::{OnDrop, Served, answer, upstream};

/// A connection on which a request was sent.
async fn sent(served: &Served, request: &str) -> TcpStream {
    let (host, path) = served.url.strip_prefix("http://").expect("it is there").split_once('/').expect("it is there");
    let mut stream = TcpStream::connect(host).await.expect("it is there");
    stream.write_all(request.replace("PATH", path).replace("HOST", host).as_bytes()).await.expect("it is there");
    stream
}

async fn nothing_in_flight(served: &Served) {
    while served.limiter.snapshot().account.concurrency.in_flight > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_answer_that_its_client_does_not_read_frees_its_place_and_cancels_the_call() {
    let gone = Arc::new(Semaphore::new(0));
    let dropped = Arc::clone(&gone);
    let api = upstream(move |_: Request| {
        let guard = OnDrop(Arc::clone(&dropped));
        async move {
            let endless = stream::repeat_with(move || {
                let _kept = &guard;
                Ok::<_, std::io::Error>(vec![b'x'; 64 << 10])
            });
            answer(200, &[("content-type", "text/event-stream")], Body::from_stream(endless))
        }
    })
    .await;
    let mut bounds = Bounds::default();
    bounds.unread = Duration::from_millis(50);
    let served = Served::new(api, "", bounds);
    let mut client = sent(&served, "GET /PATH/v1/x HTTP/1.1\r\nhost: HOST\r\n\r\n").await;
    let mut first = [0; 12];
    client.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    gone.acquire().await.unwrap().forget();
    nothing_in_flight(&served).await;
    let totals = served.limiter.snapshot().account.totals;
    assert_eq!((totals.sends, served.limiter.snapshot().account.failing_since), (1, None), "{totals:?}");
}

#[tokio::test]
async fn an_answer_that_is_read_goes_on_however_slowly_its_events_come() {
    let gate = Arc::new(Semaphore::new(0));
    let opens = Arc::clone(&gate);
    let api = upstream(move |_: Request| {
        let gate = Arc::clone(&gate);
        let events = stream::unfold((gate, 0), |(gate, n)| async move {
            gate.acquire().await.unwrap().forget();
            (n < 3).then(|| (Ok::<_, std::io::Error>("data: {}\n\n"), (gate, n + 1)))
        });
        async move { answer(200, &[("content-type", "text/event-stream")], Body::from_stream(events)) }
    })
    .await;
    let mut bounds = Bounds::default();
    bounds.unread = Duration::from_millis(1);
    let served = Served::new(api, "", bounds);
    let mut got = served.post().send().await.unwrap();
    for _ in 0..3 {
        // These take several times the bound.
        let health = served.url.replace("/api", "/healthz");
        for _ in 0..30 {
            assert_eq!(served.client.get(&health).send().await.unwrap().status().as_u16(), 200);
        }
        opens.add_permits(1);
        assert!(got.chunk().await.unwrap().is_some());
    }
    opens.add_permits(1);
    assert_eq!(got.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn an_upload_that_stalls_is_refused_and_is_no_failure_of_the_server() {
    let api = upstream(|request: Request| async move {
        drop(to_bytes(request.into_body(), 1 << 20).await);
        answer(200, &[], "never")
    })
    .await;
    let mut bounds = Bounds::default();
    (bounds.largest_body, bounds.slowest_body) = (1_000, Duration::from_millis(50));
    let served = Served::new(api, "", bounds);
    let head = "POST /PATH/v1/files HTTP/1.1\r\nhost: HOST\r\ncontent-length: 100000\r\nconnection: close\r\n\r\nsome";
    let mut client = sent(&served, head).await;
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    let text = String::from_utf8(all).unwrap();
    assert!(text.starts_with("HTTP/1.1 408") && text.contains("slow_body"), "{text}");
    nothing_in_flight(&served).await;
    assert_eq!(served.limiter.snapshot().account.failing_since, None);
}

#[tokio::test]
async fn trailers_of_an_answer_reach_a_client_that_takes_them() {
    let api = upstream(|request: Request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))]);
        let frames = [Frame::data(bytes::Bytes::from_static(b"body")), Frame::trailers(trailers)];
        let body = StreamBody::new(stream::iter(frames.map(Ok::<_, std::io::Error>)));
        answer(200, &[("trailer", "x-sum")], Body::new(body))
    })
    .await;
    let served = Served::new(api, "", Bounds::default());
    let head = "GET /PATH/v1/x HTTP/1.1\r\nhost: HOST\r\nte: trailers\r\nconnection: close\r\n\r\n";
    let mut text = String::new();
    sent(&served, head).await.read_to_string(&mut text).await.unwrap();
    assert!(text.contains("4\r\nbody\r\n0\r\nx-sum: 7\r\n"), "{text}");
}

/// The second event comes right after the first look.
#[tokio::test]
#[cfg_attr(not(feature = "slow"), ignore = "takes seconds: scripts/test runs it")]
async fn a_stream_may_be_silent_for_its_bound_and_an_eighth_of_it() {
    let more = Arc::new(Semaphore::new(0));
    let goes_on = Arc::clone(&more);
    let api = upstream(move |_: Request| {
        let goes_on = Arc::clone(&goes_on);
        let event = || Ok::<_, std::io::Error>("data: {}\n\n");
        let second = stream::once(async move {
            goes_on.acquire().await.expect("it is open").forget();
            event()
        });
        let events = stream::iter([event()]).chain(second).chain(stream::pending());
        async { answer(200, &[("content-type", "text/event-stream")], Body::from_stream(events)) }
    });
    let idle = Duration::from_secs(80);
    let served = Served::new(api.await, "", bounds(|bounds| bounds.idle = idle));
    let look = async || {
        passes(Duration::from_secs(10)).await;
        // The stream is asked meanwhile.
        assert_eq!(page(&served, "/healthz").await.0, 200);
    };
    let mut got = served.post().send().await.expect("an answer");
    assert!(got.chunk().await.expect("a piece").is_some());
    look().await;
    more.add_permits(1);
    assert!(got.chunk().await.expect("a piece").is_some());
    for _ in 0..8 {
        assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 1);
        look().await;
    }
    look().await;
    assert!(got.chunk().await.is_err(), "after 80 to 90 s");
    assert_eq!(served.limiter.snapshot().account.concurrency.in_flight, 0);
}
