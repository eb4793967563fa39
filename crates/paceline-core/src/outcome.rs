//! The outcome of a call.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::cost::{Cost, Dimension};

/// The kinds of outcome that a pacer distinguishes. Each affects the item, the pace, both or neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A usable answer.
    Success,
    /// Our rate exceeded a limit that refills soon: the item is deferred, its scope slows down.
    Throttled,
    /// The provider lacks capacity (503, 529): the item is retried, the scope slows down, the breaker counts.
    Overloaded,
    /// A server or network failure: the item is retried, the breaker counts, the pace stays.
    Transient,
    /// A long window (a day, a month) is used up: the scope is held until it reopens.
    QuotaExhausted,
    /// A bad key, no credit: the scope stops until a person acts, and keeps its items.
    Account,
    /// This request can never pass: the item fails alone.
    Invalid,
    /// The content of this item was refused: the item fails alone.
    Filtered,
    /// Part of a batch was accepted: the rest is sent again.
    Partial,
    /// The caller abandoned the call: it frees its place and teaches nothing.
    Abandoned,
}

impl Class {
    /// All classes, in declaration order.
    pub const ALL: [Self; 10] = [
        Self::Success,
        Self::Throttled,
        Self::Overloaded,
        Self::Transient,
        Self::QuotaExhausted,
        Self::Account,
        Self::Invalid,
        Self::Filtered,
        Self::Partial,
        Self::Abandoned,
    ];

    /// The name used in files, logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Throttled => "throttled",
            Self::Overloaded => "overloaded",
            Self::Transient => "transient",
            Self::QuotaExhausted => "quota_exhausted",
            Self::Account => "account",
            Self::Invalid => "invalid",
            Self::Filtered => "filtered",
            Self::Partial => "partial",
            Self::Abandoned => "abandoned",
        }
    }

    /// A short description for people, in the log and in reports.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Throttled => "rate limit hit",
            Self::Overloaded => "server overloaded",
            Self::Transient => "transient failure",
            Self::QuotaExhausted => "quota exhausted",
            Self::Account => "key or account refused",
            Self::Invalid => "request refused",
            Self::Filtered => "content refused",
            Self::Partial => "partly accepted",
            Self::Abandoned => "call abandoned",
        }
    }

    /// Whether the same request can never pass.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Invalid | Self::Filtered)
    }

    /// The class of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What an outcome applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LimitScope {
    /// The item alone.
    Item,
    /// The scope of the call: its model, endpoint family or table.
    #[default]
    Scope,
    /// The account: every scope under the same host and key.
    Account,
}

/// A wait that is longer holds its whole scope.
const HOLDING: Duration = Duration::from_secs(1);

/// A wait that the server asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// From the moment the response arrived.
    pub wait: Duration,
    /// Given in milliseconds or finer, so it is no rounding.
    pub exact: bool,
    /// Its source, for the log: a header's name, `message`. It decides nothing.
    pub from: &'static str,
}

impl Hint {
    /// A hint whose source the log gives as `server`.
    pub const fn new(wait: Duration, exact: bool) -> Self {
        Self { wait, exact, from: "server" }
    }

    /// Whether it holds the whole scope, and one call goes first after it. A shorter one in whole seconds is mostly rounding.
    pub(crate) fn is_long(&self) -> bool {
        self.wait > HOLDING
    }

    /// Whether it says nothing about when the server takes calls.
    pub(crate) fn is_rounding(&self) -> bool {
        !self.exact && !self.is_long()
    }
}

/// How a limit that headers announce is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum RefillMode {
    /// Not known: such a report is only obeyed where nothing is left and the reset is near.
    #[default]
    Unknown,
    /// All at the reset: a fixed window.
    AtOnce,
    /// Gradually until the reset: a bucket or a sliding window.
    Gradually,
}

/// What a response's headers report about one limit. Absent numbers were not reported.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimitReport {
    /// What is counted.
    pub dimension: Dimension,
    /// Units allowed in a window.
    pub limit: Option<u64>,
    /// Units left.
    pub remaining: Option<u64>,
    /// Time until the limit is whole again.
    #[cfg_attr(feature = "serde", serde(rename = "reset_ms", with = "crate::millis::or_none", default))]
    pub reset: Option<Duration>,
    /// The period that the limit refers to, where it is known or could be derived.
    #[cfg_attr(feature = "serde", serde(rename = "window_ms", with = "crate::millis::or_none", default))]
    pub window: Option<Duration>,
    /// How the limit is refilled.
    pub restores: RefillMode,
}

/// What to do if it is unknown whether a call was executed, and a second one would execute it twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum UnknownOutcome {
    /// It is sent again, like a call whose end is known or that may be repeated.
    #[default]
    Resend,
    /// Its item fails, for good.
    Fail,
    /// Its item fails until a person decides.
    Hold,
}

impl UnknownOutcome {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Resend, Self::Fail, Self::Hold];

    /// The name used in files and flags.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Resend => "resend",
            Self::Fail => "fail",
            Self::Hold => "hold",
        }
    }
}

/// The end of one call, as the pacer needs to know it.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "it changes nothing until it is reported"]
pub struct Outcome {
    /// What happened.
    pub class: Class,
    /// What it applies to; only read for throttled, quota and account outcomes.
    pub reach: LimitScope,
    /// The wait that the server asked for.
    pub hint: Option<Hint>,
    /// Limits that the response's headers announced.
    pub limits: Vec<LimitReport>,
    /// The actual cost of the call, as far as the response reports it; it replaces the estimate. A dimension that it does not
    /// name stays as reserved, one that it names as 0 is refunded.
    pub usage: Option<Cost>,
    /// The limit that refused is one of a day or longer, however short the wait. Asked for such a wait twice in a row, the
    /// pacer takes the quota for used up.
    pub long_period: bool,
    /// The answer names no quota: one counts as used up because the wait is so long. Only read for
    /// [`Class::QuotaExhausted`], whose hold then has the cause that the server asked for a pause.
    pub unnamed: bool,
    /// No server received the call: no name, no route, no connection. That concerns the network and not the item, so it counts
    /// against no bound of retries: the caller has to give up a server that can never be reached. Only read for transient
    /// and overloaded outcomes. Default: false.
    pub unsent: bool,
    /// Retries that were made for the call before it was answered, as a gateway makes them: each counts against the bound of
    /// retries beside the call itself. Default: 0.
    pub retried: u32,
    /// The server did its work, and its answer is of no use to the caller: that opens no breaker. Only read for transient and
    /// overloaded outcomes. Default: false.
    pub server_works: bool,
    /// What follows if it is unknown whether the call was executed, and it must not be executed twice. Not read for a success.
    /// Default: it is sent again.
    pub unknown: UnknownOutcome,
    /// Why, as the provider's message or ours; kept as the reason when a scope stops.
    pub reason: Option<Arc<str>>,
}

impl Outcome {
    /// An outcome of that class and nothing else.
    pub const fn new(class: Class) -> Self {
        Self {
            class,
            reach: LimitScope::Scope,
            hint: None,
            limits: Vec::new(),
            usage: None,
            long_period: false,
            unnamed: false,
            unsent: false,
            retried: 0,
            server_works: false,
            unknown: UnknownOutcome::Resend,
            reason: None,
        }
    }

    /// With a wait that the server asked for.
    pub const fn with_hint(mut self, wait: Duration, exact: bool) -> Self {
        self.hint = Some(Hint::new(wait, exact));
        self
    }

    /// With another reach than the scope.
    pub const fn with_reach(mut self, reach: LimitScope) -> Self {
        self.reach = reach;
        self
    }

    /// With the cost that the response reported. A dimension that it does not name stays as reserved: tokens alone refund no
    /// request.
    pub fn with_usage(mut self, usage: Cost) -> Self {
        self.usage = Some(usage);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn each_class_has_a_name_of_its_own() {
        for class in Class::ALL {
            assert_eq!(Class::from_name(class.as_str()), Some(class));
            assert_eq!(format!("{class:>10}"), format!("{:>10}", class.as_str()));
        }
        assert_eq!(Class::from_name("unheard of"), None);
    }
}
