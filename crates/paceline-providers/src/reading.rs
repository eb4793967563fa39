//! The reading of an answer: what it means for the pacer, the report and the log.

use std::borrow::Cow;
use std::time::Duration;

use paceline_core::{Class, Cost, Hint, LimitReport, LimitScope, Outcome};

use super::case::{Classification, RULE};
use super::gateway::GATEWAY;
use super::secrets::Secrets;
use super::settlement::Settlement;
use super::usage::Usage;

/// What an answer means.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What happened.
    pub class: Class,
    /// What it applies to.
    pub reach: LimitScope,
    /// The wait that the server asked for, from the moment of the response.
    pub wait: Option<Duration>,
    /// The wait was given in milliseconds or finer.
    pub wait_exact: bool,
    /// The source of the wait: a header's name, `message`, `reset of tokens`; `policy` when the server gave none and
    /// our backoff decides; `-` when there is nothing to wait for.
    pub wait_from: &'static str,
    /// A throttle by a limit of a day or longer, by its name.
    pub long_period: bool,
    /// A used-up quota that the answer does not name: neither its code nor its message mentions one, only its wait is longer than
    /// a pause.
    pub unnamed: bool,
    /// No server received the call, and the caller gives up a server that can never be reached: see [`Outcome::unsent`].
    pub unsent: bool,
    /// A success of the server that is not what the caller [expects](super::Dialect::expecting): it shows that the server works.
    pub unexpected: bool,
    /// A success whose answer, or one of its choices, ended at the limit on its tokens, such as `max_tokens`.
    pub at_token_limit: bool,
    /// Limits that the headers announced.
    pub limits: Vec<LimitReport>,
    /// The provider's code for the error.
    pub code: Option<String>,
    /// The provider's type of the error.
    pub error_type: Option<String>,
    /// The provider's message, shortened, on one line and without keys.
    pub message: Option<String>,
    /// The server's request id, in the field of its provider or of another.
    pub request_id: Option<String>,
    /// What the call cost in tokens.
    pub usage: Option<Usage>,
    /// How the reserved cost is settled.
    pub settlement: Settlement,
    /// How the decision was made: the clock, the body, the rule that decided.
    pub steps: Vec<Cow<'static, str>>,
}

/// The action that an answer calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Keep the result.
    Record,
    /// Send the item again after the wait.
    Retry,
    /// Send the rejected rest of the item again, and nothing else, after the wait.
    RetryRemainder,
    /// Hold the scope until the quota opens again.
    Pause,
    /// Stop using the key until a person acted.
    StopKey,
    /// Fail the item alone.
    FailItem,
    /// Nothing: the caller abandoned the call.
    Ignore,
}

/// Why there is no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NoResponse {
    /// No connection: name, route, refusal.
    Connect,
    /// A connection that ended before the answer began.
    Reset,
    /// No answer in time.
    Timeout,
    /// An answer whose body ended early.
    Truncated,
    /// An answer that is not HTTP.
    Malformed,
}

/// The reading of a missing answer: a failure that may pass. The request may have been executed all the same.
pub fn no_response(kind: NoResponse) -> Reading {
    let (code, step) = match kind {
        NoResponse::Connect => ("connect", "no response: no connection"),
        NoResponse::Reset => ("reset", "no response: connection ended"),
        NoResponse::Timeout => ("timeout", "no response: timeout"),
        NoResponse::Truncated => ("truncated", "no response: body ended early"),
        NoResponse::Malformed => ("malformed", "no response: not HTTP"),
    };
    Reading { code: Some(code.to_owned()), ..Reading::from(Classification::new(Class::Transient, step)) }
}

impl Reading {
    /// A reading of that class and nothing else.
    pub fn new(class: Class) -> Self {
        Self { steps: Vec::new(), ..Self::from(Classification::new(class, "given")) }
    }

    /// Whether `paceline serve` answered by itself, in place of the API behind it.
    pub fn is_of_gateway(&self) -> bool {
        self.error_type.as_deref() == Some(GATEWAY)
    }

    /// Takes keys out of all that the server said.
    pub fn remove_secrets(&mut self, secrets: &Secrets) {
        let said = [&mut self.code, &mut self.error_type, &mut self.message, &mut self.request_id];
        let texts = said.into_iter().flatten().chain(self.steps.iter_mut().filter_map(|step| match step {
            Cow::Owned(text) => Some(text),
            Cow::Borrowed(_) => None,
        }));
        texts.for_each(|text| *text = secrets.removed_from_text(std::mem::take(text)));
    }

    /// Whether an answer with that status and this reading leaves unknown if its call was executed. A whole answer of the server
    /// shows it, and one of a gateway that gave up on its server does not.
    pub fn leaves_unknown(&self, status: u16) -> bool {
        // A gateway of ours knows that it has not sent it.
        !self.unsent && (self.is_cut_short(status) || (leaves_open(status) && is_failure(self.class)))
    }

    /// Whether a usable answer was cut short on its way: its call was executed, and may be billed.
    pub fn is_cut_short(&self, status: u16) -> bool {
        self.class == Class::Transient && (200..300).contains(&status)
    }

    /// The class for reports: a 429 that asked for a long wait and named no quota hit a rate limit.
    pub const fn reported_class(&self) -> Class {
        if self.unnamed { Class::Throttled } else { self.class }
    }

    /// Why a wait that the answer asks for in a header is not followed, if so.
    pub fn ignored_wait(&self) -> Option<&str> {
        self.steps.iter().find_map(|step| step.strip_prefix("wait: ").filter(|why| why.ends_with("is ignored")))
    }

    /// The rule that decided, for people.
    pub fn rule(&self) -> &str {
        let decided = |step: &&Cow<'_, str>| !step.starts_with("clock: ") && !step.starts_with("body: ");
        self.steps.iter().find(decided).map_or("", |step| step)
    }

    /// Whether a rule of the user decided.
    pub fn is_by_user(&self) -> bool {
        self.rule().strip_prefix(RULE).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// What the answer says, for people: its message, else its code or the class.
    pub fn said(&self) -> &str {
        self.message.as_deref().or(self.code.as_deref()).unwrap_or_else(|| self.class.description())
    }

    /// Why, for people: what the answer [says](Self::said). Where a key or an account is refused, the rule that decided stands
    /// behind it: a message of one word, such as `login`, says little.
    pub fn reason(&self) -> Cow<'_, str> {
        let reason = self.said();
        match self.class {
            Class::Account if !self.rule().is_empty() => format!("{reason} ({})", self.rule()).into(),
            _ => reason.into(),
        }
    }

    /// The action that it calls for.
    pub const fn action(&self) -> Action {
        match self.class {
            Class::Success => Action::Record,
            Class::Throttled | Class::Overloaded | Class::Transient => Action::Retry,
            Class::Partial => Action::RetryRemainder,
            Class::QuotaExhausted => Action::Pause,
            Class::Account => Action::StopKey,
            Class::Invalid | Class::Filtered => Action::FailItem,
            Class::Abandoned => Action::Ignore,
        }
    }

    /// What a call that reserved that cost has used, whatever the provider counts: for a limit that is not the provider's. `None`
    /// where nothing is known but what was reserved. An answer of a model that tells no usage has used `untold` at the least.
    pub fn used_of(&self, reserved: &Cost, untold: &Cost) -> Option<Cost> {
        self.settlement.used(reserved, untold, self.usage, self.class)
    }

    /// The reading of an answer to a call of that path whose body of so many bytes was too long to be kept.
    #[must_use]
    pub fn of_length(self, path: &str, bytes: u64) -> Self {
        let settlement = if self.usage.is_none() { self.settlement.with_length(path, bytes) } else { self.settlement };
        Self { settlement, ..self }
    }

    /// The outcome for the pacer, of a call that reserved nothing but a request and tokens.
    pub fn outcome(&self) -> Outcome {
        self.outcome_of(&Cost::request())
    }

    /// The outcome for the pacer, of a call that reserved that cost: the reported usage replaces it as the provider counts,
    /// and everything else was spent as reserved.
    pub fn outcome_of(&self, reserved: &Cost) -> Outcome {
        let mut outcome = Outcome::new(self.class).with_reach(self.reach);
        outcome.hint = self.wait.map(|wait| Hint { wait, exact: self.wait_exact, from: self.wait_from });
        if let Some(cost) = self.settlement.cost(reserved, self.usage, self.class) {
            outcome = outcome.with_usage(cost);
        }
        outcome.limits.clone_from(&self.limits);
        outcome.long_period = self.long_period;
        outcome.unnamed = self.unnamed;
        outcome.unsent = self.unsent;
        outcome.server_works = self.unexpected;
        outcome.reason = (self.class != Class::Success).then(|| self.reason().into());
        outcome
    }
}

/// Whether such a status leaves open if the call was executed. The server behind a gateway may have got it (RFC 9110, 15.6.3 and
/// 15.6.5; 520 to 530 are Cloudflare's, 598 and 599 those of proxies), or had no time left to answer it: 408 speaks of an
/// incomplete request (15.5.9), and servers use it for any timeout of theirs. Of the 5xx only these say that it was not: an
/// error of the server itself, what it does not do (501, 505, 511) or has no room for (503, 529), and a gateway without a
/// connection (521). What is of no class (600, 999), or no answer to a call (101), says nothing.
pub(super) const fn leaves_open(status: u16) -> bool {
    match status {
        408 => true,
        500 | 501 | 503 | 505 | 511 | 521 | 529 | 200..500 => false,
        _ => true,
    }
}

/// Whether the call failed, and was neither refused nor throttled.
const fn is_failure(class: Class) -> bool {
    matches!(class, Class::Transient | Class::Overloaded)
}

impl From<Classification> for Reading {
    fn from(decision: Classification) -> Self {
        let waits = decision.waits();
        let Classification { class, reach, hint, unnamed, unsent, unexpected, step, fault: _ } = decision;
        Self {
            class,
            reach,
            wait: hint.map(|hint| hint.wait),
            wait_exact: hint.is_some_and(|hint| hint.exact),
            wait_from: hint.map_or(if waits { "policy" } else { "-" }, |hint| hint.from),
            long_period: false,
            unnamed,
            unsent,
            unexpected,
            at_token_limit: false,
            limits: Vec::new(),
            code: None,
            error_type: None,
            message: None,
            request_id: None,
            usage: None,
            settlement: Settlement::default(),
            steps: vec![step],
        }
    }
}

impl Action {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Retry => "retry",
            Self::RetryRemainder => "retry_remainder",
            Self::Pause => "pause",
            Self::StopKey => "stop_key",
            Self::FailItem => "fail_item",
            Self::Ignore => "ignore",
        }
    }
}
