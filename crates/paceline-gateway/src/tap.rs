//! The body of an answer on its way to the client: passed on as it comes, and read meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use paceline::Class;
use paceline_http::NoAnswer;
use tokio::time::{Sleep, sleep};

use crate::departed::Departed;
use crate::echo::Unechoed;
use crate::metrics::Ending;
use crate::record::Record;

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
}

/// A body that is read on its way. Once it has ended the outcome of the call is reported; dropped before, the call was abandoned.
pub(crate) struct Tap {
    body: Unechoed,
    reads: Option<Reads>,
    /// Whose answer this is, once that is known.
    record: Option<Record>,
    /// What the answer meant, once it has ended.
    class: Option<Class>,
    idle: Pin<Box<Sleep>>,
    longest_idle: Duration,
    /// A byte came since the timer was set.
    came: bool,
}

/// What is read.
struct Reads {
    departed: Departed,
    head: Parts,
    kept: BytesMut,
    /// So many bytes of it came.
    came: u64,
    is_stream: bool,
    /// It is longer than what is kept.
    cut: bool,
}

impl Tap {
    /// The body of an answer with that head.
    pub(crate) fn new(departed: Departed, head: Parts, body: Incoming, longest_idle: Duration) -> Self {
        let is_stream = head.headers.get(CONTENT_TYPE).is_some_and(is_event_stream);
        let body = Unechoed::new(body, departed.upstream.secrets());
        let reads = Reads { departed, head, kept: BytesMut::new(), came: 0, is_stream, cut: false };
        let idle = Box::pin(sleep(longest_idle));
        let mut tap = Self { body, reads: Some(reads), record: None, class: None, idle, longest_idle, came: false };
        tap.end_if_over();
        tap
    }

    /// The request that it answers, which ends with it.
    pub(crate) fn tells(&mut self, record: Record) {
        self.record = Some(record);
    }

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
        let Some(Reads { departed, head, kept, is_stream, cut, .. }) = self.reads.take() else { return };
        let answer = match broken {
            Some(error) => Err(error),
            // Of an answer that is not whole the head alone is read, which says that it succeeded.
            None if cut && !is_stream => Ok(Response::from_parts(head, Bytes::new())),
            None => Ok(Response::from_parts(head, kept.freeze())),
        };
        self.class = Some(departed.ends(&answer).0);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(Reads { departed, head, kept, came, .. }) = self.reads.take() {
            departed.given_up(&head, &kept, came);
        }
        if let Some(record) = &mut self.record {
            record.ending = self.class.map(Ending::Answered);
        }
    }
}

fn is_event_stream(kind: &HeaderValue) -> bool {
    kind.to_str().is_ok_and(|kind| kind.trim_start().starts_with("text/event-stream"))
}

impl Reads {
    fn keep(&mut self, data: &[u8]) {
        self.came += data.len() as u64;
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
                if let Some(data) = frame.data_ref() {
                    let this = &mut *self;
                    this.reads.iter_mut().for_each(|reads| reads.keep(data));
                    this.record.iter_mut().for_each(|record| record.bytes_out += data.len() as u64);
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

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
