//! What Paceline itself can refuse. An operation's own failure is never wrapped in these.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::{TooLarge, WaitReason};

/// Why no permit was given. Waiting for a limit is not among the reasons: a wait is an answer, not an error
/// ([`Within`](crate::Within)).
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request costs more than a limit ever allows at once, so it could never start. Split it, or raise the limit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The request's deadline passed before it could start, or certainly passes before: then this is said at once.
    #[error("{}; allow more time or send less", too_late(*.waited, *.needed))]
    DeadlineExceeded {
        /// How long it waited in this call.
        waited: Duration,
        /// How much longer it would have had to wait at least, where it is known that the deadline comes first: for its own
        /// due time, for the end of a pause that the server asked for, for the next test of a failing server, or for room in a
        /// full window.
        needed: Option<Duration>,
    },
    /// The scope or its account is stopped until a person acts: a bad key, no credit. Nothing is sent in it before
    /// [`resume`](crate::Limiter::resume).
    #[error("{scope} is stopped: {reason}; fix this, then resume it")]
    Stopped {
        /// The scope's name, or the account's.
        scope: Arc<str>,
        /// Why, in the provider's words where it gave some.
        reason: Arc<str>,
    },
    /// It must wait, and the system allows no thread that keeps the time for it.
    #[error("no permit at once, and no thread could be started to wait for one: {reason}; allow more threads")]
    NoTimer {
        /// What the system says.
        reason: Arc<str>,
    },
    /// The limiter was closed, so it grants nothing any more.
    #[error("the limiter is closed; nothing more is sent through it")]
    Closed,
}

/// Why [`try_acquire`](crate::Limiter::try_acquire) gave no permit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotNow {
    /// It must wait, and this is the strictest reason.
    #[error("not now: {reason}{}", after.map_or_else(String::new, |after| format!(", for {after:?}")))]
    Wait {
        /// How long at least, when that is known; else the wait ends when a call in flight does. Behind older requests
        /// ([`Policy::Queue`](paceline_core::Policy::Queue)) it is an estimate.
        after: Option<Duration>,
        /// What it waits for, and whether that is the account, the tier or the scope: others wait for the account too.
        reason: WaitReason,
    },
    /// Waiting would not help.
    #[error(transparent)]
    Never(#[from] Error),
}

fn too_late(waited: Duration, needed: Option<Duration>) -> String {
    match needed {
        Some(needed) => format!("the deadline comes before the earliest start, which is {needed:?} away"),
        None => format!("the deadline passed after {waited:?} of waiting for a permit"),
    }
}
