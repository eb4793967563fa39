//! The queue of an upstream: places in it, and how long a request is held there until it may leave.

use std::time::Duration;

use http::StatusCode;
use paceline::{Admit, Class, Cost, Error, GiveUp, MaxWait, Permit, WaitCause, Within, clock};
use paceline_core::format_duration;
use tokio::time::timeout;

use crate::backend::Backend;
use crate::bounds::{Bounds, Room, share};
use crate::notes::ClientSpending;
use crate::refusal::{LEAST, Refusal, of_estimate};

/// Why a request was not sent.
pub(crate) struct NotSent {
    pub(crate) refusal: Refusal,
    /// It has no answer because the API stayed down.
    pub(crate) stayed_down: bool,
}

impl From<Refusal> for NotSent {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, stayed_down: false }
    }
}

/// A client may have so many times as many places in the queue as are free: one alone leaves a tenth to the others, and two a
/// twentieth.
const QUEUED: u64 = 9;

/// Room for one more request of that client.
pub(crate) fn share_of_queue(upstream: &Backend, client: &ClientSpending, bounds: &Bounds) -> Result<Room, Refusal> {
    client.queued.take(1, share(upstream.waiting.count(), bounds.queue as u64, QUEUED)).ok_or_else(|| {
        let (name, own, all) = (upstream.name(), client.queued.count(), upstream.waiting.count());
        let message = format!(
            "{own} requests of this client wait for the upstream {name} already, as many as one may have of {all}; send it later"
        );
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(LEAST)
    })
}

/// The store of a fleet is asked again every two seconds at the latest.
const STORE_ANSWERS: Duration = Duration::from_secs(2);

/// A place in the queue of an upstream.
pub(crate) fn place_in_queue(upstream: &Backend, bounds: &Bounds) -> Result<Room, Refusal> {
    upstream.waiting.take(1, bounds.queue as u64).ok_or_else(|| queue_full(upstream, bounds))
}

/// Why nothing leaves, where that is because the store of a fleet is away or has lost what it knew.
pub(crate) struct WithoutShare {
    pub(crate) words: String,
    /// For how long at most, where that is known.
    wait: Option<Duration>,
}

impl Backend {
    /// Whether nothing leaves for that reason.
    pub(crate) fn without_share(&self) -> Option<WithoutShare> {
        let (now, why) = (self.limiter().now(), self.limiter().fleet()?.without_share()?);
        let wait = why.until.map(|until| until.saturating_since(now));
        let until = wait.map(|wait| format!(" (until {})", clock::wall() + wait)).unwrap_or_default();
        Some(WithoutShare { words: why.sentence(now) + &until, wait })
    }
}

/// A permit, once the request may leave, unless it would take longer than is left. `last` is the class of its last call.
pub(crate) async fn hold(
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
        if matches!(cause, WaitCause::Share { .. })
            && let Some(why) = upstream.without_share()
        {
            return without_store(upstream, &why).into();
        }
        let by_class = |class| GiveUp::Deadline.stayed_down(class);
        let stayed_down = last.map_or_else(|| cause.stayed_down() || upstream.is_failing(&request.scope), by_class);
        NotSent { refusal: too_long(upstream, &request.cost, cause, wait, left), stayed_down }
    };
    // The upstream asked its last call to come back after the deadline, or so late is its next try due.
    if let Some(wait) = request.not_before.map(|due| due - limiter.now()).filter(|wait| *wait > left) {
        // Before its first call a request has no due time, but where its client is to stay away.
        let hold = upstream.trust.hold(request.caller, request.scope.name()).filter(|_| last.is_none());
        return Err(match hold {
            None => too_late(&WaitCause::NotBefore, Some(wait)),
            Some(hold) => NotSent { refusal: away(upstream, wait), ..too_late(&hold.cause, Some(wait)) },
        });
    }
    // The requests ahead are no known wait, but how long they will take can be told, before this one is among them.
    if let Admit::At { at, cause: cause @ WaitCause::Queue } = limiter.admit(&request)
        && at - limiter.now() > left
    {
        return Err(too_late(&cause, Some(at - limiter.now())));
    }
    // A request that leaves at once takes no room for that.
    let decided = Box::pin(timeout(left, limiter.acquire_within(request.clone(), MaxWait::Known(left)))).await;
    match decided {
        Ok(Ok(Within::Granted(permit))) => Ok(permit),
        Ok(Ok(Within::Deferred { until, reason })) => {
            let wait = until - limiter.now();
            let NotSent { refusal, stayed_down } = too_late(&reason.cause, Some(wait));
            // When a store answers again is not known here.
            let is_known = !matches!(reason.cause, WaitCause::Share { .. });
            Err(NotSent { refusal: if is_known { refusal.known(wait) } else { refusal }, stayed_down })
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
pub(crate) fn too_long(
    upstream: &Backend,
    cost: &Cost,
    cause: &WaitCause,
    wait: Option<Duration>,
    left: Duration,
) -> Refusal {
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

/// The provider refused the client, or told it to wait, and no one else.
fn away(upstream: &Backend, wait: Duration) -> Refusal {
    let (name, time) = (upstream.name(), format_duration(wait));
    let until = clock::wall() + wait;
    let message = format!(
        "upstream {name}: the request must wait {time} more, for the provider has refused this client, or told it to wait, until {until}, and \
         its deadline is sooner; send it later"
    );
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message);
    refusal.after(wait).for_limit("a wait that the provider has told this client alone".to_owned())
}

/// Nothing leaves. When the store of the fleet answers again is not known; how long what it has lost counts is.
fn without_store(upstream: &Backend, WithoutShare { words: why, wait }: &WithoutShare) -> Refusal {
    let (name, waiting) = (upstream.name(), upstream.waiting.count());
    let message = format!(
        "upstream {name}: {why}, and the request's deadline is sooner (requests here: {waiting}); send it later"
    );
    let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", message);
    let refusal = refusal.for_limit("the store of the fleet".to_owned());
    match *wait {
        Some(wait) => refusal.after(wait).known(wait),
        None => refusal.after(STORE_ANSWERS),
    }
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
