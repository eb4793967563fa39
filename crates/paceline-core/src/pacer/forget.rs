//! Scopes that sleep and know nothing worth keeping are forgotten: a program may name a million in a day.

use core::time::Duration;

use super::Pacer;
use super::agenda::Wants;
use crate::time::Instant;

/// How often a scope is asked whether it may be forgotten.
const ROUND: Duration = Duration::from_mins(5);

/// So many scopes are asked in one input at most: no input pays for all.
const AT_ONCE: usize = 4;

impl Pacer {
    /// Asks the scopes whose turn it is. Each has one place in the round.
    pub(super) fn forget_some(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            let Some((_, place)) = self.round.pop_front_if(|(due, _)| *due <= now) else { return };
            if self.scopes[place].is_worth_nothing(now) {
                self.agenda.set(place, Wants::default());
                self.failing.remove(&place);
                self.scopes.remove(place);
            } else {
                self.round.push_back((now + ROUND, place));
            }
        }
    }

    /// A new scope takes part in the round.
    pub(super) fn ask_later(&mut self, place: u32) {
        self.round.push_back((self.now + ROUND, place));
    }
}
