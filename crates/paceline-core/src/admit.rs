//! Admission: may this request start now, and if not, when, and which rule makes it wait?

use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::config::Quota;
use crate::cost::Dimension;
use crate::time::Instant;

/// When a request may start. Every policy answers; the strictest answer wins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Admit {
    /// At once.
    Now,
    /// Not before `at`.
    At {
        /// The earliest start that can be known today. Under [`WaitCause::Queue`] it is an estimate: as if the
        /// requests ahead cost as much as this one and waited for nothing but limits and the learnt rate.
        at: Instant,
        /// Which rule makes it wait.
        cause: WaitCause,
    },
    /// When something else happens: a call ends, a person acts.
    OnRelease {
        /// Which rule makes it wait.
        cause: WaitCause,
    },
}

impl Admit {
    /// `Now` when `at` has come, else `At`.
    #[inline]
    pub(crate) fn at(at: Instant, now: Instant, cause: impl FnOnce() -> WaitCause) -> Self {
        if at <= now { Self::Now } else { Self::At { at, cause: cause() } }
    }

    /// The later of two answers; the first one when they are equal.
    #[inline]
    pub fn strictest(mut self, other: Self) -> Self {
        self.tighten(other);
        self
    }

    /// Turns into the [`strictest`](Self::strictest) of it and another answer. Where that is that the request may start, as
    /// mostly, nothing is moved.
    #[inline]
    pub(crate) fn tighten(&mut self, other: Self) {
        if other.is_now() {
            // There is nothing to drop, which the compiler does not see.
            core::mem::forget(other);
        } else if other.rank() > self.rank() {
            *self = other;
        }
    }

    /// Whether the request may start at once.
    pub const fn is_now(&self) -> bool {
        matches!(self, Self::Now)
    }

    pub(crate) const fn rank(&self) -> (u8, Instant) {
        match self {
            Self::Now => (0, Instant::ZERO),
            Self::At { at, .. } => (1, *at),
            Self::OnRelease { .. } => (2, Instant::ZERO),
        }
    }
}

/// Hears the answers of rules, one after the other. The rules of a level are asked in one place, whether all of their answers
/// count or only whether one of them makes the call wait.
pub(crate) trait Hear {
    /// Returns whether the next rule is to be asked.
    fn hear(&mut self, answer: Admit) -> bool;
}

/// The strictest answer so far: every rule is asked.
impl Hear for Admit {
    #[inline(always)]
    fn hear(&mut self, answer: Admit) -> bool {
        self.tighten(answer);
        true
    }
}

/// The strictest answer of rules that are asked so.
pub(crate) fn strictest(ask: impl FnOnce(&mut Admit) -> bool) -> Admit {
    let mut strictest = Admit::Now;
    ask(&mut strictest);
    strictest
}

/// Whether the call may leave now: behind the first rule that makes it wait none is asked.
pub(crate) struct IsNow;

impl Hear for IsNow {
    #[inline(always)]
    fn hear(&mut self, answer: Admit) -> bool {
        let is_now = answer.is_now();
        if is_now {
            // As in `tighten`.
            core::mem::forget(answer);
        }
        is_now
    }
}

/// The longest known wait that a request accepts, and which waits count.
///
/// A wait is known if no call, answer or cancellation can shorten it. The request is treated as the first of its scope: to
/// wait behind others is never a reason, and neither is a learnt rate, the spacing of calls, a place among the calls in flight,
/// or a limit that headers announced, which the next answer may replace. A stop has no known end, so it does not count either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MaxWait {
    /// Any known wait: a hold, a closed gate, an open breaker, or a window of a configured limit that has no room for the
    /// request even if everything in flight were refunded.
    Known(Duration),
    /// Pauses alone: a hold or a closed gate. The request waits without bound for limits, which serve requests in order, and for
    /// a server that is being tested.
    Pause(Duration),
}

impl MaxWait {
    /// The bound.
    pub const fn duration(self) -> Duration {
        match self {
            Self::Known(wait) | Self::Pause(wait) => wait,
        }
    }
}

impl From<Duration> for MaxWait {
    /// A bound on any known wait.
    fn from(wait: Duration) -> Self {
        Self::Known(wait)
    }
}

/// Why a request waits: which rule, and on which level. Its text ([`Display`](fmt::Display)) follows
/// "waiting for".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReason {
    /// The level of the rule.
    pub level: Level,
    /// Which rule.
    pub cause: WaitCause,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Level::Account => write!(f, "{} (the whole account)", self.cause),
            Level::Tier | Level::Scope => self.cause.fmt(f),
        }
    }
}

/// The level of a rule that makes a request wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// The account: the rule applies to every scope.
    Account,
    /// A configured limit of the tier that the scope is named after.
    Tier,
    /// The scope alone: what its server announced or asked for, or what it has learnt.
    Scope,
}

/// Which rule makes a request wait.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitCause {
    /// The request's own due time.
    NotBefore,
    /// Older or more urgent requests of its scope.
    Queue,
    /// The account or the scope is held until a known time; deadlines stand still meanwhile.
    Held {
        /// Why.
        cause: PauseCause,
    },
    /// The account or the scope is stopped until a person acts.
    Stopped {
        /// Why: the message of the provider, or of the person who stopped it.
        reason: Arc<str>,
    },
    /// The server asked the scope to wait, or refused everything just now.
    Gate {
        /// Why.
        cause: PauseCause,
    },
    /// One call tests whether the scope is open again.
    Canary,
    /// The scope's server fails.
    Breaker,
    /// The limit on calls in flight is reached, that of the account.
    Concurrency,
    /// That of the scope.
    ScopeConcurrency {
        /// So many of its calls may be in flight.
        limit: u32,
        /// Refusals have shown it; else it is configured.
        learnt: bool,
    },
    /// The calls in flight that calls like it may be leave some to others: to those of a higher priority, or of other callers.
    Reserve,
    /// Calls of the scope are not answered, and the places that it may take meanwhile are taken.
    Silence,
    /// The places that scopes share whose calls may not be answered:
    /// [`Pacer::expect_scopes`](crate::Pacer::expect_scopes).
    Place {
        /// Its last call waited for its answer in vain; else none has been answered yet.
        in_vain: bool,
    },
    /// Answers of the scope, which show how many tokens a call without a bound takes of a configured limit.
    Answers,
    /// A configured limit.
    Quota {
        /// What is counted.
        dimension: Dimension,
        /// Units per window.
        limit: u64,
        /// The period.
        window: Duration,
    },
    /// The share of this pacer in a configured limit that is divided among several: [`Pacer::divide`](crate::Pacer::divide).
    Share {
        /// What is counted.
        dimension: Dimension,
        /// Units per window, of all pacers together, or calls in flight.
        limit: u64,
        /// The period.
        window: Duration,
        /// Whether it bounds the calls in flight: then the window is how long a call may be.
        in_flight: bool,
    },
    /// The burst is used up: requests leave evenly spaced.
    Burst,
    /// Another pacer of the account has the turn: [`Pacer::yield_turn`](crate::Pacer::yield_turn).
    Turn,
    /// The learnt rate of the scope.
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
    ServerLimit {
        /// What is counted.
        dimension: Dimension,
        /// The limit that the server announced.
        limit: u64,
        /// Estimated units left: units sent since the announcement are subtracted.
        remaining: u64,
    },
}

impl WaitCause {
    pub(crate) fn quota(quota: &Quota) -> Self {
        let Quota { dimension, limit, window, .. } = quota.clone();
        Self::Quota { dimension, limit, window }
    }

    pub(crate) fn share(quota: &Quota) -> Self {
        let Quota { dimension, limit, window, .. } = quota.clone();
        Self::Share { dimension, limit, window, in_flight: false }
    }

    /// What is counted by the limit that it waits for.
    pub(crate) const fn dimension(&self) -> Option<&Dimension> {
        match self {
            Self::Quota { dimension, .. } | Self::Share { dimension, .. } | Self::ServerLimit { dimension, .. } => {
                Some(dimension)
            }
            _ => None,
        }
    }

    /// Whether a full window is what it waits for.
    pub(crate) const fn is_full(&self) -> bool {
        matches!(self, Self::Quota { .. } | Self::Share { .. })
    }

    /// Whether a request that may not wait for this has no answer because the API stayed down for it, so that a fallback may take
    /// the answer's place: the server fails, asked for a pause, or has no quota left, or the account is stopped. A limit that is
    /// known here, and the requests ahead, are none of these.
    pub const fn stayed_down(&self) -> bool {
        match self {
            Self::Held { cause } | Self::Gate { cause } => !matches!(cause, PauseCause::Program),
            Self::Stopped { .. } | Self::Canary | Self::Breaker => true,
            Self::NotBefore | Self::Queue | Self::Concurrency | Self::Answers | Self::Burst | Self::Turn => false,
            Self::Reserve | Self::Silence => false,
            Self::ScopeConcurrency { .. }
            | Self::Place { .. }
            | Self::Quota { .. }
            | Self::Share { .. }
            | Self::Rate { .. }
            | Self::Spacing { .. }
            | Self::ServerLimit { .. } => false,
        }
    }
}

/// Why there is a pause or a hold. Its text ([`Display`](fmt::Display)) follows "waiting for".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseCause {
    /// A long window is used up: until it reopens, or until it is tested where its end is not known.
    QuotaUsedUp,
    /// Calls were refused because they exceeded a rate limit.
    Throttled {
        /// The server asked for this pause; else its length is our own choice.
        asked: bool,
    },
    /// Calls were refused because the server is overloaded.
    Overloaded {
        /// The server asked for this pause; else its length is our own choice.
        asked: bool,
    },
    /// Nothing has succeeded for long: the server fails.
    ServerFails,
    /// The program that uses the pacer has set it.
    Program,
}

impl PauseCause {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::QuotaUsedUp,
        Self::Throttled { asked: true },
        Self::Throttled { asked: false },
        Self::Overloaded { asked: true },
        Self::Overloaded { asked: false },
        Self::ServerFails,
        Self::Program,
    ];

    /// Parses the text ([`Display`](fmt::Display)) of a cause, as a program has stored it.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.text() == text)
    }

    /// Whether the server asked for the pause and said how long it is: then that holds for every caller, however late it comes.
    pub const fn is_asked(self) -> bool {
        matches!(self, Self::Throttled { asked: true } | Self::Overloaded { asked: true })
    }

    /// The cause as a clause that explains a pause or a hold: `the overloaded server asked for a pause`. A program may make it
    /// shorter than the server asked.
    pub const fn explanation(self) -> &'static str {
        match self {
            Self::QuotaUsedUp => "a quota is used up",
            Self::Throttled { asked: true } => "the server rate-limited a call and asked for a pause",
            Self::Throttled { asked: false } => "the server rate-limited the calls before",
            Self::Overloaded { asked: true } => "the overloaded server asked for a pause",
            Self::Overloaded { asked: false } => "the server answered that it is overloaded",
            Self::ServerFails => "the server is failing",
            Self::Program => "this program set the pause",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::QuotaUsedUp => "a used-up quota to refill",
            Self::Throttled { asked: true } => "the end of a pause that the server asked for (rate limit)",
            Self::Throttled { asked: false } => "the end of a pause after a rate limit was hit",
            Self::Overloaded { asked: true } => "the end of a pause that the overloaded server asked for",
            Self::Overloaded { asked: false } => "the end of a pause after the server was overloaded",
            Self::ServerFails => "a failing server to recover",
            Self::Program => "the end of a pause that this program set",
        }
    }
}

impl fmt::Display for PauseCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Display for WaitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBefore => f.write_str("its own due time"),
            Self::Queue => f.write_str("older requests"),
            Self::Held { cause } | Self::Gate { cause } => cause.fmt(f),
            Self::Stopped { reason } => write!(f, "a person to act ({reason})"),
            Self::Canary => f.write_str("one call that tests whether the pause is over"),
            Self::Breaker => PauseCause::ServerFails.fmt(f),
            Self::Concurrency => f.write_str("a free slot among the calls in flight"),
            Self::ScopeConcurrency { limit: 1, learnt: false } => f.write_str("the end of its one call in flight"),
            Self::ScopeConcurrency { limit: 1, learnt: true } => {
                f.write_str("the end of its one call in flight, for more at a time were refused")
            }
            Self::ScopeConcurrency { limit, learnt: false } => {
                write!(f, "one of its {limit} slots (concurrency), which are all in use")
            }
            Self::ScopeConcurrency { limit, learnt: true } => {
                write!(f, "the end of one of its {limit} calls in flight, for more at a time were refused")
            }
            Self::Reserve => f.write_str("a free slot among the calls in flight that are not left to others"),
            Self::Silence => f.write_str("an answer: it has had none for a while, and leaves free slots to others"),
            Self::Place { in_vain: true } => f.write_str("a place: its host did not answer before"),
            Self::Place { in_vain: false } => f.write_str("a place: its host has not answered a call yet"),
            Self::Answers => f.write_str("an answer that shows how many tokens such calls take"),
            Self::Quota { dimension, limit, window } => write!(f, "the limit of {}", dimension.per(*limit, *window)),
            Self::Share { limit, in_flight: true, .. } => {
                write!(f, "the share of this process in the limit of {limit} calls in flight")
            }
            Self::Share { dimension, limit, window, .. } => {
                write!(f, "the share of this process in the limit of {}", dimension.per(*limit, *window))
            }
            Self::Turn => f.write_str("its turn among the processes that share the configured limits"),
            Self::Burst => f.write_str("the spacing of the configured limit"),
            Self::Rate { gap } => write!(f, "the learnt rate of {}", PerSecond(1.0 / gap.as_secs_f64())),
            Self::Spacing { delay } => write!(f, "the delay of {delay:.1?} between calls"),
            Self::ServerLimit { dimension, limit, remaining } => {
                write!(f, "the server's limit of {limit} {dimension}, {remaining} left")
            }
        }
    }
}

/// A rate with three significant digits.
pub(crate) struct PerSecond(pub(crate) f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            x if x >= 99.95 => write!(f, "{x:.0}/s"),
            x if x >= 9.995 => write!(f, "{x:.1}/s"),
            x if x >= 0.1 => write!(f, "{x:.2}/s"),
            x => write!(f, "{:.2}/min", 60.0 * x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rules_are_asked_for_the_strictest_answer_and_as_many_as_let_the_call_leave_for_whether_it_may() {
        let at = |seconds| Admit::At { at: Instant::ZERO + Duration::from_secs(seconds), cause: WaitCause::Queue };
        let ask = |hear: &mut dyn FnMut(Admit) -> bool| {
            let mut asked = 0;
            let all = [Admit::Now, at(1), at(3), at(2)].into_iter().all(|answer| {
                asked += 1;
                hear(answer)
            });
            (all, asked)
        };
        let mut strictest = Admit::Now;
        assert_eq!(ask(&mut |answer| strictest.hear(answer)), (true, 4));
        assert_eq!(strictest, at(3));
        assert_eq!(ask(&mut |answer| IsNow.hear(answer)), (false, 2));
    }
}
