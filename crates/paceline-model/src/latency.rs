//! How long a provider works on a call.

use std::time::Duration;

use paceline_core::Rng;

use crate::lognormal::{normal, sigma};

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Latency {
    /// Uniform between two durations, both included; equal ones make it constant.
    Uniform {
        /// The shortest.
        low: Duration,
        /// The longest, at least `low`.
        high: Duration,
    },
    /// Lognormal, given by two of its quantiles, the usual shape of the answers of language models.
    Lognormal {
        /// Half of the calls are faster. More than zero.
        p50: Duration,
        /// Ninety-nine of a hundred calls are faster. At least `p50`.
        p99: Duration,
        /// Nothing takes longer.
        cap: Duration,
    },
}

impl Latency {
    /// A service time. Draws the same count of random numbers whatever the parameters, so that streams stay aligned.
    pub fn draw(&self, rng: &mut Rng) -> Duration {
        let (first, second) = (rng.unit(), rng.unit());
        match *self {
            Self::Uniform { low, high } => low + high.saturating_sub(low).mul_f64(first),
            Self::Lognormal { p50, p99, cap } => {
                let factor = libm::exp(sigma(p50.as_secs_f64(), p99.as_secs_f64()) * normal(first, second));
                Duration::try_from_secs_f64(p50.as_secs_f64() * factor).map_or(cap, |drawn| drawn.min(cap))
            }
        }
    }

    /// The mean service time; that of a lognormal distribution ignores its cap.
    pub fn mean(&self) -> Duration {
        match *self {
            Self::Uniform { low, high } => (low + high) / 2,
            Self::Lognormal { p50, p99, cap } => {
                let sigma = sigma(p50.as_secs_f64(), p99.as_secs_f64());
                p50.mul_f64(libm::exp(sigma * sigma / 2.0)).min(cap)
            }
        }
    }

    /// The service time that half of the calls stay below.
    pub fn median(&self) -> Duration {
        match *self {
            Self::Uniform { .. } => self.mean(),
            Self::Lognormal { p50, cap, .. } => p50.min(cap),
        }
    }

    /// Whether the figures make sense together.
    pub(crate) fn is_sound(&self) -> bool {
        match *self {
            Self::Uniform { low, high } => low <= high,
            Self::Lognormal { p50, p99, .. } => !p50.is_zero() && p50 <= p99,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(latency: Latency) -> Vec<Duration> {
        let mut rng = Rng::new(3);
        let mut draws: Vec<Duration> = (0..20_000).map(|_| latency.draw(&mut rng)).collect();
        draws.sort_unstable();
        draws
    }

    #[test]
    fn a_lognormal_has_the_quantiles_it_was_told() {
        let (p50, p99, cap) = (Duration::from_millis(800), Duration::from_secs(8), Duration::from_secs(60));
        let latency = Latency::Lognormal { p50, p99, cap };
        let draws = draws(latency);
        let close = |index: usize, want: f64| (draws[index].as_secs_f64() / want - 1.0).abs() < 0.1;
        assert!(close(10_000, 0.8), "median {:?}", draws[10_000]);
        assert!(close(19_800, 8.0), "p99 {:?}", draws[19_800]);
        let mean = draws.iter().sum::<Duration>().as_secs_f64() / 20_000.0;
        assert!((mean - 1.306).abs() < 0.05, "mean {mean}");
        assert!((latency.mean().as_secs_f64() - 1.306).abs() < 0.01);
        assert!(draws[19_999] <= cap);
    }

    #[test]
    fn a_uniform_one_stays_within_its_bounds_and_fills_them() {
        let (low, high) = (Duration::from_millis(50), Duration::from_millis(500));
        let draws = draws(Latency::Uniform { low, high });
        assert!(draws[0] >= low && draws[0] < low + Duration::from_millis(1));
        assert!(draws[19_999] <= high && draws[19_999] > high - Duration::from_millis(1));
        assert_eq!(Latency::Uniform { low, high: low }.draw(&mut Rng::new(1)), low);
    }
}
