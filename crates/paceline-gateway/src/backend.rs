//! One API behind the gateway: its limiter, how calls reach it, and what its answers mean.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HttpClient, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use paceline::{Clock, Limiter, ScopeId};
use paceline_config::CallNames;
use paceline_core::{Cost, Turns};
use paceline_http::{AccessError, Call, HasAnswered, NoAnswer, SenderConfig, Shortage, TokenRatios, proxy_to, tls};
use paceline_providers::table::Scope;
use paceline_providers::{Asked, TokenRatio, Untold, join_url};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::bounds::{Bounds, Held};
use crate::chained::Chained;
use crate::clients::Client;
use crate::connector::{self, Connector, Taken, for_proxy};
use crate::departed::Departed;
use crate::fallback::{self, Step};
use crate::informational::Informational;
use crate::metrics::Metrics;
use crate::models::decoded_path;
use crate::notes::{Kind, Notes};
use crate::payload::Outgoing;
use crate::stays_down::StaysDown;
use crate::trust::Trust;
use crate::upstream_key::KeyInForce;
use crate::{estimated, headers, query};

/// So many scopes of an upstream have a pace of their own, two KiB each: clients choose the names.
const MOST_SCOPES: usize = 10_000;

/// A longer name of a scope, in bytes, has none.
const LONGEST_NAME: usize = 200;

/// The scope of all that have none of their own.
pub(crate) const OTHER: &str = "other";

/// Why an upstream cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Its certificates cannot be used.
    #[error("upstream {name}: {source}")]
    Access {
        /// Its name.
        name: String,
        /// Why.
        source: AccessError,
    },
    /// A setting that the gateway has no use for.
    #[error("upstream.{name}.{key} = {value:?}: {expected}")]
    Setting {
        /// Its name.
        name: String,
        /// The setting.
        key: &'static str,
        /// Its value, without secrets.
        value: String,
        /// What the gateway can do.
        expected: Cow<'static, str>,
    },
}

/// An API that a gateway serves.
pub struct Backend {
    config: paceline_config::Upstream,
    pub(crate) sending: SenderConfig,
    limiter: Limiter,
    /// For what took how long: it costs a fraction of the limiter's, which notices that the machine slept.
    pub(crate) stopwatch: Arc<Clock>,
    client: HttpClient<Connector, Outgoing>,
    is_proxied: bool,
    /// What each call carries for the proxy.
    for_proxy: HeaderMap,
    /// What calls show, also those of the upstream that this one takes the place of.
    pub(crate) key: Arc<KeyInForce>,
    pub(crate) ratios: Arc<TokenRatios>,
    /// Requests that wait or are sent, before the head of their answer.
    pub(crate) waiting: Held,
    /// Calls in flight of clients with keys, where there are several.
    pub(crate) in_flight: Held,
    items: Arc<AtomicU64>,
    turns: Arc<Mutex<Turns>>,
    metrics: Arc<Metrics>,
    notes: Arc<Notes>,
    pub(crate) trust: Arc<Trust>,
    /// What takes its place while it stays down.
    pub(crate) fallbacks: Vec<Step>,
    /// The last request went to the fallbacks.
    falls_back: AtomicBool,
    /// A limit on tokens is configured.
    counts_tokens: bool,
    /// Its scopes that requests with a fallback wait for no more.
    pub(crate) stays_down: StaysDown,
    /// Of files and ports of this machine.
    shortage: Shortage,
    answers: HasAnswered,
    chained: Chained,
    /// The log says that answers ask for waits that cannot be followed.
    pub(crate) ignored_wait: Once,
}

impl Backend {
    /// An upstream as it is configured; `headers` are those that every call carries, its key among them, and `limiter` paces
    /// them.
    ///
    /// # Errors
    /// Certificates that cannot be read, and settings that a gateway cannot follow.
    pub fn new(
        config: paceline_config::Upstream,
        headers: HeaderMap,
        limiter: Limiter,
        bounds: &Bounds,
    ) -> Result<Self, BackendError> {
        let refused = |key, value: &str, expected| BackendError::Setting {
            name: config.name.clone(),
            key,
            value: value.to_owned(),
            expected: Cow::Borrowed(expected),
        };
        if config.base_url.is_none() {
            return Err(refused("base_url", "", "expected the address of the API"));
        }
        if config.dialect.scope() == Scope::Host {
            return Err(refused(
                "scope",
                "host",
                "the gateway calls one host for each upstream; expected another scope",
            ));
        }
        let fallbacks = fallback::steps(&config)?;
        let access = |source| BackendError::Access { name: config.name.clone(), source };
        let proxy = proxy_to(&config).map_err(access)?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let sending = SenderConfig::of(&config, headers, bounds.first_byte);
        let key = Arc::new(KeyInForce::of(&sending.headers, &sending.secrets));
        let for_proxy = for_proxy(proxy.as_ref(), sending.base_url.starts_with("http://"));
        let is_proxied = proxy.is_some();
        // As for `Sender`: a call that ends without a connection is known not to have been sent.
        let longest = sending.connect_timeout.min(sending.timeout * 9 / 10);
        let connector = connector::connector(connector, proxy, tls(&config.access).map_err(access)?, longest);
        let client = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .timer(TokioTimer::new())
            .build(connector);
        let limiter = limiter.with_dialect(sending.dialect.clone());
        let (ratios, waiting, items) = (Arc::default(), Held::default(), Arc::default());
        let (turns, metrics, notes) = (Arc::default(), Arc::new(Metrics::new(&config.name)), Arc::default());
        let falls_back = AtomicBool::new(false);
        let counts_tokens = estimated::limits_tokens(&config.pacer);
        Ok(Self {
            config,
            sending,
            limiter,
            stopwatch: Arc::new(Clock::new()),
            client,
            is_proxied,
            for_proxy,
            key,
            ratios,
            waiting,
            in_flight: Held::default(),
            items,
            turns,
            metrics,
            notes,
            trust: Arc::default(),
            fallbacks,
            falls_back,
            counts_tokens,
            stays_down: StaysDown::default(),
            shortage: Shortage::default(),
            answers: HasAnswered::default(),
            chained: Chained::default(),
            ignored_wait: Once::new(),
        })
    }

    /// The same upstream under another configuration, or with another key: what is known of it, its queue and its counts stay.
    /// The limiter keeps its limits; see [`Limiter::reconfigure`].
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn renewed(
        &self,
        config: paceline_config::Upstream,
        headers: HeaderMap,
        bounds: &Bounds,
    ) -> Result<Self, BackendError> {
        let fresh = Self::new(config, headers, self.limiter.clone(), bounds)?;
        self.notes.outages.end_stops();
        Ok(Self {
            ratios: Arc::clone(&self.ratios),
            waiting: self.waiting.clone(),
            in_flight: self.in_flight.clone(),
            items: Arc::clone(&self.items),
            turns: Arc::clone(&self.turns),
            metrics: Arc::clone(&self.metrics),
            notes: Arc::clone(&self.notes),
            trust: Arc::clone(&self.trust),
            stopwatch: Arc::clone(&self.stopwatch),
            key: if self.may_show_key_of(&fresh) { Arc::clone(&self.key) } else { Arc::clone(&fresh.key) },
            ..fresh
        })
    }

    /// How often that was forgotten so far, be it by [`end_stops`](Self::end_stops) or [`lift_holds`](Self::lift_holds), for jobs
    /// that wait because of it.
    pub fn forgotten(&self) -> watch::Receiver<u64> {
        self.trust.forgotten()
    }

    /// The name that paths begin with.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// What paces its calls.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The tokens per character of its scopes, as answers have shown so far.
    pub fn ratios(&self) -> Arc<TokenRatios> {
        Arc::clone(&self.ratios)
    }

    /// What is counted for it.
    pub(crate) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// What is noted of it for people.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Whether a line of that kind, which clients can cause, is to be logged now.
    pub(crate) fn may_tell(&self, kind: Kind) -> bool {
        self.notes.lines.may_tell(self.name(), kind, self.limiter.now())
    }

    pub(crate) const fn config(&self) -> &paceline_config::Upstream {
        &self.config
    }

    /// The bound on the retries of a request, of which the client may wish fewer.
    pub(crate) fn most_retries(&self, wished: Option<u32>) -> u32 {
        let most = self.config.pacer.retry.max_retries;
        wished.map_or(most, |wished| wished.min(most))
    }

    /// Whether the server of a scope is failing.
    pub(crate) fn is_failing(&self, scope: &ScopeId) -> bool {
        self.limiter.scope_snapshot(scope).is_some_and(|scope| scope.failing_since.is_some())
    }

    /// Whether another may answer in its place: at an API of language models a prompt alone, for files and batches belong to
    /// their account.
    pub(crate) fn falls_back(&self, call: &Call, asked: &Asked) -> bool {
        let provider = self.config.provider;
        let names_model = || provider.endpoint().is_none() || asked.model().is_some();
        !provider.is_language_model() || call.method == Method::POST && names_model()
    }

    /// Logs that requests go to the fallbacks from now on, or no longer.
    pub(crate) fn note_fallbacks(&self, falls_back: bool) {
        if self.fallbacks.is_empty() || self.falls_back.swap(falls_back, Ordering::Relaxed) == falls_back {
            return;
        }
        let what = match falls_back {
            true => "the upstream stays down: its fallbacks take its requests",
            false => "the upstream answers again",
        };
        match self.may_tell(Kind::Fallback) {
            true if falls_back => tracing::warn!(upstream = self.name(), "{what}"),
            true => tracing::info!(upstream = self.name(), "{what}"),
            false => {}
        }
        self.notes.decisions.note(None, "fallback", what.to_owned());
    }

    /// The place of a client's request in the queue.
    pub(crate) fn place(self: &Arc<Self>, client: u64) -> QueuePlace {
        self.place_of(client, 1)
    }

    /// The same for a request of that cost: where a limit on tokens is what they wait for, clients take turns by these.
    pub(crate) fn place_at(self: &Arc<Self>, client: u64, cost: &Cost) -> QueuePlace {
        self.place_of(client, if self.counts_tokens { estimated::turns(cost) } else { 1 })
    }

    fn place_of(self: &Arc<Self>, client: u64, units: u64) -> QueuePlace {
        let number = self.turns().place_of(client, units);
        QueuePlace { backend: Arc::clone(self), client, units, number, left: false }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new item.
    pub(crate) fn next_item(&self) -> u64 {
        self.next_items(1)
    }

    /// The first number of so many new items.
    pub(crate) fn next_items(&self, count: u64) -> u64 {
        self.items.fetch_add(count, Ordering::Relaxed)
    }

    /// The call of a client's request.
    pub(crate) fn call(&self, parts: http::request::Parts, path: String, body: bytes::Bytes) -> Call {
        let has_key = self.sending.headers.values().any(HeaderValue::is_sensitive);
        let path = if has_key { self.without_keys(path) } else { path };
        let client = parts.extensions.get::<Arc<Client>>();
        let mut headers = headers::to_upstream(parts.headers, &self.sending.headers, client.is_some());
        if let Some(client) = client.filter(|_| has_key) {
            headers::set_apart(&mut headers, self.sending.idempotency_header.as_ref(), client.name());
        }
        if has_key && client.is_some() && self.config.provider.is_language_model() {
            // Its answers are JSON: in two parts a key that is repeated there would be found in neither.
            [header::RANGE, header::IF_RANGE].iter().for_each(|name| drop(headers.remove(name)));
        }
        Call { method: parts.method, url: path, headers, body, ..Call::default() }
    }

    /// The same path without a client's keys in its query, where a parameter such as `key` is one. Elsewhere it may be anything,
    /// such as the key of an entry.
    pub(crate) fn without_keys(&self, path: String) -> String {
        let is_key = self.config.provider.is_language_model() || self.sending.headers.contains_key("x-goog-api-key");
        is_key.then(|| query::without_keys(&path)).flatten().unwrap_or(path)
    }

    /// The scope of that name.
    pub(crate) fn scope(&self, name: &str) -> ScopeId {
        let name = if name.len() > LONGEST_NAME { OTHER } else { name };
        self.limiter.scope_within(name, MOST_SCOPES, OTHER)
    }

    /// The scope of a call, what it is expected to cost, by what its body asks for (by its length where it is not read), and the
    /// tokens of prompts there, by which that was found.
    pub(crate) fn scope_and_cost(&self, call: &Call, asked: &Asked, unread: Option<u64>) -> (String, Cost, TokenRatio) {
        let names = CallNames { path: &call.url, model: asked.model(), body: &call.body, ..CallNames::default() };
        let mut scope = self.config.scope_name(&names);
        // What a tier of its own refuses says nothing of the others.
        let is_of_model = self.sending.dialect.provider().is_language_model() && !self.sending.dialect.is_one_scope();
        if let Some(tier) = asked.tier().filter(|_| is_of_model) {
            scope = format!("{scope} {tier}");
        }
        let (dialect, ratio) = (&self.sending.dialect, self.ratios.of(&scope));
        // As the server reads it: `%73` is an `s`, and makes no other call of a prompt.
        let path = decoded_path(call);
        let cost = match unread {
            None => dialect.charge_as_asked(&path, &call.body, asked, &ratio),
            Some(bytes) => dialect.charge_unread(&path, bytes, &ratio),
        };
        (scope, cost, ratio)
    }

    /// What a call that costs that here takes of the limits of its client, and what counts where nothing tells its tokens.
    pub(crate) fn cost_elsewhere(&self, call: &Call, asked: &Asked, cost: &Cost, ratio: &TokenRatio) -> (Cost, Untold) {
        let (dialect, path) = (&self.sending.dialect, decoded_path(call));
        let cost = dialect.charge_elsewhere(&path, &call.body, asked, cost, ratio);
        let untold = dialect.untold(&path, &call.body, asked, &cost);
        (cost, untold)
    }

    /// Sends a call, up to the head of its answer. The next one may wait for so long.
    pub(crate) async fn send(
        &self,
        departed: &Departed,
        body: Outgoing,
        wait: Duration,
    ) -> Result<Response<Incoming>, NoAnswer> {
        let call = &departed.call;
        let address = Uri::try_from(join_url(&self.sending.base_url, &call.url))
            .map_err(|error| NoAnswer::Connect(format!("the address of the call is none: {error}")))?;
        let is_plain = address.scheme_str() == Some("http");
        let is_stream = body.is_stream();
        // A prompt has an answer with a body, and the most calls are prompts.
        let may_end = is_stream || call.method != Method::POST || !self.config.provider.is_language_model();
        let informational = Arc::<Informational>::default();
        let request = |body| {
            let mut request = Request::new(body);
            informational.count(&mut request);
            *request.method_mut() = call.method.clone();
            *request.uri_mut() = address.clone();
            *request.headers_mut() = call.headers.clone();
            departed.key.put_into(request.headers_mut());
            self.chained.tell(request.headers_mut(), || departed.permit.retries_left(), wait);
            if !self.for_proxy.is_empty() {
                request.headers_mut().extend(self.for_proxy.clone());
            }
            let taken = may_end.then(|| Taken::by(&mut request, is_stream));
            let answer = self.client.request(request);
            async move { answer.await.inspect(|answer| taken.into_iter().for_each(|taken| taken.answered(answer.status()))) }
        };
        let whole = body.whole();
        let sent = async {
            match (request(body).await, whole) {
                // No failure of the upstream: it got nothing.
                (Err(error), Some(whole)) if Shortage::is_why(&error) => {
                    self.shortage.sit_out(|| request(Outgoing::held(whole.clone()))).await
                }
                // Nor has it taken this one: a connection that it does not end does.
                (Err(error), Some(whole)) if NoAnswer::is_left_out(&error) => request(Outgoing::held(whole)).await,
                (sent, _) => sent,
            }
        };
        let sent = async {
            let explain = |error: ClientError| NoAnswer::of_client(&error, error.is_connect(), is_plain);
            let answer = sent.await.map_err(|error| self.answers.explain(explain(error)))?;
            if self.is_proxied && answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
                return Err(NoAnswer::proxy());
            }
            self.answers.came();
            self.chained.came(answer.headers());
            Ok(answer)
        };
        let (left, late) = (self.stopwatch.now(), NoAnswer::Timeout(Some(self.sending.timeout)));
        let answered = timeout(self.sending.timeout, informational.bound(sent)).await.unwrap_or(Err(late));
        let took = self.stopwatch.now() - left;
        self.metrics.answered(took);
        if answered.is_ok() {
            self.notes.history.answered(&departed.scope, took);
        }
        answered
    }
}

/// The place of a request in the queue, until it has left or waits no more.
pub struct QueuePlace {
    backend: Arc<Backend>,
    client: u64,
    units: u64,
    number: u64,
    left: bool,
}

impl QueuePlace {
    /// What the limiter takes as its arrival.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The request has left, once or again.
    pub fn left(&mut self) {
        self.left = true;
        self.backend.turns().left(self.number);
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        if !self.left {
            self.backend.turns().withdrawn(self.client, self.units);
        }
    }
}
