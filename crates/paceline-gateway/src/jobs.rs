//! Jobs whose calls go through the gateway, as they tell of themselves: for the page alone. Nothing follows from it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use paceline::{Clock, Instant};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::backend::Backend;
use crate::bounds::share;
use crate::clients::Client;
use crate::forward::{AnswerBody, whole_body};
use crate::headers;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::server::Gateway;

/// A job that says nothing for so long is forgotten.
const SILENT: Duration = Duration::from_secs(60);

/// Jobs that are known at once.
const MOST: usize = 100;

/// One client may have so many times as many as there are places left: a quarter stays for the others.
const SHARE: u64 = 3;

/// The longest line of a job, in bytes, and how long it may take to come.
const LONGEST_LINE: usize = 8 << 10;
const SLOWEST_LINE: Duration = Duration::from_secs(10);

/// The longest text of a line, in characters.
const LONGEST_TEXT: usize = 300;

/// What is known of jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    clock: Clock,
    /// By their clients, and the word that each has for itself: no client speaks for a job of another.
    told: Mutex<BTreeMap<(u64, String), (Instant, Line)>>,
}

/// How far a job is.
#[derive(Debug, Deserialize, Serialize)]
struct Line {
    name: String,
    upstream: String,
    state: String,
    done: u64,
    total: u64,
    failed: u64,
    left_ms: Option<u64>,
    waits: Option<String>,
}

#[derive(Deserialize)]
struct JobMessage {
    id: String,
    #[serde(flatten)]
    line: Line,
}

impl Jobs {
    /// Takes the line of a job of the client of that number.
    /// `check` refuses a text that others must not see.
    fn take(&self, client: u64, body: &[u8], check: impl Fn(&str) -> Result<(), Refusal>) -> Result<(), Refusal> {
        let JobMessage { mut id, mut line } = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad_request(format!("/api/jobs: this is no line of a job: {error}")))?;
        let texts = [&mut id, &mut line.name, &mut line.upstream, &mut line.state].into_iter().chain(&mut line.waits);
        for text in texts {
            check(text)?;
            *text = text.chars().take(LONGEST_TEXT).collect();
        }
        let now = self.clock.now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, (at, _)| now - *at < SILENT);
        let job = (client, id);
        let own = told.keys().filter(|(of, _)| *of == client).count() as u64;
        if !told.contains_key(&job) && own >= share(told.len() as u64, MOST as u64, SHARE) {
            let message = format!(
                "{} jobs tell of themselves already, {own} of them of this client, the most that may",
                told.len()
            );
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(SILENT));
        }
        told.insert(job, (now, line));
        Ok(())
    }

    /// Those that spoke lately.
    pub(crate) fn json(&self) -> Value {
        let now = self.clock.now();
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.values().filter(|(at, _)| now - *at < SILENT).map(|(_, line)| json!(line)).collect()
    }
}

/// Takes the line that a job posts.
///
/// # Errors
/// It is none, or does not come in time.
pub(crate) async fn post(
    gateway: &Arc<Gateway>,
    request: Request<RequestBody>,
) -> Result<Response<AnswerBody>, Refusal> {
    let known = request.extensions().get::<Arc<Client>>().map(|client| client.number());
    let client = known.unwrap_or_else(|| headers::client(request.headers()));
    let body = Limited::new(request.into_body(), LONGEST_LINE).collect();
    let Ok(Ok(body)) = timeout(SLOWEST_LINE, body).await else {
        return Err(Refusal::bad_request(format!("/api/jobs: no whole line of at most {LONGEST_LINE} bytes came")));
    };
    let (clients, upstreams) = (gateway.clients(), gateway.upstreams());
    let shows = |text: &str, upstream: &Arc<Backend>| {
        upstream.secrets().removed_from(Bytes::copy_from_slice(text.as_bytes())) != text
    };
    gateway.jobs.take(client, &body.to_bytes(), |text| {
        match clients.have_key_in(text) || upstreams.iter().any(|upstream| shows(text, upstream)) {
            true => Err(Refusal::bad_request("/api/jobs: a key stands in the line, which all see: leave it out")),
            false => Ok(()),
        }
    })?;
    let mut response = Response::new(whole_body(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, done: u64, name: &str) -> Vec<u8> {
        let line = json!({
            "id": id, "name": name, "upstream": "openai", "state": "runs", "done": done, "total": 9, "failed": 1,
            "left_ms": 1500, "waits": null,
        });
        line.to_string().into()
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_known_for_a_minute_after_its_last_word() {
        let jobs = Jobs::default();
        jobs.take(1, &line("a", 1, "out.jsonl"), |_| Ok(())).expect("right");
        tokio::time::advance(Duration::from_secs(40)).await;
        jobs.take(1, &line("a", 2, &"x".repeat(9_000)), |_| Ok(())).expect("right");
        jobs.take(1, &line("b", 1, "other"), |_| Ok(())).expect("right");
        let json = jobs.json();
        assert_eq!(
            (json.as_array().map(Vec::len), &json[0]["done"], &json[0]["left_ms"]),
            (Some(2), &2.into(), &1500.into())
        );
        assert!(json[0]["id"].is_null() && json[0]["name"].as_str().is_some_and(|name| name.len() == LONGEST_TEXT));
        tokio::time::advance(SILENT).await;
        assert_eq!(jobs.json(), json!([]));
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_are_bounded_and_lines_are_read_strictly() {
        let jobs = Jobs::default();
        let taken = (0..MOST).map_while(|n| jobs.take(1, &line(&n.to_string(), 1, "job"), |_| Ok(())).ok()).count();
        assert_eq!(taken, 75);
        assert_eq!(
            jobs.take(1, &line("more", 1, "job"), |_| Ok(())).map_err(|refusal| refusal.code()),
            Err("queue_full")
        );
        jobs.take(1, &line("7", 2, "job"), |_| Ok(())).expect("a known one goes on");
        jobs.take(2, &line("7", 5, "job"), |_| Ok(())).expect("another client has places, and names of its own");
        let done = |jobs: &Jobs| {
            jobs.json().as_array().expect("jobs").iter().map(|job| job["done"].as_u64()).sum::<Option<u64>>()
        };
        assert_eq!(done(&jobs), Some(74 + 2 + 5));
        tokio::time::advance(SILENT).await;
        jobs.take(1, &line("more", 1, "job"), |_| Ok(())).expect("the others are forgotten");
        let has_key = |text: &str| (!text.contains("pl_")).then_some(()).ok_or_else(|| Refusal::bad_request("a key"));
        for (id, name) in [("pl_", "job"), ("8", "pl_")] {
            assert!(jobs.take(1, &line(id, 1, name), has_key).is_err(), "{id} {name}");
        }
        assert!(jobs.take(1, b"{}", |_| Ok(())).is_err() && jobs.take(1, b"no", |_| Ok(())).is_err());
    }
}
