//! Whether the calls of a scope are answered, which decides how many places it may take.

use super::Scope;
use crate::places::Held;
use crate::snapshot::ScopeAnswers;
use crate::time::Instant;

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

    /// The places that its calls keep, if they may not be answered.
    pub(crate) const fn held_places(&self) -> Held {
        self.held_by(self.in_flight.now())
    }

    /// The same for so many of its calls.
    pub(crate) const fn held_by(&self, calls: u32) -> Held {
        Held { mute: if self.is_mute() { calls } else { 0 }, unproven: if self.is_proven() { 0 } else { calls } }
    }
}
