//! Calls that leave later than they were granted. Buckets are left as they are: they are refilled while a caller is late.

use super::Quotas;
use super::counter::Counter;
use crate::cost::Cost;
use crate::time::Instant;

impl Quotas {
    /// Whether all of them still count what a call took then.
    pub(crate) fn counts(&self, taken: Instant, now: Instant, cost: &Cost) -> bool {
        self.counted(cost).all(|(counter, _)| counter.counts(taken, now))
    }

    /// What a call took then, and what still counts, counts as of now. Returns whether that changes anything.
    pub(crate) fn postpone(&mut self, taken: Instant, now: Instant, cost: &Cost) -> bool {
        let mut changed = false;
        self.each(|quota, counter| changed |= counter.postpone(taken, now, cost.get(&quota.dimension)));
        changed
    }

    /// What still counts of a call counts no longer.
    pub(crate) fn forgo(&mut self, taken: Instant, now: Instant, cost: &Cost) {
        self.each(|quota, counter| {
            if !counter.is_bucket() && counter.counts(taken, now) {
                counter.refund(taken, cost.get(&quota.dimension));
            }
        });
    }

    /// Whether a call that was granted before fits into the windows now.
    pub(crate) fn has_room(&self, now: Instant, cost: &Cost) -> bool {
        self.counted(cost).all(|(counter, units)| counter.is_bucket() || counter.fits_at(now, units) <= now)
    }

    /// The windows count it again.
    pub(crate) fn count_anew(&mut self, now: Instant, cost: &Cost) {
        self.each(|quota, counter| {
            if !counter.is_bucket() {
                counter.take(now, cost.get(&quota.dimension));
            }
        });
    }
}

impl Counter {
    fn counts(&self, taken: Instant, now: Instant) -> bool {
        match self {
            Self::Sliding(window) => window.counts(taken, now),
            Self::Fixed(window) => window.current(now).0.is_some_and(|start| taken >= start),
            Self::Bucket(_) => true,
        }
    }

    fn postpone(&mut self, taken: Instant, now: Instant, units: u64) -> bool {
        match self {
            Self::Sliding(window) if units > 0 => window.postpone(taken, now, units),
            // A fixed window counts the same to its end, whenever in it a call leaves.
            Self::Sliding(_) | Self::Fixed(_) | Self::Bucket(_) => false,
        }
    }
}
