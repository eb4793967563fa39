//! The server behind the proxies: answers every chat request at its own pace and remembers who asked, and when it had
//! answered. It limits nothing, so whatever is refused was refused by the proxy before it.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use paceline::clock::Clock;
use paceline_core::Instant;
use tokio::net::TcpListener;

/// No call takes longer, nor is its client away for so long and its connection not ended.
const LONGEST_CALL: Duration = Duration::from_mins(2);

/// A running server; it stops with the value.
pub(crate) struct Counting {
    address: SocketAddr,
    book: Arc<Book>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

/// What the server saw of one item.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// How often it was asked for.
    pub(crate) arrivals: u32,
    /// When its latest answer was handed to the connection.
    pub(crate) answered: Option<Instant>,
}

/// A call that came while the server was out of order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// Since the outage began.
    pub(crate) at: Duration,
    /// Calls that were in service already.
    pub(crate) others: u32,
}

#[derive(Default)]
struct Book {
    clock: Clock,
    /// From the first arrival.
    outage: Range<Duration>,
    /// How many calls of a hundred fail, at random.
    failing: u64,
    pages: Mutex<Pages>,
    turned: Condvar,
}

#[derive(Default)]
struct Pages {
    items: BTreeMap<String, Seen>,
    /// The first arrival of all.
    first: Option<Instant>,
    refused: Vec<Refused>,
    times: Vec<Instant>,
    in_service: u32,
    calls: u64,
    /// The hint of every refusal, in seconds, while the account's quota is used up.
    used_up: Option<u32>,
    /// Arrivals plus answers: a clock that only moves when something happens.
    events: u64,
    connections: u32,
}

impl Counting {
    /// Listens on a free loopback port; each call takes `service`.
    pub(crate) fn start(service: Duration) -> Self {
        Self::with_outage(service, Range::default())
    }

    /// As [`start`](Self::start), but answers 503 in that time after its first call.
    pub(crate) fn with_outage(service: Duration, outage: Range<Duration>) -> Self {
        Self::with(service, Book { outage, ..Book::default() })
    }

    /// As [`start`](Self::start), but answers 503 to so many of a hundred calls, which are the same ones each time.
    pub(crate) fn failing(service: Duration, percent: u64) -> Self {
        Self::with(service, Book { failing: percent, ..Book::default() })
    }

    fn with(service: Duration, book: Book) -> Self {
        let book = Arc::new(book);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let served = Arc::clone(&book);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free loopback port");
                sender
                    .send(listener.local_addr().expect("a bound socket has an address"))
                    .expect("the test is waiting");
                tokio::select! {
                    () = serve(listener, served, service) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address: receiver.recv().expect("the server thread starts"), book, _stop: stop }
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The time on the clock of [`Seen::answered`].
    pub(crate) fn now(&self) -> Instant {
        self.book.clock.now()
    }

    /// What arrived so far, by item.
    pub(crate) fn items(&self) -> BTreeMap<String, Seen> {
        self.book.open().items.clone()
    }

    /// From now on every call is refused with that hint, in seconds; with none they are answered again.
    pub(crate) fn use_up(&self, retry_after: Option<u32>) {
        self.book.open().used_up = retry_after;
    }

    /// The calls that came during the outage.
    pub(crate) fn refused(&self) -> Vec<Refused> {
        self.book.open().refused.clone()
    }

    /// When answers were given, by time since the first call; what the outage refused is left out.
    pub(crate) fn answers(&self) -> Vec<Duration> {
        let pages = self.book.open();
        let first = pages.first.unwrap_or(Instant::ZERO);
        pages.items.values().filter_map(|seen| seen.answered).map(|at| at.saturating_since(first)).collect()
    }

    /// All calls that arrived.
    pub(crate) fn arrivals(&self) -> u64 {
        self.book.open().items.values().map(|seen| u64::from(seen.arrivals)).sum()
    }

    /// When calls arrived, in order.
    pub(crate) fn times(&self) -> Vec<Instant> {
        let mut times = self.book.open().times.clone();
        times.sort();
        times
    }

    /// The most calls that arrived in any window of that length.
    pub(crate) fn worst(&self, window: Duration) -> u64 {
        self.worst_after(Duration::ZERO, window)
    }

    /// The same without those that came sooner after the first.
    pub(crate) fn worst_after(&self, start: Duration, window: Duration) -> u64 {
        let mut times = self.times();
        let from = times.first().map_or(Instant::ZERO, |first| *first + start);
        times.retain(|at| *at >= from);
        let held =
            times.iter().enumerate().map(|(n, at)| n + 1 - times.partition_point(|first| *first + window <= *at));
        held.max().unwrap_or_default() as u64
    }

    /// Arrivals and answers so far.
    pub(crate) fn events(&self) -> u64 {
        self.book.open().events
    }

    /// Returns once `events` arrivals and answers were counted; false when that takes longer than `patience`.
    pub(crate) fn wait_for_events(&self, events: u64, patience: Duration) -> bool {
        let pages = self.book.open();
        let waited = self.book.turned.wait_timeout_while(pages, patience, |pages| pages.events < events);
        !waited.expect("no holder of the book panics").1.timed_out()
    }

    /// Returns once every connection was served to its end: after the client died, nothing arrives any more.
    ///
    /// # Panics
    /// When that takes longer than any call.
    pub(crate) fn wait_until_idle(&self) {
        let pages = self.book.open();
        let waited = self.book.turned.wait_timeout_while(pages, LONGEST_CALL, |pages| pages.connections > 0);
        assert!(!waited.expect("no holder of the book panics").1.timed_out(), "a connection does not end");
    }
}

impl Book {
    fn open(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("no holder of the book panics")
    }

    /// A call begins. True when the server is out of order.
    fn begin(&self) -> bool {
        let mut pages = self.open();
        let now = self.clock.now();
        let since = now.saturating_since(*pages.first.get_or_insert(now));
        let out = self.outage.contains(&since);
        if out {
            let refused = Refused { at: since - self.outage.start, others: pages.in_service };
            pages.refused.push(refused);
        }
        pages.times.push(now);
        pages.in_service += 1;
        pages.calls += 1;
        let mut hasher = DefaultHasher::new();
        pages.calls.hash(&mut hasher);
        out || hasher.finish() % 100 < self.failing
    }

    fn write(&self, item: &str, change: impl FnOnce(&mut Seen)) {
        let mut pages = self.open();
        change(pages.items.entry(item.to_owned()).or_default());
        pages.events += 1;
        drop(pages);
        self.turned.notify_all();
    }
}

async fn serve(listener: TcpListener, book: Arc<Book>, service: Duration) {
    loop {
        let (stream, _) = listener.accept().await.expect("accepting on loopback");
        let book = Arc::clone(&book);
        book.open().connections += 1;
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, &book, service));
            // A client that was killed breaks its connections: the error is the point of the test, not a failure.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            book.open().connections -= 1;
            book.turned.notify_all();
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    book: &Book,
    service: Duration,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let Ok(body) = request.into_body().collect().await else {
        return Ok(Response::new(Full::default()));
    };
    let item = item_of(&body.to_bytes());
    let out = book.begin();
    book.write(&item, |seen| {
        seen.arrivals += 1;
        seen.answered = None;
    });
    tokio::time::sleep(service).await;
    book.open().in_service -= 1;
    let used_up = book.open().used_up;
    if let Some(seconds) = used_up {
        let response = Response::builder().status(StatusCode::TOO_MANY_REQUESTS).header(header::RETRY_AFTER, seconds);
        return Ok(response.body(Full::from("used up")).expect("a well-formed response"));
    }
    if out {
        let mut response = Response::new(Full::from("out of order"));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        return Ok(response);
    }
    book.write(&item, |seen| seen.answered = Some(book.clock.now()));
    let body = serde_json::json!({
        "id": format!("chatcmpl-{item}"), "object": "chat.completion", "created": 1_800_000_000, "model": "peer",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": item}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    });
    let mut response = Response::new(Full::from(body.to_string()));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// The item's name travels in `user`, a field that OpenAI-like APIs ignore.
fn item_of(body: &[u8]) -> String {
    let fields: HashMap<String, serde_json::Value> = serde_json::from_slice(body).unwrap_or_default();
    fields.get("user").and_then(serde_json::Value::as_str).unwrap_or("not an item of the job").to_owned()
}
