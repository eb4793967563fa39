//! Every call to the CA, each with a permit: those that the ACME client sends on its own account too.

mod kept;

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use instant_acme::{BodyWrapper, BytesResponse, HttpClient};
use paceline::{
    BreakerConfig, Class, ConfigError, Cost, Error, Instant, Limiter, Limits, MaxWait, PacerConfig, Permit, Quota,
    ScopeId, UnknownOutcome, Within,
};
use paceline_http::{Call, NoAnswer, Sender, SenderConfig, client_to};
use paceline_providers::{Provider, Reading};
use serde::Deserialize;
use tokio::sync::Notify;

/// One certificate authority, and the pace at which it is called. Clones share everything.
#[derive(Clone)]
pub(crate) struct Ca(Arc<Inner>);

struct Inner {
    sender: Sender,
    limiter: Limiter,
    directory: String,
    /// New orders have a limit of their own, which must not hold up those that have begun.
    new_orders: ScopeId,
    others: ScopeId,
    /// The address of new orders, once the directory is read.
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
    #[error("{}", .reading.message.as_deref().or(.reading.code.as_deref()).unwrap_or("no words"))]
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
        /// The CA's answer to another call.
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
        let roots = config.root.as_deref().map(reqwest::Certificate::from_pem_bundle).transpose()?;
        let client = client_to(&config.directory).tls_certs_merge(roots.unwrap_or_default());
        // The directory has the addresses of all other calls.
        let sending = SenderConfig {
            timeout: TIMEOUT,
            connect_timeout: CONNECT_TIMEOUT,
            largest_answer: LARGEST_ANSWER,
            // Each request is signed for one nonce, so it counts once.
            unknown_outcome: Some(UnknownOutcome::Resend),
            ..SenderConfig::new("", Provider::Acme)
        };
        let limits = Limits { quotas: vec![config.limit], burst: None };
        let limiter = Limiter::new(PacerConfig { limits, breaker: BREAKER, ..PacerConfig::default() })?;
        let (new_orders, others) = (limiter.scope("new orders"), limiter.scope("all else"));
        Ok(Self(Arc::new(Inner {
            sender: Sender::new(client, sending)?,
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
        let call = Call { method: parts.method, url, headers: parts.headers, body, ..Call::default() };
        let mut takes_no_nonce = false;
        let judged = |answer: &Result<Response<Bytes>, NoAnswer>, reading: Reading| match answer {
            Ok(answer) => {
                let is_bad_nonce = is_bad_nonce(&reading);
                takes_no_nonce = ca.takes_no_nonce(is_signed, is_bad_nonce);
                match reading.class {
                    // A stale nonce says nothing about the pace, and an order in progress is no failure of the server.
                    _ if answer.status().is_success() => Reading { class: Class::Success, ..reading },
                    _ if is_bad_nonce && !takes_no_nonce => Reading { class: Class::Invalid, ..reading },
                    _ => reading,
                }
            }
            Err(_) => reading,
        };
        let exchange = ca.sender.send_judged(permit, &call, pending(), judged).await;
        let status = exchange.status();
        let fails = status.is_none_or(|status| status >= 500) || takes_no_nonce;
        ca.outage.note(ca.limiter.now(), fails);
        let is_stale = is_bad_nonce(&exchange.reading) && !takes_no_nonce;
        let failed = |reading| CallError::Failed { status, reading: Box::new(reading) };
        let answer = match exchange.answer {
            Ok(answer) if answer.status().is_success() || is_stale => answer,
            Ok(_) => return Err(failed(exchange.reading)),
            Err(error) => return Err(failed(Reading { message: Some(error.to_string()), ..exchange.reading })),
        };
        if call.url == ca.directory
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
}

/// Whether the CA refused a nonce.
fn is_bad_nonce(reading: &Reading) -> bool {
    reading.code.as_deref() == Some("badNonce")
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
    failure_ratio: 0.5,
    window_size: 6,
    min_samples: 3,
    max_age: Duration::from_secs(60),
    min_distinct_items: 3,
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

/// More than any directory, order or certificate chain.
const LARGEST_ANSWER: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use paceline::{Dimension, LimitScope};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    /// How the agent's call for the directory of that CA fails.
    async fn failure(directory: String) -> Reading {
        let limit = Quota::sliding(Dimension::Requests, 5, Duration::from_secs(1));
        let ca = CaConfig { directory: directory.clone(), limit, root: None, max_outage: Duration::from_secs(60) };
        let request = Request::get(directory).body(BodyWrapper::from(Vec::new())).unwrap();
        match Ca::new(ca).unwrap().send(request).await.map(|answer| answer.status()) {
            Err(CallError::Failed { reading, status: None }) => *reading,
            other => panic!("{other:?}"),
        }
    }

    async fn server(answer: Vec<u8>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let mut stream = listener.accept().await.unwrap().0;
            assert!(stream.read(&mut [0; 4_096]).await.unwrap() > 0);
            // The agent hangs up once it has read enough.
            let _ = stream.write_all(&answer).await;
        });
        format!("{address}/directory")
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_a_bound() {
        let length = LARGEST_ANSWER + 1;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let reading =
            failure(format!("http://{}", server([head.as_bytes(), &vec![b' '; length]].concat()).await)).await;
        assert_eq!(
            (reading.class, reading.message.as_deref()),
            (Class::Invalid, Some("the answer is larger than 1 MiB"))
        );
    }

    /// Another try would not help: it was a failing server before, asked again and again.
    #[tokio::test]
    async fn a_ca_that_is_not_trusted_stops_the_agent_which_says_what_to_do() {
        let plain = server(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await;
        let reading = failure(format!("https://{plain}")).await;
        assert_eq!((reading.class, reading.reach), (Class::Account, LimitScope::Account));
        assert!(reading.message.unwrap().contains("does not speak TLS there; check the port"));
    }
}
