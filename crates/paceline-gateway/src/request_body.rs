//! The body of a request. What is left of one that came by HTTP/2, once it is answered, is read and dropped. What clients still
//! owe of bodies is known of each connection.

use std::future::poll_fn;
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

    /// The part of it that came with its head, if any. A connection passes that on once it was asked for it, so this asks twice,
    /// and takes no timer: only what comes later is waited for.
    pub(crate) async fn at_hand(&mut self) -> Option<Result<Frame<Bytes>, hyper::Error>> {
        let mut was_asked = false;
        let asks = |context: &mut Context<'_>| match Pin::new(&mut *self).poll_frame(context) {
            Poll::Pending if std::mem::replace(&mut was_asked, true) => Poll::Ready(None),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            came => came,
        };
        poll_fn(asks).await
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Request, Response};
    use http_body_util::Full;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// The answer to such a request, of which that has come when its head is read: what of its body is at hand.
    async fn at_hand(came: &str) -> String {
        let (mut client, server) = duplex(4_096);
        client.write_all(came.as_bytes()).await.expect("there is room");
        let service = service_fn(async |request: Request<Incoming>| {
            let mut body = RequestBody::new(request.into_body(), false, Arc::default());
            let frame = body.at_hand().await.transpose().expect("it does not break off");
            let data = frame.map(|frame| frame.into_data().expect("it has no trailers"));
            Ok::<_, Infallible>(Response::new(Full::new(data.unwrap_or_else(|| "nothing".into()))))
        });
        let mut answer = Vec::new();
        let mut one = http1::Builder::new();
        let served = one.keep_alive(false).serve_connection(TokioIo::new(server), service);
        let (served, read) = tokio::join!(served, client.read_to_end(&mut answer));
        served.and(Ok(read.expect("an answer"))).expect("it is served");
        let answer = String::from_utf8(answer).expect("a text");
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    #[tokio::test]
    async fn what_came_with_the_head_of_a_request_is_at_hand_and_what_has_not_come_is_not_waited_for() {
        for (came, expected) in [("Content-Length: 5\r\n\r\nwhole", "whole"), ("Content-Length: 5\r\n\r\nhal", "hal")] {
            assert_eq!(at_hand(&format!("POST / HTTP/1.1\r\nHost: a\r\n{came}")).await, expected);
        }
        for none in ["Content-Length: 5\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n", "\r\n"] {
            assert_eq!(at_hand(&format!("POST / HTTP/1.1\r\nHost: a\r\n{none}")).await, "nothing");
        }
    }
}
