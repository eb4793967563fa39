//! The input of the decision steps, and the decision of one.

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderMap, HeaderName, StatusCode};
use paceline_core::{Class, LimitReport, LimitScope, Timestamp};

use super::body::Body;
use super::expected::Expected;
use super::shape;
use super::table::{Provider, Table, usual_reach};

/// Everything that a step may read.
#[derive(Clone, Copy)]
pub(super) struct Case<'a> {
    pub(super) provider: Provider,
    pub(super) table: &'a Table,
    /// The status of the response, or the one that its body stands for.
    pub(super) status: u16,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a Body<'a>,
    pub(super) limits: &'a [LimitReport],
    pub(super) now: Timestamp,
    /// A success of this call is a JSON object.
    pub(super) must_be_json: bool,
    /// A success of this call has no body, whatever else would be asked of it.
    pub(super) bodiless: bool,
    /// What a success of any call has to be, as configured.
    pub(super) expected: Option<&'a Expected>,
    /// Further fields that hold a wait.
    pub(super) wait_headers: &'a [HeaderName],
    /// A longer wait is a used-up quota, to be kept on disk, and not a pause.
    pub(super) longest_pause: Duration,
}

/// How the name of a user's rule begins; its number follows.
pub(super) const RULE: &str = "rule ";

/// What an answer is.
#[derive(Clone, Debug)]
pub(super) struct Classification {
    pub(super) class: Class,
    pub(super) reach: LimitScope,
    pub(super) hint: Option<Hint>,
    /// A used-up quota that the answer does not name: only its wait is that long.
    pub(super) unnamed: bool,
    /// The API has not got the call.
    pub(super) unsent: bool,
    /// A success of the server that is not what the caller expects.
    pub(super) unexpected: bool,
    /// The rule that decided, for people.
    pub(super) step: Cow<'static, str>,
    /// The fault of an answer that names no error of its own.
    pub(super) fault: Option<Fault>,
}

/// A fault of an answer, as reports name it.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) code: &'static str,
    pub(super) message: Cow<'static, str>,
}

/// A wait, whether it was given in milliseconds or finer, and its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hint {
    pub(super) wait: Duration,
    pub(super) exact: bool,
    pub(super) from: &'static str,
}

impl Fault {
    pub(super) const fn new(code: &'static str, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message) }
    }

    /// A refusal with that status of a call that carried no key.
    pub(super) fn without_key(status: u16, body: &Body<'_>) -> Self {
        let status = StatusCode::from_u16(status).map_or_else(|_| status.to_string(), |status| status.to_string());
        let said = body.shown_message().or_else(|| body.shown_page());
        let said = said.map(|message| format!(", answer {message:?}")).unwrap_or_default();
        let message = format!("{status}{said} (the call carried no key)").into();
        Self { code: "no_key_sent", message }
    }

    /// Adds the message of the body, or what its page says.
    pub(super) fn quoting(self, body: &Body<'_>) -> Self {
        let message = body
            .shown_message()
            .or_else(|| body.shown_page())
            .map_or_else(|| self.message.clone(), |message| format!("{}: {message}", self.message).into());
        Self { message, ..self }
    }
}

impl Hint {
    pub(super) const fn new(wait: shape::Wait, from: &'static str) -> Self {
        Self { wait: wait.duration, exact: wait.exact, from }
    }
}

impl Classification {
    /// With the reach that is usual for the class.
    pub(super) fn new(class: Class, step: impl Into<Cow<'static, str>>) -> Self {
        Self {
            class,
            reach: usual_reach(class),
            hint: None,
            unnamed: false,
            unsent: false,
            unexpected: false,
            step: step.into(),
            fault: None,
        }
    }

    /// Whether a wait follows.
    pub(super) const fn waits(&self) -> bool {
        matches!(
            self.class,
            Class::Throttled | Class::Overloaded | Class::Transient | Class::QuotaExhausted | Class::Partial
        )
    }
}
