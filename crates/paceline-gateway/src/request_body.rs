//! The body of a request. What is left of one that came by HTTP/2, once it is answered, is read and dropped.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::runtime::Handle;
use tokio::time::timeout;

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
pub struct RequestBody {
    body: Option<Incoming>,
    is_stream: bool,
}

impl RequestBody {
    /// That body, which came in a stream of HTTP/2, or by HTTP/1.1: there the connection ends with the answer.
    pub(crate) const fn new(body: Incoming, is_stream: bool) -> Self {
        Self { body: Some(body), is_stream }
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
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
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
