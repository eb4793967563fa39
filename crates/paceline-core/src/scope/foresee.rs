//! When a call of a scope may leave, as far as that can be foretold.

use core::time::Duration;

use super::Scope;
use crate::admit::{Admit, MaxWait, WaitCause};
use crate::config::Pace;
use crate::cost::Cost;
use crate::time::Instant;

impl Scope {
    /// What of the scope certainly keeps a call of that cost out, of all that `counts`: nothing but an input to the scope changes
    /// that.
    pub(crate) fn shut(&self, now: Instant, counts: MaxWait, cost: &Cost) -> Admit {
        let closed = Admit::at(self.gate.until(), now, || WaitCause::Gate { cause: self.gate.cause() });
        let paused = self.hold.admit(now).strictest(closed);
        match counts {
            MaxWait::Pause(_) => paused,
            MaxWait::Known(_) => {
                let tested = Admit::at(self.breaker.open_until().unwrap_or(now), now, || WaitCause::Breaker);
                paused.strictest(tested).strictest(self.quotas.full(now, cost, &self.out))
            }
        }
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
