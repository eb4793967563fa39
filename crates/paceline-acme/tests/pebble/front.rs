//! Stands before the CA: counts every call, and refuses or fails as a test asks for.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use paceline::{Clock, Instant};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::pebble::{Pebble, runtime};

/// The front of a CA.
pub(crate) struct Front {
    book: Arc<Book>,
    port: u16,
}

/// A call that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) at: Instant,
    pub(crate) method: Method,
    pub(crate) path: String,
    /// None while it is not answered, and when it was cut off.
    pub(crate) status: Option<u16>,
    /// For whom an order was asked for.
    pub(crate) domain: Option<String>,
    /// The paths of the order that was made: its own, and those of its authorizations.
    order: BTreeSet<String>,
}

/// What a test wants.
#[derive(Clone, Debug, Default)]
pub(crate) enum Mood {
    /// Every call goes on to the CA.
    #[default]
    Fair,
    /// Connections are cut off without an answer.
    Down,
    /// The nonces of all signed calls are refused, with this message and a fresh one.
    RefusesNonces { detail: &'static str },
    /// New orders are refused with this problem and, if there is one, `Retry-After`.
    RefusesOrders { status: u16, kind: &'static str, detail: &'static str, retry_after: Option<u64> },
    /// The first of them is refused as `rateLimited`.
    RefusesOneOrder { detail: &'static str, retry_after: u64 },
    /// Each order is still in progress when the program asks for the first time whether it is valid; `Retry-After: 2`.
    TakesItsTime,
}

struct Book {
    clock: Clock,
    pages: Mutex<Pages>,
    turned: Condvar,
    http: reqwest::Client,
    behind: String,
}

#[derive(Default)]
struct Pages {
    calls: Vec<Call>,
    in_service: usize,
    most_in_service: usize,
    /// Connections of clients that are open.
    connections: usize,
    mood: Mood,
    /// Orders that were reported as still in progress.
    delayed: BTreeSet<String>,
}

impl Front {
    pub(crate) fn start(pebble: &Pebble) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (certificate, key) = pebble.https();
        let root = reqwest::Certificate::from_pem(certificate.as_bytes()).expect("a certificate");
        // In HTTP/2 the CA would not hear which host the client named.
        let http = reqwest::Client::builder().no_proxy().http1_only().add_root_certificate(root);
        let http = http.build().expect("a client");
        let book = Arc::new(Book {
            clock: Clock::new(),
            pages: Mutex::default(),
            turned: Condvar::new(),
            http,
            behind: format!("https://127.0.0.1:{}", pebble.port),
        });
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
        let tls = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        let (sender, port) = std::sync::mpsc::channel();
        let served = book.clone();
        std::thread::spawn(move || {
            runtime().block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                sender.send(listener.local_addr().expect("an address").port()).expect("the test waits for the port");
                serve(listener, TlsAcceptor::from(Arc::new(tls)), served).await;
            });
        });
        Self { book, port: port.recv().expect("the thread sends it") }
    }

    /// The address of the CA's directory.
    pub(crate) fn directory(&self) -> String {
        format!("https://127.0.0.1:{}/dir", self.port)
    }

    pub(crate) fn set(&self, mood: Mood) {
        self.book.open().mood = mood;
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.book.open().calls.clone()
    }

    /// Requests for an order that arrived, refused ones too.
    pub(crate) fn order_calls(&self) -> Vec<Call> {
        self.calls().into_iter().filter(Call::is_order).collect()
    }

    /// The paths of orders that were reported as still in progress.
    pub(crate) fn delayed(&self) -> BTreeSet<String> {
        self.book.open().delayed.clone()
    }

    /// Orders that the CA made.
    pub(crate) fn orders(&self) -> usize {
        self.book.open().orders()
    }

    /// Orders that the CA made and the program never called again, neither the order nor one of its authorizations.
    pub(crate) fn abandoned(&self) -> usize {
        let calls = self.calls();
        let is_used = |made: usize| calls[made..].iter().any(|call| calls[made].order.contains(&call.path));
        (0..calls.len()).filter(|&made| !calls[made].order.is_empty() && !is_used(made)).count()
    }

    /// The most calls that were in service at a time since the last question.
    pub(crate) fn most_in_service(&self) -> usize {
        std::mem::take(&mut self.book.open().most_in_service)
    }

    /// Returns once so many calls arrived; false when that takes longer than `patience`.
    pub(crate) fn wait_for_calls(&self, calls: usize, patience: Duration) -> bool {
        self.wait(patience, |pages| pages.calls.len() >= calls)
    }

    /// Returns once so many orders were made; false when that takes longer than `patience`.
    pub(crate) fn wait_for_orders(&self, orders: usize, patience: Duration) -> bool {
        self.wait(patience, |pages| pages.orders() >= orders)
    }

    /// Returns once no client is connected, so that no call of a killed program arrives any more; false when that takes longer
    /// than `patience`.
    pub(crate) fn wait_for_hang_ups(&self, patience: Duration) -> bool {
        self.wait(patience, |pages| pages.connections == 0)
    }

    fn wait(&self, patience: Duration, reached: impl Fn(&Pages) -> bool) -> bool {
        let pages = self.book.open();
        let waited = self.book.turned.wait_timeout_while(pages, patience, |pages| !reached(pages));
        !waited.expect("no holder panics").1.timed_out()
    }
}

impl Call {
    fn is_order(&self) -> bool {
        self.method == Method::POST && self.path == "/order-plz"
    }
}

impl Pages {
    fn orders(&self) -> usize {
        self.calls.iter().filter(|call| call.is_order() && call.status == Some(201)).count()
    }
}

impl Book {
    fn open(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().expect("no holder panics")
    }

    fn connected(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.open().connections);
        self.turned.notify_all();
    }

    /// Records a call; returns its number and what it may expect.
    fn begin(&self, method: &Method, path: &str, body: &[u8]) -> (usize, Mood) {
        let mut pages = self.open();
        let is_signed = *method == Method::POST;
        let (at, method, path) = (self.clock.now(), method.clone(), path.to_owned());
        let mut call = Call { at, method, path, status: None, domain: None, order: BTreeSet::new() };
        let is_order = call.is_order();
        call.domain = is_order.then(|| ordered(body)).flatten();
        pages.calls.push(call);
        pages.in_service += 1;
        pages.most_in_service = pages.most_in_service.max(pages.in_service);
        self.turned.notify_all();
        let mood = match &pages.mood {
            Mood::Down | Mood::TakesItsTime => pages.mood.clone(),
            Mood::RefusesNonces { .. } if is_signed => pages.mood.clone(),
            _ if !is_order => Mood::Fair,
            mood => mood.clone(),
        };
        if matches!(mood, Mood::RefusesOneOrder { .. }) {
            pages.mood = Mood::Fair;
        }
        (pages.calls.len() - 1, mood)
    }

    /// The answer, or for the first time that an order is valid that it is not so yet.
    fn delay(&self, path: &str, mut answer: Response<Bytes>) -> Response<Bytes> {
        let mut order: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if path.starts_with("/my-order/") && order["status"] == "valid" && self.open().delayed.insert(path.to_owned()) {
            order["status"] = "processing".into();
            answer.headers_mut().insert(header::RETRY_AFTER, 2.into());
            *answer.body_mut() = order.to_string().into();
        }
        answer
    }

    fn end(&self, call: usize, answered: Option<&Response<Bytes>>) {
        let mut pages = self.open();
        let call = &mut pages.calls[call];
        call.status = answered.map(|answer| answer.status().as_u16());
        if call.is_order() && call.status == Some(201) {
            call.order = answered.map(made).unwrap_or_default();
        }
        pages.in_service -= 1;
        self.turned.notify_all();
    }
}

/// The first name for which an order is asked for.
fn ordered(body: &[u8]) -> Option<String> {
    let envelope: Value = serde_json::from_slice(body).ok()?;
    let payload = BASE64_URL_SAFE_NO_PAD.decode(envelope["payload"].as_str()?).ok()?;
    let order: Value = serde_json::from_slice(&payload).ok()?;
    order["identifiers"][0]["value"].as_str().map(str::to_owned)
}

/// The addresses of an answer's order and of its authorizations.
fn made(answer: &Response<Bytes>) -> BTreeSet<String> {
    let order: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let own = answer.headers().get(header::LOCATION).and_then(|url| url.to_str().ok());
    let authorizations = order["authorizations"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let urls = own.into_iter().chain(authorizations);
    urls.map(|url| url.parse::<http::Uri>().expect("an address").path().to_owned()).collect()
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, book: Arc<Book>) {
    loop {
        let (stream, _) = listener.accept().await.expect("a connection");
        book.connected(|connections| *connections += 1);
        let (tls, book) = (tls.clone(), book.clone());
        tokio::spawn(async move {
            if let Ok(stream) = tls.accept(stream).await {
                let service = service_fn(|request| answer(book.clone(), request));
                // A client that was killed, or one that was cut off, is no news.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            }
            book.connected(|connections| *connections -= 1);
        });
    }
}

/// An error cuts the connection off.
async fn answer(book: Arc<Book>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, CutOff> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let body = body.collect().await.map_err(|_| CutOff)?.to_bytes();
    let (call, mood) = book.begin(&parts.method, &path, &body);
    let answered = match mood {
        Mood::Fair => forward(&book, &parts, body).await,
        Mood::TakesItsTime => forward(&book, &parts, body).await.map(|answer| book.delay(&path, answer)),
        Mood::Down => None,
        Mood::RefusesNonces { detail } => {
            let mut answer = problem(400, "badNonce", detail, None);
            answer.headers_mut().insert("replay-nonce", header::HeaderValue::from_static("ZnJlc2g"));
            Some(answer)
        }
        Mood::RefusesOrders { status, kind, detail, retry_after } => Some(problem(status, kind, detail, retry_after)),
        Mood::RefusesOneOrder { detail, retry_after } => Some(problem(429, "rateLimited", detail, Some(retry_after))),
    };
    book.end(call, answered.as_ref());
    answered.map(|answer| answer.map(Full::new)).ok_or(CutOff)
}

#[derive(Debug, thiserror::Error)]
#[error("cut off")]
struct CutOff;

/// To the CA and back. It builds its addresses from the host that the client named.
async fn forward(book: &Book, parts: &http::request::Parts, body: Bytes) -> Option<Response<Bytes>> {
    let mut headers: HeaderMap = parts.headers.clone();
    headers.remove(header::CONTENT_LENGTH);
    let url = format!("{}{}", book.behind, parts.uri.path());
    let answer = book.http.request(parts.method.clone(), url).headers(headers).body(body).send().await.ok()?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = answer.status();
    *response.headers_mut() = answer.headers().clone();
    for hop in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        response.headers_mut().remove(hop);
    }
    *response.body_mut() = answer.bytes().await.ok()?;
    Some(response)
}

fn problem(status: u16, kind: &str, detail: &str, retry_after: Option<u64>) -> Response<Bytes> {
    let kind = format!("urn:ietf:params:acme:error:{kind}");
    let body = serde_json::json!({ "type": kind, "detail": detail, "status": status }).to_string();
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/problem+json"));
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
