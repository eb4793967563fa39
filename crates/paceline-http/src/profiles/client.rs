//! The client of one profile: its calls, paced, sent, read and sent again.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response};
use paceline::{AnswerReader, Attempt, Limiter, Outcome, Run, ScopeId, UnknownOutcome};
use paceline_config::{CallNames, Money, Upstream};
use paceline_providers::{Reading, Usage, model_of};
use uuid::Uuid;

use crate::exchange::{Call, Ended};
use crate::no_answer::NoAnswer;
use crate::sender::Sender;

/// Sends calls to one upstream under its limiter. Clones share everything.
#[derive(Clone)]
pub struct ProfileClient {
    profile: Arc<Profile>,
    label: Option<Arc<str>>,
}

struct Profile {
    upstream: Upstream,
    sender: Sender,
    limiter: Limiter,
    items: AtomicU64,
}

/// A successful call.
#[derive(Debug)]
#[non_exhaustive]
pub struct Answered {
    /// The whole answer without the secrets of the call; a stream is collected into the object that its events stand for.
    pub response: Response<Bytes>,
    /// What it says beside its body: the request id of the server, the limits that its headers announce.
    pub reading: Box<Reading>,
    /// The tokens that it used, as it reports them.
    pub usage: Option<Usage>,
    /// What they cost, where the profile has a `price` and the answer reports its tokens.
    pub cost: Option<Money>,
    /// How long its last send took, from the first try to connect to the last byte received.
    pub latency: Duration,
}

/// The last send of a call that has no success.
#[derive(Debug)]
pub struct CallFailure(Box<Ended>);

/// Reads the result of a send: [`ProfileClient::send`] knows what it means.
#[derive(Clone, Copy, Debug)]
pub struct ByItself;

type Sending = Pin<Box<dyn Future<Output = Result<Answered, CallFailure>> + Send>>;

impl ProfileClient {
    pub(super) fn new(upstream: Upstream, sender: Sender, limiter: Limiter) -> Self {
        let profile = Profile { upstream, sender, limiter, items: AtomicU64::new(0) };
        Self { profile: Arc::new(profile), label: None }
    }

    /// Sends a call, once it is awaited: it waits for its permit, is sent and read, and is sent again where that may succeed.
    ///
    /// What it returns is a [`Run`], and takes its options: `priority`, `within`, `notify`, ... The scope is that of the
    /// [tier](Self::scope) or of what the provider limits together; the cost is what the provider counts. Where the API knows an
    /// idempotency header, each call has a key of its own, the same at each try.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use paceline_http::{Call, Profiles};
    ///
    /// let client = Profiles::load("paceline.toml")?.client("openai")?;
    /// let call = Call::post("/v1/chat/completions", r#"{"model":"gpt-4o-mini","messages":[]}"#);
    /// match client.send(call).priority(1).within(Duration::from_secs(300)).await {
    ///     Ok(answer) => println!("{:?} tokens", answer.usage),
    ///     Err(error) if error.is_fatal() => return Err(error.into()),
    ///     Err(error) => println!("{error} after {} calls, not before {:?}", error.calls(), error.retry_not_before()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::run`]: with the [`CallFailure`] of the last send, its class and the number of sends, or why nothing was
    /// sent. A [`RunError`](paceline::RunError) says whether it is fatal, may be tried again, was refused by a limit, and until
    /// when the server wants no other.
    pub fn send(&self, call: impl Into<Call>) -> Run<'_, impl FnMut() -> Sending, Sending, ByItself> {
        let mut call = call.into();
        let Profile { upstream, sender, limiter, items } = &*self.profile;
        if let Some(path) = upstream.path_below(&call.url) {
            call.url = path;
        }
        if sender.config().idempotency_header.is_some() {
            call.idempotency_key.get_or_insert_with(unique);
        }
        let model = model_of(&call.body);
        let scope =
            self.scope(&CallNames { path: &call.url, model: model.as_deref(), body: &call.body, ..self.names() });
        let cost = sender.charge(scope.name(), &call);
        let item = Item {
            profile: Arc::clone(&self.profile),
            number: items.fetch_add(1, Ordering::Relaxed),
            scope: Arc::clone(scope.name()),
            model: model.unwrap_or_default(),
            call,
        };
        let item = Arc::new(item);
        let operation = move || -> Sending { Box::pin(Arc::clone(&item).send()) };
        limiter.run(operation).read_by(ByItself).scope(scope).cost(cost)
    }

    /// The same client for calls with a label: a tier may match it, and with `scope = "group"` the calls of one label are limited
    /// together. It is the `metadata.label` of a line of `paceline run`.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The scope of a call: its tier, else what the provider limits together. For a program that sends by itself:
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn chat() -> std::io::Result<()> { Ok(()) }
    /// use paceline_config::CallNames;
    /// use paceline_http::Profiles;
    ///
    /// let client = Profiles::from_env()?.client("openai")?;
    /// let names = CallNames { path: "/v1/chat/completions", model: Some("gpt-4o-mini"), ..CallNames::default() };
    /// client.limiter().run(chat).scope(client.scope(&names)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope(&self, names: &CallNames<'_>) -> ScopeId {
        self.profile.limiter.scope(&self.profile.upstream.scope_name(names))
    }

    /// The limiter that all calls of the profile share.
    pub fn limiter(&self) -> &Limiter {
        &self.profile.limiter
    }

    /// The profile: its address, its limits, and the source of each value.
    pub fn upstream(&self) -> &Upstream {
        &self.profile.upstream
    }

    fn names(&self) -> CallNames<'_> {
        CallNames { label: self.label.as_deref(), group: self.label.as_deref(), ..CallNames::default() }
    }
}

/// One call, over all its tries.
struct Item {
    profile: Arc<Profile>,
    number: u64,
    scope: Arc<str>,
    model: String,
    call: Call,
}

impl Item {
    async fn send(self: Arc<Self>) -> Result<Answered, CallFailure> {
        let Profile { sender, limiter, upstream, .. } = &*self.profile;
        let rest = sender.rest_of(self.number).map(|body| Call { body, ..self.call.clone() });
        let call = rest.as_ref().unwrap_or(&self.call);
        let ended = sender.send_within(limiter, &self.scope, self.number, call).await;
        match ended {
            Ended { answer: Ok(response), reading, latency, .. } if reading.class == paceline::Class::Success => {
                let usage = reading.usage;
                let prices = Some(&upstream.prices).filter(|prices| !prices.is_empty());
                let price = prices.map(|prices| prices.of(&self.model));
                let cost = price.zip(usage).map(|(price, usage)| price.of_usage(&usage));
                Ok(Answered { response, reading: Box::new(reading), usage, cost, latency })
            }
            failed => Err(CallFailure(Box::new(failed))),
        }
    }
}

/// The rest of a batch that was never sent again.
impl Drop for Item {
    fn drop(&mut self) {
        self.profile.sender.forget(self.number);
    }
}

impl AnswerReader<Result<Answered, CallFailure>> for ByItself {
    fn outcome(&self, result: &Result<Answered, CallFailure>, attempt: &Attempt<'_>) -> Outcome {
        match result {
            Ok(answered) => answered.reading.outcome_of(attempt.reserved),
            Err(CallFailure(ended)) => {
                Outcome { unknown: ended.unknown, retried: ended.retried, ..ended.reading.outcome_of(attempt.reserved) }
            }
        }
    }
}

impl CallFailure {
    /// The whole answer without the secrets of the call, or why there is none.
    pub fn answer(&self) -> Result<&Response<Bytes>, &NoAnswer> {
        self.0.answer.as_ref()
    }

    /// The status of the answer; none without one.
    pub fn status(&self) -> Option<u16> {
        self.answer().ok().map(|answer| answer.status().as_u16())
    }

    /// What it means: its class, the provider's code and message, the wait that the server asked for.
    pub fn reading(&self) -> &Reading {
        &self.0.reading
    }

    /// Whether the call may have been executed and was for that reason not sent again: `fail` or `hold`, as the profile's
    /// `unknown_outcome` says; else `resend`.
    pub fn unknown(&self) -> UnknownOutcome {
        self.0.unknown
    }

    /// How long the send took, from the first try to connect to the last byte received.
    pub fn latency(&self) -> Duration {
        self.0.latency
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.answer() {
            Ok(answer) => write!(f, "{}: {}", answer.status(), self.reading().reason()),
            Err(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CallFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.answer().err().and_then(std::error::Error::source)
    }
}

/// Without keys and bodies.
impl fmt::Debug for ProfileClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileClient").field("profile", &self.profile.upstream.name).finish_non_exhaustive()
    }
}

/// A key that no other call has.
fn unique() -> HeaderValue {
    HeaderValue::from_str(&Uuid::now_v7().to_string()).expect("digits, letters and dashes")
}
