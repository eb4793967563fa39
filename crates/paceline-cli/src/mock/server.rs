//! The HTTP server: every POST is a call to the provider, `GET /stats` returns its counters.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Method, header};
use paceline::Clock;
use paceline_core::Rng;
use paceline_model::{Admission, Cause, Hints, ProviderModel, Refusal, Service, ToldWait};
use tokio::sync::Notify;

use super::MockConfig;
use super::answer;
use super::call::{self, Call};
use super::dialect::{Dialect, Failed};
use super::tally::{End, Stats, Tally};
use crate::exit::Failure;

/// Larger bodies are answered 413.
const BODY_LIMIT: usize = 32 << 20;

/// The routes of a mock.
pub(crate) fn router(mock: Arc<Mock>) -> Router {
    Router::new().route("/stats", get(stats)).fallback(any_path).with_state(mock)
}

/// A provider behind HTTP.
#[derive(Debug)]
pub(crate) struct Mock {
    clock: Clock,
    hints: Hints,
    dialect: Dialect,
    state: Mutex<Inner>,
    /// Wakes the calls in service when one came or went: they may get on slower or faster now.
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    provider: ProviderModel,
    tally: Tally,
    lies: Rng,
}

/// A decision with the headers that go with it.
struct Decided {
    number: u64,
    headers: HeaderMap,
    answer: Result<Place, Failed>,
}

impl Mock {
    /// A mock that has seen no call.
    ///
    /// # Errors
    /// When the provider's configuration makes no sense.
    pub(crate) fn new(config: MockConfig) -> Result<Self, Failure> {
        let provider = ProviderModel::new(config.provider, config.seed).map_err(Failure::refused)?;
        let state = Mutex::new(Inner { provider, tally: Tally::default(), lies: Rng::new(!config.seed) });
        Ok(Self { clock: Clock::new(), hints: config.hints, dialect: config.dialect, state, changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.state.lock().expect("nothing panics while it holds the lock")
    }

    /// Lets the provider decide, and counts it. Everything happens under one lock, so calls are decided in order.
    fn decide(self: &Arc<Self>, item: u64, call: &Call) -> Decided {
        let wall = paceline::clock::wall();
        let mut inner = self.lock();
        let now = self.clock.now();
        let number = inner.tally.arrived(item);
        let mut headers = self.request_id(number);
        let decision = inner.provider.arrive(now, &call.cost(&self.dialect.0.table().charge));
        self.dialect.add_limits(&mut headers, &inner.provider.states(now), self.hints, wall);
        let answer = match decision {
            Admission::Admitted(service) => {
                inner.tally.admitted();
                self.wake(&inner.provider);
                Ok(Place { mock: Arc::clone(self), item, service, open: true })
            }
            Admission::Refused(refusal) => Err(self.refuse(&mut inner, &mut headers, call, &refusal)),
        };
        Decided { number, headers, answer }
    }

    /// Lets the calls in service look again at when they end, where that may have changed.
    fn wake(&self, provider: &ProviderModel) {
        if provider.is_shared() {
            self.changed.notify_waiters();
        }
    }

    /// Counts a call that could not be read.
    fn unreadable(&self, item: u64) -> Response {
        let mut inner = self.lock();
        let number = inner.tally.arrived(item);
        inner.tally.invalid();
        error(self.request_id(number), self.dialect.invalid(400, "The request body must be a JSON object."))
    }

    fn request_id(&self, number: u64) -> HeaderMap {
        let id = HeaderValue::try_from(format!("req_mock_{number}")).expect("letters and digits");
        HeaderMap::from_iter([(self.dialect.request_id(), id)])
    }

    fn refuse(&self, inner: &mut Inner, headers: &mut HeaderMap, call: &Call, refusal: &Refusal) -> Failed {
        let wait = match refusal.cause {
            Cause::Limit { .. } | Cause::Concurrency { .. } => {
                inner.tally.throttled();
                self.hints.wait(refusal.wait, &mut inner.lies)
            }
            Cause::Overloaded => {
                inner.tally.overloaded();
                None
            }
            Cause::Chance { status } => {
                if status == 429 {
                    inner.tally.throttled()
                } else {
                    inner.tally.overloaded()
                }
                refusal.wait.map(|wait| ToldWait { wait, exact: false })
            }
            Cause::TooLarge { .. } => {
                inner.tally.invalid();
                None
            }
        };
        if let Some(wait) = wait {
            self.dialect.add_wait(headers, &refusal.cause, wait);
        }
        self.dialect.refusal(&refusal.cause, &call.model, self.hints, wait.map(|wait| wait.wait))
    }
}

/// A call's place in service. Dropping it frees the place: a client that goes away drops the future that holds it.
struct Place {
    mock: Arc<Mock>,
    item: u64,
    service: Service,
    open: bool,
}

impl Place {
    /// Waits until that share of the service is done. What is due already takes no turn of the timer, whose resolution
    /// is a millisecond.
    async fn serve(&self, share: f64) {
        loop {
            let changed = self.mock.changed.notified();
            let left = self.left(share);
            if left.is_zero() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = changed => {}
            }
        }
    }

    fn left(&self, share: f64) -> Duration {
        let inner = self.mock.lock();
        inner.provider.due(&self.service, share) - self.mock.clock.now()
    }

    fn end(mut self, end: End) {
        self.free(end);
    }

    fn free(&mut self, end: End) {
        if std::mem::take(&mut self.open) {
            let mut inner = self.mock.lock();
            inner.provider.finish(self.mock.clock.now());
            inner.tally.ended(self.item, end);
            self.mock.wake(&inner.provider);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.free(End::Abandoned);
    }
}

async fn stats(State(mock): State<Arc<Mock>>) -> Json<Stats> {
    Json(mock.lock().tally.stats())
}

async fn any_path(State(mock): State<Arc<Mock>>, request: Request) -> Response {
    if request.method() != Method::POST && mock.dialect.0.is_language_model() {
        let message = "A mock answers POST, and GET /stats.";
        return error(HeaderMap::new(), mock.dialect.invalid(404, message));
    }
    let (parts, body) = request.into_parts();
    let Ok(body) = axum::body::to_bytes(body, BODY_LIMIT).await else {
        return error(
            HeaderMap::new(),
            mock.dialect.invalid(413, "The request body is larger than 32 MiB or broken off."),
        );
    };
    let item = call::item(&parts, &body);
    let Some(call) = Call::read(&parts, &body) else {
        return mock.unreadable(item);
    };
    let Decided { number, headers, answer } = mock.decide(item, &call);
    match answer {
        Ok(place) => serve(&mock, place, &call, number, headers).await,
        Err(failed) => error(headers, failed),
    }
}

async fn serve(mock: &Mock, place: Place, call: &Call, number: u64, headers: HeaderMap) -> Response {
    if place.service.fault {
        place.serve(1.0).await;
        place.end(End::Fault);
        return error(headers, mock.dialect.fault());
    }
    let now = paceline::clock::wall();
    if call.stream {
        return event_stream(place, answer::stream(call, number, now), headers).await;
    }
    place.serve(1.0).await;
    place.end(End::Ok);
    (headers, Json(answer::object(call, number, now))).into_response()
}

/// Half of the service time passes before the first piece, the rest between the pieces. The call ends with the last one.
async fn event_stream(place: Place, pieces: Vec<String>, mut headers: HeaderMap) -> Response {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    let gaps = pieces.len().saturating_sub(1).max(1) as f64;
    place.serve(0.5).await;
    let pieces = pieces.into_iter().enumerate();
    let stream = stream::unfold((pieces, Some(place)), move |(mut pieces, mut place)| async move {
        let (index, piece) = pieces.next()?;
        if let Some(place) = &place {
            place.serve(0.5 + 0.5 * index as f64 / gaps).await;
        }
        if pieces.len() == 0
            && let Some(place) = place.take()
        {
            place.end(End::Ok);
        }
        Some((Ok::<_, Infallible>(Bytes::from(piece)), (pieces, place)))
    });
    (headers, Body::from_stream(stream)).into_response()
}

fn error(headers: HeaderMap, failed: Failed) -> Response {
    let Failed { status, headers: mut all, mut body, id_in_body } = failed;
    if let Some((key, name)) = id_in_body
        && let Some(id) = headers.get(name).and_then(|id| id.to_str().ok())
    {
        body[key] = id.into();
    }
    all.extend(headers);
    // Its own content type stands after that of a plain object.
    let mut response = (status, Json(body)).into_response();
    response.headers_mut().extend(all);
    response
}
