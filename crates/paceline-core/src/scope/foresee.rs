//! When a call of a scope may leave, as far as that can be foretold.

use core::time::Duration;

use super::Scope;
use crate::config::Pace;
use crate::cost::Cost;
use crate::time::Instant;

impl Scope {
    /// When a call of that cost may leave at the earliest, whatever its calls in flight give back: after the pause that the
    /// server asked for, and once its windows have room.
    pub(crate) fn certain_start(&self, now: Instant, cost: &Cost) -> Instant {
        self.quotas.full_until(now, cost, &self.out).max(self.gate.closed_until(now).unwrap_or(now))
    }

    /// When a call of that cost may leave behind so many others, of which the first leaves at `start`: an estimate, by what is
    /// configured, announced and learnt.
    pub(crate) fn passes_at(&self, now: Instant, start: Instant, cost: &Cost, ahead: u64) -> Instant {
        let calls = ahead.saturating_add(1);
        let configured = self.quotas.passes_at(now, cost, calls).max(start);
        if self.pace != Pace::Auto {
            return configured;
        }
        let paced = match self.learnt.acting_rate() {
            Some(rate) => start + Duration::try_from_secs_f64(ahead as f64 / rate).unwrap_or(Duration::MAX),
            None => start,
        };
        self.announced.iter().fold(configured.max(paced), |at, limit| {
            let units = cost.get(&limit.dimension).saturating_mul(calls);
            at.max(limit.passes_at(now, units, self.spent.get(&limit.dimension)))
        })
    }
}
