//! The token bucket.

use core::time::Duration;

use super::LARGEST_LIMIT;
use crate::config::Quota;
use crate::cost::Dimension;
use crate::time::{Instant, LATE, nanos};

/// Refilled continuously with `limit` units per window, at most `burst` of them stored. The level is kept in units
/// times nanoseconds of the window, so that refill is exact; debt makes it negative.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    pub(super) limit: u64,
    window: u64,
    pub(super) burst: u64,
    level: i128,
    at: Instant,
}

impl TokenBucket {
    pub(super) fn new(limit: u64, window: Duration, burst: u64) -> Self {
        let window = nanos(window);
        Self { limit, window, burst, level: i128::from(burst) * i128::from(window), at: Instant::ZERO }
    }

    /// Whether it spaces the requests that this quota counts.
    pub(super) fn refines(&self, quota: &Quota) -> bool {
        quota.dimension == Dimension::Requests && (self.limit, self.window) == (quota.limit, nanos(quota.window))
    }

    /// The same with no more than one unit left.
    pub(super) fn emptied(&self, now: Instant) -> Self {
        let mut emptied = self.clone();
        emptied.keep_at_most(now, 1);
        emptied
    }

    pub(super) fn level(&self, now: Instant) -> i128 {
        let refill = (now - self.at).as_nanos() as i128 * i128::from(self.limit);
        (self.level + refill).min(i128::from(self.burst) * i128::from(self.window))
    }

    pub(super) fn units(&self, now: Instant) -> u64 {
        (self.level(now).max(0) / i128::from(self.window)) as u64
    }

    /// Units missing to a full bucket, a partial one rounded up, and how long ago so many were missing; more than the burst in
    /// debt.
    pub(super) fn missing(&self, now: Instant) -> (Duration, u64) {
        let window = u128::from(self.window);
        let missing = (i128::from(self.burst) * i128::from(self.window) - self.level(now)).unsigned_abs();
        let units = missing.div_ceil(window);
        let ago = (units * window - missing) / u128::from(self.limit);
        (Duration::from_nanos(ago as u64), units as u64)
    }

    pub(super) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let missing = i128::from(units) * i128::from(self.window) - self.level(now);
        if missing <= 0 {
            return now;
        }
        let wait = missing.unsigned_abs().div_ceil(u128::from(self.limit));
        now.max(self.at) + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    pub(super) fn take(&mut self, now: Instant, units: u64) {
        let debt = i128::from(LARGEST_LIMIT) * i128::from(self.window);
        self.level = (self.level(now) - i128::from(units) * i128::from(self.window)).max(-debt);
        self.at = self.at.max(now);
    }

    /// Takes units that were wanted earlier already. What had been refilled by then is spent as of then, so that a late
    /// timer costs nothing of the rate: as of at most [`LATE`] ago, and never before they were wanted, so that after idling
    /// no more than the burst leaves at once.
    pub(super) fn take_wanted(&mut self, now: Instant, wanted: Instant, units: u64) {
        let due = self.fits_at(self.at, units);
        self.take(due.max(wanted).max(now.saturating_sub(LATE)).min(now), units);
    }

    pub(super) fn refund(&mut self, units: u64) {
        let full = i128::from(self.burst) * i128::from(self.window);
        self.level = (self.level + i128::from(units) * i128::from(self.window)).min(full);
    }

    pub(super) fn keep_at_most(&mut self, now: Instant, units: u64) {
        self.level = self.level(now).min(i128::from(units) * i128::from(self.window));
        self.at = self.at.max(now);
    }

    /// Of two levels the lower one counts.
    pub(super) fn join(&mut self, now: Instant, other: &Self) {
        self.level = self.level(now).min(other.level(now));
        self.at = self.at.max(now);
    }

    /// As many units are left as were before, at most the burst. Debt stays.
    pub(super) fn inherit(&mut self, now: Instant, known: &Self) {
        let full = i128::from(self.burst) * i128::from(self.window);
        let (level, window) = (known.level(now), i128::from(known.window));
        // Units and their remainder apart, so that no product leaves the integers.
        let units = level.div_euclid(window) * i128::from(self.window);
        let part = level.rem_euclid(window) * i128::from(self.window) / window;
        self.level = (units + part).min(full);
        self.at = known.at.max(now);
    }
}
