//! The limiters of a provider: token bucket, fixed window, the same with a part of the one before, and sliding log, exact to the
//! nanosecond and the unit.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::{Dimension, Instant, Quota, QuotaShape};

use crate::schedule::Schedule;
use crate::weighed::Weighed;

/// One limit that a provider enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelLimit {
    /// What is counted, how much, per which window, and how it comes back.
    pub quota: Quota,
    /// Where the fixed windows begin, counted from the origin of time; they repeat every `quota.window`. Default:
    /// none, a window begins with the first call after the last one ended. Other shapes ignore it.
    pub phase: Option<Duration>,
    /// Whether refused calls enter the sliding log too, while it holds less than twice the limit, so that retries
    /// keep it full. Default: no. Other shapes ignore it.
    pub counts_refused: bool,
    /// Whether a fixed window counts what came in the one before too, by the part of that which a whole window back from now
    /// reaches, and refused calls, as HAProxy does. Default: no. Other shapes ignore it.
    pub weighs: bool,
}

impl From<Quota> for ModelLimit {
    fn from(quota: Quota) -> Self {
        Self { quota, phase: None, counts_refused: false, weighs: false }
    }
}

/// What response headers can announce about one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitState {
    /// What is counted.
    pub dimension: Dimension,
    /// The most that can be left: a bucket's burst, a window's limit.
    pub limit: u64,
    /// Whole units left.
    pub remaining: u64,
    /// Time until everything is left again: until the bucket is full, the fixed window ends or the newest entry of the
    /// log leaves.
    pub reset: Duration,
    /// Units that come back per `window`, also for a bucket.
    pub per_window: u64,
    /// The period of the limit.
    pub window: Duration,
}

/// A limit and what it has seen. Every question assumes that [`Limiter::advance`] brought it to the present.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    limit: ModelLimit,
    memory: Memory,
    /// What the schedule multiplies the limit with now; for a fixed window, at its start.
    factor: f64,
    /// Units per window at present.
    present: u64,
}

#[derive(Clone, Debug)]
enum Memory {
    /// `level` counts units times the window's nanoseconds, so that refilling needs no division and loses nothing.
    Bucket {
        burst: u64,
        level: u128,
        flowed: u64,
    },
    Fixed {
        used: u64,
        end: Option<Instant>,
    },
    Weighed(Weighed),
    Sliding(Log),
}

/// The units of a sliding window. Each entry has the sum of all units up to it, so that the one whose leaving makes room
/// is found by bisection: a log under many clients is read far more often than it changes.
#[derive(Clone, Debug, Default)]
struct Log {
    entries: VecDeque<(Instant, u64)>,
    /// The sum of all units that have left.
    left: u64,
}

impl Limiter {
    /// A limiter that has seen no call; a bucket is full.
    pub(crate) fn new(limit: ModelLimit) -> Self {
        let memory = match limit.quota.shape {
            QuotaShape::Bucket { burst } => {
                let level = u128::from(burst) * limit.quota.window.as_nanos();
                Memory::Bucket { burst, level, flowed: 0 }
            }
            QuotaShape::Fixed if limit.weighs => Memory::Weighed(Weighed::default()),
            QuotaShape::Fixed => Memory::Fixed { used: 0, end: None },
            QuotaShape::Sliding => Memory::Sliding(Log::default()),
        };
        let present = limit.quota.limit;
        Self { limit, memory, factor: 1.0, present }
    }

    pub(crate) const fn dimension(&self) -> &Dimension {
        &self.limit.quota.dimension
    }

    /// The most units that one call can ever get.
    pub(crate) const fn largest(&self) -> u64 {
        match self.memory {
            Memory::Bucket { burst, .. } => burst,
            Memory::Fixed { .. } | Memory::Weighed(_) | Memory::Sliding(_) => self.limit.quota.limit,
        }
    }

    /// How long the configured limit takes to bring so many units back.
    pub(crate) fn seconds(&self, units: u64) -> f64 {
        units as f64 * self.limit.quota.window.as_secs_f64() / self.limit.quota.limit as f64
    }

    /// What a polite client leaves to others.
    pub(crate) const fn reserve(&self) -> u64 {
        match self.memory {
            Memory::Bucket { burst, .. } => burst / 4,
            Memory::Fixed { .. } | Memory::Weighed(_) | Memory::Sliding(_) => self.present / 50,
        }
    }

    /// Refills and forgets up to `now`.
    pub(crate) fn advance(&mut self, now: Instant, schedule: &Schedule) {
        let Quota { limit, window, .. } = self.limit.quota;
        let mut begins = true;
        match &mut self.memory {
            Memory::Bucket { burst, level, flowed } => {
                let present = schedule.flowed(now);
                let refilled = u128::from(present.saturating_sub(*flowed)) * u128::from(limit);
                *level = level.saturating_add(refilled).min(u128::from(*burst) * window.as_nanos());
                *flowed = present;
            }
            Memory::Fixed { used, end } => {
                begins = end.is_none_or(|end| end <= now);
                if begins {
                    *used = 0;
                    *end = self.limit.phase.map(|phase| end_of_window(now, phase, window));
                }
            }
            Memory::Weighed(weighed) => weighed.turn(now, window),
            Memory::Sliding(log) => log.forget(now, window),
        }
        if begins && *schedule != Schedule::Constant {
            self.factor = schedule.factor(now);
            self.present = schedule.scale(now, limit);
        }
    }

    /// Time until `units` fit if no other client takes any; zero when they fit now, none when they never will.
    pub(crate) fn wait(&self, now: Instant, units: u64) -> Option<Duration> {
        let quota = &self.limit.quota;
        if units > self.largest() {
            return None;
        }
        let wait = match &self.memory {
            Memory::Bucket { level, .. } => {
                let missing = (u128::from(units) * quota.window.as_nanos()).saturating_sub(*level);
                self.refilled_in(missing)
            }
            Memory::Fixed { used, end } => match end {
                Some(end) if used + units > self.present => *end - now,
                _ => Duration::ZERO,
            },
            Memory::Weighed(weighed) => weighed.wait(now, (self.present, quota.window), units),
            Memory::Sliding(log) => {
                let excess = (log.held() + units).saturating_sub(self.present);
                log.leaves(excess).map_or(Duration::ZERO, |at| (at + quota.window) - now)
            }
        };
        Some(wait)
    }

    /// Takes units that fit.
    pub(crate) fn take(&mut self, now: Instant, units: u64) {
        let window = self.limit.quota.window;
        match &mut self.memory {
            Memory::Bucket { level, .. } => *level -= u128::from(units) * window.as_nanos(),
            Memory::Fixed { used, end } => {
                *used += units;
                end.get_or_insert(now + window);
            }
            Memory::Weighed(weighed) => weighed.enter(now, window, units),
            Memory::Sliding(log) => log.enter(now, units),
        }
    }

    /// Notes a call that the provider refused.
    pub(crate) fn refuse(&mut self, now: Instant, units: u64) {
        let Quota { limit, window, .. } = self.limit.quota;
        match &mut self.memory {
            Memory::Weighed(weighed) => weighed.enter(now, window, units),
            Memory::Sliding(log) if self.limit.counts_refused && log.held() < limit.saturating_mul(2) => {
                log.enter(now, units);
            }
            _ => {}
        }
    }

    pub(crate) fn state(&self, now: Instant) -> LimitState {
        let Quota { dimension, window, .. } = &self.limit.quota;
        let present = self.present;
        let (remaining, reset) = match &self.memory {
            Memory::Bucket { burst, level, .. } => {
                let missing = u128::from(*burst) * window.as_nanos() - level;
                let remaining = u64::try_from(level / window.as_nanos()).expect("a level is at most the burst");
                (remaining, self.refilled_in(missing))
            }
            Memory::Fixed { used, end } => (present.saturating_sub(*used), end.map_or(Duration::ZERO, |end| end - now)),
            Memory::Weighed(weighed) => {
                let reset = weighed.end.map_or(Duration::ZERO, |end| end + *window - now);
                (present.saturating_sub(weighed.held(now, *window)), reset)
            }
            Memory::Sliding(log) => {
                let reset = log.entries.back().map_or(Duration::ZERO, |(at, _)| (*at + *window) - now);
                (present.saturating_sub(log.held()), reset)
            }
        };
        LimitState {
            dimension: dimension.clone(),
            limit: if let Memory::Bucket { burst, .. } = self.memory { burst } else { present },
            remaining,
            reset,
            per_window: present,
            window: *window,
        }
    }

    /// Time until so much of a bucket's level has come back, at the present rate.
    fn refilled_in(&self, missing: u128) -> Duration {
        let nanos = missing.div_ceil(u128::from(self.limit.quota.limit));
        if self.factor == 1.0 || nanos == 0 {
            return duration(nanos);
        }
        // Beyond a day no client waits for the rate to change.
        let seconds = nanos as f64 / self.factor / 1e9;
        Duration::try_from_secs_f64(seconds).map_or(DAY, |wait| wait.clamp(Duration::from_nanos(1), DAY))
    }
}

const DAY: Duration = Duration::from_secs(86_400);

impl Log {
    fn total(&self) -> u64 {
        self.entries.back().map_or(self.left, |(_, total)| *total)
    }

    fn held(&self) -> u64 {
        self.total() - self.left
    }

    /// Calls of the same instant share an entry; a call without units needs none.
    fn enter(&mut self, now: Instant, units: u64) {
        let total = self.total() + units;
        match self.entries.back_mut() {
            Some((at, sum)) if *at == now => *sum = total,
            _ if units > 0 => self.entries.push_back((now, total)),
            _ => {}
        }
    }

    fn forget(&mut self, now: Instant, window: Duration) {
        while let Some((at, total)) = self.entries.front().copied()
            && at + window <= now
        {
            self.left = total;
            self.entries.pop_front();
        }
    }

    /// When the call came whose leaving leaves room for so many units; none when nothing has to leave.
    fn leaves(&self, units: u64) -> Option<Instant> {
        if units == 0 {
            return None;
        }
        let index = self.entries.partition_point(|(_, total)| *total < self.left + units);
        self.entries.get(index).or(self.entries.back()).map(|(at, _)| *at)
    }
}

/// The end of the window around `now` when windows begin at `phase` and every `window` before and after.
fn end_of_window(now: Instant, phase: Duration, window: Duration) -> Instant {
    let (now, window) = (u128::from(now.as_nanos()), window.as_nanos());
    let offset = phase.as_nanos() % window;
    let end = (now + window - offset) / window * window + offset;
    Instant::from_nanos(u64::try_from(end).unwrap_or(u64::MAX))
}

pub(crate) fn duration(nanos: u128) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: Duration = Duration::from_secs(1);

    fn quota(limit: u64, window: Duration, shape: QuotaShape) -> Quota {
        Quota { dimension: Dimension::Requests, limit, window, shape }
    }

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    fn offer(limiter: &mut Limiter, now: Instant, units: u64) -> bool {
        limiter.advance(now, &Schedule::Constant);
        let fits = limiter.wait(now, units) == Some(Duration::ZERO);
        if fits {
            limiter.take(now, units)
        } else {
            limiter.refuse(now, units)
        }
        fits
    }

    /// The admitted calls of a random stream; checks on the way that every wait is exact.
    fn admitted(limit: ModelLimit, calls: &[(u64, u64)]) -> Vec<(Instant, u64)> {
        let mut limiter = Limiter::new(limit);
        let mut now = Instant::ZERO;
        let mut admitted = Vec::new();
        for &(gap, units) in calls {
            now += Duration::from_nanos(gap);
            limiter.advance(now, &Schedule::Constant);
            match limiter.wait(now, units) {
                Some(Duration::ZERO) => {
                    limiter.take(now, units);
                    admitted.push((now, units));
                }
                Some(wait) => {
                    assert!(offer(&mut limiter.clone(), now + wait, units), "refused after the wait it named");
                    let early = wait - Duration::from_nanos(1);
                    assert!(!offer(&mut limiter.clone(), now + early, units), "the wait was too long");
                }
                None => assert!(units > limiter.largest()),
            }
        }
        admitted
    }

    fn units(calls: &[(Instant, u64)]) -> u64 {
        calls.iter().map(|(_, units)| units).sum()
    }

    fn streams() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((prop_oneof![0u64..300, 0u64..30], 0u64..12), 1..200)
    }

    proptest! {
        #[test]
        fn a_bucket_gives_at_most_its_burst_and_what_flowed_in(
            calls in streams(), limit in 1u64..20, window in 1u64..1_000, burst in 1u64..30,
        ) {
            let quota = quota(limit, Duration::from_nanos(window), QuotaShape::Bucket { burst });
            let admitted = admitted(quota.into(), &calls);
            for first in 0..admitted.len() {
                for last in first..admitted.len() {
                    let elapsed = (admitted[last].0 - admitted[first].0).as_nanos();
                    let beyond = u128::from(units(&admitted[first..=last]).saturating_sub(burst));
                    prop_assert!(beyond * u128::from(window) <= elapsed * u128::from(limit));
                }
            }
        }

        #[test]
        fn no_stretch_of_a_window_holds_more_than_a_sliding_limit(
            calls in streams(), limit in 1u64..20, window in 1u64..1_000,
        ) {
            let window = Duration::from_nanos(window);
            let admitted = admitted(quota(limit, window, QuotaShape::Sliding).into(), &calls);
            for first in 0..admitted.len() {
                let inside = admitted[first..].iter().take_while(|(at, _)| *at < admitted[first].0 + window).count();
                prop_assert!(units(&admitted[first..first + inside]) <= limit);
            }
        }

        /// Two windows that follow on each other hold no more than twice the limit, and every wait is exact.
        #[test]
        fn a_window_with_a_part_of_the_one_before_holds_no_more_than_its_limit(
            calls in streams(), limit in 1u64..20, window in 1u64..1_000,
        ) {
            let window = Duration::from_nanos(window);
            let weighed = ModelLimit { weighs: true, ..quota(limit, window, QuotaShape::Fixed).into() };
            let admitted = admitted(weighed, &calls);
            for first in 0..admitted.len() {
                let inside = admitted[first..].iter().take_while(|(at, _)| *at < admitted[first].0 + window).count();
                prop_assert!(units(&admitted[first..first + inside]) <= 2 * limit);
            }
        }

        #[test]
        fn no_calendar_window_holds_more_than_a_fixed_limit(
            calls in streams(), limit in 1u64..20, window in 1u64..1_000, phase in 0u64..3_000,
        ) {
            let fixed = quota(limit, Duration::from_nanos(window), QuotaShape::Fixed);
            let phased = ModelLimit { phase: Some(Duration::from_nanos(phase)), ..fixed.into() };
            let admitted = admitted(phased, &calls);
            let number = |at: Instant| (at.as_nanos() + window - phase % window) / window;
            for same in admitted.chunk_by(|a, b| number(a.0) == number(b.0)) {
                prop_assert!(units(same) <= limit);
            }
        }
    }

    #[test]
    fn a_bucket_of_ten_per_second_after_its_burst() {
        let mut bucket = Limiter::new(quota(600, 60 * S, QuotaShape::Bucket { burst: 10 }).into());
        assert_eq!((0..12).filter(|_| offer(&mut bucket, at(0.0), 1)).count(), 10);
        assert_eq!(bucket.wait(at(0.0), 1), Some(Duration::from_millis(100)));
        assert_eq!(bucket.wait(at(0.0), 11), None);
        let state = bucket.state(at(0.0));
        assert_eq!((state.limit, state.remaining, state.reset, state.per_window), (10, 0, S, 600));
        bucket.advance(at(3600.0), &Schedule::Constant);
        assert_eq!(bucket.state(at(3600.0)).remaining, 10, "an idle hour stores no more than the burst");
    }

    #[test]
    fn a_fixed_window_starts_with_its_first_call_or_at_its_phase() {
        let fixed = quota(2, 10 * S, QuotaShape::Fixed);
        let mut first_call = Limiter::new(fixed.clone().into());
        let mut phased = Limiter::new(ModelLimit { phase: Some(7 * S), ..fixed.into() });
        for limiter in [&mut first_call, &mut phased] {
            assert!(offer(limiter, at(5.0), 2));
            assert!(!offer(limiter, at(6.0), 1));
        }
        assert_eq!(first_call.wait(at(6.0), 1), Some(9 * S));
        assert_eq!(first_call.state(at(6.0)).reset, 9 * S);
        assert_eq!(phased.wait(at(6.0), 1), Some(S));
        assert!(offer(&mut phased, at(7.0), 1) && offer(&mut first_call, at(15.0), 1));
        assert_eq!(first_call.state(at(15.0)).remaining, 1);
    }

    #[test]
    fn an_entry_leaves_the_log_a_window_after_it_came() {
        let mut log = Limiter::new(quota(3, 10 * S, QuotaShape::Sliding).into());
        assert!(offer(&mut log, at(0.0), 1) && offer(&mut log, at(4.0), 2));
        let mut observed = |seconds| {
            log.advance(at(seconds), &Schedule::Constant);
            let state = log.state(at(seconds));
            (state.remaining, state.reset)
        };
        assert_eq!([observed(9.0), observed(10.0), observed(14.0)], [(0, 5 * S), (1, 4 * S), (3, Duration::ZERO)]);
    }

    #[test]
    fn a_log_that_counts_refusals_stays_shut_while_a_client_knocks() {
        let counting = ModelLimit { counts_refused: true, ..quota(2, 10 * S, QuotaShape::Sliding).into() };
        let mut log = Limiter::new(counting);
        assert!(offer(&mut log, at(0.0), 2));
        assert!(!offer(&mut log, at(5.0), 1) && !offer(&mut log, at(6.0), 1));
        assert!(!offer(&mut log, at(7.0), 1), "it holds twice the limit: this one is not counted");
        assert!(!offer(&mut log, at(10.5), 1), "the refusals at 5 and 6 s fill it; this one is counted");
        assert!(offer(&mut log, at(16.5), 1));
    }
}
