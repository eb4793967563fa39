//! What decides which request of a scope leaves next.

use super::Scope;
use crate::config::Pace;

/// A request that was told to wait twice leaves as each such call at most, while others wait.
const TOLD_AGAIN: u64 = 8;

impl Scope {
    /// Whether the server may be down: one of the last calls failed.
    pub(crate) const fn may_be_down(&self) -> bool {
        self.breaker.has_just_failed()
    }

    /// Whether one call at a time tests its server.
    pub(crate) fn is_down(&self) -> bool {
        self.breaker.is_testing()
    }

    /// Whether the pace is learnt and a call was refused: what is refused next may be due to the rate or to the item.
    pub(crate) fn learns_from_refusals(&self) -> bool {
        self.pace == Pace::Auto && self.learnt.was_refused()
    }

    /// Whether an item failed again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64) -> bool {
        self.breaker.is_bad(item)
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

    /// A call of that item was refused; `again`: the server has told it to wait before.
    pub(crate) fn was_refused(&mut self, item: u64, again: bool) {
        if !self.gate.is_open() {
            self.gate.was_refused(again);
            self.learnt.closed_by(item);
        }
    }

    /// Whether calls of items that failed before take half of so many places, or of its own. They may hang again.
    pub(crate) fn repeats_enough(&self, places: u32) -> bool {
        self.repeats > 0 && 2 * (self.repeats + 1) > places.min(self.in_flight.limit())
    }

    /// How often a request may have been told to wait that leaves next, if others wait. After a wait in vain that is one that
    /// was not: only that shows whether the server or the request is at fault. For some calls it is one that was told once.
    pub(crate) fn told_at_most(&self) -> Option<u32> {
        let told = match () {
            () if self.gate.is_in_vain() => 0,
            () if self.gate.was_in_vain() && !self.is_turn_of_told() => 1,
            () => return None,
        };
        self.learns_from_refusals().then_some(told)
    }
}
