//! The body of an answer on its way to the client: passed on as it comes, and read meanwhile.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use paceline::Class;
use paceline_http::NoAnswer;
use paceline_providers::{Answer, comes_in_parts, event_from, is_made_of_events};
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep, timeout};

use crate::bounds::Still;
use crate::departed::Departed;
use crate::echo::{Begun, Unechoed};
use crate::metrics::Ending;
use crate::models::decoded_path;
use crate::record::Record;

/// So much of an answer is kept to be read. Of a longer stream the last events are: they tell its usage and its end.
const MOST_KEPT: usize = 1 << 20;

/// Of an answer that goes on, fewer bytes are not worth counting.
const LEAST_COUNTED: u64 = 2 << 10;

/// An answer that its client gave up is read up to so many bytes, ...
const MOST_READ: u64 = 16 << 20;

/// ... and for so long.
const LONGEST_READ: Duration = Duration::from_secs(10);

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
    /// Until its end. Large, and an answer is moved from level to level on its way to the connection.
    reads: Option<Box<Reads>>,
    /// Whose answer this is, once that is known.
    record: Option<Record>,
    /// What the answer meant, once it has ended.
    class: Option<Class>,
    /// The next look, from the first time that a byte is awaited.
    idle: Option<Pin<Box<Sleep>>>,
    longest_idle: Duration,
    /// A byte came since the last look.
    came: bool,
    still: Still,
    /// It broke off: the client is told once it has what came before.
    broken: Option<TapError>,
}

/// What is read.
struct Reads {
    body: Unechoed,
    departed: Departed,
    head: Parts,
    kept: BytesMut,
    /// So many bytes of it came.
    came: u64,
    /// So many of them were counted while it goes on.
    counted: u64,
    is_stream: bool,
    /// It is longer than what is kept.
    cut: bool,
}

impl Tap {
    /// The body of an answer with that head.
    pub(crate) fn new(departed: Departed, head: Parts, body: Begun, longest_idle: Duration) -> Self {
        let is_stream = is_made_of_events(content_type(&head));
        let body = Unechoed::new(body, departed.upstream.secrets());
        let kept = BytesMut::new();
        let reads = Some(Box::new(Reads { body, departed, head, kept, came: 0, counted: 0, is_stream, cut: false }));
        let (still, came) = (Still::default(), false);
        let mut tap = Self { reads, record: None, class: None, idle: None, longest_idle, came, still, broken: None };
        tap.end_if_over();
        tap
    }

    /// The request that it answers, which ends with it.
    pub(crate) fn tells(&mut self, record: Record) {
        self.record = Some(record);
    }

    /// Reports the outcome once nothing more comes. Servers do not ask again then.
    fn end_if_over(&mut self) {
        if self.reads.as_ref().is_some_and(|reads| reads.body.is_end_stream()) {
            self.end(None);
        }
    }

    /// No byte came for so long.
    fn silent(&mut self, longest: Duration) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        self.end(Some(NoAnswer::Timeout(Some(longest))));
        Poll::Ready(Some(Err(TapError::Idle(longest))))
    }

    fn end(&mut self, broken: Option<NoAnswer>) {
        self.class = self.reads.take().map(|reads| reads.end(broken)).or(self.class);
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(reads) = self.reads.take() {
            reads.given_up();
        }
        if let Some(record) = &mut self.record {
            record.ending = self.class.map(Ending::Answered);
        }
    }
}

fn content_type(head: &Parts) -> &str {
    head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}

/// Whether an answer of that content type is a stream of events.
pub(crate) fn is_event_stream(kind: &HeaderValue) -> bool {
    kind.to_str().is_ok_and(|kind| kind.trim_start().starts_with("text/event-stream"))
}

impl Reads {
    /// Reports the outcome, and returns what it means.
    fn end(self: Box<Self>, broken: Option<NoAnswer>) -> Class {
        let Self { mut departed, head, kept, came, is_stream, cut, .. } = *self;
        match &broken {
            Some(error) => departed.has_failed(error),
            None => departed.is_answered(),
        }
        // A stream may lack its end though its connection has ended well: where that matters for no limit, nothing is read twice.
        if broken.is_some() || is_stream && departed.spent.is_limited() {
            departed.cut_off(&head, &kept, came);
        }
        let answer = match broken {
            Some(error) => Err(error),
            // Of an answer that is not whole the head alone is read, which says that it succeeded.
            None if cut && !is_stream => {
                departed.unread = came;
                Ok(Response::from_parts(head, Bytes::new()))
            }
            None => Ok(Response::from_parts(head, kept.freeze())),
        };
        departed.ends(&answer).0
    }

    /// The client reads no further. An answer that is no stream is made already, and counts under the limits of its client: the
    /// rest of it is read, within bounds, for it tells what it used.
    fn given_up(mut self: Box<Self>) {
        let counts = self.departed.spent.is_limited() && !self.is_made_on_its_way();
        match Handle::try_current() {
            Ok(runtime) if counts => {
                self.departed.leaves_its_client();
                drop(runtime.spawn(self.read_to_its_end()));
            }
            _ => self.stop(),
        }
    }

    /// Whether the server may still be making it.
    fn is_made_on_its_way(&self) -> bool {
        let answer = Answer { status: 200, headers: &self.head.headers, body: b"", path: &self.departed.call.url };
        // Gemini's comes as one array of JSON, and Bedrock's in frames.
        let is_of_stream = ["stream", "Stream"].iter().any(|word| decoded_path(&self.departed.call).contains(word));
        self.is_stream || is_of_stream || comes_in_parts(&answer)
    }

    async fn read_to_its_end(mut self: Box<Self>) {
        let read = async {
            while let Some(frame) = self.body.frame().await {
                let frame = frame.map_err(|error| Some(NoAnswer::Truncated(error.to_string())))?;
                frame.data_ref().into_iter().for_each(|data| self.came(data));
                if self.came > MOST_READ {
                    return Err(None);
                }
            }
            Ok(())
        };
        match timeout(LONGEST_READ, read).await {
            Ok(Ok(())) => drop(self.end(None)),
            Ok(Err(Some(error))) => drop(self.end(Some(error))),
            Ok(Err(None)) | Err(_) => self.stop(),
        }
    }

    /// It is read no further: the call is abandoned.
    fn stop(self) {
        let announced = if self.is_stream { 0 } else { self.body.size_hint().lower() };
        self.departed.cut_off(&self.head, &self.kept, self.came + announced);
    }

    /// What came counts while the answer goes on, each time that it has grown by a quarter: a kill may end it at any time.
    fn came(&mut self, data: &[u8]) {
        self.departed.is_answered();
        self.keep(data);
        if self.came >= self.counted + (self.counted / 4).clamp(LEAST_COUNTED, MOST_KEPT as u64 / 4) {
            self.counted = self.came;
            self.departed.goes_on(&self.head, &self.kept, self.came);
        }
    }

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
        let event = event_from(content_type(&self.head), &self.kept, after);
        let _ = self.kept.split_to(event);
        if self.kept.len() > MOST_KEPT {
            self.kept.clear();
        }
    }
}

impl Body for Tap {
    type Data = Bytes;
    type Error = TapError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        let this = &mut *self;
        let Some(reads) = &mut this.reads else { return Poll::Ready(this.broken.take().map(Err)) };
        let Poll::Ready(frame) = Pin::new(&mut reads.body).poll_frame(context) else {
            let (longest, look) = (this.longest_idle, Still::next_look(this.longest_idle));
            let idle = this.idle.get_or_insert_with(|| Box::pin(sleep(look)));
            while idle.as_mut().poll(context).is_ready() {
                if this.still.stands(!std::mem::take(&mut this.came)) {
                    return this.silent(longest);
                }
                idle.set(sleep(look));
            }
            return Poll::Pending;
        };
        match frame {
            Some(Ok(frame)) => {
                this.came = true;
                if let Some(data) = frame.data_ref() {
                    reads.came(data);
                    this.record.iter_mut().for_each(|record| record.bytes_out += data.len() as u64);
                }
                this.end_if_over();
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.end(Some(NoAnswer::Truncated(error.to_string())));
                // A connection that is told at once writes nothing of what it holds, the head of the answer neither.
                this.broken = Some(error.into());
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                this.end(None);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.reads.as_ref().is_none_or(|reads| reads.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.reads.as_ref().map_or_else(|| SizeHint::with_exact(0), |reads| reads.body.size_hint())
    }
}
