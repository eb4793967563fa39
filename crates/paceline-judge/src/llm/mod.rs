//! A language model as a judge.

mod agreement;
mod prompt;
mod silence;

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use paceline::{Limiter, Within};
use paceline_core::{Class, ConfigError, PacerConfig, Request};
use paceline_http::{Call, Exchange, Sender, SenderConfig, client_to};
use paceline_providers::{Dialect, Provider};
use paceline_store::work::{Case, Judge, JudgeFuture, Judgement, by_class, parse_decision};

use self::agreement::Agreement;
use self::silence::Silence;
use crate::redact::redacted;

/// The configuration of a model as a judge.
#[derive(Clone)]
pub struct LlmConfig {
    /// The address of an OpenAI-compatible API, with or without `/v1`. A query stays behind the path of the calls.
    pub base_url: String,
    /// The model.
    pub model: String,
    /// The headers of each call, such as the authorization. A value that is marked sensitive, or whose name is one such as
    /// `Authorization`, is a secret: it is removed from answers. Default: none.
    pub headers: HeaderMap,
    /// Values that calls carry elsewhere, and that are removed from answers too, such as the login of a proxy. Default: none.
    pub secrets: Vec<HeaderValue>,
    /// How its answers are read. Default: OpenAI's way.
    pub dialect: Dialect,
    /// The limits of its calls, and of no other calls. Default: none configured, the pace is learnt.
    pub pacer: PacerConfig,
    /// How long one decision may take, waiting for a permit included. Default 4.8 s: shorter than the 5 s of a
    /// [`SchedulerConfig`](paceline_store::work::SchedulerConfig), so that the pace learns from an endpoint that times out.
    pub timeout: Duration,
}

impl LlmConfig {
    /// A configuration with that model, that address, and the defaults.
    pub fn new(base_url: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            model: model.into(),
            headers: HeaderMap::new(),
            secrets: Vec::new(),
            dialect: Provider::OpenAi.into(),
            pacer: PacerConfig::default(),
            timeout: Duration::from_millis(4_800),
        }
    }

    /// Adds a key, sent as `Authorization: Bearer KEY`.
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

/// Why a judge cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LlmError {
    /// A limit is invalid.
    #[error(transparent)]
    Limits(#[from] ConfigError),
    /// The address is invalid, or TLS cannot be set up.
    #[error("cannot set up calls to the judge's address: {0}; expected one such as https://api.example.com/v1")]
    Client(reqwest::Error),
    /// The key cannot be sent.
    #[error("the key of the judge's API holds characters that no header may carry")]
    Key,
}

/// Asks a language model what to do about a failure.
///
/// The model gets the error's class, status, code and message, the number of the retry, and the last five decisions; neither
/// the payload nor anything that looks like a secret ([`redacted`](crate::redacted)). It answers in the format of
/// [`parse_decision`]. Its calls have a pace of their own: they back off from a refusing or failing endpoint, and cases that
/// cannot be asked in time go to the rules. Nothing is asked twice.
///
/// An error may have been written to mislead the model. So the most that one item's error can cost is that item: an
/// `abort`, which stops the whole group, counts only once it was the answer for three items of that group with no other
/// answer between them.
///
/// Every answer is logged beside what the rules would have done, at the level `info`.
pub struct LlmJudge {
    name: String,
    config: LlmConfig,
    limiter: Limiter,
    sender: Sender,
    agreement: Mutex<Agreement>,
    /// The causes of silence that were logged as warnings.
    warned: Mutex<BTreeSet<&'static str>>,
}

/// The path of the calls.
const PATH: &str = "/v1/chat/completions";

/// A longer answer is no decision.
const LARGEST_ANSWER: usize = 256 << 10;

impl LlmJudge {
    /// A judge that asks that model.
    ///
    /// # Errors
    /// An invalid setting. Nothing is sent yet.
    pub fn new(config: LlmConfig) -> Result<Self, LlmError> {
        let client = client_to(&config.base_url);
        Self::with_client(config, client)
    }

    /// A judge that asks that model with a client of yours: its certificates, its proxy. Redirects and retries are its own.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_client(config: LlmConfig, client: reqwest::ClientBuilder) -> Result<Self, LlmError> {
        let sending = SenderConfig::new(&config.base_url, config.dialect.clone());
        let sending = SenderConfig {
            headers: config.headers.clone(),
            secrets: [&sending.secrets[..], &config.secrets].concat(),
            timeout: config.timeout,
            largest_answer: LARGEST_ANSWER,
            ..sending
        };
        let sender = Sender::new(client, sending).map_err(LlmError::Client)?;
        let limiter = Limiter::new(config.pacer.clone())?;
        let name = format!("model {}", config.model);
        let (agreement, warned) = (Mutex::default(), Mutex::default());
        Ok(Self { name, config, limiter, sender, agreement, warned })
    }

    /// A snapshot of the judge's own pace: limits, calls, refusals.
    pub fn snapshot(&self) -> paceline::Snapshot {
        self.limiter.snapshot()
    }

    async fn ask(&self, case: &Case<'_>) -> Result<Judgement, Silence> {
        let model = &self.config.model;
        let body = prompt::body(model, case).into();
        let call = Call { method: Method::POST, url: PATH.to_owned(), body, ..Call::default() };
        let deadline = self.limiter.now() + self.config.timeout;
        let cost = self.sender.charge(model, &call);
        let request = Request { item: Some(case.item.id), ..Request::new(self.limiter.scope(model), cost) };
        let timeout = self.config.timeout;
        let asked = tokio::time::timeout(timeout, self.limiter.acquire_within(request, timeout));
        let permit = match asked.await.map_err(|_| Silence::Crowded { waited: timeout })?? {
            Within::Granted(permit) => permit,
            Within::Deferred { until, reason } => {
                return Err(Silence::Paced { wait: until.saturating_since(self.limiter.now()), reason });
            }
        };
        let within = Some(deadline.saturating_since(self.limiter.now()));
        decision(self.sender.send(permit, &Call { within, ..call }, pending()).await)
    }

    /// Logs each cause once as a warning, and then at the level `debug`.
    fn log(&self, silence: &Silence, item: &str, rules: &str) {
        let judge = &self.name;
        let is_first = self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(silence.cause());
        if is_first {
            tracing::warn!(item, judge, rules, "the judge did not decide, the rules do: {silence}");
        } else {
            tracing::debug!(item, judge, rules, "the judge did not decide, the rules do: {silence}");
        }
    }

    /// Redacts reasons: a model may repeat its input.
    fn without_secrets(decision: Judgement) -> Judgement {
        let safe = |reason: Option<String>| reason.map(|reason| redacted(&reason, ""));
        match decision {
            Judgement::Retry { delay, reason } => Judgement::Retry { delay, reason: safe(reason) },
            Judgement::Fail { reason } => Judgement::Fail { reason: safe(reason) },
            Judgement::Skip { reason } => Judgement::Skip { reason: safe(reason) },
            Judgement::Abort { reason } => Judgement::Abort { reason: safe(reason) },
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
                    self.log(&silence, item, rules);
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

fn decision(exchange: Exchange) -> Result<Judgement, Silence> {
    let answer = exchange.answer?;
    if exchange.reading.class != Class::Success {
        return Err(Silence::Refused { status: answer.status().as_u16(), class: exchange.reading.class });
    }
    let text = prompt::text(answer.body()).ok_or(Silence::NoCompletion)?;
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
