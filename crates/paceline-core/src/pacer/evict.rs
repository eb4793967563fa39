//! Eviction of idle scopes without state worth keeping: a program may name a million scopes in a day.

use core::time::Duration;

use super::Pacer;
use super::agenda::Wants;
use crate::time::Instant;

/// How often a scope is checked for eviction.
const CHECK_INTERVAL: Duration = Duration::from_mins(5);

/// At most so many scopes are checked per input: no input pays for all.
const CHECKS_PER_INPUT: usize = 4;

impl Pacer {
    /// Checks the scopes that are due. Each has one entry in the queue.
    pub(super) fn evict_idle(&mut self, now: Instant) {
        for _ in 0..CHECKS_PER_INPUT {
            if self.eviction_queue.front().is_none_or(|(due, _)| *due > now) {
                return;
            }
            let Some((_, place)) = self.eviction_queue.pop_front() else { return };
            if self.scopes[place].is_evictable(now) {
                self.agenda.set(place, Wants::default());
                self.failing.remove(&place);
                self.scopes.remove(place);
            } else {
                self.eviction_queue.push_back((now + CHECK_INTERVAL, place));
            }
        }
    }

    /// Queues a new scope for its first check.
    pub(super) fn schedule_eviction(&mut self, place: u32) {
        self.eviction_queue.push_back((self.now + CHECK_INTERVAL, place));
    }
}
