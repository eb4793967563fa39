//! The pace `auto`: learns an unannounced limit from the outcomes of calls.
//!
//! A few small policies; the strictest answer wins:
//!
//! - the [`gate`](crate::gate): closed for a while, then opened by one canary;
//! - the [`rate`]: calls a second, up with admitted calls, down once per event;
//! - the [`unit`]: whether the rate counts calls or their tokens;
//! - the [`cap`]: calls in flight, only where refusals follow that number.
//!
//! Only outcomes of calls change them. Announced and configured limits only hold back.
//!
//! Three parts make it up: the [`evidence`], which calls were admitted and which refusals are one event; the [`decision`], what
//! that shows of the limit; and the [`schedule`], when the next call leaves at the rate that was decided. Only the decision
//! would be wrong if two processes made it for one limit.

mod cap;
mod chance;
mod decision;
mod doubt;
mod estimate;
mod evidence;
mod first_tries;
mod rate;
mod schedule;
mod shared;
#[cfg(test)]
mod tests;
mod trial;
mod unit;
mod window;
mod words;

use alloc::boxed::Box;
use core::time::Duration;

pub use estimate::{GateState, RateEstimate, SharedRate};
pub use rate::Trend;
pub(crate) use shared::{OFFICE, Word};
pub(crate) use words::{Belief, Report};

use decision::RateDecision;
use evidence::{Evidence, Refused};
use schedule::Schedule;
use shared::Shared;

use crate::admit::{Admit, PauseCause, WaitCause};
use crate::flight::Flight;
use crate::gate::{Gate, Reopening};
use crate::rng::Rng;
use crate::time::Instant;

/// The longest closure of our own choice: a canary every 5 s wastes at most one call per 5 s.
pub(crate) const LONGEST_CLOSURE: Duration = Duration::from_secs(5);

/// How the rate of a scope begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Start {
    /// No rate is known.
    Slow,
    /// At so many calls a second.
    At(f64),
    /// Limits are configured, of so many calls a second if they count calls: they alone hold back until a refusal contradicts
    /// them.
    Configured(Option<f64>),
}

/// Why a call was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too many, or too fast.
    Throttled,
    /// The same, where the server names a time that holds the scope.
    ThrottledHeld,
    /// The same, for an item that has been throttled twice before.
    Again,
    /// Both.
    AgainHeld,
    /// The provider lacks capacity.
    Overloaded,
    /// The same, for an item that has failed twice before, and again while most others succeeded.
    OverloadedItem,
}

impl Refusal {
    /// The cause of the pause after it; `asked`: the server gave its length.
    pub(crate) const fn cause(self, asked: bool) -> PauseCause {
        match self {
            Self::Overloaded | Self::OverloadedItem => PauseCause::Overloaded { asked },
            Self::Throttled | Self::ThrottledHeld | Self::Again | Self::AgainHeld => PauseCause::Throttled { asked },
        }
    }
}

/// How a scope reacts to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Not at all: the refusal counts as random, and its item alone waits.
    Chance,
    /// Not again: the scope has slowed down for this event already.
    Known,
    /// The scope slows down.
    Slower,
}

/// What one scope has learnt about its limit.
#[derive(Clone, Debug)]
pub(crate) struct AdaptiveRate {
    evidence: Evidence,
    decision: RateDecision,
    schedule: Schedule,
    /// Where the decision is made for several processes.
    shared: Option<Box<Shared>>,
}

impl AdaptiveRate {
    /// `longest`: of the waits of our own choice.
    pub(crate) fn new(start: Start, longest: Duration) -> Self {
        let (evidence, decision) = (Evidence::new(), RateDecision::new(start, longest));
        Self { evidence, decision, schedule: Schedule::new(), shared: None }
    }

    /// Changes the bound on the waits of our own choice; what was learnt stays.
    pub(crate) fn reconfigure(&mut self, longest: Duration) {
        self.decision.reconfigure(longest);
    }

    /// The cap on calls in flight, where there is one, and calls a second as they leave.
    pub(crate) fn limits(&self) -> (Option<u32>, f64) {
        (self.decision.cap.limit(), self.decision.rate.acting())
    }

    /// Calls a second, if the rate acts: not while configured limits are trusted.
    pub(crate) fn acting_rate(&self) -> Option<f64> {
        let rate = &self.decision.rate;
        let own = || if rate.trusts_config() { None } else { Some(rate.per_second()) };
        self.told().map_or_else(own, |(_, share)| share)
    }

    /// How long a canary must go unrefused to open the gate.
    pub(crate) const fn silence(&self) -> Duration {
        self.evidence.silence()
    }

    /// Notes whether any caller wants to send a call from now on.
    #[inline]
    pub(crate) fn demand(&mut self, now: Instant, any: bool) {
        let any = self.note_queued(now, any);
        self.evidence.demand(now, any);
    }

    /// When a call may leave beside so many in flight, by rate and cap. After a closure the canary leaves whatever the rate is.
    pub(crate) fn admit(&self, now: Instant, gate: &Gate, in_flight: u32) -> Admit {
        if let Some(limit) = self.decision.cap.limit()
            && in_flight >= limit
        {
            return Admit::OnRelease { cause: WaitCause::ScopeConcurrency { limit, learnt: true } };
        }
        if !gate.is_open() {
            return Admit::Now;
        }
        let gaps = self.gaps();
        let due = self.waits_for_first_word().unwrap_or_else(|| self.schedule.due(gaps, gate.until()));
        Admit::at(due, now, || WaitCause::Rate { gap: gaps.usual })
    }

    /// A call leaves. Returns the era in which it does.
    pub(crate) fn sent(&mut self, now: Instant, gate: &Gate, flight: &Flight, canary: bool) -> u64 {
        let Flight { number, in_flight, tokens, .. } = *flight;
        let decides = !self.follows();
        // Places in flight are not learnt for several processes.
        let in_flight = if self.is_shared() { 1 } else { in_flight };
        let Self { evidence, decision, .. } = self;
        decision.begins(now, evidence);
        if decides {
            decision.bounds_the_start(gate);
        }
        evidence.sent(now, number, flight.is_first);
        if decides {
            decision.take_passed(now, evidence);
            decision.cap.sent(in_flight, decision.rate.payment());
        }
        if canary && decides {
            evidence.expect();
        }
        // What was decided until now holds this call back.
        let gaps = self.gaps();
        let Self { evidence, decision, schedule, .. } = self;
        let was_held_back = schedule.sent(now, gate.until(), gaps);
        if was_held_back && decides && !decision.cap.is_full(in_flight) {
            decision.rate.grow(evidence.run());
        }
        let weight = if decides { decision.unit.sent(tokens) } else { decision.unit.weight(tokens) };
        schedule.weighs(weight.of);
        decision.rate.dearer(weight.dearer);
        self.note_sent(now, tokens, was_held_back);
        self.evidence.era()
    }

    /// The era in which a call leaves now.
    pub(crate) const fn era(&self) -> u64 {
        self.evidence.era()
    }

    /// So many calls left, the last of them now, whose outcomes are not reported.
    pub(crate) fn counted(&mut self, now: Instant, calls: u64) {
        self.decision.begins(now, &self.evidence);
        self.evidence.counted(calls);
    }

    /// A call that was granted never left.
    pub(crate) fn never_sent(&mut self, number: u64) {
        self.evidence.forget(number);
    }

    /// Whether no refusal has ended the start yet.
    pub(crate) fn is_starting(&self) -> bool {
        self.decision.is_starting()
    }

    /// Whether a call has ever been refused, for whatever reason.
    pub(crate) const fn was_refused(&self) -> bool {
        self.decision.refusals.is_some()
    }

    /// Headers announced a limit of so many calls a second. It only shortens the start: to be called while that lasts.
    pub(crate) fn announced(&mut self, rate: f64) {
        self.decision.rate.announced(rate);
    }

    /// A call was answered, and the answer says nothing about the pace.
    pub(crate) const fn answered(&mut self) {
        self.schedule.answered();
    }

    /// A call succeeded.
    pub(crate) fn succeeded(&mut self, now: Instant, flight: &Flight) {
        self.schedule.answered();
        self.evidence.succeeded(flight.era, now - flight.sent);
        self.decision.succeeded(flight.item);
        let later = if self.is_shared() { evidence::HEARD_AFTER } else { Duration::ZERO };
        self.decision.rate.succeeded(self.evidence.time() + later);
    }

    /// The gate is open again.
    pub(crate) fn reopened(&mut self, now: Instant, reopening: &Reopening) {
        if !self.follows() && self.decision.reopened(now, &mut self.evidence, reopening) {
            self.schedule.free(reopening.opened);
        }
    }

    /// A person opens the gate, for the server is well.
    pub(crate) fn lifted(&mut self) {
        if !self.follows() {
            self.decision.lifted();
        }
    }

    /// Whether an item was told to wait again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64) -> bool {
        self.decision.is_bad(item)
    }

    /// A call of that item was refused, and the gate is closed.
    pub(crate) fn closed_by(&mut self, item: u64) {
        self.decision.closed_by(item);
    }

    /// All calls have been refused since then, and none is under way: another process may decide what follows.
    pub(crate) fn all_refused(&self, now: Instant, gate: &mut Gate, since: Instant, rng: &mut Rng) {
        if !self.follows() {
            self.decision.all_refused(now, gate, since, rng);
        }
    }

    /// A call was refused; `last` is the newest call sent. Returns how the scope reacts.
    pub(crate) fn refused(
        &mut self,
        now: Instant,
        gate: &mut Gate,
        flight: &Flight,
        last: u64,
        why: Refusal,
        rng: &mut Rng,
    ) -> Reaction {
        self.schedule.answered();
        let &Flight { era, number, sent, in_flight, tokens, .. } = flight;
        let in_flight = if self.is_shared() { 1 } else { in_flight };
        self.evidence.settle(now);
        if self.decision.is_of_its_item(&mut self.evidence, gate, flight, why) {
            self.evidence.forget(number);
            return Reaction::Chance;
        }
        let why = match why {
            Refusal::OverloadedItem => Refusal::Overloaded,
            Refusal::AgainHeld => Refusal::Again,
            Refusal::ThrottledHeld => Refusal::Throttled,
            why => why,
        };
        let (elsewhere, later) = self.elsewhere(now, sent);
        let (later, pending) = (last - number + later, self.evidence.pending() + elsewhere);
        let call = Refused { era, sent, later, pending, in_flight, tokens, why };
        if self.follows() {
            self.evidence.was_refused(now, number, sent);
            return self.note_refused(now, gate, &call);
        }
        let Self { evidence, decision, .. } = self;
        if !decision.is_ours(now, evidence, gate, &call) {
            evidence.forget(number);
            return Reaction::Chance;
        }
        evidence.was_refused(now, number, sent);
        decision.refused(now, evidence, gate, &call, rng)
    }
}
