//! Whether a call has left: until its connection asks about the body nothing of it was sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Watches one call. Without a watch, and without a body, the call may have left at any time.
#[derive(Debug)]
pub(crate) struct Leaving {
    is_watched: bool,
    may_have_left: Arc<AtomicBool>,
}

impl Leaving {
    pub(crate) fn of(is_watched: bool) -> Self {
        Self { is_watched, may_have_left: Arc::new(AtomicBool::new(!is_watched)) }
    }

    /// The body of the request.
    pub(crate) fn body(&self, bytes: Bytes) -> reqwest::Body {
        if !self.is_watched || bytes.is_empty() {
            self.may_have_left.store(true, Ordering::Relaxed);
            return bytes.into();
        }
        reqwest::Body::wrap(Watched { bytes: Some(bytes), asked: Arc::clone(&self.may_have_left) })
    }

    /// Whether something of the call may have been sent.
    pub(crate) fn may_have_left(&self) -> bool {
        self.may_have_left.load(Ordering::Relaxed)
    }
}

/// A body that notes when it is asked for.
struct Watched {
    bytes: Option<Bytes>,
    asked: Arc<AtomicBool>,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.asked.store(true, Ordering::Relaxed);
        Poll::Ready(self.bytes.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        // A client asks this before it writes the head: the body may have to wait for the server's window.
        self.asked.store(true, Ordering::Relaxed);
        self.bytes.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, Bytes::len) as u64)
    }
}
