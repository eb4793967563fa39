//! Whether the calls of a scope are answered, which decides how many places it may take.

use super::Scope;
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

    /// How many of its calls keep places that mute scopes share.
    pub(crate) const fn held_mutely(&self) -> u32 {
        if self.is_mute() { self.in_flight.now() } else { 0 }
    }
}
