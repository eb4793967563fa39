//! Clients of the gateway, or of the server itself.

use std::time::Duration;

use paceline_core::Instant;
use reqwest::{Client, RequestBuilder, Response};
use tokio::task::JoinSet;

use crate::now;
use crate::server::{Server, TOOK};

const PROMPT: &str = r#"{"model":"m","max_tokens":8,"messages":[{"role":"user","content":"Say a number."}]}"#;

/// All with one address, and a connection for each call at once.
pub(crate) struct Clients {
    client: Client,
    url: String,
}

/// Of some streams, in milliseconds.
#[derive(Default)]
pub(crate) struct Events {
    /// From the request to the first event.
    pub(crate) first: Vec<f64>,
    /// From the moment an event left to the moment it came.
    pub(crate) transit: Vec<f64>,
}

impl Events {
    pub(crate) fn add(&mut self, other: Self) {
        self.first.extend(other.first);
        self.transit.extend(other.transit);
    }
}

impl Clients {
    pub(crate) fn new(url: &str) -> Self {
        Self { client: paceline_http::client_to(url).build().expect("a client"), url: url.to_owned() }
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.url)).header("x-paceline-deadline", "2h").body(PROMPT)
    }

    /// Milliseconds that each call took beside what it took the server: `rounds` calls of each of `at_once` clients, but for the
    /// first one, which makes a connection.
    pub(crate) async fn calls(&self, at_once: usize, rounds: usize) -> Vec<f64> {
        let one = |request: RequestBuilder| async move {
            let mut beside = Vec::new();
            for _ in 0..rounds {
                let sent = now();
                let answer = answered(request.try_clone().expect("its body is bytes")).await;
                let took = answer.headers()[TOOK].to_str().ok().and_then(|took| took.parse().ok());
                answer.bytes().await.expect("a body");
                beside.push(millis(now() - sent) - took.map_or(f64::NAN, |micros: f64| micros / 1_000.0));
            }
            beside.split_off(1)
        };
        let clients: JoinSet<_> = (0..at_once).map(|_| one(self.post("/chat/completions"))).collect();
        clients.join_all().await.concat()
    }

    /// So many streams at once, to their ends.
    pub(crate) async fn streams(&self, at_once: usize) -> Events {
        let one = |request: RequestBuilder| async move {
            let (mut events, mut kept) = (Events::default(), Vec::new());
            let sent = now();
            let mut answer = answered(request).await;
            while let Some(chunk) = answer.chunk().await.expect("a stream") {
                let came = now();
                kept.extend_from_slice(&chunk);
                while let Some(end) = kept.windows(2).position(|two| two == b"\n\n") {
                    let event: Vec<u8> = kept.drain(..end + 2).collect();
                    events.transit.push(millis(came - left(&event)));
                }
                if events.first.is_empty() {
                    events.first.push(millis(came - sent));
                }
            }
            events
        };
        let clients: JoinSet<_> = (0..at_once).map(|_| one(self.post("/streams"))).collect();
        let mut all = Events::default();
        clients.join_all().await.into_iter().for_each(|events| all.add(events));
        all
    }

    /// So many requests at once, which hang up when the value is dropped.
    pub(crate) fn wait(&self, requests: usize) -> JoinSet<Response> {
        (0..requests).map(|_| answered(self.post("/never"))).collect()
    }

    /// Sends a call that does not end by itself, and one behind it, and hangs up both. Returns when.
    pub(crate) async fn hang_up(&self, path: &str, server: &Server) -> Instant {
        let streams = path.ends_with("endless");
        let request = self.post(path);
        let call = tokio::spawn(async move {
            let mut answer = answered(request).await;
            answer.chunk().await.expect("a stream");
            std::future::pending::<()>().await;
        });
        server.arrival().await;
        let mut behind: JoinSet<_> = [answered(self.post(path))].into_iter().collect();
        // It has no way to say that it waits, and in a stream the first event is on its way.
        tokio::time::sleep(Duration::from_millis(if streams { 40 } else { 20 })).await;
        behind.shutdown().await;
        let hung_up = now();
        call.abort();
        hung_up
    }
}

async fn answered(request: RequestBuilder) -> Response {
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200, "the gateway answers as the server does");
    answer
}

/// When an event says that it left.
fn left(event: &[u8]) -> Instant {
    let text = std::str::from_utf8(event).expect("UTF-8").trim();
    let at = text.strip_prefix("data: {\"at\":").and_then(|text| text.strip_suffix('}'));
    Instant::from_nanos(at.and_then(|at| at.parse().ok()).expect("a time"))
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
