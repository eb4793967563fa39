//! The answer to the one question: may this request start now, and if not, when?

use core::fmt;
use core::time::Duration;

use crate::cost::Dimension;
use crate::learnt::PerSecond;
use crate::time::Instant;

/// When a request may start. Every policy gives one; the strictest wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admit {
    /// At once.
    Now,
    /// Not before `at`.
    At {
        /// The earliest start that can be known today. Under [`Policy::Queue`] it is an estimate: when it would be its turn if
        /// those ahead cost as much as it does and nothing but limits and the learnt rate made them wait.
        at: Instant,
        /// Who says so.
        policy: Policy,
    },
    /// When something else happens: a call ends, a person acts.
    OnRelease {
        /// Who says so.
        policy: Policy,
    },
}

impl Admit {
    /// `Now` when `at` has come, else `At`.
    pub(crate) fn at(at: Instant, now: Instant, policy: impl FnOnce() -> Policy) -> Self {
        if at <= now { Self::Now } else { Self::At { at, policy: policy() } }
    }

    /// The later of two answers; the first one when they are equal.
    #[must_use]
    pub fn strictest(self, other: Self) -> Self {
        if other.rank() > self.rank() { other } else { self }
    }

    /// Whether the request may start at once.
    pub const fn is_now(&self) -> bool {
        matches!(self, Self::Now)
    }

    const fn rank(&self) -> (u8, Instant) {
        match self {
            Self::Now => (0, Instant::ZERO),
            Self::At { at, .. } => (1, *at),
            Self::OnRelease { .. } => (2, Instant::ZERO),
        }
    }
}

/// Which rule makes a request wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The request's own due time.
    NotBefore,
    /// Older or more urgent requests of its scope.
    Queue,
    /// The account or the scope is held until a long window reopens.
    Held,
    /// The account or the scope is stopped until a person acts.
    Stopped,
    /// The server asked the scope to wait, or refused everything just now.
    Gate,
    /// One call tests whether the scope is open again.
    Canary,
    /// The scope's server fails.
    Breaker,
    /// As many calls are in flight as may be.
    Concurrency,
    /// A configured limit.
    Quota {
        /// What is counted.
        dimension: Dimension,
        /// Units per window.
        limit: u64,
        /// The period.
        window: Duration,
    },
    /// Requests may not leave in a bunch.
    Burst,
    /// The rate that its scope has learnt.
    Rate {
        /// The time between two calls.
        gap: Duration,
    },
    /// The delay between the calls of a scope, under the paces that have one.
    Spacing {
        /// The delay.
        delay: Duration,
    },
    /// What the server's headers left.
    Announced {
        /// What is counted.
        dimension: Dimension,
        /// The limit that the server announced.
        limit: u64,
        /// What is left of it, as far as is known: what left since it was announced is subtracted.
        remaining: u64,
    },
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBefore => f.write_str("its own due time"),
            Self::Queue => f.write_str("older requests"),
            Self::Held => f.write_str("a used-up quota"),
            Self::Stopped => f.write_str("a person to act"),
            Self::Gate => f.write_str("the end of a pause after refusals"),
            Self::Canary => f.write_str("one call that tests whether the limit has reopened"),
            Self::Breaker => f.write_str("a failing server"),
            Self::Concurrency => f.write_str("a free place among the calls in flight"),
            Self::Quota { dimension, limit, window } => write!(f, "the limit of {limit} {dimension} per {window:?}"),
            Self::Burst => f.write_str("the spacing of the configured limit"),
            Self::Rate { gap } => write!(f, "the learnt rate of {}", PerSecond(1.0 / gap.as_secs_f64())),
            Self::Spacing { delay } => write!(f, "the delay of {delay:.1?} between calls"),
            Self::Announced { dimension, limit, remaining } => {
                write!(f, "the server's limit of {limit} {dimension}, {remaining} left")
            }
        }
    }
}
