//! How long to wait before the next try: a function of the attempt index and a random number.

use alloc::format;
use core::time::Duration;

use crate::error::ConfigError;
use crate::rng::Rng;
use crate::units::LONGEST_DURATION;

/// How the delay grows with the attempt index `k`, counted from 0. The cap comes before the jitter, and jitter only
/// shortens: no delay ever exceeds the cap, and the delays at the cap stay spread out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Growth {
    /// Always `delay`.
    Constant {
        /// The delay.
        delay: Duration,
    },
    /// `min(cap, step * (k + 1))`: 1, 2, 3, 4, 4 s for 1 s and 4 s.
    Linear {
        /// The first delay and what each further one adds.
        step: Duration,
        /// The longest delay before jitter.
        cap: Duration,
    },
    /// `min(cap, base * multiplier^k)`: 1, 2, 4, 8, 10, 10 s for 1 s, 2 and 10 s.
    Exponential {
        /// The first delay.
        base: Duration,
        /// At least 1.
        multiplier: f64,
        /// The longest delay before jitter.
        cap: Duration,
    },
}

/// What randomness does to the capped delay, so that clients that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Jitter {
    /// The delay as it is.
    None,
    /// Uniform in [0, delay].
    Full,
    /// Uniform in [delay / 2, delay].
    Equal,
    /// Uniform in [low x delay, high x delay], 0 <= low <= high <= 1.
    Between(f64, f64),
}

/// A growth and its jitter. Default: 500 ms doubling to 60 s, full jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// How the delay grows.
    pub growth: Growth,
    /// How it is spread.
    pub jitter: Jitter,
}

impl Default for Backoff {
    fn default() -> Self {
        let growth =
            Growth::Exponential { base: Duration::from_millis(500), multiplier: 2.0, cap: Duration::from_secs(60) };
        Self { growth, jitter: Jitter::Full }
    }
}

impl Backoff {
    /// The delay before try `k + 1`, jittered; never more than the cap.
    pub fn delay(&self, k: u32, rng: &mut Rng) -> Duration {
        self.delay_within(k, Duration::MAX, rng)
    }

    /// The same under a second cap, which comes before the jitter too.
    pub(crate) fn delay_within(&self, k: u32, most: Duration, rng: &mut Rng) -> Duration {
        let (low, high) = self.jitter.range();
        let capped = self.capped(k).min(most);
        if low == high && high == 1.0 {
            return capped;
        }
        let factor = low + (high - low) * rng.unit();
        capped.mul_f64(factor.clamp(0.0, 1.0)).min(capped)
    }

    /// The delay before jitter.
    pub fn capped(&self, k: u32) -> Duration {
        match self.growth {
            Growth::Constant { delay } => delay,
            Growth::Linear { step, cap } => step.saturating_mul(k.saturating_add(1)).min(cap),
            Growth::Exponential { base, multiplier, cap } => exponential(base, multiplier, cap, k),
        }
    }

    /// The first delay before jitter.
    pub(crate) const fn first(&self) -> Duration {
        match self.growth {
            Growth::Constant { delay } => delay,
            Growth::Linear { step, .. } => step,
            Growth::Exponential { base, .. } => base,
        }
    }

    /// The longest delay that can come out.
    pub fn cap(&self) -> Duration {
        match self.growth {
            Growth::Constant { delay } => delay,
            Growth::Linear { cap, .. } | Growth::Exponential { cap, .. } => cap,
        }
    }

    /// Checks the settings together.
    ///
    /// # Errors
    /// Names the first knob that does not: a base of 0 or above the cap, a multiplier below 1, jitter outside [0, 1].
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: alloc::string::String, expected| {
            Err(ConfigError { key: format!("retry.{key}"), value, expected })
        };
        let (first, cap) = match self.growth {
            Growth::Constant { delay } => (delay, delay),
            Growth::Linear { step, cap } => (step, cap),
            Growth::Exponential { base, multiplier, cap } => {
                if !(multiplier.is_finite() && multiplier >= 1.0) {
                    return wrong("multiplier", format!("{multiplier}"), "a finite number of at least 1");
                }
                (base, cap)
            }
        };
        let (low, high) = self.jitter.range();
        if first > cap || first.is_zero() {
            return wrong("base", format!("{first:?}"), "more than 0 and at most retry.cap");
        }
        if cap > LONGEST_DURATION {
            return wrong("cap", format!("{cap:?}"), "at most 366 days");
        }
        if !(0.0 <= low && low <= high && high <= 1.0) {
            return wrong("jitter", format!("[{low}, {high}]"), "[low, high] with 0 <= low <= high <= 1");
        }
        Ok(())
    }
}

impl Jitter {
    const fn range(self) -> (f64, f64) {
        match self {
            Self::None => (1.0, 1.0),
            Self::Full => (0.0, 1.0),
            Self::Equal => (0.5, 1.0),
            Self::Between(low, high) => (low, high),
        }
    }
}

/// Multiplies step by step: no power function, whose precision differs between platforms, and at most some thousand
/// steps for the smallest useful multiplier; one of exactly 1 never reaches the cap and needs none.
fn exponential(base: Duration, multiplier: f64, cap: Duration, k: u32) -> Duration {
    let cap_nanos = cap.as_nanos() as f64;
    let mut delay = base.as_nanos() as f64;
    for _ in 0..k {
        let grown = delay * multiplier;
        if delay >= cap_nanos || grown <= delay {
            break;
        }
        delay = grown;
    }
    if delay >= cap_nanos { cap } else { Duration::from_nanos(delay as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{prop_assert, proptest};

    const S: Duration = Duration::from_secs(1);

    fn seconds(growth: Growth, n: u32) -> alloc::vec::Vec<u64> {
        let backoff = Backoff { growth, jitter: Jitter::None };
        (0..n).map(|k| backoff.delay(k, &mut Rng::new(0)).as_secs()).collect()
    }

    #[test]
    fn a_second_cap_comes_before_the_jitter_too() {
        let mut rng = Rng::new(1);
        let waits: alloc::vec::Vec<_> = (0..100).map(|_| Backoff::default().delay_within(9, 5 * S, &mut rng)).collect();
        let early = waits.iter().filter(|wait| **wait < 5 * S / 2).count();
        assert!((30..70).contains(&early) && waits.iter().all(|wait| *wait < 5 * S), "{waits:?}");
    }

    #[test]
    fn the_three_growths() {
        assert_eq!(seconds(Growth::Constant { delay: S }, 3), [1, 1, 1]);
        assert_eq!(seconds(Growth::Linear { step: S, cap: 4 * S }, 5), [1, 2, 3, 4, 4]);
        let growth = Growth::Exponential { base: S, multiplier: 2.0, cap: 10 * S };
        assert_eq!(seconds(growth, 6), [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn delays_at_the_cap_are_spread_not_piled_up() {
        let growth = Growth::Exponential { base: S, multiplier: 2.0, cap: 60 * S };
        let backoff = Backoff { growth, jitter: Jitter::Between(0.1, 1.0) };
        let mut rng = Rng::new(1);
        let delays: alloc::vec::Vec<f64> = (0..1_000).map(|_| backoff.delay(10, &mut rng).as_secs_f64()).collect();
        assert!(delays.iter().all(|d| (6.0..=60.0).contains(d)));
        let tenths = |low: f64| delays.iter().filter(|d| (low..low + 5.4).contains(*d)).count();
        for tenth in 0..10 {
            let count = tenths(6.0 + 5.4 * f64::from(tenth));
            assert!((60..=140).contains(&count), "{count} delays in tenth {tenth}");
        }
    }

    #[test]
    fn a_cap_of_two_and_a_multiplier_of_one_point_one_hold() {
        let growth = Growth::Exponential { base: S, multiplier: 1.1, cap: 2 * S };
        let backoff = Backoff { growth, jitter: Jitter::None };
        assert_eq!(backoff.capped(1), Duration::from_millis(1_100));
        assert!((0..1_000).all(|k| backoff.capped(k) <= 2 * S));
        assert_eq!(backoff.capped(8), 2 * S);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let exponential = |base, multiplier, cap| Growth::Exponential { base, multiplier, cap };
        for (growth, jitter, key) in [
            (exponential(3 * S, 2.0, 2 * S), Jitter::Full, "retry.base"),
            (exponential(Duration::ZERO, 2.0, S), Jitter::Full, "retry.base"),
            (exponential(S, 0.9, 2 * S), Jitter::Full, "retry.multiplier"),
            (exponential(S, f64::NAN, 2 * S), Jitter::Full, "retry.multiplier"),
            (exponential(S, 2.0, 2 * LONGEST_DURATION), Jitter::Full, "retry.cap"),
            (exponential(S, 2.0, 2 * S), Jitter::Between(0.5, 0.4), "retry.jitter"),
            (exponential(S, 2.0, 2 * S), Jitter::Between(0.5, f64::NAN), "retry.jitter"),
        ] {
            assert_eq!(Backoff { growth, jitter }.check().expect_err(key).key, key);
        }
    }

    proptest! {
        #[test]
        fn never_above_the_cap(k in 0u32.., base in 1u64..1_000_000, extra in 0u64..10_000_000, multiplier in 1.0f64..10.0, low in 0.0f64..1.0, seed: u64) {
            let cap = Duration::from_micros(base + extra);
            let growth = Growth::Exponential { base: Duration::from_micros(base), multiplier, cap };
            let backoff = Backoff { growth, jitter: Jitter::Between(low, 1.0) };
            backoff.check().expect("sensible knobs");
            let delay = backoff.delay(k, &mut Rng::new(seed));
            prop_assert!(delay <= cap);
            prop_assert!(delay >= backoff.capped(k).mul_f64(low).saturating_sub(Duration::from_nanos(1)));
        }
    }
}
