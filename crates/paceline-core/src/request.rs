//! What goes into a pacer and what comes out of it.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::time::Duration;

use crate::admit::{MaxWait, PauseCause, WaitReason};
use crate::cost::Cost;
use crate::error::TooLarge;
use crate::outcome::Class;
use crate::retry::{Counted, Decision, Then};
use crate::time::Instant;

/// The handle of a scope: a model, an endpoint family, a table, or a configured tier.
///
/// It is a name, cheap to clone, that remembers where the pacer keeps the scope. Handles are equal, ordered and hashed by
/// name. In another pacer it means that pacer's scope of the same name, which is made when it is new there.
#[derive(Clone)]
pub struct ScopeId {
    pub(crate) name: Arc<str>,
    /// Where the pacer that made the handle keeps the scope: a hint, which is checked.
    pub(crate) place: u32,
}

impl ScopeId {
    /// The name of the scope.
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }
}

impl From<&Self> for ScopeId {
    fn from(id: &Self) -> Self {
        id.clone()
    }
}

/// A handle by name, without the place: a handle from [`Pacer::scope`](crate::Pacer::scope) is found faster.
impl From<&str> for ScopeId {
    fn from(name: &str) -> Self {
        Self { name: name.into(), place: u32::MAX }
    }
}

impl From<Arc<str>> for ScopeId {
    fn from(name: Arc<str>) -> Self {
        Self { name, place: u32::MAX }
    }
}

impl PartialEq for ScopeId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.name, &other.name) || self.name == other.name
    }
}

impl Eq for ScopeId {}

impl PartialOrd for ScopeId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScopeId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for ScopeId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for ScopeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopeId").field(&self.name).finish()
    }
}

/// The handle of one request in a pacer, from [`enqueue`](crate::Pacer::enqueue) to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// A request to send one call.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its scope.
    pub scope: ScopeId,
    /// What it is expected to cost.
    pub cost: Cost,
    /// Higher goes first. Default 0. Below 0 it is of the [`Background`](crate::Background).
    pub priority: i32,
    /// The item that it is for: the breaker opens on failures of several items. `None`: an item of its own, numbered like its
    /// arrival.
    pub item: Option<u64>,
    /// Who wants it, where that is proved, as by a key, or for whom it is, such as one of several customers behind a host: where
    /// its calls alone fail, that closes the server to no other. `None`: nothing tells callers apart.
    pub caller: Option<u64>,
    /// Its place among those of the same priority; a retry keeps it. `None`: behind all so far.
    pub arrival: Option<u64>,
    /// Sends so far that count against `max_retries`.
    pub attempts: u32,
    /// Its own bound on retries, for a caller that retries itself: the lower of it and
    /// [`Retry::max_retries`](crate::Retry::max_retries) acts. Default: none.
    pub max_retries: Option<u32>,
    /// Sends so far that ended throttled or on a quota.
    pub deferrals: u32,
    /// Sends so far that no server took.
    pub unsent: u32,
    /// Not to be sent before this.
    pub not_before: Option<Instant>,
    /// Not to be sent after this; time in a held or stopped scope does not count. A request that certainly cannot start
    /// before expires at once ([`Event::Expired`]).
    pub deadline: Option<Instant>,
    /// The longest known wait that it accepts; a longer one defers it at once ([`Event::Deferred`]). It is
    /// counted from the moment when the wait is known, or from the request's own due time where that is later; time in the queue
    /// behind others does not count. Default: none, it waits as long as it takes.
    pub max_wait: Option<MaxWait>,
}

impl Request {
    /// A request of normal priority, due at once, without a deadline or a longest wait.
    pub fn new(scope: impl Into<ScopeId>, cost: Cost) -> Self {
        Self {
            scope: scope.into(),
            cost,
            priority: 0,
            item: None,
            caller: None,
            arrival: None,
            attempts: 0,
            max_retries: None,
            deferrals: 0,
            unsent: 0,
            not_before: None,
            deadline: None,
            max_wait: None,
        }
    }

    /// Whether its caller sets it aside for a pause of that length ([`MaxWait::Pause`]), of which no time counts against its
    /// deadline then: the request of its next try has a later one, and one that waits when the pause begins is handed back with
    /// the deadline that it had.
    #[must_use]
    pub fn sets_aside(&self, pause: Duration) -> bool {
        matches!(self.max_wait, Some(MaxWait::Pause(longest)) if pause > longest)
    }

    /// Whether it goes behind those of usual priority: [`Background`](crate::Background) says what they share.
    pub(crate) const fn is_background(&self) -> bool {
        self.priority < 0
    }

    /// Its item, once it is enqueued.
    pub(crate) fn number(&self) -> u64 {
        self.item.expect("it is numbered when it is enqueued")
    }

    /// Whether it failed or was refused before.
    pub(crate) const fn was_tried(&self) -> bool {
        self.attempts > 0 || self.deferrals > 0
    }

    /// Counts a call of it that has ended.
    pub(crate) fn count(&mut self, decision: &Decision) {
        self.attempts = self.attempts.saturating_add(decision.retried);
        match decision.counted {
            Counted::Attempt => self.attempts = self.attempts.saturating_add(1),
            Counted::Deferral => self.deferrals += 1,
            Counted::Unsent => self.unsent += 1,
            Counted::Abandoned | Counted::Nothing => {}
        }
    }

    /// What its driver does after a call of that class, and `then`; `aside`: so much of its wait is no time of its deadline.
    pub(crate) fn follow(&self, now: Instant, class: Class, then: Then, aside: Duration) -> NextAction {
        let delay = match then {
            Then::Done => return NextAction::Done,
            Then::GiveUp(reason) => return NextAction::GiveUp { reason, request: Box::new(self.clone()) },
            // The caller that abandoned the call decides about its item.
            Then::Again(_) if class == Class::Abandoned => return NextAction::Done,
            Then::Again(delay) => delay,
        };
        let deadline = self.deadline.map(|deadline| deadline + aside);
        let not_before = (!delay.is_zero()).then_some(now + delay);
        let next = Box::new(Self { not_before, deadline, ..self.clone() });
        match class {
            Class::Partial => NextAction::Resend { next, delay },
            _ => NextAction::Retry { next, delay },
        }
    }

    /// Sends so far.
    pub const fn sends(&self) -> u32 {
        self.attempts + self.deferrals + self.unsent
    }
}

/// One call in that scope, which costs one request.
impl<Scope: Into<ScopeId>> From<Scope> for Request {
    fn from(scope: Scope) -> Self {
        Self::new(scope, Cost::request())
    }
}

/// What [`Pacer::enqueue_or_grant`](crate::Pacer::enqueue_or_grant) did with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Enqueued {
    /// Send the call now, and report its outcome.
    Granted {
        /// The request.
        ticket: Ticket,
        /// It tests a failing server. Its failure counts against its item, like that of any other call.
        probe: bool,
    },
    /// It is in the queue, or an event says what became of it.
    Queued {
        /// The request.
        ticket: Ticket,
    },
}

/// What follows from an outcome.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NextAction {
    /// The item is done, or was abandoned.
    Done,
    /// Send it again: enqueue `next`, which knows its due time, its counts and its arrival.
    Retry {
        /// The request to enqueue.
        next: Box<Request>,
        /// How long it waits from now on; its scope may wait longer.
        delay: Duration,
    },
    /// Part of a batch was accepted: enqueue `next` for the remainder, with the remainder's cost.
    Resend {
        /// The request to enqueue.
        next: Box<Request>,
        /// How long it waits from now on.
        delay: Duration,
    },
    /// The item has failed.
    GiveUp {
        /// Why.
        reason: GiveUp,
        /// The request with its final counts.
        request: Box<Request>,
    },
}

/// Why an item has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GiveUp {
    /// The answer is final: invalid or filtered.
    Refused(Class),
    /// All retries are used up.
    Retries,
    /// All deferrals are used up.
    Deferrals,
    /// The next try would come after the deadline.
    Deadline,
    /// Whether the last call was executed is unknown, and it must not be executed twice.
    Unknown,
    /// As [`Unknown`](Self::Unknown), and a person decides whether it is sent again.
    Held,
}

impl GiveUp {
    /// The name used in files and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused(class) => class.as_str(),
            Self::Retries => "max_retries",
            Self::Deferrals => "max_deferrals",
            Self::Deadline => "deadline",
            Self::Unknown => "unknown_outcome",
            Self::Held => "unknown_outcome_held",
        }
    }

    /// Whether an item that ends so had no answer because the API stayed down for it, so that a fallback may take the
    /// answer's place. `last` is the class of its last call.
    ///
    /// That is so where its tries or its time ended with failures of the server, throttles or a used-up quota, and where its
    /// refusal was one of the account ([`Witnesses`](crate::Witnesses)). It is not where the item itself is bad, where part of
    /// it was done, or where its call may have been executed.
    pub const fn stayed_down(self, last: Class) -> bool {
        match self {
            Self::Retries | Self::Deferrals | Self::Deadline => {
                matches!(last, Class::Transient | Class::Overloaded | Class::Throttled | Class::QuotaExhausted)
            }
            // Refused for the account, or for long, which stops nothing yet.
            Self::Refused(Class::Invalid) => matches!(
                last,
                Class::Account | Class::QuotaExhausted | Class::Throttled | Class::Overloaded | Class::Transient
            ),
            Self::Refused(_) | Self::Unknown | Self::Held => false,
        }
    }
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(class) => write!(f, "the answer is final ({class})"),
            Self::Retries => f.write_str("no retries left"),
            Self::Deferrals => f.write_str("no deferrals left"),
            Self::Deadline => f.write_str("its deadline comes before the next try"),
            Self::Unknown => f.write_str("the call may have been executed"),
            Self::Held => f.write_str("the call may have been executed, and a person decides"),
        }
    }
}

/// What the driver of a pacer has to do or to know.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// Send the call now, and report its outcome.
    Granted {
        /// The request.
        ticket: Ticket,
        /// It tests a failing server. Its failure counts against its item, like that of any other call.
        probe: bool,
    },
    /// The deadline of a waiting request has passed, or certainly passes before it may start; the pacer has removed it.
    Expired {
        /// The request.
        ticket: Ticket,
        /// As it was.
        request: Box<Request>,
        /// When it could have started at the earliest, where that is known to come after the deadline: its due time, the end
        /// of a pause that the server asked for, the next test of a failing server, or room in a full window.
        earliest: Option<Instant>,
    },
    /// The known wait of a request exceeds its [`max_wait`](Request::max_wait); the pacer has removed it, and keeps nothing of
    /// it.
    Deferred {
        /// The request.
        ticket: Ticket,
        /// As it was. It knows its arrival number: enqueued again, it goes before requests with a later one.
        request: Box<Request>,
        /// When it could have started at the earliest.
        until: Instant,
        /// Why it waits until then: [`Held`](crate::WaitCause::Held), [`Gate`](crate::WaitCause::Gate),
        /// [`Breaker`](crate::WaitCause::Breaker) or [`Quota`](crate::WaitCause::Quota).
        reason: WaitReason,
    },
    /// A waiting request exceeds a limit of a new configuration; the pacer has removed it.
    Refused {
        /// The request.
        ticket: Ticket,
        /// Which limit, and by how much.
        too_large: TooLarge,
    },
    /// A refusal slowed a scope down.
    LimitDecreased {
        /// Where.
        scope: ScopeId,
        /// Calls that may be in flight now, a learnt cap included.
        limit: u32,
        /// The estimated limit in calls a second, under [`Pace::Auto`](crate::Pace::Auto).
        rate: Option<f64>,
    },
    /// Nothing leaves before `until`: the server asked for it, or refused everything.
    GateClosed {
        /// Where.
        scope: ScopeId,
        /// The end, as known today.
        until: Instant,
    },
    /// The server of a scope fails; one probe at a time from `until` on.
    BreakerOpened {
        /// Where.
        scope: ScopeId,
        /// The next probe.
        until: Instant,
    },
    /// The server of a scope is back.
    BreakerClosed {
        /// Where.
        scope: ScopeId,
    },
    /// Nothing leaves until a known time: mostly a long window is used up. To be stored: it outlives the process.
    Held {
        /// Where; `None` is the whole account.
        scope: Option<ScopeId>,
        /// When it reopens.
        until: Instant,
        /// What for.
        cause: PauseCause,
        /// Such a hold, which ends about then, was told already: calls that were in flight together are refused one by one.
        renewed: bool,
    },
    /// A person must act. To be stored: it outlives the process.
    Stopped {
        /// Where; `None` is the whole account.
        scope: Option<ScopeId>,
        /// Why.
        reason: Arc<str>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_name() {
        let reasons = [GiveUp::Refused(Class::Filtered), GiveUp::Retries, GiveUp::Deferrals, GiveUp::Deadline];
        assert_eq!(reasons.map(GiveUp::as_str), ["filtered", "max_retries", "max_deferrals", "deadline"]);
    }

    #[test]
    fn the_api_stayed_down_where_the_bounds_of_an_item_ended_with_its_failures() {
        let down = [Class::Throttled, Class::Overloaded, Class::Transient, Class::QuotaExhausted];
        for class in Class::ALL {
            for reason in [GiveUp::Retries, GiveUp::Deferrals, GiveUp::Deadline] {
                assert_eq!(reason.stayed_down(class), down.contains(&class), "{reason:?} {class}");
            }
            for reason in [GiveUp::Refused(class), GiveUp::Unknown, GiveUp::Held] {
                assert!(!reason.stayed_down(class), "{reason:?} {class}");
            }
            let is_doubted = class == Class::Account || down.contains(&class);
            assert_eq!(GiveUp::Refused(Class::Invalid).stayed_down(class), is_doubted, "not believed: {class}");
        }
    }
}
