//! How a provider's limits change with time.

use std::f64::consts::TAU;
use std::time::Duration;

use paceline_core::Instant;

/// Larger factors are a mistake, and would overflow.
pub(crate) const LARGEST_FACTOR: f64 = 1e6;

/// What multiplies rates, window limits and concurrency caps as time goes by. A bucket's burst stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Schedule {
    /// Always 1.
    #[default]
    Constant,
    /// The factor of the latest step; 1 before the first.
    Steps {
        /// In ascending order of time.
        steps: Vec<Step>,
        /// Whether refusals while the factor is below 1 say that the service is overloaded.
        brownout: bool,
    },
    /// `1 + amplitude x sin(2 pi t / period)`.
    Sine {
        /// 0 to 1.
        amplitude: f64,
        /// More than zero.
        period: Duration,
    },
    /// The demand decides: 1 at first.
    Scales(Scaling),
}

/// From `at` on, limits are `factor` times what they were configured to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Since the origin of time.
    pub at: Duration,
    /// 0 to 1,000,000.
    pub factor: f64,
}

/// A capacity that follows the demand, metered in whole seconds.
///
/// It grows once calls were refused for `after`, without `after / 6` in a row in which none was; it shrinks once every
/// second of `back` used less than `below` of what it grew to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// What the limits are multiplied with while it is grown. More than 1.
    pub factor: f64,
    /// How long calls have to be refused. At least 6 s.
    pub after: Duration,
    /// The share of the grown capacity whose use keeps it. More than 0, at most 1.
    pub below: f64,
    /// How long less than that has to be used. At least 1 s.
    pub back: Duration,
}

impl Scaling {
    pub(crate) fn is_sound(&self) -> bool {
        self.factor > 1.0
            && self.factor <= LARGEST_FACTOR
            && self.after >= Duration::from_secs(6)
            && self.below > 0.0
            && self.below <= 1.0
            && self.back >= Duration::from_secs(1)
    }

    /// Refusals this many seconds apart belong together.
    pub(crate) const fn pause(&self) -> u64 {
        self.after.as_secs() / 6
    }
}

impl Schedule {
    /// What limits are multiplied with now.
    pub fn factor(&self, now: Instant) -> f64 {
        match self {
            // A provider that scales keeps its steps by itself.
            Self::Constant | Self::Scales(_) => 1.0,
            Self::Steps { steps, .. } => {
                steps.iter().rev().find(|step| Instant::ZERO + step.at <= now).map_or(1.0, |step| step.factor)
            }
            Self::Sine { amplitude, period } => 1.0 + amplitude * libm::sin(turn(now, *period)),
        }
    }

    /// Whether a refusal now means that the service lacks capacity.
    pub(crate) fn browns_out(&self, now: Instant) -> bool {
        matches!(self, Self::Steps { brownout: true, .. }) && self.factor(now) < 1.0
    }

    /// A limit as it is at present.
    pub(crate) fn scale(&self, now: Instant, limit: u64) -> u64 {
        match self {
            Self::Constant | Self::Scales(_) => limit,
            Self::Steps { .. } | Self::Sine { .. } => (limit as f64 * self.factor(now)) as u64,
        }
    }

    /// How long the origin lies back on a clock that runs `factor` times as fast: the integral of the factor, in
    /// nanoseconds. What flows in at a rate follows this clock.
    pub(crate) fn flowed(&self, now: Instant) -> u64 {
        let nanos = now.as_nanos();
        match self {
            Self::Constant | Self::Scales(_) => nanos,
            Self::Steps { steps, .. } => flowed_in_steps(steps, nanos),
            Self::Sine { amplitude, period } => {
                let swing = amplitude * period.as_nanos() as f64 / TAU;
                (nanos as f64 + swing * (1.0 - libm::cos(turn(now, *period)))) as u64
            }
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        match self {
            Self::Constant => true,
            Self::Steps { steps, .. } => {
                steps.is_sorted_by(|a, b| a.at < b.at)
                    && steps.iter().all(|step| (0.0..=LARGEST_FACTOR).contains(&step.factor))
            }
            Self::Sine { amplitude, period } => (0.0..=1.0).contains(amplitude) && !period.is_zero(),
            Self::Scales(scaling) => scaling.is_sound(),
        }
    }
}

fn flowed_in_steps(steps: &[Step], nanos: u64) -> u64 {
    let (mut flowed, mut since, mut factor) = (0, 0, 1.0);
    for step in steps {
        let at = (Instant::ZERO + step.at).as_nanos();
        if at > nanos {
            break;
        }
        flowed += ((at - since) as f64 * factor) as u64;
        (since, factor) = (at, step.factor);
    }
    flowed + ((nanos - since) as f64 * factor) as u64
}

fn turn(now: Instant, period: Duration) -> f64 {
    let period = period.as_nanos() as f64;
    TAU * (now.as_nanos() as f64 % period) / period
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn the_clock_of_a_rate_follows_the_factor() {
        let step = |seconds, factor| Step { at: Duration::from_secs(seconds), factor };
        let steps = Schedule::Steps { steps: vec![step(10, 2.0), step(20, 0.5)], brownout: true };
        let sine = Schedule::Sine { amplitude: 0.5, period: Duration::from_secs(180) };
        let observed = |schedule: &Schedule, seconds| {
            let now = at(seconds);
            (schedule.factor(now), schedule.flowed(now) / 1_000_000, schedule.browns_out(now))
        };
        assert_eq!(observed(&Schedule::Constant, 7.0), (1.0, 7_000, false));
        assert_eq!(observed(&steps, 9.0), (1.0, 9_000, false));
        assert_eq!(observed(&steps, 15.0), (2.0, 20_000, false));
        assert_eq!(observed(&steps, 30.0), (0.5, 35_000, true));
        assert_eq!(observed(&sine, 45.0).0, 1.5);
        assert_eq!(observed(&sine, 180.0), (1.0, 180_000, false));
        assert_eq!(observed(&sine, 90.0).1, 90_000 + 28_647);
        assert_eq!(steps.scale(at(25.0), 41), 20);
    }

    #[test]
    fn the_clock_never_runs_backwards() {
        let sine = Schedule::Sine { amplitude: 1.0, period: Duration::from_secs(3) };
        let mut last = 0;
        for tick in 0..60_000 {
            let flowed = sine.flowed(Instant::from_nanos(tick * 100_000));
            assert!(flowed >= last, "at {tick}");
            last = flowed;
        }
    }
}
