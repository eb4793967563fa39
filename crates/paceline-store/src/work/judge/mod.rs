//! Judges: programs, models or code that decide about a failure in place of the rules.

mod protocol;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use paceline_core::{Class, UnknownOutcome};

use super::item::{Failure, HistoryEntry, WorkItem};
pub use protocol::{InvalidDecision, encode_request, parse_decision};

/// A failure that a judge decides about.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The item, with the sends before this one.
    pub item: &'a WorkItem,
    /// Its payload, which the questions of [`question`](super::encode_request) leave out.
    pub payload: &'a str,
    /// What went wrong now.
    pub failure: &'a Failure,
    /// Which retry the next one would be, from 1.
    pub retry: u32,
    /// How many there may be.
    pub max_retries: u32,
    /// The last five decisions about the item, the oldest first.
    pub history: &'a [HistoryEntry],
}

/// What is to be done about a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    /// Try again, within the bounds of the run.
    Retry {
        /// The delay, at most the cap of the backoff; none = the next delay of the backoff. A longer one that the server asked
        /// for is kept.
        delay: Option<Duration>,
        /// Why.
        reason: Option<String>,
    },
    /// Give the item up.
    Fail {
        /// Why.
        reason: Option<String>,
    },
    /// Leave the item out.
    Skip {
        /// Why.
        reason: Option<String>,
    },
    /// Stop the item's group until a person acts, and keep its items.
    Abort {
        /// Why.
        reason: Option<String>,
    },
}

impl Judgement {
    /// Why.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Retry { reason, .. } | Self::Fail { reason } | Self::Skip { reason } | Self::Abort { reason } => {
                reason.as_deref()
            }
        }
    }

    /// The wait before another try, where it chose one.
    pub(crate) const fn delay(&self) -> Option<Duration> {
        match self {
            Self::Retry { delay, .. } => *delay,
            Self::Fail { .. } | Self::Skip { .. } | Self::Abort { .. } => None,
        }
    }
}

/// A judge's decision; none = the rules decide.
pub type JudgeFuture<'a> = Pin<Box<dyn Future<Output = Option<Judgement>> + Send + 'a>>;

/// Decides about failures in place of the rules, which go by the class alone.
///
/// A judge that takes too long or does not know leaves the case to the rules. Errors of the account, exhausted quotas and
/// what we gave up ourselves never come before it: no judgement makes a bad key good.
pub trait Judge: Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Decides a case.
    fn decide<'a>(&'a self, case: Case<'a>) -> JudgeFuture<'a>;
}

/// What follows from the class of a failure, before the bounds of the run are applied: what happens without a judge. The message
/// decides nothing: a server in trouble may say "unauthorized".
pub fn by_class(failure: &Failure) -> Judgement {
    match failure.class {
        Class::Account => Judgement::Abort { reason: Some(failure.message.clone()) },
        class if class.is_final() => Judgement::Fail { reason: Some(class.as_str().to_owned()) },
        _ => Judgement::Retry { delay: None, reason: None },
    }
}

/// Whether a failure is for a judge at all.
pub(crate) fn is_arguable(failure: &Failure) -> bool {
    failure.unknown == UnknownOutcome::Resend
        && !matches!(failure.class, Class::Account | Class::QuotaExhausted | Class::Abandoned)
}
