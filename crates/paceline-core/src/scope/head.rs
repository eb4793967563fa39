//! What decides which request of a scope leaves next.

use super::Scope;
use crate::admit::Admit;
use crate::config::Pace;
use crate::time::Instant;

/// A request that was told to wait twice leaves as each such call at most, while others wait.
const TOLD_AGAIN: u64 = 8;

impl Scope {
    /// Whether the server may be down: one of the last calls failed.
    pub(crate) const fn may_be_down(&self) -> bool {
        self.breaker.all().has_just_failed()
    }

    /// Whether one call at a time tests its server.
    pub(crate) fn is_down(&self) -> bool {
        self.breaker.all().is_testing()
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
