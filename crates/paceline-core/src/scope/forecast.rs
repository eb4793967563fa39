//! Forecasts of a start within one scope: the known wait, and an estimate behind others.

use core::time::Duration;

use super::Scope;
use crate::admit::{Admit, MaxWait, WaitCause};
use crate::config::Pace;
use crate::cost::Cost;
use crate::time::Instant;

impl Scope {
    /// The scope's known wait for a call of that cost, of the kinds that `counts` includes: only an input to the scope changes
    /// it.
    pub(crate) fn known_wait(&self, now: Instant, counts: MaxWait, cost: &Cost, caller: Option<u64>) -> Admit {
        let closed = Admit::at(self.gate.until(), now, || WaitCause::Gate { cause: self.gate.cause() });
        let paused = self.hold.admit(now).strictest(closed);
        match counts {
            MaxWait::Pause(_) => paused,
            MaxWait::Known(_) => {
                let tested = Admit::at(self.breaker.open_until(caller).unwrap_or(now), now, || WaitCause::Breaker);
                paused.strictest(tested).strictest(self.quotas.earliest_room(now, cost, &self.out))
            }
        }
    }

    /// Estimates when a call of that cost may leave behind `ahead` others, the first of which leaves at `start`: by the
    /// configured and announced limits and the learnt rate.
    pub(crate) fn forecast(&self, now: Instant, start: Instant, cost: &Cost, ahead: u64) -> Instant {
        let calls = ahead.saturating_add(1);
        let configured = self.quotas.forecast(now, cost, calls).max(start);
        if self.pace != Pace::Auto {
            return configured;
        }
        let paced = match self.learnt.acting_rate() {
            Some(rate) => start + Duration::try_from_secs_f64(ahead as f64 / rate).unwrap_or(Duration::MAX),
            None => start,
        };
        self.announced.iter().fold(configured.max(paced), |at, limit| {
            let units = cost.get(&limit.dimension).saturating_mul(calls);
            at.max(limit.forecast(now, units, self.spent.get(&limit.dimension)))
        })
    }
}
