//! The types of a snapshot: numbers for people and dashboards.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::adaptive::RateEstimate;
use crate::admit::{PauseCause, WaitCause};
use crate::concurrency::ConcurrencySnapshot;
use crate::cost::Dimension;
use crate::outcome::Class;
use crate::responsive::ResponsiveCounters;
use crate::state::TakenState;
use crate::time::Instant;
use crate::units::format_duration;

/// A pacer at one instant: the account and its scopes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The ceiling over everything, with the sums of all scopes.
    pub account: ScopeSnapshot,
    /// Each scope, in the order in which they appeared, except that a new one takes the place of an evicted one.
    pub scopes: Vec<ScopeSnapshot>,
}

impl Snapshot {
    /// One line for people: how many calls are in flight and wait, what the next one waits for, and what is known of the limit.
    /// Of several scopes it speaks of the one that needs a person, else of one that is closed, else of the one in which most
    /// wait. `now`: the time of the snapshot.
    pub fn explain(&self, now: Instant) -> String {
        let urgency = |scope: &&ScopeSnapshot| match scope.state {
            ScopeState::Stopped { .. } => (2, 0),
            _ if scope.closed_until.is_some() => (1, scope.waiting),
            _ => (0, scope.waiting),
        };
        // The account first among equals: what holds it holds all.
        let scopes = self.scopes.iter().rev().chain([&self.account]);
        let subject = scopes.max_by_key(urgency).unwrap_or(&self.account);
        let subject = if urgency(&subject) == (0, 0) { &self.account } else { subject };
        let estimate = match &*self.scopes {
            [only] => only.estimate.as_ref(),
            _ => subject.estimate.as_ref(),
        };
        let ConcurrencySnapshot { in_flight, current_limit, .. } = self.account.concurrency;
        let mut text = format!("{in_flight} of {current_limit} calls in flight, {} waiting", self.account.waiting);
        let place = match &*subject.name {
            name if self.scopes.len() > 1 && !name.is_empty() => format!("in {name} "),
            _ => String::new(),
        };
        let reason = subject.explain(now);
        if !reason.is_empty() {
            text += &format!("; {place}{reason}");
        }
        let tightest = subject.tightest().into_iter().chain(self.account.tightest()).min_by(|a, b| a.0.total_cmp(&b.0));
        match (estimate, tightest) {
            // What is known bounds what is learnt.
            (Some(estimate), Some((rate, quota))) if estimate.rate >= rate => {
                let window = quota.window.unwrap_or_default();
                text += &format!("; the limit is {} {} per {window:?}", quota.limit, quota.dimension);
            }
            (Some(estimate), _) => text += &format!("; {estimate}"),
            (None, _) => {}
        }
        text
    }
}

impl ScopeSnapshot {
    /// The limit on calls with the lowest rate, configured or announced, and that rate in calls a second.
    fn tightest(&self) -> Option<(f64, &QuotaSnapshot)> {
        let of_calls = self.quotas.iter().chain(&self.announced).filter(|quota| quota.dimension == Dimension::Requests);
        let rates = of_calls.filter_map(|quota| Some((quota.limit as f64 / quota.window?.as_secs_f64(), quota)));
        rates.min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The one sentence for people why its next call does not leave at once, and for how long; empty where it does. `now`: the
    /// time of the snapshot.
    pub fn explain(&self, now: Instant) -> String {
        let wait = |until: Instant| format_duration(until.saturating_since(now));
        if let ScopeState::Stopped { reason } = &self.state {
            return format!("nothing leaves until a person acts: {reason}");
        }
        match (self.closed_until, self.closed_for, &self.waits_for) {
            (Some(until), Some(cause), _) => format!("nothing leaves for {}: {}", wait(until), cause.explanation()),
            (_, _, Some((cause, Some(until)))) => format!("the next call waits {} for {cause}", wait(*until)),
            (_, _, Some((cause, None))) => format!("the next call waits for {cause}"),
            _ => String::new(),
        }
    }
}

/// One scope at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScopeSnapshot {
    /// Its name; empty for the account.
    pub name: Arc<str>,
    /// Its state.
    pub state: ScopeState,
    /// Configured limits.
    pub quotas: Vec<QuotaSnapshot>,
    /// Limits that the server's headers announced.
    pub announced: Vec<QuotaSnapshot>,
    /// Requests that may leave at once, and the most that can be, where requests are spaced.
    pub burst: Option<(u64, u64)>,
    /// Calls in flight.
    pub concurrency: ConcurrencySnapshot,
    /// What it has learnt about its limit, under [`Pace::Auto`](crate::Pace::Auto). None for the account.
    pub estimate: Option<RateEstimate>,
    /// The delay between calls, under the paces that have one; else zero.
    pub delay: Duration,
    /// The counters of that delay, under the pace `responsive`.
    pub responsive: Option<ResponsiveCounters>,
    /// Sums since the beginning.
    pub totals: Totals,
    /// Requests that wait.
    pub waiting: u64,
    /// The same by priority, the most urgent first: those priorities alone of which some wait.
    pub waiting_by_priority: Vec<(i32, u64)>,
    /// The rule that the next waiter waits for, and until when, where that is known.
    pub waits_for: Option<(WaitCause, Option<Instant>)>,
    /// When the next waiter becomes due or may leave.
    pub next_due: Option<Instant>,
    /// Until when it is closed because the server asked for a pause or refused everything.
    pub closed_until: Option<Instant>,
    /// Why it is closed until then.
    pub closed_for: Option<PauseCause>,
    /// Since when nothing has succeeded, if the breaker opened.
    pub failing_since: Option<Instant>,
    /// Since when calls fail and nothing has succeeded, if they are of several items
    /// ([`BreakerConfig::min_distinct_items`](crate::BreakerConfig::min_distinct_items)). Slow calls may be too few for the
    /// breaker to open. None for the account.
    pub no_success_since: Option<Instant>,
}

/// The state of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScopeState {
    /// The next request may leave at once.
    Open,
    /// The next request waits for a limit.
    Paced,
    /// Nothing leaves until a known time: mostly a long window is used up.
    Held {
        /// When it reopens.
        until: Instant,
        /// What for.
        cause: PauseCause,
    },
    /// A person must act.
    Stopped {
        /// Why.
        reason: Arc<str>,
    },
}

impl ScopeState {
    /// The names of all states.
    pub const NAMES: [&'static str; 4] = ["open", "paced", "held", "stopped"];

    /// The name used in JSON.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Paced => "paced",
            Self::Held { .. } => "held",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// One limit at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuotaSnapshot {
    /// What is counted.
    pub dimension: Dimension,
    /// Units per window.
    pub limit: u64,
    /// Units counted now.
    pub used: u64,
    /// Units left; 0 in debt.
    pub remaining: u64,
    /// The period, where it is known.
    pub window: Option<Duration>,
    /// When one more unit fits.
    pub next_free: Instant,
    /// The units that a configured window still counts, oldest first, as in [`WindowState::taken`](crate::WindowState::taken);
    /// empty for a limit that was announced.
    pub taken: Vec<TakenState>,
}

/// Sums since the beginning. Where no connection failed they agree with what the server counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Every call that left.
    pub sends: u64,
    /// Calls after an item's first.
    pub resends: u64,
    /// Re-sends decided after transient and overloaded answers.
    pub retries: u64,
    /// Deferrals decided after throttled answers and used-up quotas.
    pub deferrals: u64,
    /// Calls that only tested a failing server.
    pub probes: u64,
    /// Answers by class, in the order of [`Class::ALL`].
    pub by_class: [u64; Class::ALL.len()],
    /// Time that granted requests had waited, all together.
    pub waited: Duration,
}

impl Totals {
    /// Answers of one class.
    pub const fn of(&self, class: Class) -> u64 {
        self.by_class[class as usize]
    }
}
