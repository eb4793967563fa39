//! Connections of clients: each is served while requests come, closed where none does, and ended without losing one that is on
//! its way.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use paceline::Clock;
use paceline_core::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::bounds::{Bounds, Still};
use crate::files;
use crate::forward::AnswerBody;
use crate::request_body::{OwedBodies, RequestBody};
use crate::watched::Answers;

/// The longest head of a request, in bytes; of HTTP/2, its fields as HTTP/2 counts them. A connection may keep as much for as
/// long as it is open.
const LONGEST_HEAD: u32 = 64 << 10;

/// Once the gateway ends, a request that is already on its way may come so much later.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// Where files are short, a client has so long from its first byte to its first request: a handshake of TLS goes to and fro.
const GREETS: Duration = Duration::from_secs(1);

/// Where files are short, so much of the bodies that a client owes on a connection must come in each such time: as much as in any
/// case must come in a longer one.
const LEAST_OF_BODIES: u64 = 8 << 10;

type BoxError = Box<dyn Error + Send + Sync>;

/// All connections of an address, until they end.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    ends: watch::Sender<()>,
    no_files: Arc<Notify>,
    clock: Arc<Clock>,
    under_way: Arc<AtomicU64>,
}

/// A connection that has begun.
pub(crate) struct Connection {
    ends: watch::Receiver<()>,
    no_files: Arc<Notify>,
    requests: Arc<Requests>,
    owed: Arc<OwedBodies>,
    clock: Arc<Clock>,
    /// Since when its client speaks, and has sent no request yet.
    speaks: Option<Instant>,
    idle: Duration,
    unread: Duration,
}

/// The requests of one connection.
#[derive(Debug, Default)]
struct Requests {
    begun: AtomicU64,
    ended: AtomicU64,
    /// They come by HTTP/2.
    are_streams: AtomicBool,
    /// Those under way on all connections that are counted together.
    of_all: Arc<AtomicU64>,
}

/// A request that is under way until this is dropped.
#[cfg_attr(test, derive(Default))]
pub(crate) struct UnderWay(Arc<Requests>);

impl Connections {
    /// Their requests count there while they are under way.
    pub(crate) fn counted_in(under_way: Arc<AtomicU64>) -> Self {
        Self { under_way, ..Self::default() }
    }

    pub(crate) fn begin(&self, bounds: &Bounds) -> Connection {
        let (idle, unread) = (bounds.slowest_head, bounds.unread);
        let (ends, no_files, clock) = (self.ends.subscribe(), Arc::clone(&self.no_files), Arc::clone(&self.clock));
        let of_all = Arc::clone(&self.under_way);
        let (requests, owed) = (Arc::new(Requests { of_all, ..Requests::default() }), Arc::default());
        Connection { ends, no_files, requests, owed, clock, speaks: None, idle, unread }
    }

    /// The process has no file left, and others wait: connections without a request are closed at once, and those whose clients
    /// owe the bodies of theirs soon.
    pub(crate) fn make_room(&self) {
        self.no_files.notify_waiters();
    }

    /// Each takes no further request; returns once all have ended.
    pub(crate) async fn end(self) {
        self.ends.send_replace(());
        self.ends.closed().await;
    }
}

impl Connection {
    /// Its client has sent a first byte.
    pub(crate) fn begins_to_speak(&mut self) {
        self.speaks = Some(self.clock.now());
    }

    /// Returns once its file is wanted for another, and it has no request. A client that has just begun to speak is about to
    /// send one. Likewise once its client owes the body of each request: at once if it holds many connections so, and else when
    /// little has come for a while.
    pub(crate) async fn makes_room(&self) {
        let mut stalls: Option<(Instant, u64)> = None;
        loop {
            self.no_files.notified().await;
            let (now, under_way) = (self.clock.now(), self.requests.under_way());
            if under_way == 0 {
                let is_new = self.requests.begun.load(Ordering::Relaxed) == 0
                    && self.speaks.is_some_and(|since| now - since < GREETS);
                if !is_new {
                    return;
                }
            }
            if under_way == 0 || self.owed.awaited() < under_way {
                stalls = None;
                continue;
            }
            let (since, before) = *stalls.get_or_insert((now, self.owed.came()));
            let has_little = self.owed.came() < before + LEAST_OF_BODIES;
            match now - since >= GREETS {
                _ if self.owed.of_client() > files::of_one_client() => return,
                true if has_little => return,
                true => stalls = None,
                false => {}
            }
        }
    }

    /// Serves it to its end.
    pub(crate) async fn serve<Answer>(
        self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        answer: impl Fn(Request<RequestBody>) -> Answer + Send + 'static,
    ) where
        Answer: Future<Output = Response<AnswerBody>> + Send + 'static,
    {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(self.idle).max_buf_size(LONGEST_HEAD as usize);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(LONGEST_HEAD);
        let (answers, mut told) = (Answers::default(), self.ends.clone());
        let (requests, ends, begun) = (Arc::clone(&self.requests), self.ends.clone(), answers.clone());
        let owed = Arc::clone(&self.owed);
        let service = service_fn(move |request: Request<Incoming>| {
            let is_stream = request.version() == Version::HTTP_2;
            let (under_way, ends, answers) = (Requests::begin(&requests, is_stream), ends.clone(), begun.clone());
            // No block of code around it, which would be moved twice with all that it holds.
            let owed = Arc::clone(&owed);
            answer(request.map(|body| RequestBody::new(body, is_stream, owed))).map(move |answer| {
                let mut answer = answer.map(|body| answers.begin(body, under_way));
                // HTTP/2 has another word for it.
                if ends.has_changed().unwrap_or(true) && !is_stream {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(answer)
            })
        });
        let serves = async {
            let mut served = pin!(builder.serve_connection(TokioIo::new(stream), service));
            let mut to_end = aside(async {
                tokio::select! {
                    () = self.makes_room() => WhyToEnd::Room,
                    () = self.requests.are_missing_for(self.idle) => WhyToEnd::Idle,
                    _ = told.changed() => WhyToEnd::Gateway,
                }
            });
            let why = tokio::select! {
                biased;
                ended = served.as_mut() => return tell(ended),
                why = to_end.select_next_some() => why,
            };
            match why {
                WhyToEnd::Room => return,
                // It never sent a request.
                WhyToEnd::Idle if self.requests.begun.load(Ordering::Relaxed) == 0 => return,
                WhyToEnd::Gateway if !self.requests.are_streams.load(Ordering::Relaxed) => {
                    tokio::select! {
                        ended = served.as_mut() => return tell(ended),
                        () = self.requests.are_missing_for(ON_ITS_WAY) => {}
                    }
                }
                WhyToEnd::Idle | WhyToEnd::Gateway => {}
            }
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served => tell(ended),
                // The last answer may still be on its way to a client that reads slowly.
                () = self.requests.are_missing_for(self.unread) => {}
            }
        };
        let mut watch = aside(answers.watch(self.unread));
        tokio::select! {
            biased;
            () = serves => {}
            () = watch.select_next_some() => {}
        }
    }
}

/// Why a connection is to end that goes on.
enum WhyToEnd {
    /// Its file is wanted for another.
    Room,
    /// It has no request.
    Idle,
    /// The gateway ends.
    Gateway,
}

/// What is waited for beside something that is asked again and again, and is itself asked only once it may go on.
fn aside<Wait: Future>(wait: Wait) -> FuturesUnordered<Wait> {
    FuturesUnordered::from_iter([wait])
}

fn tell(ended: Result<(), BoxError>) {
    if let Err(error) = ended {
        tracing::debug!("a client's connection ended: {error}");
    }
}

impl Requests {
    fn begin(this: &Arc<Self>, is_stream: bool) -> UnderWay {
        this.are_streams.store(is_stream, Ordering::Relaxed);
        this.begun.fetch_add(1, Ordering::Relaxed);
        this.of_all.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(this))
    }

    fn under_way(&self) -> u64 {
        let ended = self.ended.load(Ordering::Acquire);
        self.begun.load(Ordering::Relaxed) - ended
    }

    /// Returns once none was under way for so long.
    async fn are_missing_for(&self, longest: Duration) {
        let (mut still, mut before) = (Still::default(), 0);
        loop {
            sleep(Still::next_look(longest)).await;
            let begun = self.begun.load(Ordering::Relaxed);
            if still.stands(begun == before && self.under_way() == 0) {
                return;
            }
            before = begun;
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Release);
        self.0.of_all.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::task::{Context, Waker};

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_no_longer_than_its_bound_and_an_eighth() {
        let (requests, idle) = (Arc::new(Requests::default()), Duration::from_secs(30));
        let under_way = Requests::begin(&requests, true);
        let mut missing = pin!(requests.are_missing_for(idle));
        assert!(timeout(10 * idle, missing.as_mut()).await.is_err(), "it has a request");
        drop(under_way);
        assert!(timeout(idle - Duration::from_secs(5), missing.as_mut()).await.is_err());
        assert!(timeout(Duration::from_secs(9), missing).await.is_ok());
    }

    #[test]
    fn what_is_waited_for_beside_a_connection_is_asked_only_once_it_may_go_on() {
        let (asked, goes_on) = (Cell::new(0), Notify::new());
        let mut notified = pin!(goes_on.notified());
        let mut wait = aside(poll_fn(|context| {
            asked.set(asked.get() + 1);
            notified.as_mut().poll(context)
        }));
        let mut context = Context::from_waker(Waker::noop());
        (0..10).for_each(|_| assert!(wait.poll_next_unpin(&mut context).is_pending()));
        assert_eq!(asked.get(), 1, "however often the connection is");
        goes_on.notify_waiters();
        assert!(wait.poll_next_unpin(&mut context).is_ready());
        assert_eq!(asked.get(), 2);
    }
}
