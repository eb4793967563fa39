//! The server behind the gateway: it says what it took itself, and when a call of its is cancelled.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use axum::routing::post;
use axum::serve::ListenerExt as _;
use futures_util::{Stream, StreamExt as _, stream};
use paceline_core::Instant;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore, mpsc};

use crate::now;

/// Events of a stream, and what they are apart.
pub(crate) const EVENTS: usize = 50;
const APART: Duration = Duration::from_millis(5);

/// What a call takes here.
const SERVICE: Duration = Duration::from_millis(50);

/// What the answer says that the call took here, in microseconds.
pub(crate) const TOOK: &str = "x-took-us";

pub(crate) struct Server {
    url: String,
    arrived: Arc<Semaphore>,
    gone: Mutex<mpsc::UnboundedReceiver<Instant>>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("it listens"));
        let (says_gone, gone) = mpsc::unbounded_channel();
        let arrived = Arc::new(Semaphore::new(0));
        let leaves = {
            let arrived = Arc::clone(&arrived);
            move || {
                arrived.add_permits(1);
                Leaves(says_gone.clone())
            }
        };
        let endless = leaves.clone();
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("a socket"));
        let router = Router::new()
            .route("/v1/chat/completions", post(answered))
            .route("/v1/streams", post(async || events(stream_of(EVENTS))))
            .route("/v1/never", post(async move || never(leaves()).await))
            .route("/v1/endless", post(async move || events(endless_stream(endless()))));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, arrived, gone: Mutex::new(gone) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Waits for a call that will not end by itself.
    pub(crate) async fn arrival(&self) {
        self.arrived.acquire().await.expect("it is never closed").forget();
    }

    /// Calls that [`arrival`](Self::arrival) has not seen.
    pub(crate) fn unseen(&self) -> usize {
        self.arrived.available_permits()
    }

    /// How long after that a call was cancelled here.
    pub(crate) async fn gone_after(&self, hung_up: Instant) -> Duration {
        self.gone.lock().await.recv().await.expect("the server runs") - hung_up
    }
}

/// Says when it is dropped.
struct Leaves(mpsc::UnboundedSender<Instant>);

impl Drop for Leaves {
    fn drop(&mut self) {
        let _ = self.0.send(now());
    }
}

async fn answered() -> Response {
    let began = now();
    tokio::time::sleep(SERVICE).await;
    let took = (now() - began).as_micros().to_string();
    let body = r#"{"choices":[{"finish_reason":"stop","message":{"content":"7"}}],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
    let answer = Response::builder().header(CONTENT_TYPE, "application/json").header(TOOK, took);
    answer.body(Body::from(body)).expect("a right answer")
}

async fn never(_kept: Leaves) -> Response {
    std::future::pending().await
}

fn events(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let answer = Response::builder().header(CONTENT_TYPE, "text/event-stream");
    answer.body(Body::from_stream(events.map(Ok::<_, Infallible>))).expect("a right answer")
}

/// Each event says when it left.
fn stream_of(events: usize) -> impl Stream<Item = String> + Send {
    let every = tokio::time::interval(APART);
    stream::unfold(every, async |mut every| {
        every.tick().await;
        Some((format!("data: {{\"at\":{}}}\n\n", now().as_nanos()), every))
    })
    .take(events)
}

fn endless_stream(kept: Leaves) -> impl Stream<Item = String> + Send {
    stream_of(1).chain(stream::pending()).map(move |event| {
        let _kept = &kept;
        event
    })
}
