//! The body of an answer on its way to the client: passed on as it comes, and read meanwhile.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use paceline_http::NoAnswer;
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};

use crate::backend::Departed;
use crate::bounds::Bounds;

/// So much of an answer is kept to be read. Of a longer stream the last events are: they tell its usage and its end.
const MOST_KEPT: usize = 1 << 20;

/// Why the body of an answer ends before its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TapError {
    /// The connection to the upstream broke.
    #[error("the upstream's answer broke off: {0}")]
    Broken(#[from] hyper::Error),
    /// No byte came for so long.
    #[error("no byte of the upstream's answer came for {0:?}")]
    Idle(Duration),
    /// Its client took nothing for so long.
    #[error("nothing of the answer was taken for {0:?}")]
    Unread(Duration),
}

/// A body that is read on its way. Once it has ended the outcome of the call is reported; dropped before, the call was abandoned.
///
/// A connection asks for more only once its client has taken what there was. So a client that reads nothing is noticed by a
/// watch, which drops the flow under the tap.
pub(crate) struct Tap {
    flow: Arc<Mutex<Option<Flow>>>,
    /// From the first frame of an answer that has more.
    watch: Option<AbortHandle>,
    longest_unread: Duration,
}

struct Flow {
    body: Incoming,
    reads: Option<Reads>,
    idle: Pin<Box<Sleep>>,
    longest_idle: Duration,
    /// A byte came since the timer was set.
    came: bool,
    /// What came last waits for the client to take it.
    unread: bool,
    /// How often more was asked for.
    taken: u64,
}

/// What is read.
struct Reads {
    departed: Departed,
    head: Parts,
    kept: BytesMut,
    is_stream: bool,
    /// It is longer than what is kept.
    cut: bool,
}

impl Tap {
    /// The body of an answer with that head.
    pub(crate) fn new(departed: Departed, head: Parts, body: Incoming, bounds: &Bounds) -> Self {
        let (longest_idle, longest_unread) = (bounds.idle, bounds.unread);
        let is_stream = head.headers.get(CONTENT_TYPE).is_some_and(is_event_stream);
        let reads = Some(Reads { departed, head, kept: BytesMut::new(), is_stream, cut: false });
        let idle = Box::pin(sleep(longest_idle));
        let mut flow = Flow { body, reads, idle, longest_idle, came: false, unread: false, taken: 0 };
        flow.end_if_over();
        Self { flow: Arc::new(Mutex::new(Some(flow))), watch: None, longest_unread }
    }

    fn flow(&self) -> MutexGuard<'_, Option<Flow>> {
        self.flow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the rest of an answer. One that has ended needs none: most have, with their first frame.
    fn watch(&mut self) {
        if self.watch.is_none() && self.flow().as_ref().is_some_and(|flow| flow.reads.is_some()) {
            self.watch = Some(tokio::spawn(watch(Arc::downgrade(&self.flow), self.longest_unread)).abort_handle());
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
    }
}

/// Drops a flow of which nothing was taken for once to twice so long.
async fn watch(flow: Weak<Mutex<Option<Flow>>>, longest: Duration) {
    let mut before = None;
    loop {
        sleep(longest).await;
        let Some(flow) = flow.upgrade() else { return };
        let mut flow = flow.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waits) = flow.as_mut().filter(|flow| flow.reads.is_some()) else { return };
        if waits.unread && before == Some(waits.taken) {
            tracing::info!("a call was cancelled: its client took nothing of the answer for {longest:?}");
            *flow = None;
            return;
        }
        before = Some(waits.taken);
    }
}

impl Flow {
    /// Reports the outcome once nothing more comes. Servers do not ask again then.
    fn end_if_over(&mut self) {
        if self.body.is_end_stream() {
            self.end(None);
        }
    }

    /// The timer is set when a byte is awaited and has come meanwhile, so silence is noticed after once to twice the longest.
    fn silent(&mut self, longest: Duration) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        self.end(Some(NoAnswer::Timeout(Some(longest))));
        Poll::Ready(Some(Err(TapError::Idle(longest))))
    }

    fn end(&mut self, broken: Option<NoAnswer>) {
        let Some(Reads { departed, head, kept, is_stream, cut }) = self.reads.take() else { return };
        let answer = match broken {
            Some(error) => Err(error),
            // Of an answer that is not whole the head alone is read, which says that it succeeded.
            None if cut && !is_stream => Ok(Response::from_parts(head, Bytes::new())),
            None => Ok(Response::from_parts(head, kept.freeze())),
        };
        departed.ends(&answer);
    }

    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let longest = self.longest_idle;
            while self.idle.as_mut().poll(context).is_ready() {
                if !std::mem::take(&mut self.came) {
                    return self.silent(longest);
                }
                self.idle.set(sleep(longest));
            }
            return Poll::Pending;
        };
        match frame {
            Some(Ok(frame)) => {
                self.came = true;
                if let (Some(data), Some(reads)) = (frame.data_ref(), &mut self.reads) {
                    reads.keep(data);
                }
                self.end_if_over();
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                self.end(Some(NoAnswer::Truncated(error.to_string())));
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                self.end(None);
                Poll::Ready(None)
            }
        }
    }
}

fn is_event_stream(kind: &HeaderValue) -> bool {
    kind.to_str().is_ok_and(|kind| kind.trim_start().starts_with("text/event-stream"))
}

impl Reads {
    fn keep(&mut self, data: &[u8]) {
        if self.cut && !self.is_stream {
            return;
        }
        if self.kept.len() + data.len() <= MOST_KEPT {
            return self.kept.extend_from_slice(data);
        }
        self.cut = true;
        if !self.is_stream {
            self.kept = BytesMut::new();
            return;
        }
        self.kept.extend_from_slice(data);
        // Whole events, so that what is left can be read.
        let after = self.kept.len().saturating_sub(MOST_KEPT / 2);
        let event =
            self.kept[after..].windows(2).position(|two| two == b"\n\n").map_or(self.kept.len(), |at| after + at + 2);
        let _ = self.kept.split_to(event);
    }
}

impl Body for Tap {
    type Data = Bytes;
    type Error = TapError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        let polled = match self.flow().as_mut() {
            Some(flow) => {
                let polled = flow.poll_frame(context);
                flow.taken += 1;
                flow.unread = polled.is_ready();
                polled
            }
            None => return Poll::Ready(Some(Err(TapError::Unread(self.longest_unread)))),
        };
        if polled.is_ready() {
            self.watch();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.flow().as_ref().is_some_and(|flow| flow.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.flow().as_ref().map_or_else(SizeHint::default, |flow| flow.body.size_hint())
    }
}
