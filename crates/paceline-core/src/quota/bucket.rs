//! The token bucket.

use core::time::Duration;

use super::{LARGEST_LIMIT, check};
use crate::admit::{Admit, WaitCause};
use crate::config::{Limits, Quota, QuotaShape};
use crate::cost::Dimension;
use crate::time::{Instant, LATE, nanos};

/// A token bucket for each of many keys, on requests: the limit alone, which all of them share. What one key has is a
/// [`BucketLevel`].
///
/// ```
/// use paceline_core::{BucketLevel, BucketRule, Instant, Limits, Quota};
///
/// let rule = BucketRule::of(&Quota::per_second(10).burst(2).into()).expect("one bucket on requests");
/// let mut level = BucketLevel::default();
/// assert!(rule.try_take(&mut level, Instant::ZERO).is_now());
/// assert!(rule.try_take(&mut level, Instant::ZERO).is_now());
/// assert!(!rule.try_take(&mut level, Instant::ZERO).is_now(), "the next in a tenth of a second");
/// assert!(rule.is_full(level, Instant::from_nanos(200_000_000)));
/// assert!(BucketRule::of(&Quota::per_second(0).burst(2).into()).is_none(), "a limit is at least 1");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BucketRule {
    /// The limit and the window in nanoseconds without their common factor: the levels of most rules are small numbers so.
    limit: u64,
    window: u64,
    factor: u64,
    burst: u64,
}

/// What is left in a bucket, in 16 bytes, or in 8 where the rule [leaves room](BucketRule::has_short_levels). The default is a
/// full one.
///
/// It is the time at which the bucket is full again, in nanoseconds times the units of a window, so that refill is exact.
///
/// ```
/// use paceline_core::{BucketLevel, BucketRule, Instant, Limits, Quota};
///
/// let rule = |quota: Quota| BucketRule::of(&Limits::from(quota)).expect("one bucket on requests");
/// let ten = rule(Quota::per_second(10).burst(2));
/// assert!(ten.has_short_levels(Instant::ZERO) && !rule(Quota::per_second(7).burst(2)).has_short_levels(Instant::ZERO));
/// let mut level = BucketLevel::default();
/// assert!(ten.try_take(&mut level, Instant::ZERO).is_now());
/// assert_eq!(BucketLevel::from_short(level.short()), level);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketLevel([u64; 2]);

impl BucketLevel {
    const fn full_at(self) -> u128 {
        (self.0[0] as u128) << 64 | self.0[1] as u128
    }

    const fn new(full_at: u128) -> Self {
        Self([(full_at >> 64) as u64, full_at as u64])
    }

    /// In 8 bytes, where its rule leaves room. A debt that is not paid for a century is cut to one.
    pub fn short(self) -> u64 {
        u64::try_from(self.full_at()).unwrap_or(u64::MAX)
    }

    /// The level of those 8 bytes.
    pub const fn from_short(short: u64) -> Self {
        Self([0, short])
    }
}

/// A century, in nanoseconds.
const CENTURY: u64 = 36_525 * 86_400 * 1_000_000_000;

impl BucketRule {
    /// The rule, if that is all that the limits are: one valid bucket, which counts requests.
    pub fn of(limits: &Limits) -> Option<Self> {
        let [quota] = &*limits.quotas else { return None };
        check(quota).ok()?;
        match *quota {
            Quota { dimension: Dimension::Requests, limit, window, shape: QuotaShape::Bucket { burst } } => {
                Some(Self::new(limit, window, burst))
            }
            _ => None,
        }
    }

    fn new(limit: u64, window: Duration, burst: u64) -> Self {
        let window = nanos(window);
        let factor = common_factor(limit, window);
        Self { limit: limit / factor, window: window / factor, factor, burst }
    }

    /// Whether its levels fit into 8 bytes for a century after `now`: those of 1, 2, 5, 10, 100 or 1,000 units a second, or of 60
    /// a minute, but not of 7 or of 11, nor where the burst is refilled in centuries.
    pub fn has_short_levels(self, now: Instant) -> bool {
        let latest = now + Duration::from_nanos(CENTURY);
        self.refilled(latest) + self.scaled(self.burst) < u128::from(u64::MAX)
    }

    /// The limit and its window as they were configured.
    const fn configured(self) -> (u64, Duration) {
        (self.limit * self.factor, Duration::from_nanos(self.window * self.factor))
    }

    /// Takes one request; if it does not fit yet, the answer says when, and nothing has changed.
    pub fn try_take(self, level: &mut BucketLevel, now: Instant) -> Admit {
        let at = self.fits_at(*level, now, 1);
        if at > now {
            let (limit, window) = self.configured();
            return Admit::At { at, cause: WaitCause::Quota { dimension: Dimension::Requests, limit, window } };
        }
        self.take(level, now, 1);
        Admit::Now
    }

    /// Whether as much is left as there can be: the key can be forgotten.
    pub fn is_full(self, level: BucketLevel, now: Instant) -> bool {
        self.missing(level, now) == 0
    }

    /// So many units times nanoseconds are missing to a full bucket.
    fn missing(self, level: BucketLevel, now: Instant) -> u128 {
        level.full_at().saturating_sub(self.refilled(now))
    }

    /// What would have been refilled since the origin.
    fn refilled(self, now: Instant) -> u128 {
        u128::from(now.as_nanos()) * u128::from(self.limit)
    }

    fn scaled(self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.window)
    }

    /// When as much is missing as leaves room for so many units: perhaps long ago.
    #[cold]
    fn due(self, level: BucketLevel, units: u64) -> Instant {
        let full_at = (level.full_at() + self.scaled(units)).saturating_sub(self.scaled(self.burst));
        Instant::from_nanos(u64::try_from(full_at.div_ceil(u128::from(self.limit))).unwrap_or(u64::MAX))
    }

    #[inline(always)]
    fn fits_at(self, level: BucketLevel, now: Instant, units: u64) -> Instant {
        let fits = self.missing(level, now) + self.scaled(units) <= self.scaled(self.burst);
        if fits { now } else { self.due(level, units).max(now) }
    }

    /// Debt is bounded, and paid by later refill.
    #[inline(always)]
    fn take(self, level: &mut BucketLevel, now: Instant, units: u64) {
        let most = self.scaled(self.burst) + self.scaled(LARGEST_LIMIT);
        *level = BucketLevel::new(self.refilled(now) + (self.missing(*level, now) + self.scaled(units)).min(most));
    }
}

/// The greatest common divisor (Euclid), at least 1.
fn common_factor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a.max(1), b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Refilled continuously with `limit` units per window, at most `burst` of them stored; debt makes it negative.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    rule: BucketRule,
    level: BucketLevel,
}

impl TokenBucket {
    pub(super) fn new(limit: u64, window: Duration, burst: u64) -> Self {
        Self { rule: BucketRule::new(limit, window, burst), level: BucketLevel::default() }
    }

    pub(super) const fn burst(&self) -> u64 {
        self.rule.burst
    }

    #[cfg(test)]
    pub(super) const fn limit(&self) -> u64 {
        self.rule.configured().0
    }

    pub(super) const fn level(&self) -> BucketLevel {
        self.level
    }

    pub(super) const fn set_level(&mut self, level: BucketLevel) {
        self.level = level;
    }

    /// Whether it spaces the requests that this quota counts.
    pub(super) fn refines(&self, quota: &Quota) -> bool {
        quota.dimension == Dimension::Requests && self.rule.configured() == (quota.limit, quota.window)
    }

    /// The same with no more than one unit left.
    pub(super) fn emptied(&self, now: Instant) -> Self {
        let mut emptied = self.clone();
        emptied.keep_at_most(now, 1);
        emptied
    }

    pub(super) fn units(&self, now: Instant) -> u64 {
        let left = self.rule.scaled(self.rule.burst).saturating_sub(self.rule.missing(self.level, now));
        (left / u128::from(self.rule.window)) as u64
    }

    /// Units missing to a full bucket, a partial one rounded up, and how long ago so many were missing; more than the burst in
    /// debt.
    pub(super) fn missing(&self, now: Instant) -> (Duration, u64) {
        let missing = self.rule.missing(self.level, now);
        let units = missing.div_ceil(u128::from(self.rule.window)) as u64;
        let ago = (self.rule.scaled(units) - missing) / u128::from(self.rule.limit);
        (Duration::from_nanos(ago as u64), units)
    }

    #[inline(always)]
    pub(super) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        self.rule.fits_at(self.level, now, units)
    }

    #[inline(never)]
    pub(super) fn take(&mut self, now: Instant, units: u64) {
        self.rule.take(&mut self.level, now, units);
    }

    /// Takes units that were wanted earlier already. What had been refilled by then is spent as of then, so that a late
    /// timer costs nothing of the rate: as of at most [`LATE`] ago, and never before they were wanted, so that after idling
    /// no more than the burst leaves at once.
    pub(super) fn take_wanted(&mut self, now: Instant, wanted: Instant, units: u64) {
        let at = if wanted < now { self.late(now, wanted, units) } else { now };
        self.rule.take(&mut self.level, at, units);
    }

    #[cold]
    fn late(&self, now: Instant, wanted: Instant, units: u64) -> Instant {
        self.rule.due(self.level, units).max(wanted).max(now.saturating_sub(LATE)).min(now)
    }

    pub(super) fn refund(&mut self, units: u64) {
        self.level = BucketLevel::new(self.level.full_at().saturating_sub(self.rule.scaled(units)));
    }

    pub(super) fn keep_at_most(&mut self, now: Instant, units: u64) {
        let missing = self.rule.scaled(self.rule.burst.saturating_sub(units));
        self.level = BucketLevel::new(self.level.full_at().max(self.rule.refilled(now) + missing));
    }

    /// Of two levels the lower one counts.
    pub(super) fn join(&mut self, other: &Self) {
        self.level = BucketLevel::new(self.level.full_at().max(other.level.full_at()));
    }

    /// As many units are left as were before, at most the burst. Debt stays.
    pub(super) fn inherit(&mut self, now: Instant, known: &Self) {
        let (rule, window) = (self.rule, i128::from(known.rule.window));
        let left = |rule: BucketRule, missing: u128| rule.scaled(rule.burst) as i128 - missing as i128;
        let level = left(known.rule, known.rule.missing(known.level, now));
        // Units and their remainder apart, so that no product leaves the integers.
        let units = level.div_euclid(window) * i128::from(rule.window);
        let part = level.rem_euclid(window) * i128::from(rule.window) / window;
        let missing = (rule.scaled(rule.burst) as i128 - units - part).max(0).unsigned_abs();
        self.level = BucketLevel::new(rule.refilled(now) + missing);
    }
}
