//! Configured limits: how many units may leave in a period.
//!
//! Each counter answers when a cost fits, without changing anything, and takes it only when told to. All arithmetic is
//! on integers: nothing drifts, and the same history gives the same answer everywhere.

use alloc::collections::VecDeque;
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::time::Duration;

use crate::admit::{Admit, Policy};
use crate::config::{ConfigError, Limits, Quota, Shape};
use crate::cost::{Cost, Dimension};
use crate::time::{Instant, nanos};

/// A window is divided into so many slots at most: entries of one slot are merged and counted at its end. It bounds
/// the state of a window at any rate to about half a megabyte, and its error to 1 ms a minute.
const SLOTS: u64 = 60_000;

/// Larger limits are refused: sums stay far from the edge of the integers.
const LARGEST_LIMIT: u64 = 1 << 48;

/// The longest window, a year: no limit is known to count longer.
const LONGEST_WINDOW: Duration = Duration::from_secs(366 * 86_400);

/// The burst is spread over windows of at most a minute; longer ones only count.
const LONGEST_BURST_WINDOW: Duration = Duration::from_secs(60);

/// A request that can never start: it alone exceeds a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// What is counted.
    pub dimension: Dimension,
    /// What the request costs.
    pub cost: u64,
    /// What the limit allows at once.
    pub limit: u64,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dimension, cost, limit } = self;
        write!(f, "the request costs {cost} {dimension}, the limit is {limit}: it can never start")
    }
}

impl core::error::Error for TooLarge {}

/// All configured limits of an account or a tier; they hold together.
#[derive(Clone, Debug)]
pub(crate) struct Quotas {
    counters: Vec<(Quota, Counter)>,
    burst: Option<TokenBucket>,
    /// A window made somebody wait since the last call left.
    full: bool,
}

impl Quotas {
    pub(crate) fn new(limits: &Limits) -> Result<Self, ConfigError> {
        let mut counters = Vec::with_capacity(limits.quotas.len());
        for quota in &limits.quotas {
            check(quota)?;
            counters.push((quota.clone(), Counter::new(quota)));
        }
        Ok(Self { counters, burst: burst(limits)?, full: false })
    }

    /// Replaces the limits; what was used stays used where dimension and window are the same.
    pub(crate) fn reconfigure(&mut self, limits: &Limits) -> Result<(), ConfigError> {
        let mut next = Self::new(limits)?;
        for (quota, counter) in &mut next.counters {
            let same =
                |known: &&mut (Quota, Counter)| known.0.dimension == quota.dimension && known.0.window == quota.window;
            if let Some((_, known)) = self.counters.iter_mut().find(same) {
                counter.inherit(known);
            }
        }
        if let (Some(next), Some(known)) = (&mut next.burst, &self.burst) {
            next.inherit(known);
        }
        *self = next;
        Ok(())
    }

    pub(crate) fn too_large(&self, cost: &Cost) -> Option<TooLarge> {
        self.counters.iter().find_map(|(quota, _)| {
            let limit = match quota.shape {
                Shape::Bucket { burst } => burst,
                Shape::Sliding | Shape::Fixed => quota.limit,
            };
            let units = cost.get(&quota.dimension);
            (units > limit).then(|| TooLarge { dimension: quota.dimension.clone(), cost: units, limit })
        })
    }

    pub(crate) fn admit(&self, now: Instant, cost: &Cost) -> Admit {
        let requests = cost.get(&Dimension::Requests);
        let spacing = match &self.burst {
            Some(burst) if requests > 0 => Admit::at(burst.fits_at(now, 1), now, || Policy::Burst),
            _ => Admit::Now,
        };
        self.counters.iter().fold(spacing, |strictest, (quota, counter)| {
            let at = counter.fits_at(now, cost.get(&quota.dimension));
            strictest.strictest(Admit::at(at, now, || Policy::Quota {
                dimension: quota.dimension.clone(),
                limit: quota.limit,
                window: quota.window,
            }))
        })
    }

    /// Somebody waits because a window is full. That is a pause, not idling: when the window turns, what was sent at
    /// its beginning must not come back as a burst on top of the end of the last one.
    pub(crate) fn note_full(&mut self) {
        self.full = true;
    }

    /// Takes what [`Quotas::admit`] allowed.
    pub(crate) fn take(&mut self, now: Instant, cost: &Cost) {
        if core::mem::take(&mut self.full) {
            self.forget_burst(now);
        }
        if let Some(burst) = &mut self.burst
            && cost.get(&Dimension::Requests) > 0
        {
            burst.take(now, 1);
        }
        for (quota, counter) in &mut self.counters {
            counter.take(now, cost.get(&quota.dimension));
        }
    }

    /// Replaces what was reserved at `taken` by what it really was. Less gives units back; more is debt.
    pub(crate) fn settle(&mut self, now: Instant, taken: Instant, reserved: &Cost, actual: &Cost) {
        for (quota, counter) in &mut self.counters {
            let (reserved, actual) = (reserved.get(&quota.dimension), actual.get(&quota.dimension));
            if actual > reserved {
                counter.take(now, actual - reserved);
            } else if reserved > actual {
                counter.refund(taken, reserved - actual);
            }
        }
    }

    /// After a pause the work leaves at the refill rate: the stored burst is forgotten, but for one request.
    pub(crate) fn forget_burst(&mut self, now: Instant) {
        if let Some(burst) = &mut self.burst {
            burst.keep_at_most(now, 1);
        }
    }

    /// The counters with their quotas, for snapshots.
    pub(crate) fn counters(&self) -> impl Iterator<Item = (&Quota, &Counter)> {
        self.counters.iter().map(|(quota, counter)| (quota, counter))
    }

    /// Whole requests that may leave at once, and how many that can be at most.
    pub(crate) fn burst_left(&self, now: Instant) -> Option<(u64, u64)> {
        self.burst.as_ref().map(|bucket| (bucket.units(now), bucket.burst))
    }
}

fn check(quota: &Quota) -> Result<(), ConfigError> {
    let wrong = |value, expected| Err(ConfigError { key: format!("limit on {}", quota.dimension), value, expected });
    if quota.limit == 0 || quota.limit > LARGEST_LIMIT {
        return wrong(format!("{}", quota.limit), "a whole number from 1 to 2^48");
    }
    if quota.window.is_zero() || quota.window > LONGEST_WINDOW {
        return wrong(format!("{:?}", quota.window), "a window of more than 0 and at most 366 days");
    }
    if let Shape::Bucket { burst } = quota.shape
        && (burst == 0 || burst > LARGEST_LIMIT)
    {
        return wrong(format!("a burst of {burst}"), "a burst from 1 to 2^48");
    }
    Ok(())
}

/// The bucket that spaces requests: refilled evenly over the shortest request window of at most a minute.
fn burst(limits: &Limits) -> Result<Option<TokenBucket>, ConfigError> {
    if limits.burst == Some(0) {
        return Err(ConfigError { key: "burst".into(), value: "0".into(), expected: "a whole number of at least 1" });
    }
    let shortest = limits
        .quotas
        .iter()
        .filter(|quota| quota.dimension == Dimension::Requests && quota.shape == Shape::Sliding)
        .filter(|quota| quota.window <= LONGEST_BURST_WINDOW)
        .min_by_key(|quota| (quota.window, quota.limit));
    Ok(shortest.map(|quota| {
        let default = || (u128::from(quota.limit) * 1_000_000_000).div_ceil(quota.window.as_nanos()) as u64;
        let burst = limits.burst.unwrap_or_else(default).min(quota.limit);
        TokenBucket::new(quota.limit, quota.window, burst)
    }))
}

/// The state behind one quota.
#[derive(Clone, Debug)]
pub(crate) enum Counter {
    Sliding(SlidingWindow),
    Fixed(FixedWindow),
    Bucket(TokenBucket),
}

impl Counter {
    fn new(quota: &Quota) -> Self {
        match quota.shape {
            Shape::Sliding => Self::Sliding(SlidingWindow::new(quota.limit, quota.window)),
            Shape::Fixed => Self::Fixed(FixedWindow::new(quota.limit, quota.window)),
            Shape::Bucket { burst } => Self::Bucket(TokenBucket::new(quota.limit, quota.window, burst)),
        }
    }

    /// The earliest instant, from `now` on, at which `units` fit.
    pub(crate) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        match self {
            _ if units == 0 => now,
            Self::Sliding(window) => window.fits_at(now, units),
            Self::Fixed(window) => window.fits_at(now, units),
            Self::Bucket(bucket) => bucket.fits_at(now, units),
        }
    }

    /// Units counted now.
    pub(crate) fn used(&self, now: Instant) -> u64 {
        match self {
            Self::Sliding(window) => window.used(now),
            Self::Fixed(window) => window.current(now).1,
            Self::Bucket(bucket) => bucket.burst.saturating_sub(bucket.units(now)),
        }
    }

    fn take(&mut self, now: Instant, units: u64) {
        match self {
            _ if units == 0 => {}
            Self::Sliding(window) => window.take(now, units),
            Self::Fixed(window) => window.take(now, units),
            Self::Bucket(bucket) => bucket.take(now, units),
        }
    }

    fn refund(&mut self, taken: Instant, units: u64) {
        match self {
            Self::Sliding(window) => window.refund(taken, units),
            Self::Fixed(window) => window.refund(taken, units),
            Self::Bucket(bucket) => bucket.refund(units),
        }
    }

    fn inherit(&mut self, known: &mut Self) {
        match (self, known) {
            (Self::Sliding(next), Self::Sliding(known)) => {
                let limit = next.limit;
                core::mem::swap(next, known);
                next.limit = limit;
            }
            (Self::Fixed(next), Self::Fixed(known)) => (next.start, next.used) = (known.start, known.used),
            (Self::Bucket(next), Self::Bucket(known)) => next.inherit(known),
            _ => {}
        }
    }
}

/// Exactly: never more than `limit` in any window. Units are kept in slots, in order, and leave one window after the
/// end of their slot.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    limit: u64,
    window: u64,
    slot: u64,
    entries: VecDeque<Entry>,
    used: u64,
    last: Instant,
}

/// Units taken in one slot. The slot's number is kept modulo 2^32: no entry ever gets that old.
#[derive(Clone, Copy, Debug)]
struct Entry {
    slot: u32,
    units: u32,
}

impl SlidingWindow {
    fn new(limit: u64, window: Duration) -> Self {
        let window = nanos(window);
        let slot = (window / SLOTS).max(1);
        Self { limit, window, slot, entries: VecDeque::new(), used: 0, last: Instant::ZERO }
    }

    fn used(&self, now: Instant) -> u64 {
        let gone: u64 = self.expired(now).map(|entry| u64::from(entry.units)).sum();
        self.used - gone
    }

    fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let now = now.max(self.last);
        let mut used = self.used;
        for entry in &self.entries {
            if used + units <= self.limit {
                break;
            }
            used -= u64::from(entry.units);
            let leaves = self.leaves(*entry);
            if leaves > now && used + units <= self.limit {
                return leaves;
            }
        }
        now
    }

    fn take(&mut self, now: Instant, units: u64) {
        let now = now.max(self.last);
        let expired = self.expired(now).count();
        for entry in self.entries.drain(..expired) {
            self.used -= u64::from(entry.units);
        }
        self.last = now;
        self.used += units;
        let slot = self.slot_of(now);
        let mut left = units;
        if let Some(newest) = self.entries.back_mut()
            && newest.slot == slot
        {
            let merged = left.min(u64::from(u32::MAX - newest.units));
            newest.units += merged as u32;
            left -= merged;
        }
        while left > 0 {
            let units = left.min(u64::from(u32::MAX));
            self.entries.push_back(Entry { slot, units: units as u32 });
            left -= units;
        }
    }

    /// Gives back units of the slot in which they were taken; units that have left the window are gone anyway.
    fn refund(&mut self, taken: Instant, units: u64) {
        if self.last - taken > Duration::from_nanos(self.window) {
            return;
        }
        let slot = self.slot_of(taken);
        let newest = self.slot_of(self.last);
        let age = newest.wrapping_sub(slot);
        let first = self.entries.partition_point(|entry| newest.wrapping_sub(entry.slot) > age);
        let mut left = units;
        for entry in self.entries.range_mut(first..).take_while(|entry| entry.slot == slot) {
            let back = left.min(u64::from(entry.units));
            entry.units -= back as u32;
            self.used -= back;
            left -= back;
        }
    }

    fn slot_of(&self, at: Instant) -> u32 {
        (at.as_nanos() / self.slot) as u32
    }

    fn expired(&self, now: Instant) -> impl Iterator<Item = &Entry> {
        let now = now.max(self.last);
        self.entries.iter().take_while(move |entry| self.leaves(**entry) <= now)
    }

    /// When an entry stops counting. Ages are taken against the newest entry, so that they stay small however long
    /// nothing happened.
    fn leaves(&self, entry: Entry) -> Instant {
        let newest = self.last.as_nanos() / self.slot;
        let age = u64::from((newest as u32).wrapping_sub(entry.slot));
        let slot_end = (newest - age + 1).saturating_mul(self.slot);
        Instant::from_nanos(slot_end.saturating_add(self.window))
    }
}

/// A counter that starts with the first unit and is reset one window later. Debt goes into the next window.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    limit: u64,
    window: Duration,
    start: Option<Instant>,
    used: u64,
}

impl FixedWindow {
    const fn new(limit: u64, window: Duration) -> Self {
        Self { limit, window, start: None, used: 0 }
    }

    /// The window that `now` lies in (none: it would begin now) and the units used in it.
    fn current(&self, now: Instant) -> (Option<Instant>, u64) {
        let Some(start) = self.start else { return (None, 0) };
        let windows = (now - start).as_nanos() / self.window.as_nanos();
        if windows == 0 {
            return (Some(start), self.used);
        }
        let paid = u128::from(self.limit).saturating_mul(windows);
        let debt = u128::from(self.used).saturating_sub(paid) as u64;
        let started = Instant::from_nanos(start.as_nanos() + (windows * self.window.as_nanos()) as u64);
        ((debt > 0).then_some(started), debt)
    }

    fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let (start, used) = self.current(now);
        let Some(start) = start else { return now };
        if used + units <= self.limit {
            return now;
        }
        let windows = (used + units - self.limit).div_ceil(self.limit).max(1);
        let wait = self.window.as_nanos().saturating_mul(u128::from(windows));
        start + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn take(&mut self, now: Instant, units: u64) {
        let (start, used) = self.current(now);
        self.start = Some(start.unwrap_or(now));
        self.used = used + units;
    }

    fn refund(&mut self, taken: Instant, units: u64) {
        if self.start.is_some_and(|start| taken >= start) {
            self.used = self.used.saturating_sub(units);
        }
    }
}

/// Refilled continuously with `limit` units per window, at most `burst` of them stored. The level is kept in units
/// times nanoseconds of the window, so that refill is exact; debt makes it negative.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    limit: u64,
    window: u64,
    burst: u64,
    level: i128,
    at: Instant,
}

impl TokenBucket {
    fn new(limit: u64, window: Duration, burst: u64) -> Self {
        let window = nanos(window);
        Self { limit, window, burst, level: i128::from(burst) * i128::from(window), at: Instant::ZERO }
    }

    fn level(&self, now: Instant) -> i128 {
        let refill = (now - self.at).as_nanos() as i128 * i128::from(self.limit);
        (self.level + refill).min(i128::from(self.burst) * i128::from(self.window))
    }

    fn units(&self, now: Instant) -> u64 {
        (self.level(now).max(0) / i128::from(self.window)) as u64
    }

    fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let missing = i128::from(units) * i128::from(self.window) - self.level(now);
        if missing <= 0 {
            return now;
        }
        let wait = missing.unsigned_abs().div_ceil(u128::from(self.limit));
        now.max(self.at) + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    fn take(&mut self, now: Instant, units: u64) {
        self.level = self.level(now) - i128::from(units) * i128::from(self.window);
        self.at = self.at.max(now);
    }

    fn refund(&mut self, units: u64) {
        let full = i128::from(self.burst) * i128::from(self.window);
        self.level = (self.level + i128::from(units) * i128::from(self.window)).min(full);
    }

    fn keep_at_most(&mut self, now: Instant, units: u64) {
        self.level = self.level(now).min(i128::from(units) * i128::from(self.window));
        self.at = self.at.max(now);
    }

    /// The same share of the burst is left as was before.
    fn inherit(&mut self, known: &Self) {
        let full = i128::from(self.burst) * i128::from(self.window);
        if self.window == known.window {
            self.level = known.level.min(full);
        }
        self.at = known.at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, prop_assert_eq, proptest};

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    fn counter(shape: Shape, limit: u64, window: Duration) -> Counter {
        Counter::new(&Quota { dimension: Dimension::Tokens, limit, window, shape })
    }

    #[test]
    fn a_million_requests_a_minute_need_less_than_a_megabyte() {
        let mut window = SlidingWindow::new(1_000_000, 60 * S);
        for n in 0..3_000_000u64 {
            let now = Instant::from_nanos(n * 60_000);
            assert!(window.fits_at(now, 1) <= now + Duration::from_millis(2));
            window.take(window.fits_at(now, 1), 1);
        }
        assert!(window.entries.capacity() * size_of::<Entry>() < 1_000_000);
    }

    #[test]
    fn a_window_forgets_exactly_one_window_later() {
        let mut counter = counter(Shape::Sliding, 2, 60 * S);
        counter.take(at(0.0), 1);
        counter.take(at(10.0), 1);
        let slot = Duration::from_millis(1);
        assert_eq!(counter.fits_at(at(10.0), 1), at(60.0) + slot);
        assert_eq!(counter.fits_at(at(10.0), 2), at(70.0) + slot);
        assert_eq!(counter.fits_at(at(86_400.0 * 365.0), 2), at(86_400.0 * 365.0));
    }

    #[test]
    fn settling_gives_back_or_makes_debt() {
        for shape in [Shape::Sliding, Shape::Fixed, Shape::Bucket { burst: 100 }] {
            let mut less = counter(shape, 100, 60 * S);
            less.take(at(0.0), 100);
            less.refund(at(0.0), 40);
            assert_eq!(less.fits_at(at(0.0), 40), at(0.0), "{shape:?}");
            assert!(less.fits_at(at(0.0), 41) > at(0.0), "{shape:?}");
            let mut more = counter(shape, 100, 60 * S);
            more.take(at(0.0), 100);
            more.take(at(0.0), 150);
            assert!(more.fits_at(at(59.0), 1) > at(60.0 - 1e-9), "{shape:?}: debt waits");
        }
    }

    #[test]
    fn debt_of_a_fixed_window_goes_into_the_next_ones() {
        let mut window = FixedWindow::new(100, 60 * S);
        window.take(at(5.0), 250);
        assert_eq!(window.fits_at(at(5.0), 1), at(125.0), "two windows pay 200, the third has 50 left");
        assert_eq!(window.fits_at(at(5.0), 50), at(125.0));
        assert_eq!(window.fits_at(at(5.0), 51), at(185.0));
        assert_eq!(window.current(at(125.0)), (Some(at(125.0)), 50));
    }

    #[test]
    fn a_bucket_refills_without_rounding() {
        let mut bucket = TokenBucket::new(7, 60 * S, 3);
        let mut now = at(0.0);
        for _ in 0..3 + 7 * 100 {
            now = bucket.fits_at(now, 1);
            bucket.take(now, 1);
        }
        assert!(now >= at(6_000.0) && now < at(6_000.0) + Duration::from_micros(1), "700 refills take 100 minutes");
    }

    #[test]
    fn the_burst_belongs_to_the_shortest_request_window_of_at_most_a_minute() {
        let hour = Quota::sliding(Dimension::Requests, 1_000, 3_600 * S);
        let minute = Quota::requests_per_minute(50);
        let burst_of = |quotas: Vec<Quota>, burst| {
            let quotas = Quotas::new(&Limits { quotas, burst }).expect("sensible");
            quotas.burst.map(|bucket| (bucket.burst, bucket.limit))
        };
        assert_eq!(burst_of(alloc::vec![hour.clone(), minute.clone()], None), Some((1, 50)));
        assert_eq!(burst_of(alloc::vec![minute.clone()], Some(10)), Some((10, 50)));
        assert_eq!(burst_of(alloc::vec![Quota::requests_per_minute(600)], None), Some((10, 600)));
        assert_eq!(burst_of(alloc::vec![hour], None), None, "5 per hour may leave at once");
        assert!(Quotas::new(&Limits { quotas: alloc::vec![minute], burst: Some(0) }).is_err());
    }

    #[test]
    fn impossible_quotas_are_refused() {
        for quota in [
            Quota::requests_per_minute(0),
            Quota::requests_per_minute(LARGEST_LIMIT + 1),
            Quota::sliding(Dimension::Requests, 1, Duration::ZERO),
            Quota::sliding(Dimension::Requests, 1, LONGEST_WINDOW + S),
            Quota { shape: Shape::Bucket { burst: 0 }, ..Quota::requests_per_minute(1) },
        ] {
            assert!(check(&quota).is_err(), "{quota:?}");
        }
    }

    /// Steps of (time passed in ms, units wanted, refund afterwards).
    type Steps = Vec<(u64, u64, bool)>;

    fn steps() -> impl proptest::strategy::Strategy<Value = Steps> {
        proptest::collection::vec((0u64..4_000, 1u64..40, proptest::bool::ANY), 1..200)
    }

    proptest! {
        /// Against a list of everything: the answer is the earliest time at which it fits, within one slot.
        #[test]
        fn a_sliding_window_agrees_with_a_naive_log(steps in steps()) {
            let (limit, window) = (100, 10 * S);
            let slot = Duration::from_nanos(nanos(window) / SLOTS);
            let mut counter = counter(Shape::Sliding, limit, window);
            let mut log: Vec<(Instant, u64)> = Vec::new();
            let mut now = Instant::ZERO;
            let used = |log: &Vec<(Instant, u64)>, at: Instant, slack: Duration| -> u64 {
                log.iter().filter(|(t, _)| *t + window + slack > at).map(|(_, units)| units).sum()
            };
            for (passed, units, refund) in steps {
                now += Duration::from_millis(passed);
                let fits = counter.fits_at(now, units);
                prop_assert_eq!(fits, counter.fits_at(now, units));
                prop_assert!(used(&log, fits, Duration::ZERO) + units <= limit, "fits at {} but does not", fits);
                if fits > now {
                    let before = fits.saturating_sub(slot + slot);
                    prop_assert!(before < now || used(&log, before, Duration::ZERO) + units > limit, "fits before {}", fits);
                }
                now = fits;
                counter.take(now, units);
                prop_assert!(counter.used(now) <= limit);
                if refund {
                    counter.refund(now, units);
                } else {
                    log.push((now, units));
                }
                prop_assert!(counter.used(now) >= used(&log, now, Duration::ZERO));
                prop_assert!(counter.used(now) <= used(&log, now, slot));
            }
        }

        /// Never more than the burst and the refill over any span.
        #[test]
        fn a_bucket_never_gives_more_than_burst_and_refill(steps in steps()) {
            let mut bucket = TokenBucket::new(100, 10 * S, 40);
            let mut log: Vec<(Instant, u64)> = Vec::new();
            let mut now = Instant::ZERO;
            for (passed, units, _) in steps {
                now = bucket.fits_at(now + Duration::from_millis(passed), units);
                bucket.take(now, units);
                log.push((now, units));
                let mut given = 0;
                for (from, units) in log.iter().rev() {
                    given += units;
                    prop_assert!(u128::from(given) * 10_000_000_000 <= 40 * 10_000_000_000 + (now - *from).as_nanos() * 100);
                }
            }
        }

        /// Between two resets never more than the limit.
        #[test]
        fn a_fixed_window_never_exceeds_its_limit(steps in steps()) {
            let mut window = FixedWindow::new(100, 10 * S);
            let (mut now, mut start, mut used) = (Instant::ZERO, Instant::ZERO, 0);
            for (passed, units, _) in steps {
                now = window.fits_at(now + Duration::from_millis(passed), units);
                window.take(now, units);
                if used == 0 || now - start >= 10 * S {
                    (start, used) = (now, 0);
                }
                used += units;
                prop_assert!(used <= 100);
            }
        }
    }
}
