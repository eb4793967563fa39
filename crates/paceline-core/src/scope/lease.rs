//! Calls whose outcomes are not reported.

use super::Scope;
use crate::config::Pace;
use crate::cost::Cost;
use crate::time::Instant;

impl Scope {
    /// Whether nothing but configured limits depends on how many calls leave: every other pace follows from each call.
    pub(crate) fn only_counts(&self) -> bool {
        match self.pace {
            Pace::Fixed | Pace::None => true,
            Pace::Auto => self.learnt.acting_rate().is_none() && self.announced.is_empty(),
            Pace::Aimd | Pace::Responsive | Pace::Linear | Pace::Exponential => false,
        }
    }

    /// So many calls have left that are not in flight: their outcomes are not reported.
    pub(crate) fn count_calls(&mut self, now: Instant, cost: &Cost, calls: u64) {
        self.last += calls;
        self.learnt.counted(now, calls);
        self.quotas.count_calls(now, cost, calls);
    }
}
