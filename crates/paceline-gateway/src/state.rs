//! The state of a gateway as one JSON document, once or each time that it changes, and whether the gateway is ready.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Either};
use paceline::{Clock, Instant, QuotaSnapshot, ScopeSnapshot, ScopeState, Snapshot, clock, scope_json};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use crate::backend::Backend;
use crate::closing::Phase;
use crate::forward::AnswerBody;
use crate::record::{PRIORITIES, priority_name};
use crate::refusal::Refusal;
use crate::server::Gateway;

/// Between two events of a stream, at least.
const EVERY: Duration = Duration::from_millis(250);

/// A stream without an event for so long gets a comment, so that a client that went away is noticed.
const ALIVE: Duration = Duration::from_secs(15);

/// The most streams of events at once.
pub(crate) const MOST_STREAMS: u64 = 32;

/// The document that streams share, as of its time.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    clock: Clock,
    document: Mutex<Option<Document>>,
}

#[derive(Clone, Debug)]
struct Document {
    at: Instant,
    /// Equal as long as nothing has changed but ages.
    print: u64,
    text: Bytes,
}

impl Gateway {
    /// Whether requests are welcome: not while the gateway ends, nor when no upstream would take one.
    pub(crate) fn readiness(&self) -> Result<(), String> {
        if self.closing.phase() != Phase::Serves {
            return Err("the gateway ends".to_owned());
        }
        let mut stopped = Vec::new();
        for upstream in self.upstreams().iter() {
            match upstream.limiter().snapshot().account.state {
                ScopeState::Stopped { reason } => stopped.push(format!("{}: {reason}", upstream.name())),
                _ => return Ok(()),
            }
        }
        Err(format!("every upstream is stopped until a person acts: {}", stopped.join("; ")))
    }

    /// The document of `/api/state`.
    pub(crate) fn state(&self) -> Value {
        document(self.closing.phase(), &self.looks())
    }

    fn looks(&self) -> Vec<Look> {
        self.upstreams().iter().map(Look::at).collect()
    }

    /// The same, not older than the time between two events: however many streams there are, it is made once for all.
    fn latest(&self) -> Document {
        let mut latest = self.latest.document.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.latest.clock.now();
        match &*latest {
            Some(known) if now - known.at < EVERY => known.clone(),
            _ => {
                let (phase, looks) = (self.closing.phase(), self.looks());
                let text = document(phase, &looks).to_string().into();
                latest.insert(Document { at: now, print: print(phase, &looks), text }).clone()
            }
        }
    }

    /// Server-sent events: the document now, and whenever it changes. The stream ends with the gateway.
    pub(crate) fn events(self: &Arc<Self>) -> Result<Response<AnswerBody>, Refusal> {
        let room = self.streams.take(1, MOST_STREAMS).ok_or_else(|| {
            let message =
                format!("{MOST_STREAMS} programs follow the state already, the most that may; ask for /api/state");
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(ALIVE)
        })?;
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            let _room = room;
            let (mut last, mut silent) = (None, Duration::ZERO);
            while gateway.closing.phase() == Phase::Serves {
                let document = gateway.latest();
                let event = if last.replace(document.print) != Some(document.print) {
                    let text = [b"event: state\ndata: ", &*document.text, b"\n\n"].concat();
                    Some(Bytes::from(text))
                } else {
                    (silent >= ALIVE).then(|| Bytes::from_static(b": no change\n\n"))
                };
                if let Some(event) = event {
                    silent = Duration::ZERO;
                    if sender.send_data(event).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = sleep(EVERY) => silent += EVERY,
                    () = gateway.closing.reaches(Phase::Drains) => {}
                }
            }
        });
        let mut response = Response::new(Either::Left(body.map_err(|never| match never {}).boxed_unsync()));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// One upstream at one instant.
struct Look {
    upstream: Arc<Backend>,
    now: Instant,
    snapshot: Snapshot,
}

impl Look {
    fn at(upstream: &Arc<Backend>) -> Self {
        let snapshot = upstream.limiter().snapshot();
        Self { upstream: Arc::clone(upstream), now: upstream.limiter().now(), snapshot }
    }

    fn json(&self) -> Value {
        let Self { upstream, now, snapshot } = self;
        let scope = |scope: &ScopeSnapshot| {
            let wall = clock::wall();
            // What has passed is told as the present: a limit that has room now has it since then.
            let mut json = scope_json(scope, &|at: Instant| wall + at.saturating_since(*now));
            json["explain"] = Some(scope.explain(*now)).filter(|text| !text.is_empty()).into();
            json["waiting_by_priority"] = by_priority(scope);
            json
        };
        json!({
            "name": upstream.name(),
            "explain": snapshot.explain(*now),
            "requests": upstream.waiting.count(),
            "account": scope(&snapshot.account),
            "scopes": snapshot.scopes.iter().map(scope).collect::<Vec<_>>(),
        })
    }
}

fn document(phase: Phase, looks: &[Look]) -> Value {
    json!({
        "at": clock::wall().to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "draining": phase != Phase::Serves,
        "upstreams": looks.iter().map(Look::json).collect::<Vec<_>>(),
    })
}

fn by_priority(scope: &ScopeSnapshot) -> Value {
    let mut counts: Map<String, Value> =
        PRIORITIES.map(|priority| (priority_name(priority).to_owned(), 0.into())).into_iter().collect();
    for (priority, count) in &scope.waiting_by_priority {
        let sum = &mut counts[priority_name(*priority)];
        *sum = (sum.as_u64().unwrap_or_default() + count).into();
    }
    counts.into()
}

/// A print of what people would call a change: no ages, and nothing that only moves on with the time.
fn print(phase: Phase, looks: &[Look]) -> u64 {
    let mut print = DefaultHasher::new();
    (phase != Phase::Serves).hash(&mut print);
    for look in looks {
        (look.upstream.name(), look.upstream.waiting.count()).hash(&mut print);
        for scope in [&look.snapshot.account].into_iter().chain(&look.snapshot.scopes) {
            (&scope.name, scope.state.as_str(), scope.totals.sends, scope.totals.by_class).hash(&mut print);
            (&scope.waiting_by_priority, scope.concurrency.in_flight, scope.closed_until).hash(&mut print);
            let limit = |quota: &QuotaSnapshot| (quota.limit, quota.remaining).hash(&mut print);
            scope.quotas.iter().chain(&scope.announced).for_each(limit);
            scope.estimate.as_ref().map(|estimate| estimate.rate.to_bits()).hash(&mut print);
        }
    }
    print.finish()
}
