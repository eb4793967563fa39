//! The body of a request. What is left of one that came by HTTP/2, once it is answered, is read and dropped. What clients still
//! owe of bodies is known of each connection.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::bounds::{Held, Room};

/// So much of a body is read for nothing, ...
const MOST_DROPPED: usize = 64 << 20;

/// ... and for so long.
const LONGEST_DROPPED: Duration = Duration::from_secs(30);

/// The body of a request, as it comes from a client.
///
/// A stream of HTTP/2 may be answered before its body has come, and is then reset without an error (RFC 9113, 8.1). Clients
/// such as curl and httpx, which still send, take that for a failure and never read the answer. So the rest is read and
/// dropped, within bounds; a longer one is reset.
#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Option<Incoming>,
    is_stream: bool,
    owed: Arc<OwedBodies>,
    /// More of it is asked for than there is.
    is_awaited: bool,
    /// Among the files that its client holds, until it is there.
    room: Option<Room>,
}

/// What the client of one connection still owes of the bodies of its requests.
#[derive(Debug, Default)]
pub(crate) struct OwedBodies {
    /// So many bodies of which more is asked for than there is.
    awaited: AtomicU64,
    /// So many bytes came so far.
    came: AtomicU64,
    /// The files that its client holds by all of its requests, where clients have keys.
    of_client: OnceLock<Held>,
}

impl OwedBodies {
    /// How many of them are waited for.
    pub(crate) fn awaited(&self) -> u64 {
        self.awaited.load(Ordering::Relaxed)
    }

    /// How many bytes came so far.
    pub(crate) fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// How many files its client holds by all of its requests, where that is known.
    pub(crate) fn of_client(&self) -> u64 {
        self.of_client.get().map_or(0, Held::count)
    }
}

impl RequestBody {
    /// That body, which came in a stream of HTTP/2, or by HTTP/1.1: there the connection ends with the answer.
    pub(crate) const fn new(body: Incoming, is_stream: bool, owed: Arc<OwedBodies>) -> Self {
        Self { body: Some(body), is_stream, owed, is_awaited: false, room: None }
    }

    /// Until it is there, its connection counts among the files that its client holds.
    pub(crate) fn counts_among(&mut self, files: &Held) {
        self.owed.of_client.get_or_init(|| files.clone());
        self.room = (!self.is_end_stream()).then(|| files.take(self.files(), u64::MAX)).flatten();
    }

    /// The files that its request holds by itself: the streams of one connection hold that together.
    pub(crate) const fn files(&self) -> u64 {
        !self.is_stream as u64
    }

    fn is_awaited(&mut self, is_awaited: bool) {
        if std::mem::replace(&mut self.is_awaited, is_awaited) != is_awaited {
            let change = if is_awaited { 1 } else { u64::MAX };
            self.owed.awaited.fetch_add(change, Ordering::Relaxed);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(context);
        self.is_awaited(frame.is_pending());
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            let came = frame.data_ref().map_or(0, Bytes::len);
            self.owed.came.fetch_add(came as u64, Ordering::Relaxed);
        }
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        if self.is_end_stream() {
            self.room = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.is_awaited(false);
        let left = self.body.take().filter(|body| self.is_stream && !body.is_end_stream());
        let Some((mut body, runtime)) = left.zip(Handle::try_current().ok()) else { return };
        runtime.spawn(timeout(LONGEST_DROPPED, async move {
            let mut dropped = 0;
            while let Some(Ok(frame)) = body.frame().await {
                dropped += frame.data_ref().map_or(0, Bytes::len);
                if dropped > MOST_DROPPED {
                    return;
                }
            }
        }));
    }
}
