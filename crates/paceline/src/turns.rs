//! A limiter that takes turns with those of other processes under the same limits, and counts what they sent.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Instant, NewerState, Pacer, Request};

use crate::clock;
use crate::limiter::Limiter;
use crate::state::LimiterState;

impl Limiter {
    /// Grants nothing until [`take_turn`](Self::take_turn), so that a limiter of another process can use the same configured
    /// limits. Calls in flight go on, and waiting callers go on waiting, with the cause
    /// [`WaitCause::Turn`](crate::WaitCause::Turn). The program then passes [`own_windows`](Self::own_windows) to the other
    /// limiters.
    pub fn yield_turn(&self) {
        self.driver().act(Pacer::yield_turn);
    }

    /// Grants again. `others` are the [`own_windows`](Self::own_windows) of all other limiters: they count beside the calls of
    /// this one, in place of those of the last turn. The program has to ensure that one limiter at a time has the turn, for
    /// example with a locked file.
    ///
    /// # Errors
    /// A state of a later version than this program knows; then nothing has changed.
    pub fn take_turn(&self, others: &[LimiterState]) -> Result<(), NewerState> {
        let wall = clock::wall();
        // Both times are cut to milliseconds: no age is overstated.
        let age = |at| wall.saturating_since(at).saturating_sub(Duration::from_millis(1));
        let others: Vec<_> = others.iter().map(|other| (other.pacer.clone(), age(other.at))).collect();
        self.driver().act(|pacer, now| pacer.take_turn(now, &others))
    }

    /// When the next request fits, if it waits for room under a configured limit and this limiter has sent none in its turn. A
    /// limiter that yields before that may starve a large request: others take the room as soon as there is some.
    pub fn waits_for_room(&self) -> Option<Instant> {
        self.driver().look(|state, now| state.pacer.waits_for_room(now))
    }

    /// The units of this limiter's own calls under its configured limits, for the other limiters of the account; none where
    /// they have not changed since the last export.
    pub fn own_windows(&self) -> Option<LimiterState> {
        self.driver().act(Pacer::own_windows).map(LimiterState::now)
    }

    /// Has `note` hear of each call before it leaves, for a program that keeps what counts over a kill. Those who send say that a
    /// call leaves ([`Permit::departs`](crate::Permit::departs)), as `paceline-http` does. It takes the place of one that was
    /// named before, and runs where the call is sent, outside of the limiter's lock.
    pub fn note_departures(&self, note: impl Fn(&Request) + Send + Sync + 'static) {
        self.driver().departures.name(Arc::new(note));
    }
}
