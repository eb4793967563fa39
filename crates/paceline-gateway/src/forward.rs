//! The course of one request: it is held until it may leave, sent, sent again where that is useful, and answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::Incoming;
use paceline::{Admit, Class, Cost, Error, GiveUp, Limiter, MaxWait, NextAction, Permit, WaitCause, Within};
use paceline_core::{Instant, format_duration};
use paceline_http::{Call, NoAnswer, gateway};
use tokio::time::timeout;

use crate::backend::Backend;
use crate::bounds::{Bounds, Held, Room};
use crate::clients::Client;
use crate::closing::Closing;
use crate::departed::Departed;
use crate::failure;
use crate::fallback::{Step, Target, with_model};
use crate::headers::{self, Wishes};
use crate::metrics::Ending;
use crate::notes::ClientSpending;
use crate::own_routes::OwnBody;
use crate::payload::Payload;
use crate::record::{BATCH, Record};
use crate::refusal::{Refusal, of_estimate};
use crate::request_body::RequestBody;
use crate::spent::Spent;
use crate::tap::Tap;

/// The body of an answer: the gateway's own, or as it comes from an upstream.
pub(crate) type AnswerBody = Either<OwnBody, Tap>;

/// A body that is there.
pub(crate) fn whole_body(bytes: impl Into<Bytes>) -> AnswerBody {
    Either::Left(Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync())
}

/// Where it is not known how long a wait is, another try is worth it after that time.
const LEAST: Duration = Duration::from_secs(1);

/// What the head of an answer tells beside what is recorded.
#[derive(Clone, Debug, Default)]
struct AnswerNotes {
    /// The retries that these calls spent: throttles spend none.
    retries: u32,
    /// What took the place of its upstream.
    fallback: Option<HeaderValue>,
}

/// A request on its way: what is the same at each upstream that it is sent to.
struct Course<'a> {
    /// Each limiter has a clock of its own: this one's counts at every upstream.
    clock: &'a Limiter,
    bounds: &'a Bounds,
    closing: &'a Closing,
    wishes: Wishes,
    /// With a key of the gateway's.
    known: Option<Arc<Client>>,
    /// What the request takes of the limits of that client.
    spent: Option<Arc<Spent>>,
    client: Arc<ClientSpending>,
    record: &'a mut Record,
    /// It waits no longer than until then.
    deadline: Instant,
    payload: Payload,
    told: AnswerNotes,
}

/// How a request ended at one upstream.
struct Ended {
    answer: Result<Response<AnswerBody>, Refusal>,
    /// It has no answer because the API stayed down, so that a fallback may take its place.
    stayed_down: bool,
    /// Retries so far.
    retries: u32,
}

/// Why a request was not sent.
struct NotSent {
    refusal: Refusal,
    stayed_down: bool,
}

impl From<Refusal> for NotSent {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, stayed_down: false }
    }
}

/// Forwards a request to its upstream, as the client wishes and within the bounds; while that stays down, to its fallbacks
/// among the upstreams.
pub(crate) async fn forward(
    upstreams: &[Arc<Backend>],
    upstream: &Arc<Backend>,
    path: String,
    request: Request<RequestBody>,
    bounds: &Bounds,
    held: &Held,
    closing: &Closing,
) -> Response<AnswerBody> {
    let mut told = AnswerNotes::default();
    let mut record = Record::new(upstream, request.method(), &path);
    let answer = match Course::begin(upstream, request, bounds, held, closing, &mut record).await {
        Ok((mut course, parts, _room)) => {
            let answer = course.run(upstreams, upstream, path, parts).await;
            told = course.told;
            answer
        }
        Err(refusal) => Err(refusal),
    };
    let mut answer = answer.unwrap_or_else(|refusal| {
        record.ending.get_or_insert(Ending::Refused(refusal.code()));
        let text = format!("refused: {}", refusal.message());
        upstream.notes().decisions.note(record.scope.as_ref(), refusal.code(), text);
        refusal.into_response().map(whole_body)
    });
    let headers = answer.headers_mut();
    headers.insert(const { HeaderName::from_static(gateway::WAITED) }, (record.waited.as_millis() as u64).into());
    headers.insert(const { HeaderName::from_static(gateway::ATTEMPTS) }, record.calls.into());
    if let Some(fallback) = told.fallback {
        headers.insert(gateway::FALLBACK, fallback);
    }
    record.status = Some(answer.status());
    match answer.body_mut() {
        Either::Left(whole) => record.bytes_out = whole.size_hint().exact().unwrap_or_default(),
        Either::Right(answer) => answer.tells(record),
    }
    answer
}

impl<'a> Course<'a> {
    /// Reads what a client wishes, and the body of its request. The room is that of the queue.
    async fn begin(
        upstream: &'a Backend,
        request: Request<RequestBody>,
        bounds: &'a Bounds,
        held: &Held,
        closing: &'a Closing,
        record: &'a mut Record,
    ) -> Result<(Self, http::request::Parts, (Room, Room)), Refusal> {
        let clock = upstream.limiter();
        let began = clock.now();
        let (parts, body) = request.into_parts();
        if headers::wants_websocket(&parts.headers) {
            let message = "the gateway passes on HTTP alone, and no WebSocket";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message));
        }
        let wishes = Wishes::of(&parts.headers)?;
        let known = parts.extensions.get::<Arc<Client>>().map(Arc::clone);
        record.client = known.as_ref().map_or_else(|| headers::client(&parts.headers), |client| client.number());
        record.client_name = known.as_ref().map(|client| Arc::clone(client.name()));
        let client = upstream.notes().spending.comes(record.client, record.client_name.as_ref());
        let is_batch = wishes.is_batch || known.as_ref().is_some_and(|client| client.is_batch());
        record.priority = if is_batch { BATCH } else { 0 };
        let longest = wishes.deadline.unwrap_or(bounds.deadline);
        let room = (share_of_queue(upstream, &client, bounds)?, place_in_queue(upstream, bounds)?);
        let payload = Payload::read(body, bounds, held, longest).await?;
        record.bytes_in = payload.bytes.len() as u64;
        let (deadline, told) = (began + longest, AnswerNotes::default());
        let course =
            Self { clock, bounds, closing, wishes, known, spent: None, client, record, deadline, payload, told };
        Ok((course, parts, room))
    }

    async fn run(
        &mut self,
        upstreams: &[Arc<Backend>],
        upstream: &Arc<Backend>,
        path: String,
        parts: http::request::Parts,
    ) -> Result<Response<AnswerBody>, Refusal> {
        let again = (!upstream.fallbacks.is_empty()).then(|| parts.clone());
        let call = Arc::new(upstream.call(parts, path, self.payload.bytes.clone()));
        let (scope, cost) = upstream.scope_and_cost(&call, self.payload.unread());
        self.enter(upstream, &call, &cost).await?;
        let budget = upstream.most_retries(self.wishes.retries);
        let ended = self.at(upstream, &call, &scope, cost, budget).await;
        let parts = again.filter(|_| ended.stayed_down && upstream.falls_back(&call));
        upstream.note_fallbacks(parts.is_some());
        let Some(parts) = parts else { return ended.answer };
        let (own, mut left) = (self.payload.bytes.clone(), budget.saturating_sub(ended.retries));
        for Step { marker, target } in &upstream.fallbacks {
            let (name, model) = match target {
                Target::Static(answer) => {
                    self.record.ending = Some(Ending::Answered(Class::Success));
                    self.told.fallback = Some(marker.clone());
                    return Ok(answer.clone().map(whole_body));
                }
                Target::Upstream { name, model } => (name, model),
            };
            // A reload may have removed it since.
            let Some(other) = upstreams.iter().find(|other| other.name() == name) else { continue };
            let body = match model {
                None => Some(own.clone()),
                Some(model) => with_model(&own, model).filter(|body| self.payload.has_room(body.len(), self.bounds)),
            };
            let (Some(body), Ok(_room)) =
                (body.filter(|_| !self.payload.is_stream), place_in_queue(other, self.bounds))
            else {
                continue;
            };
            self.payload.bytes = body.clone();
            let (mut parts, mut path) = (parts.clone(), call.url.clone());
            if !Arc::ptr_eq(other, upstream) {
                headers::remove_keys(&mut parts.headers);
                path = upstream.without_keys(path);
            }
            parts.headers.remove(CONTENT_LENGTH);
            let call = Arc::new(other.call(parts, path, body));
            let (scope, cost) = other.scope_and_cost(&call, None);
            let tried = self.at(other, &call, &scope, cost, left).await;
            left = left.saturating_sub(tried.retries);
            if let (false, Ok(answer)) = (tried.stayed_down, tried.answer) {
                self.told.fallback = Some(marker.clone());
                return Ok(answer);
            }
        }
        ended.answer
    }

    /// Waits for room under the limits of the client, if it has some of its own.
    async fn enter(&mut self, upstream: &Backend, call: &Call, cost: &Cost) -> Result<(), Refusal> {
        let Some(client) = &self.known else { return Ok(()) };
        client.may_call(call, !self.payload.is_stream)?;
        let (asked, cost) = (self.clock.now(), upstream.cost_elsewhere(call, cost));
        let room = client.room(&cost, self.record.priority, self.deadline - asked);
        let waits = self.client.waits_for_its_key();
        let room = self.closing.bounds(upstream.name(), room).await;
        drop(waits);
        self.record.waited += self.clock.now() - asked;
        self.spent = room?;
        Ok(())
    }

    /// The call that leaves now.
    fn departs(
        &self,
        upstream: &Arc<Backend>,
        permit: Permit,
        scope: Arc<str>,
        reserved: Cost,
        call: &Arc<Call>,
    ) -> Departed {
        self.spent.iter().for_each(|spent| spent.leaves());
        Departed {
            upstream: Arc::clone(upstream),
            permit,
            scope,
            left: upstream.stopwatch.now(),
            reserved,
            client: Arc::clone(&self.client),
            known: self.known.as_ref().map(|client| client.number()),
            call: Arc::clone(call),
            spent: self.spent.clone(),
            room: Room::default(),
        }
    }

    /// Sends the request to one upstream, and again where that is useful, with at most so many retries.
    async fn at(&mut self, upstream: &Arc<Backend>, call: &Arc<Call>, scope: &str, cost: Cost, retries: u32) -> Ended {
        let mut place = upstream.place(self.record.client);
        let (priority, item, arrival) = (self.record.priority, Some(upstream.next_item()), Some(place.number()));
        let first = paceline::Request::new(upstream.scope(scope), cost);
        let mut next = paceline::Request { priority, item, arrival, max_retries: Some(retries), ..first };
        self.record.scope = Some(Arc::clone(next.scope.name()));
        let before = self.told.retries;
        // How the last call ended, and what it means.
        let mut last = None;
        loop {
            self.record.ending = None;
            let (asked, tries) = (upstream.stopwatch.now(), next.attempts);
            let (scope, reserved) = (Arc::clone(next.scope.name()), next.cost.clone());
            let waits = self.client.waits();
            let last_class = last.as_ref().map(|(class, _)| *class);
            let held = hold(upstream, next, || self.deadline - self.clock.now(), last_class);
            let held = self.closing.bounds(upstream.name(), held).await;
            drop(waits);
            self.record.waited += upstream.stopwatch.now() - asked;
            let retries = tries.saturating_sub(1);
            let permit = match (held, last.take()) {
                (Ok(permit), _) => permit,
                // What the upstream said is better than what is said of it.
                (Err(NotSent { stayed_down, .. }), Some((class, answer))) => {
                    self.record.ending = Some(Ending::Answered(class));
                    return Ended { answer: ended(class, answer, self.told.retries), stayed_down, retries };
                }
                (Err(NotSent { refusal, stayed_down }), None) => {
                    return Ended { answer: Err(refusal), stayed_down, retries };
                }
            };
            place.left();
            let Some(body) = self.payload.take_for_try() else {
                let answer = Err(broken("its body cannot be sent a second time"));
                return Ended { answer, stayed_down: false, retries };
            };
            let mut departed = self.departs(upstream, permit, scope, reserved, call);
            (self.record.calls, self.told.retries) = (self.record.calls + 1, before + tries);
            let received = match upstream.send(&departed, body).await {
                Ok(answer) if failure::is_none(answer.status()) => {
                    departed.room = self.payload.take_room();
                    return Ended { answer: Ok(passed_on(departed, answer, self.bounds)), stayed_down: false, retries };
                }
                sent => failure::read(sent, self.bounds).await,
            };
            // The permit is dropped: nothing was learnt about the server.
            if let (Err(_), Some(refusal)) = (&received, self.payload.failure()) {
                return Ended { answer: Err(refusal), stayed_down: false, retries };
            }
            let (class, action) = departed.ends(&received);
            self.record.ending = Some(Ending::Answered(class));
            let answer = received.map(|answer| upstream.without_secrets(answer));
            let (stayed_down, tries) = match action {
                NextAction::Retry { next: again, .. } if !self.payload.is_stream => {
                    next = *again;
                    last = Some((class, answer));
                    continue;
                }
                NextAction::Retry { next, .. } => (GiveUp::Retries.stayed_down(class), next.attempts),
                NextAction::GiveUp { reason, request } => (reason.stayed_down(class), request.attempts),
                _ => (false, tries),
            };
            let answer = ended(class, answer, self.told.retries);
            return Ended { answer, stayed_down, retries: tries.saturating_sub(1) };
        }
    }
}

/// A client may have so many times as many places in the queue as are free: one alone leaves a tenth to the others, and two a
/// twentieth (dynamic thresholds: Choudhury and Hahne, 1998).
const QUEUED: u64 = 9;

/// Room for one more request of that client.
fn share_of_queue(upstream: &Backend, client: &ClientSpending, bounds: &Bounds) -> Result<Room, Refusal> {
    let free = (bounds.queue as u64).saturating_sub(upstream.waiting.count());
    client.queued.take(1, QUEUED * free).ok_or_else(|| {
        let (name, own, all) = (upstream.name(), client.queued.count(), upstream.waiting.count());
        let message = format!(
            "{own} requests of this client wait for the upstream {name} already, as many as one may have of {all}; send it later"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(LEAST)
    })
}

/// A place in the queue of an upstream.
fn place_in_queue(upstream: &Backend, bounds: &Bounds) -> Result<Room, Refusal> {
    upstream.waiting.take(1, bounds.queue as u64).ok_or_else(|| queue_full(upstream, bounds))
}

/// A permit, once the request may leave, unless it would take longer than is left. `last` is the class of its last call.
async fn hold(
    upstream: &Backend,
    request: paceline::Request,
    left: impl FnOnce() -> Duration,
    last: Option<Class>,
) -> Result<Permit, NotSent> {
    let limiter = upstream.limiter();
    // Most leave at once, and nothing has to be known of their wait.
    if last.is_none()
        && let Ok(permit) = limiter.try_acquire(request.clone())
    {
        return Ok(permit);
    }
    let left = left();
    let too_late = |cause: &WaitCause, wait: Option<Duration>| {
        let is_failing = || limiter.scope_snapshot(&request.scope).is_some_and(|scope| scope.failing_since.is_some());
        let by_class = |class| GiveUp::Deadline.stayed_down(class);
        let stayed_down = last.map_or_else(|| cause.stayed_down() || is_failing(), by_class);
        NotSent { refusal: too_long(upstream, &request.cost, cause, wait, left), stayed_down }
    };
    // The upstream asked its last call to come back after the deadline, or so late is its next try due.
    if let Some(wait) = request.not_before.map(|due| due - limiter.now()).filter(|wait| *wait > left) {
        return Err(too_late(&WaitCause::NotBefore, Some(wait)));
    }
    // The requests ahead are no known wait, but how long they will take can be told, before this one is among them.
    if let Admit::At { at, cause: cause @ WaitCause::Queue } = limiter.admit(&request)
        && at - limiter.now() > left
    {
        return Err(too_late(&cause, Some(at - limiter.now())));
    }
    let decided = timeout(left, limiter.acquire_within(request.clone(), MaxWait::Known(left))).await;
    match decided {
        Ok(Ok(Within::Granted(permit))) => Ok(permit),
        Ok(Ok(Within::Deferred { until, reason })) => {
            let wait = until - limiter.now();
            let NotSent { refusal, stayed_down } = too_late(&reason.cause, Some(wait));
            Err(NotSent { refusal: refusal.known(wait), stayed_down })
        }
        Ok(Err(error)) => Err(NotSent { stayed_down: error.stayed_down(last), refusal: refused(upstream, &error) }),
        Err(_) => Err(match limiter.admit(&request) {
            Admit::Now => too_late(&WaitCause::Queue, None),
            Admit::At { at, cause } => too_late(&cause, Some(at - limiter.now())),
            Admit::OnRelease { cause } => too_late(&cause, None),
        }),
    }
}

/// The wait is longer than what is `left` to the client's deadline.
fn too_long(upstream: &Backend, cost: &Cost, cause: &WaitCause, wait: Option<Duration>, left: Duration) -> Refusal {
    // Requests ahead go by: it is worth another try once it would not wait for longer than that.
    let again = match cause {
        WaitCause::Queue => wait.map_or(LEAST, |wait| wait.saturating_sub(left).max(LEAST)),
        _ => wait.unwrap_or(LEAST),
    };
    let (name, waiting, estimate) = (upstream.name(), upstream.waiting.count(), of_estimate(cost, cause));
    let time = wait.map(|wait| format!(" {} more", format_duration(wait))).unwrap_or_default();
    let message = format!(
        "upstream {name}: the request must wait{time} for {cause}{estimate}, and its deadline is sooner (requests here: {waiting}); send it \
         later, or allow more time with the header x-paceline-deadline"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message).after(again).for_limit(cause.to_string())
}

fn queue_full(upstream: &Backend, bounds: &Bounds) -> Refusal {
    let (name, most) = (upstream.name(), bounds.queue);
    let message = format!("{most} requests wait for the upstream {name} already, the most that may; send it later");
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(LEAST)
}

/// No wait would help.
fn refused(upstream: &Backend, error: &Error) -> Refusal {
    let (status, code, message) = match error {
        Error::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string()),
        Error::Stopped { scope, reason } => {
            let message =
                format!("{scope} is stopped: {reason}; mend the cause, then reload the gateway (SIGHUP) or restart it");
            (StatusCode::SERVICE_UNAVAILABLE, "scope_stopped", message)
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "closed", error.to_string()),
    };
    Refusal::new(status, code, format!("upstream {}: {message}", upstream.name()))
}

fn broken(message: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_GATEWAY, "no_answer", message)
}

/// The answer goes to the client as it comes; what it means is known at its end.
fn passed_on(departed: Departed, answer: Response<Incoming>, bounds: &Bounds) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    // The end of an answer of a known length, which reads its head too, is about to come.
    if !head.headers.contains_key(CONTENT_LENGTH) {
        departed.permit.observe(&head.headers);
    }
    let read = head.clone();
    departed.upstream.secrets().remove_from_headers(&mut head.headers);
    to_client(&mut head);
    let tap = Tap::new(departed, read, body, bounds.idle);
    Response::from_parts(head, Either::Right(tap))
}

fn whole(answer: Response<Bytes>) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    to_client(&mut head);
    Response::from_parts(head, whole_body(body))
}

/// What belonged to the connection of the upstream does not go to the client.
fn to_client(head: &mut Parts) {
    headers::remove_those_of_connection(&mut head.headers, |_| false);
    head.version = Version::default();
}

/// The last answer. A client that would send its request again would only repeat what was done here; one that counts its
/// retries is told how many were spent.
fn ended(
    class: Class,
    answer: Result<Response<Bytes>, NoAnswer>,
    retries: u32,
) -> Result<Response<AnswerBody>, Refusal> {
    match answer {
        Ok(mut answer) => {
            if !class.is_final() {
                answer.headers_mut().insert(gateway::RETRIES, retries.into());
            }
            if matches!(class, Class::Transient | Class::Overloaded) {
                stop_retries(answer.headers_mut());
            }
            Ok(whole(answer))
        }
        Err(error) => {
            let status = match error {
                NoAnswer::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            let code = if error.is_unsent() { "no_connection" } else { "no_answer" };
            Err(Refusal::new(status, code, format!("the upstream gave no answer: {error}")).retried(retries))
        }
    }
}

fn stop_retries(headers: &mut HeaderMap) {
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
}
