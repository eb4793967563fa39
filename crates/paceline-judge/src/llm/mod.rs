//! A language model as a judge.

mod agreement;
mod prompt;
mod silence;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use paceline::{Limiter, Within, clock};
use paceline_core::{Class, ConfigError, Cost, Outcome, PacerConfig, Request};
use paceline_providers::secrets::Secrets;
use paceline_providers::{Answer, Dialect, NoResponse, Provider, Reading, TokenRatio, join_url};
use paceline_store::work::{Case, Judge, JudgeFuture, Judgement, by_class, parse_decision};
use reqwest::redirect;

use self::agreement::Agreement;
use self::silence::Silence;
use crate::redact::redacted;

/// How a model is asked.
#[derive(Clone)]
pub struct LlmConfig {
    /// The address of an OpenAI-compatible API, with or without `/v1`. A query stays behind the path of the calls.
    pub base_url: String,
    /// The model.
    pub model: String,
    /// What each call carries, such as the authorization. Default: nothing.
    pub headers: HeaderMap,
    /// How its answers are read. Default: OpenAI's way.
    pub dialect: Dialect,
    /// The limits that its calls are under, and no other calls. Default: none configured, the pace is learnt.
    pub pacer: PacerConfig,
    /// How long one decision may take, waiting for a permit included. Default 4.8 s: shorter than the 5 s of a
    /// [`Policy`](paceline_store::work::SchedulerConfig), so that a silent endpoint teaches the pace something.
    pub timeout: Duration,
}

impl LlmConfig {
    /// That model behind that address, and the defaults.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            headers: HeaderMap::new(),
            dialect: Provider::OpenAi.into(),
            pacer: PacerConfig::default(),
            timeout: Duration::from_millis(4_800),
        }
    }

    /// With a key, sent as `Authorization: Bearer KEY`.
    ///
    /// # Errors
    /// When the key holds characters that no header may carry. It is not named.
    pub fn with_key(mut self, key: &str) -> Result<Self, LlmError> {
        let (name, value) = Provider::OpenAi.key_header(key).map_err(|_| LlmError::Key)?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

/// Without headers and address: they may hold a key or a password.
impl fmt::Debug for LlmConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, timeout, .. } = self;
        f.debug_struct("LlmConfig").field("model", model).field("timeout", timeout).finish_non_exhaustive()
    }
}

/// Why a model cannot be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// A limit makes no sense.
    #[error(transparent)]
    Limits(#[from] ConfigError),
    /// The address is none, or TLS cannot be set up.
    #[error("cannot set up calls to the judge's address: {0}; expected one such as https://api.example.com/v1")]
    Client(reqwest::Error),
    /// The key cannot be sent.
    #[error("the key of the judge's API holds characters that no header may carry")]
    Key,
}

/// Asks a language model what to do about a failure.
///
/// The model sees the error's class, status, code and words, which retry it would be, and the last five decisions; neither
/// the payload nor what looks like a secret ([`redacted`](crate::redacted)). It answers in the words of
/// [`parse_decision`]. Its calls have a pace of their own: a refused or failing endpoint is left in peace, and cases
/// that cannot be asked in time go to the rules. Nothing is asked twice.
///
/// What a model reads may have been written to mislead it. So the most that one item's words can cost is that item: an
/// `abort`, which stops the whole group, counts only once it was the answer for three items of that group with no other
/// answer between them.
///
/// Every answer is logged beside what the rules would have done, at the level `info`.
pub struct LlmJudge {
    name: String,
    config: LlmConfig,
    limiter: Limiter,
    client: reqwest::Client,
    /// The key of its API.
    secrets: Secrets,
    agreement: Mutex<Agreement>,
    /// Of which silences the user was warned.
    warned: Mutex<BTreeSet<&'static str>>,
}

/// Where questions go.
const PATH: &str = "/v1/chat/completions";

/// A longer answer is none.
const LARGEST_ANSWER: usize = 256 << 10;

impl LlmJudge {
    /// A judge that asks that model.
    ///
    /// # Errors
    /// Says what keeps it from being asked. Nothing is sent yet.
    pub fn new(config: LlmConfig) -> Result<Self, LlmError> {
        Self::with_client(config, reqwest::Client::builder())
    }

    /// A judge that asks that model with a client of yours: its certificates, its proxy. Redirects and retries are its own.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_client(config: LlmConfig, client: reqwest::ClientBuilder) -> Result<Self, LlmError> {
        // It may hold a password.
        let broken = |error: reqwest::Error| LlmError::Client(error.without_url());
        // The process may have a provider of cryptography already; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = client
            .user_agent(concat!("paceline/", env!("CARGO_PKG_VERSION")))
            // The key goes to that address and nowhere else, and every call takes a permit.
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .build()
            .map_err(broken)?;
        client.get(&config.base_url).build().map_err(broken)?;
        let limiter = Limiter::new(config.pacer.clone())?;
        let name = format!("model {}", config.model);
        let secrets = Secrets::of(config.headers.values());
        let (agreement, warned) = (Mutex::default(), Mutex::default());
        Ok(Self { name, config, limiter, client, secrets, agreement, warned })
    }

    /// The numbers of the judge's own pace: limits, calls, refusals.
    pub fn snapshot(&self) -> paceline::Snapshot {
        self.limiter.snapshot()
    }

    async fn ask(&self, case: &Case<'_>) -> Result<Judgement, Silence> {
        let body = prompt::body(&self.config.model, case);
        let cost = self.config.dialect.charge(PATH, body.as_bytes(), &TokenRatio::default());
        let deadline = self.limiter.now() + self.config.timeout;
        let scope = self.limiter.scope(&self.config.model);
        let request = Request { item: Some(case.item.id), ..Request::new(scope, cost) };
        let timeout = self.config.timeout;
        let asked = tokio::time::timeout(timeout, self.limiter.acquire_within(request, timeout));
        let permit = match asked.await.map_err(|_| Silence::Crowded { waited: timeout })?? {
            Within::Granted(permit) => permit,
            Within::Deferred { until, reason } => {
                return Err(Silence::Paced { wait: until.saturating_since(self.limiter.now()), reason });
            }
        };
        let reserved = permit.request().cost.clone();
        let left = deadline.saturating_since(self.limiter.now());
        let (outcome, decision) = match tokio::time::timeout(left, self.send(body, &reserved)).await {
            Ok(answered) => answered,
            Err(_) => failed(NoResponse::Timeout),
        };
        permit.complete(outcome);
        decision
    }

    /// One call: what it tells the pacer, and what was answered.
    async fn send(&self, body: String, reserved: &Cost) -> (Outcome, Result<Judgement, Silence>) {
        let request = self
            .client
            .post(join_url(&self.config.base_url, PATH))
            .headers(self.config.headers.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(body);
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) if error.is_connect() => return failed(NoResponse::Connect),
            Err(_) => return failed(NoResponse::Reset),
        };
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() <= LARGEST_ANSWER => body.extend_from_slice(&chunk),
                Ok(Some(_)) => return (Outcome::new(Class::Success), Err(Silence::TooLong)),
                Ok(None) => break,
                Err(_) => return failed(NoResponse::Truncated),
            }
        }
        // The API may repeat it: what it says is logged, stored and reported.
        let body = self.secrets.removed_from(body.into());
        let (status, headers) = (response.status().as_u16(), response.headers());
        let reading = self.config.dialect.read(&Answer { status, headers, body: &body, path: PATH }, clock::wall());
        let decision = decision(status, &reading, &body);
        (reading.outcome_of(reserved), decision)
    }

    /// Warns once of each cause; what follows is told to who asks for it.
    fn tell(&self, silence: &Silence, item: &str, rules: &str) {
        let judge = &self.name;
        let is_first = self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(silence.cause());
        if is_first {
            tracing::warn!(item, judge, rules, "the judge did not decide, the rules do: {silence}");
        } else {
            tracing::debug!(item, judge, rules, "the judge did not decide, the rules do: {silence}");
        }
    }

    /// A model may repeat what it was shown.
    fn without_secrets(decision: Judgement) -> Judgement {
        let said = |reason: Option<String>| reason.map(|reason| redacted(&reason, ""));
        match decision {
            Judgement::Retry { delay, reason } => Judgement::Retry { delay, reason: said(reason) },
            Judgement::Fail { reason } => Judgement::Fail { reason: said(reason) },
            Judgement::Skip { reason } => Judgement::Skip { reason: said(reason) },
            Judgement::Abort { reason } => Judgement::Abort { reason: said(reason) },
        }
    }

    /// Takes a decision within its bounds; none leaves the case to the rules.
    fn bounded(&self, case: &Case<'_>, decision: Judgement) -> Option<Judgement> {
        let abort = matches!(decision, Judgement::Abort { .. });
        let mut agreement = self.agreement.lock().unwrap_or_else(PoisonError::into_inner);
        let agreed = agreement.hear(&case.item.group, case.item.id, abort);
        (!abort || agreed).then_some(decision)
    }
}

impl Judge for LlmJudge {
    fn name(&self) -> &str {
        &self.name
    }

    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a> {
        Box::pin(async move {
            let rules = word(&by_class(case.failure));
            let (item, judge) = (&case.item.key, &self.name);
            match self.ask(&case).await {
                Err(silence) => {
                    self.tell(&silence, item, rules);
                    None
                }
                Ok(decision) => {
                    let decision = Self::without_secrets(decision);
                    let (answer, reason) = (word(&decision), reason(&decision).to_owned());
                    let taken = self.bounded(&case, decision);
                    tracing::info!(item, judge, answer, reason, rules, taken = taken.is_some(), "the judge answered");
                    taken
                }
            }
        })
    }
}

impl fmt::Debug for LlmJudge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmJudge").field("config", &self.config).finish_non_exhaustive()
    }
}

fn failed(kind: NoResponse) -> (Outcome, Result<Judgement, Silence>) {
    (paceline_providers::no_response(kind).outcome(), Err(Silence::NoAnswer(kind)))
}

fn decision(status: u16, reading: &Reading, body: &[u8]) -> Result<Judgement, Silence> {
    if reading.class != Class::Success {
        return Err(Silence::Refused { status, class: reading.class });
    }
    let text = prompt::text(body).ok_or(Silence::NoCompletion)?;
    Ok(parse_decision(&text)?)
}

const fn word(decision: &Judgement) -> &'static str {
    match decision {
        Judgement::Retry { .. } => "retry",
        Judgement::Fail { .. } => "fail",
        Judgement::Skip { .. } => "skip",
        Judgement::Abort { .. } => "abort",
    }
}

fn reason(decision: &Judgement) -> &str {
    let (Judgement::Retry { reason, .. }
    | Judgement::Fail { reason }
    | Judgement::Skip { reason }
    | Judgement::Abort { reason }) = decision;
    reason.as_deref().unwrap_or_default()
}
