//! Whether the calls of a scope are answered, which decides how many places it may take.

use super::Scope;
use crate::flight::Flight;
use crate::places::Held;
use crate::snapshot::ScopeAnswers;
use crate::time::Instant;

/// What decides about a place for a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asks {
    /// The places that calls like it hold.
    pub(crate) held: u32,
    /// The last of them waited for its answer in vain.
    pub(crate) is_mute: bool,
    /// One of them has been answered, and the last one did not wait in vain.
    pub(crate) is_proven: bool,
}

impl Scope {
    /// Whether its calls in flight are not answered.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.in_flight.now() > 0 && self.answers.are_missing(now)
    }

    /// Whether its last call waited for its answer in vain.
    pub(crate) const fn is_mute(&self) -> bool {
        self.answers.is_mute()
    }

    /// Whether it has answered, and its last call did not wait in vain.
    pub(crate) const fn is_proven(&self) -> bool {
        self.answers.are_proven()
    }

    /// Takes what was known before of its answers, where nothing is yet.
    pub(crate) fn recall_answers(&mut self, known: ScopeAnswers) {
        self.answers.recall(known);
    }

    /// The places that its calls keep, if they may not be answered: all, or those of callers whose calls alone are not.
    #[inline(always)]
    pub(crate) fn held_places(&self) -> Held {
        let (calls, of_mute_callers) = (self.in_flight.now(), self.breaker.all_held_in_vain());
        Held {
            mute: if self.is_mute() { calls } else { of_mute_callers },
            unproven: if self.is_proven() { of_mute_callers } else { calls },
        }
    }

    /// How it asks for a place for a call of that caller: one whose calls are not answered asks as a scope of its own, while
    /// others are answered, or where one or two alone wait in vain. Then the others of the scope ask as if it were new.
    pub(crate) fn asks_for_place(&self, caller: Option<u64>) -> Asks {
        let (held, are_few) = (self.in_flight.now(), self.breaker.few_wait_in_vain());
        match self.breaker.held_in_vain(caller) {
            Some(held) if are_few || !self.is_mute() => Asks { held, is_mute: true, is_proven: false },
            None if are_few && caller.is_some() && self.is_mute() => Asks { held, is_mute: false, is_proven: false },
            _ => Asks { held, is_mute: self.is_mute(), is_proven: self.is_proven() },
        }
    }

    /// A call failed, where other scopes may come.
    pub(crate) fn waited(&mut self, now: Instant, flight: &Flight) {
        self.breaker.waited(now, flight.caller, now - flight.sent);
    }
}
