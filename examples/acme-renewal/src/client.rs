//! Every call to the CA, each with a permit: those that the ACME client sends on its own account too.

mod kept;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use paceline::{
    BreakerConfig, Class, ConfigError, Cost, Error, Instant, Limiter, Limits, MaxWait, PacerConfig, Permit, Quota,
    ScopeId, Within,
};
use paceline_providers::{Answer, NoResponse, Provider, Reading};
use serde::Deserialize;
use tokio::sync::Notify;

/// One certificate authority, and the pace at which it is called. Clones share everything.
#[derive(Clone)]
pub(crate) struct Ca(Arc<Inner>);

struct Inner {
    http: reqwest::Client,
    limiter: Limiter,
    directory: String,
    /// New orders have a limit of their own, which must not hold up those that have begun.
    new_orders: ScopeId,
    others: ScopeId,
    /// Where new orders go, once the directory has told.
    new_order: OnceLock<String>,
    /// Its calls in the order in which they began to wait.
    arrivals: AtomicU64,
    orders: AtomicU64,
    /// Nonces that were refused since the last call whose nonce was taken.
    stale: AtomicU32,
    outage: Outage,
}

/// What a CA is called with.
pub(crate) struct CaConfig {
    /// The address of the directory.
    pub(crate) directory: String,
    /// The ceiling of the pace.
    pub(crate) limit: Quota,
    /// A root to trust beside the system's, as PEM.
    pub(crate) root: Option<Vec<u8>>,
    /// A CA that has been failing for so long is given up for this run.
    pub(crate) max_outage: Duration,
}

/// Why a CA cannot be called at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    /// The limit makes no sense.
    #[error(transparent)]
    Limit(#[from] ConfigError),
    /// The root certificate or the TLS library.
    #[error("cannot set up HTTPS: {0}; is --ca-file a certificate in PEM?")]
    Http(#[from] reqwest::Error),
}

/// Why a call brought no answer to go on with.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// The CA refused, or did not answer.
    #[error("{}", .reading.words.as_deref().or(.reading.code.as_deref()).unwrap_or("no words"))]
    Failed {
        /// The HTTP status; none without an answer.
        status: Option<u16>,
        /// What it means.
        reading: Box<Reading>,
    },
    /// Nothing was sent: the pace forbids it for longer than it is worth waiting here.
    #[error("not sent: {why}")]
    NotSent {
        /// When to ask again.
        wait: Duration,
        /// What it would wait for.
        why: String,
    },
    /// Nothing was sent: a person has to see to the account first.
    #[error("{reason}")]
    Stopped {
        /// What the CA said to another call.
        reason: String,
    },
}

tokio::task_local! {
    /// The work item that a call is made for: one bad domain must not look like a CA that is down.
    static ITEM: u64;
}

/// Makes all calls within `work` on behalf of a work item.
pub(crate) async fn on_behalf_of<F: Future>(item: u64, work: F) -> F::Output {
    ITEM.scope(item, work).await
}

impl Ca {
    /// A CA, not called yet.
    pub(crate) fn new(config: CaConfig) -> Result<Self, SetupError> {
        let mut http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT);
        for root in config.root.as_deref().map(reqwest::Certificate::from_pem_bundle).transpose()?.into_iter().flatten()
        {
            http = http.add_root_certificate(root);
        }
        let limits = Limits { quotas: vec![config.limit], burst: None };
        let limiter = Limiter::new(PacerConfig { limits, breaker: BREAKER, ..PacerConfig::default() })?;
        let (new_orders, others) = (limiter.scope("new orders"), limiter.scope("all else"));
        Ok(Self(Arc::new(Inner {
            http: http.build()?,
            limiter,
            directory: config.directory,
            new_orders,
            others,
            new_order: OnceLock::new(),
            arrivals: AtomicU64::new(0),
            orders: AtomicU64::new(0),
            stale: AtomicU32::new(0),
            outage: Outage::new(config.max_outage),
        })))
    }

    /// The address of the directory, which is also the group of the CA's work items.
    pub(crate) fn directory(&self) -> &str {
        &self.0.directory
    }

    /// All calls that were sent, and those of them that asked for an order.
    pub(crate) fn calls(&self) -> (u64, u64) {
        (self.0.limiter.snapshot().account.totals.sends, self.0.orders.load(Ordering::Relaxed))
    }

    /// Ready once the CA has been failing for too long. Nothing is sent from then on.
    pub(crate) async fn given_up(&self) {
        self.0.outage.over.notified().await;
        self.0.limiter.close();
    }

    async fn send(&self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, CallError> {
        let ca = &*self.0;
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_or_else(|never| match never {}, |body| body.to_bytes());
        let url = parts.uri.to_string();
        let is_signed = parts.method == Method::POST;
        let is_order = is_signed && ca.new_order.get() == Some(&url);
        let permit = ca.permit(if is_order { &ca.new_orders } else { &ca.others }).await?;
        ca.orders.fetch_add(u64::from(is_order), Ordering::Relaxed);
        let request = ca.http.request(parts.method, &url).headers(parts.headers).body(body);
        let answer = match receive(request).await {
            Ok(answer) => answer,
            Err(error) => return Err(ca.unanswered(permit, &error)),
        };
        let reading = read(&answer, parts.uri.path());
        let is_bad_nonce = reading.code.as_deref() == Some("badNonce");
        let takes_no_nonce = ca.takes_no_nonce(is_signed, is_bad_nonce);
        ca.outage.note(ca.limiter.now(), answer.status().is_server_error() || takes_no_nonce);
        if !answer.status().is_success() && (!is_bad_nonce || takes_no_nonce) {
            permit.complete(reading.outcome());
            return Err(CallError::Failed { status: Some(answer.status().as_u16()), reading: Box::new(reading) });
        }
        // A stale nonce says nothing about the pace, and an order in progress is no failure of the server.
        let class = if is_bad_nonce { Class::Invalid } else { Class::Success };
        permit.complete(Reading { class, ..reading }.outcome());
        if url == ca.directory
            && let Ok(Directory { new_order }) = serde_json::from_slice(answer.body())
        {
            ca.new_order.get_or_init(|| new_order);
        }
        Ok(answer.map(Full::new))
    }
}

impl HttpClient for Ca {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, instant_acme::Error>> + Send>> {
        let ca = self.clone();
        Box::pin(async move {
            let sent = ca.send(request).await;
            sent.map(BytesResponse::from).map_err(|error| instant_acme::Error::Other(Box::new(error)))
        })
    }
}

impl Inner {
    /// A permit, unless the CA asked for so long a wait that the item had better spend it in the store.
    async fn permit(&self, scope: &ScopeId) -> Result<Permit, CallError> {
        let request = paceline::Request {
            item: ITEM.try_with(|item| *item).ok(),
            arrival: Some(self.arrivals.fetch_add(1, Ordering::Relaxed)),
            ..paceline::Request::new(scope, Cost::request())
        };
        let not_sent = |error: Error| match error {
            Error::Stopped { reason, .. } => CallError::Stopped { reason: reason.to_string() },
            other => CallError::NotSent { wait: Duration::ZERO, why: other.to_string() },
        };
        match self.limiter.acquire_within(request, PATIENCE).await.map_err(not_sent)? {
            Within::Granted(permit) => Ok(permit),
            Within::Deferred { until, reason } => {
                let wait = until.saturating_since(self.limiter.now());
                Err(CallError::NotSent { wait, why: format!("waiting for {reason}") })
            }
        }
    }

    /// Whether the CA refuses all nonces at present, by what it answered last.
    fn takes_no_nonce(&self, is_signed: bool, is_bad_nonce: bool) -> bool {
        let stale = match (is_signed, is_bad_nonce) {
            (_, true) => self.stale.fetch_add(1, Ordering::Relaxed).saturating_add(1),
            (true, false) => {
                self.stale.store(0, Ordering::Relaxed);
                0
            }
            // The directory and fresh nonces are had without one.
            (false, false) => self.stale.load(Ordering::Relaxed),
        };
        stale >= MOST_STALE
    }

    fn unanswered(&self, permit: Permit, error: &reqwest::Error) -> CallError {
        let kind = match error {
            _ if error.is_connect() => NoResponse::Connect,
            _ if error.is_timeout() => NoResponse::Timeout,
            _ if error.is_body() || error.is_decode() => NoResponse::Truncated,
            _ => NoResponse::Reset,
        };
        self.outage.note(self.limiter.now(), true);
        let words = Some(innermost(error));
        let reading = Reading { words, ..paceline_providers::no_response(kind) };
        permit.complete(reading.outcome());
        CallError::Failed { status: None, reading: Box::new(reading) }
    }
}

/// The whole answer, which is bounded.
async fn receive(request: reqwest::RequestBuilder) -> Result<Response<Bytes>, reqwest::Error> {
    let mut received = request.send().await?;
    let mut answer = Response::new(Bytes::new());
    *answer.status_mut() = received.status();
    *answer.headers_mut() = std::mem::take(received.headers_mut());
    let mut body = BytesMut::new();
    while let Some(chunk) = received.chunk().await? {
        body.extend_from_slice(&chunk);
        if body.len() > LARGEST_ANSWER {
            break;
        }
    }
    *answer.body_mut() = body.freeze();
    Ok(answer)
}

fn read(answer: &Response<Bytes>, path: &str) -> Reading {
    let (status, headers) = (answer.status().as_u16(), answer.headers());
    let answer = Answer { status, headers, body: answer.body(), path };
    paceline_providers::read(Provider::Acme, &answer, paceline::clock::wall())
}

/// What really happened: the outer errors only repeat the address.
fn innermost(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// For how long a CA has been failing: no answer, or that it has a problem of its own.
struct Outage {
    longest: Duration,
    since: Mutex<Option<Instant>>,
    over: Notify,
}

impl Outage {
    fn new(longest: Duration) -> Self {
        Self { longest, since: Mutex::new(None), over: Notify::new() }
    }

    fn note(&self, now: Instant, failed: bool) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        match (*since, failed) {
            (_, false) => *since = None,
            (None, true) => *since = Some(now),
            (Some(began), true) if now.saturating_since(began) >= self.longest => self.over.notify_one(),
            (Some(_), true) => {}
        }
    }
}

/// The one address of the directory that has to be known here.
#[derive(Deserialize)]
struct Directory {
    #[serde(rename = "newOrder")]
    new_order: String,
}

/// A few domains are few calls: three failures of three domains in a row mean that the CA is down.
const BREAKER: BreakerConfig = BreakerConfig {
    share: 0.5,
    last: 6,
    least: 3,
    within: Duration::from_secs(60),
    items: 3,
    open: Duration::from_secs(1),
    open_max: Duration::from_secs(30),
};

/// So many refused nonces in a row, whichever call used them, mean that the CA takes none at present: its refusal is a failure
/// then, and the domain waits. By chance it happens once in two million calls where three of ten nonces are refused.
const MOST_STALE: u32 = 12;

/// What has to wait for longer waits in the store. For the limit, and while the CA is down and one call at a time tests it, the
/// domains that have begun wait here.
const PATIENCE: MaxWait = MaxWait::Pause(Duration::from_secs(10));

/// Without a connection after this long the CA is not reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// No answer of a CA takes as long.
const TIMEOUT: Duration = Duration::from_secs(60);

/// More than any directory, order or certificate chain; what is longer is cut off and then makes no sense.
const LARGEST_ANSWER: usize = 1 << 20;
