//! The body of a request: held whole where that is possible, so that it can be read and sent again.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep, timeout};

use crate::bodies::{HeldBody, NoRoom};
use crate::bounds::Bounds;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;

/// So many bytes of a body must come in each span of time, but for its end: a client that sends a byte now and then would hold a
/// place for hours.
const LEAST_BODY: usize = 256 << 10;

/// A body of more bytes is large: many of them are hundreds of MiB, ...
const LEAST_LARGE: usize = 1 << 20;

/// ... which go back to the machine with them. The allocator of glibc keeps what it gave out in smaller pieces for the next one,
/// of which its threads find little: pieces of more than 32 MiB have pages of their own, always.
const RETURNED: usize = (32 << 20) + (64 << 10);

/// The body of one request.
#[derive(Debug)]
pub(crate) struct Payload {
    /// All of it, or what came before it was too large to be held.
    pub(crate) bytes: Bytes,
    /// The rest of one that is not held, until it is sent.
    rest: Option<RequestBody>,
    /// Whether it was too large to be held.
    pub(crate) is_stream: bool,
    /// So many bytes it has at the least.
    length: u64,
    room: HeldBody,
    slowest: Duration,
    /// Why the client's part of a body that is not held came to no end.
    failed: Arc<OnceLock<Refusal>>,
}

impl Payload {
    /// Reads a body, for `longest` at most: one that trickles in would hold its place for hours.
    ///
    /// # Errors
    /// It comes too slowly or breaks off, or too much is held already.
    pub(crate) async fn read(
        mut body: RequestBody,
        bounds: &Bounds,
        room: HeldBody,
        longest: Duration,
    ) -> Result<Self, Refusal> {
        let is_held = body.size_hint().lower() <= bounds.largest_body as u64;
        let first = if is_held { body.at_hand().await } else { None };
        let read = timeout(longest, Self::read_slowly(body, first, bounds, room)).await;
        read.unwrap_or_else(|_| Err(slow(&format!("the body of the request took longer than {longest:?}"))))
    }

    /// `first`: what was at hand of it.
    async fn read_slowly(
        mut body: RequestBody,
        mut first: Option<Result<Frame<Bytes>, hyper::Error>>,
        bounds: &Bounds,
        mut room: HeldBody,
    ) -> Result<Self, Refusal> {
        let came = first.iter().flatten().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
        let announced = body.size_hint().lower().saturating_add(came);
        let mut bytes = Vec::new();
        // What has come is read, however long it is: the rest goes on behind it.
        if first.is_some() || announced <= bounds.largest_body as u64 {
            let mut minimum = MinimumRate::new(bounds.slowest_body);
            while (first.is_some() || !body.is_end_stream()) && bytes.len() <= bounds.largest_body {
                let next = match first.take() {
                    Some(frame) => minimum.came(Some(frame)),
                    None => poll_fn(|context| minimum.poll_frame(&mut body, context)).await,
                };
                let Some(frame) = next.transpose()? else { break };
                let Ok(data) = frame.into_data() else { continue };
                room.grow(data.len() as u64, bounds.held_bytes).map_err(too_much_is_held)?;
                add(&mut bytes, &data);
            }
        }
        let length = announced.max(bytes.len() as u64);
        let is_stream = length > bounds.largest_body as u64;
        Ok(Self {
            bytes: bytes.into(),
            rest: is_stream.then_some(body),
            is_stream,
            length,
            room,
            slowest: bounds.slowest_body,
            failed: Arc::default(),
        })
    }

    /// Its length, where it is not held and so cannot be read.
    pub(crate) fn unread(&self) -> Option<u64> {
        self.is_stream.then_some(self.length)
    }

    /// Whether so many more bytes may be held beside it; then they count.
    pub(crate) fn has_room(&mut self, bytes: usize, bounds: &Bounds) -> bool {
        self.room.grow(bytes as u64, bounds.held_bytes).is_ok()
    }

    /// What it takes of what may be held, for the call that reads its body once more at the end.
    pub(crate) fn take_room(&mut self) -> HeldBody {
        std::mem::take(&mut self.room)
    }

    /// The body for one try; none where it was a stream and is gone.
    pub(crate) fn take_for_try(&mut self) -> Option<Outgoing> {
        let rest = self.rest.take();
        (rest.is_some() || !self.is_stream).then(|| Outgoing {
            first: Some(self.bytes.clone()),
            rest: rest.map(|body| Rest {
                body,
                minimum: MinimumRate::new(self.slowest),
                failed: Arc::clone(&self.failed),
            }),
        })
    }

    /// Why a call ended for which the client sent no whole body: that is no failure of the server.
    pub(crate) fn failure(&self) -> Option<Refusal> {
        self.failed.get().cloned()
    }
}

/// Adds to a body, or to a document. One that grows beyond [`LEAST_LARGE`] gets all the room that it may need at once, of which
/// only what is used is taken from the machine.
pub(crate) fn add(bytes: &mut Vec<u8>, data: &[u8]) {
    if bytes.len() + data.len() > LEAST_LARGE && bytes.capacity() < RETURNED {
        // Where there is no such room it grows as usual.
        let _ = bytes.try_reserve_exact(RETURNED);
    }
    bytes.extend_from_slice(data);
}

/// How long a body may take: so much of it must come in each span of time. The time in which no more is asked for counts not.
#[derive(Debug)]
struct MinimumRate {
    slowest: Duration,
    /// From the first time that bytes are awaited.
    span: Option<Pin<Box<Sleep>>>,
    came: usize,
}

impl MinimumRate {
    const fn new(slowest: Duration) -> Self {
        Self { slowest, span: None, came: 0 }
    }

    fn poll_frame(
        &mut self,
        body: &mut RequestBody,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Refusal>>> {
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            if self.span.as_ref().is_some_and(|span| span.is_elapsed()) {
                (self.span, self.came) = (None, 0);
            }
            return Poll::Ready(self.came(frame));
        }
        let slowest = self.slowest;
        let span = self.span.get_or_insert_with(|| Box::pin(sleep(slowest)));
        while span.as_mut().poll(context).is_ready() {
            if std::mem::take(&mut self.came) < LEAST_BODY {
                return Poll::Ready(Some(Err(trickles(slowest))));
            }
            span.set(sleep(slowest));
        }
        Poll::Pending
    }

    /// Counts what came.
    fn came(&mut self, frame: Option<Result<Frame<Bytes>, hyper::Error>>) -> Option<Result<Frame<Bytes>, Refusal>> {
        self.came += frame.iter().flatten().filter_map(Frame::data_ref).map(Bytes::len).sum::<usize>();
        frame.map(|frame| frame.map_err(|error| broke_off(&error)))
    }
}

/// The body of a request for a path that the program answers: as it comes, and with an error where it trickles in or breaks off.
#[derive(Debug)]
pub struct BodyInTime {
    body: RequestBody,
    minimum: MinimumRate,
}

/// A body came to no end, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message())]
pub struct NoBody(Refusal);

impl NoBody {
    /// The status of the answer: 408 where it trickles in, and 400 where it broke off.
    pub const fn status(&self) -> StatusCode {
        self.0.status()
    }
}

impl BodyInTime {
    pub(crate) const fn new(body: RequestBody, bounds: &Bounds) -> Self {
        Self { body, minimum: MinimumRate::new(bounds.slowest_body) }
    }
}

impl Body for BodyInTime {
    type Data = Bytes;
    type Error = NoBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Self { body, minimum } = &mut *self;
        minimum.poll_frame(body, context).map(|frame| frame.map(|frame| frame.map_err(NoBody)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn broke_off(error: &hyper::Error) -> Refusal {
    Refusal::bad_request(format!("the body of the request broke off: {error}"))
}

fn trickles(slowest: Duration) -> Refusal {
    slow(&format!("the body of the request trickles in: less than {} KiB came in {slowest:?}", LEAST_BODY >> 10))
}

fn slow(message: &str) -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "slow_body", message)
}

/// There is no room for a body, or for a long head.
pub(crate) fn too_much_is_held(why: NoRoom) -> Refusal {
    let message = match why {
        NoRoom::OfClient => "the gateway holds as many bytes of this client's requests as it may of one; send it later",
        NoRoom::OfAll => "the gateway holds as many bytes of waiting requests as it may; send it later",
    };
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message).after(Duration::from_secs(1))
}

/// A body on its way to the upstream: what was held, and then what still comes from the client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    first: Option<Bytes>,
    rest: Option<Rest>,
}

impl Outgoing {
    /// A body that is held whole.
    pub(crate) const fn held(bytes: Bytes) -> Self {
        Self { first: Some(bytes), rest: None }
    }

    /// Whether it goes on as it comes.
    pub(crate) const fn is_stream(&self) -> bool {
        self.rest.is_some()
    }

    /// Its bytes, where all of it is held.
    pub(crate) fn whole(&self) -> Option<Bytes> {
        self.first.clone().filter(|_| self.rest.is_none())
    }
}

/// What still comes, in time.
#[derive(Debug)]
struct Rest {
    body: RequestBody,
    minimum: MinimumRate,
    failed: Arc<OnceLock<Refusal>>,
}

/// The client sent no whole body.
#[derive(Debug, thiserror::Error)]
#[error("the body of the request came to no end")]
pub(crate) struct NoWholeBody;

impl Rest {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, NoWholeBody>>> {
        self.minimum.poll_frame(&mut self.body, context).map(|frame| {
            frame.map(|frame| {
                frame.map_err(|refusal| {
                    drop(self.failed.set(refusal));
                    NoWholeBody
                })
            })
        })
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = NoWholeBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match (self.first.take().filter(|first| !first.is_empty()), &mut self.rest) {
            (Some(first), _) => Poll::Ready(Some(Ok(Frame::data(first)))),
            (None, Some(rest)) => rest.poll_frame(context),
            (None, None) => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.as_ref().is_none_or(Bytes::is_empty)
            && self.rest.as_ref().is_none_or(|rest| rest.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        let mut hint = self.rest.as_ref().map_or_else(|| SizeHint::with_exact(0), |rest| rest.body.size_hint());
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + first);
        }
        hint.set_lower(hint.lower() + first);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_becomes_large_moves_once_into_a_piece_that_goes_back_to_the_machine() {
        let (mut body, piece) = (Vec::new(), [b'x'; 16 << 10]);
        while body.len() < LEAST_LARGE {
            add(&mut body, &piece);
        }
        assert!(body.capacity() <= 2 * LEAST_LARGE, "a small one takes little: {}", body.capacity());
        add(&mut body, &piece);
        let place = body.as_ptr();
        while body.len() + piece.len() <= Bounds::default().largest_body + piece.len() {
            add(&mut body, &piece);
        }
        assert!(body.capacity() > 32 << 20, "smaller ones stay with the allocator: {}", body.capacity());
        assert_eq!((body.as_ptr(), Bytes::from(body).as_ptr()), (place, place), "none of it is copied again");
    }
}
