//! The course of one request: it is held until it may leave, sent, sent again where that is useful, and answered.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Either, Full, Limited};
use hyper::body::Incoming;
use paceline::{Admit, Class, Error, MaxWait, NextAction, Permit, WaitCause, Within};
use paceline_core::{Instant, format_duration};
use paceline_http::{LARGEST_ANSWER, NoAnswer};
use tokio::time::timeout;

use crate::backend::{Backend, Departed};
use crate::bounds::{Bounds, Held};
use crate::clients::Client;
use crate::closing::Closing;
use crate::headers::{self, Wishes};
use crate::metrics::Ending;
use crate::payload::Payload;
use crate::record::{BATCH, Record};
use crate::refusal::Refusal;
use crate::tap::Tap;

/// The body of an answer: whole, or as it comes.
pub(crate) type AnswerBody = Either<Full<Bytes>, Tap>;

/// Forwards a request to its upstream, as the client wishes and within the bounds.
pub(crate) async fn forward(
    upstream: &Arc<Backend>,
    path: String,
    request: Request<Incoming>,
    bounds: &Bounds,
    held: &Held,
    closing: &Closing,
) -> Response<AnswerBody> {
    let mut record = Record::new(upstream, request.method(), &path);
    let mut answer = match course(upstream, path, request, bounds, held, closing, &mut record).await {
        Ok(answer) => answer,
        Err(refusal) => {
            record.ending.get_or_insert(Ending::Refused(refusal.code()));
            refusal.into_response().map(|body| Either::Left(Full::new(body)))
        }
    };
    let headers = answer.headers_mut();
    headers.insert("x-paceline-waited-ms", (record.waited.as_millis() as u64).into());
    headers.insert("x-paceline-attempts", record.calls.into());
    record.status = Some(answer.status());
    match answer.body_mut() {
        Either::Left(whole) => record.bytes_out = whole.size_hint().exact().unwrap_or_default(),
        Either::Right(tap) => tap.tells(record),
    }
    answer
}

async fn course(
    upstream: &Arc<Backend>,
    path: String,
    request: Request<Incoming>,
    bounds: &Bounds,
    held: &Held,
    closing: &Closing,
    record: &mut Record,
) -> Result<Response<AnswerBody>, Refusal> {
    let began = upstream.limiter().now();
    let (parts, body) = request.into_parts();
    if headers::wants_websocket(&parts.headers) {
        let message = "the gateway passes on HTTP alone, and no WebSocket";
        return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "unsupported", message));
    }
    let wishes = Wishes::of(&parts.headers)?;
    let known = parts.extensions.get::<Arc<Client>>().map(Arc::clone);
    let client = known.as_ref().map_or_else(|| headers::client(&parts.headers), |client| client.number());
    let is_batch = wishes.is_batch || known.as_ref().is_some_and(|client| client.is_batch());
    (record.client, record.client_name) = (client, known.as_ref().map(|client| Arc::clone(client.name())));
    record.priority = if is_batch { BATCH } else { 0 };
    let longest = wishes.deadline.unwrap_or(bounds.deadline);
    let deadline = began + longest;
    let _room = upstream.waiting.take(1, bounds.queue as u64).ok_or_else(|| queue_full(upstream, bounds))?;
    let mut payload = Payload::read(body, bounds, held, longest).await?;
    record.bytes_in = payload.bytes.len() as u64;
    let call = Arc::new(upstream.call(parts, path, payload.bytes.clone()));
    let (scope, cost) = upstream.scope_and_cost(&call);
    let mut spent = None;
    if let Some(client) = &known {
        client.may_call(&call)?;
        let asked = upstream.limiter().now();
        let room = client.room(cost.clone(), record.priority, deadline - asked);
        let room = closing.bounds(upstream.name(), room).await;
        record.waited += upstream.limiter().now() - asked;
        spent = room?;
    }
    let mut place = upstream.place(client);
    let mut next = paceline::Request {
        priority: record.priority,
        item: Some(upstream.next_item()),
        arrival: Some(place.number),
        max_retries: wishes.retries,
        ..paceline::Request::new(upstream.limiter().scope(&scope), cost)
    };
    record.scope = Some(Arc::clone(next.scope.name()));
    // How the last call ended, and what it means.
    let mut last = None;
    loop {
        record.ending = None;
        let asked = upstream.limiter().now();
        let (scope, reserved) = (Arc::clone(next.scope.name()), next.cost.clone());
        let held = closing.bounds(upstream.name(), hold(upstream, next, deadline)).await;
        record.waited += upstream.limiter().now() - asked;
        let permit = match (held, last.take()) {
            (Ok(permit), _) => {
                place.left();
                permit
            }
            // What the upstream said is better than what is said of it.
            (Err(_), Some((class, answer))) => {
                record.ending = Some(Ending::Answered(class));
                return ended(class, answer);
            }
            (Err(refusal), None) => return Err(refusal),
        };
        let Some(body) = payload.take_for_try() else { return Err(broken("its body cannot be sent a second time")) };
        let departed = Departed {
            upstream: Arc::clone(upstream),
            permit,
            scope,
            reserved,
            call: Arc::clone(&call),
            spent: spent.clone(),
        };
        record.calls += 1;
        let received = match upstream.send(&call, body).await {
            // None was asked for: nothing that follows is an answer.
            Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Err(NoAnswer::Malformed("it changed the protocol without being asked".to_owned()))
            }
            Ok(answer) if answer.status().as_u16() < 400 => return Ok(passed_on(departed, answer, bounds)),
            Ok(answer) => whole_failure(answer, bounds).await,
            Err(error) => Err(error),
        };
        let (class, action) = departed.ends(&received);
        record.ending = Some(Ending::Answered(class));
        let answer = received.map(|answer| upstream.without_secrets(answer));
        match action {
            NextAction::Retry { next: again, .. } if !payload.is_stream => {
                next = *again;
                last = Some((class, answer));
            }
            _ => return ended(class, answer),
        }
    }
}

/// A permit, once the request may leave, unless the client would wait for too long.
async fn hold(upstream: &Backend, request: paceline::Request, deadline: Instant) -> Result<Permit, Refusal> {
    let limiter = upstream.limiter();
    let left = deadline - limiter.now();
    let asked = request.clone();
    if let Admit::At { at, cause } = limiter.admit(&asked)
        && at - limiter.now() > left
    {
        return Err(too_long(upstream, &cause, Some(at - limiter.now())));
    }
    match timeout(left, limiter.acquire_within(request, MaxWait::Known(left))).await {
        Ok(Ok(Within::Granted(permit))) => Ok(permit),
        Ok(Ok(Within::Deferred { until, reason })) => {
            Err(too_long(upstream, &reason.cause, Some(until - limiter.now())))
        }
        Ok(Err(error)) => Err(refused(upstream, &error)),
        Err(_) => Err(match limiter.admit(&asked) {
            Admit::Now => too_long(upstream, &WaitCause::Queue, None),
            Admit::At { at, cause } => too_long(upstream, &cause, Some(at - limiter.now())),
            Admit::OnRelease { cause } => too_long(upstream, &cause, None),
        }),
    }
}

/// The wait is longer than the client's deadline.
fn too_long(upstream: &Backend, cause: &WaitCause, wait: Option<Duration>) -> Refusal {
    let (name, waiting) = (upstream.name(), upstream.waiting.count());
    let time = wait.map(|wait| format!(" for {} more", format_duration(wait))).unwrap_or_default();
    let message = format!(
        "upstream {name}: the request would wait for {cause}{time}, longer than its deadline (requests here: {waiting}); send it \
         later, or allow more time with the header x-paceline-deadline"
    );
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message)
        .after(wait.unwrap_or(Duration::from_secs(1)))
        .for_limit(cause.to_string())
}

fn queue_full(upstream: &Backend, bounds: &Bounds) -> Refusal {
    let (name, most) = (upstream.name(), bounds.queue);
    let message = format!("{most} requests wait for the upstream {name} already, the most that may; send it later");
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(Duration::from_secs(1))
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
    departed.permit.observe(&head.headers);
    let read = head.clone();
    to_client(&mut head);
    let tap = Tap::new(departed, read, body, bounds.idle);
    Response::from_parts(head, Either::Right(tap))
}

/// A failure is read whole before anything of it goes to the client: the request may be sent again.
async fn whole_failure(answer: Response<Incoming>, bounds: &Bounds) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = answer.into_parts();
    match timeout(bounds.idle, Limited::new(body, LARGEST_ANSWER).collect()).await {
        Ok(Ok(body)) => decoded(Response::from_parts(head, body.to_bytes())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(NoAnswer::TooLarge(LARGEST_ANSWER)),
        Ok(Err(error)) => Err(NoAnswer::Truncated(error.to_string())),
        Err(_) => Err(NoAnswer::Timeout(Some(bounds.idle))),
    }
}

/// A failure that is compressed, although that was not asked for: what it means and repeats must be read.
fn decoded(mut answer: Response<Bytes>) -> Result<Response<Bytes>, NoAnswer> {
    let Some(encoding) = answer.headers_mut().remove(CONTENT_ENCODING).filter(|encoding| encoding != "identity") else {
        return Ok(answer);
    };
    answer.headers_mut().remove(CONTENT_LENGTH);
    let unreadable = |why: String| NoAnswer::Undecodable(why);
    if encoding != "gzip" && encoding != "x-gzip" {
        return Err(unreadable(format!("it is compressed as {encoding:?}, which was not asked for")));
    }
    let mut body = Vec::new();
    let mut bounded = GzDecoder::new(answer.body().as_ref()).take(LARGEST_ANSWER as u64 + 1);
    bounded.read_to_end(&mut body).map_err(|error| unreadable(error.to_string()))?;
    if body.len() > LARGEST_ANSWER {
        return Err(NoAnswer::TooLarge(LARGEST_ANSWER));
    }
    Ok(answer.map(|_| body.into()))
}

fn whole(answer: Response<Bytes>) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    to_client(&mut head);
    Response::from_parts(head, Either::Left(Full::new(body)))
}

/// What belonged to the connection of the upstream does not go to the client.
fn to_client(head: &mut Parts) {
    headers::remove_those_of_connection(&mut head.headers);
    head.version = Version::default();
}

/// The last answer. A client that would send its request again would only repeat what was done here.
fn ended(class: Class, answer: Result<Response<Bytes>, NoAnswer>) -> Result<Response<AnswerBody>, Refusal> {
    match answer {
        Ok(mut answer) => {
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
            Err(Refusal::new(status, "no_answer", format!("the upstream gave no answer: {error}")))
        }
    }
}

fn stop_retries(headers: &mut HeaderMap) {
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
}
