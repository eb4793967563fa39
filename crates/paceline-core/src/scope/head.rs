//! What decides which request of a scope leaves next.

use core::time::Duration;

use super::Scope;
use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::config::Pace;
use crate::outcome::Hint;
use crate::time::Instant;

/// A request that was told to wait leaves as each such call at most, while others wait.
const TOLD_AGAIN: u64 = 8;

/// Requests that wait elsewhere, such as in a journal, come one after the other when a pause is over: so long after its end one
/// that was told to wait lets others come that were not.
const OTHERS_COME: Duration = Duration::from_millis(100);

impl Scope {
    /// Whether the server may be down: one of the last calls failed.
    pub(crate) const fn may_be_down(&self) -> bool {
        self.breaker.all().has_just_failed()
    }

    /// Whether one call at a time tests its server.
    pub(crate) fn is_down(&self) -> bool {
        self.breaker.all().is_testing()
    }

    /// Whether it is the turn of an item that has failed before to test it.
    pub(crate) const fn tests_again(&self) -> bool {
        self.breaker.all().tests_again()
    }

    /// Whether the pace is learnt and a call was refused: what is refused next may be due to the rate or to the item.
    pub(crate) fn learns_from_refusals(&self) -> bool {
        self.pace == Pace::Auto && self.learnt.was_refused()
    }

    /// Whether an item failed again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64, caller: Option<u64>) -> bool {
        self.breaker.is_bad(item, caller)
    }

    /// Whether it may make a difference for the breaker whose call is next.
    pub(crate) fn tells_callers_apart(&self) -> bool {
        self.breaker.differ()
    }

    /// From when on the breaker lets calls of a caller pass; none where that is not known.
    pub(crate) fn passes_from(&self, now: Instant, caller: Option<u64>) -> Option<Instant> {
        match self.breaker.admit(now, caller) {
            Admit::Now => Some(now),
            Admit::At { at, .. } => Some(at),
            Admit::OnRelease { .. } => None,
        }
    }

    /// Has a failing server tested by the next call of that caller. Returns whether that would have had to wait.
    pub(crate) fn test_now(&mut self, caller: Option<u64>) -> bool {
        self.breaker.test_now(caller)
    }

    /// Whether calls of that caller fail, and of no other.
    pub(crate) fn fails_alone(&self, caller: Option<u64>) -> bool {
        self.breaker.fails_alone(caller)
    }

    /// Whether an item was told to wait again while most others succeeded: it has a limit of its own, or is refused for good.
    pub(crate) fn is_told_alone(&self, item: u64) -> bool {
        self.learnt.is_bad(item)
    }

    /// Whether such an item lets others leave first now.
    pub(crate) fn told_wait(&self) -> bool {
        self.learns_from_refusals() && !self.is_turn_of_told()
    }

    const fn is_turn_of_told(&self) -> bool {
        self.totals.sends.is_multiple_of(TOLD_AGAIN)
    }

    /// Whether everything is refused, so that one call will go first.
    pub(crate) fn is_closed(&self) -> bool {
        !self.gate.is_open()
    }

    /// A call of that item was refused; `again`: the server has told it to wait before.
    pub(crate) fn was_refused(&mut self, item: u64, again: bool) {
        if !self.gate.is_open() {
            self.gate.was_refused(again);
            self.learnt.closed_by(item);
        }
    }

    /// A call was refused because of the pace, and told to wait or not.
    pub(crate) fn was_throttled(&mut self, now: Instant, hint: Option<&Hint>) {
        let told = hint.filter(|hint| hint.is_long()).map(|hint| hint.wait);
        self.breaker.all_mut().refused(now, told);
        if let Some(hint) = hint {
            self.gate.was_asked(hint);
        }
    }

    /// Whether calls of items that failed before take half of so many places, or of its own. They may hang again.
    pub(crate) fn repeats_enough(&self, places: u32) -> bool {
        self.repeats > 0 && 2 * (self.repeats + 1) > places.min(self.in_flight.limit())
    }

    /// Whether a request that was told to wait lets others leave first now. After a wait in vain only others show whether the
    /// server or the request is at fault, and from then on it leaves as some calls only. So does one that was told a wait of a
    /// second or less: that is our own pause, which each such test would make longer.
    pub(crate) fn told_lets_others_go(&self) -> bool {
        let is_at_fault = (self.gate.was_in_vain() || self.gate.rounds()) && !self.is_turn_of_told();
        (self.gate.is_in_vain() || is_at_fault) && self.learns_from_refusals()
    }

    /// Such a request tests the scope where no other has come meanwhile.
    #[inline(always)]
    pub(super) fn lets_others_test(&self, now: Instant, ask: &Ask<'_>) -> Admit {
        if !ask.was_told || self.gate.is_open() || !self.told_lets_others_go() {
            return Admit::Now;
        }
        Admit::at(self.gate.until() + OTHERS_COME, now, || WaitCause::Gate { cause: self.gate.cause() })
    }
}
