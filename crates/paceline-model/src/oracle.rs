//! The finishing time of an oracle that knows the limits: what a real run is measured against.

use std::time::Duration;

use paceline_core::{Cost, Quota, QuotaShape};

/// A job whose calls are all there at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// How many calls must succeed.
    pub calls: u64,
    /// What all of them cost together.
    pub cost: Cost,
    /// The mean time from sending to the answer.
    pub mean_latency: Duration,
    /// The median of the same.
    pub median_latency: Duration,
}

impl Job {
    /// When the job is finished at best, under limits that were whole at its start and with so many calls under way at
    /// once. The strictest limit decides; one median latency for the last answer comes on top.
    ///
    /// Bucket: what exceeds the burst flows in. Fixed window: all windows but the first, from the first call on.
    /// Sliding window: what exceeds the limit, at the limit's rate. Concurrency: `calls x mean latency / cap`.
    pub fn finish_time(&self, limits: &[Quota], concurrency: Option<u32>) -> Duration {
        let rates = limits.iter().map(|quota| {
            let units = self.cost.get(&quota.dimension);
            match quota.shape {
                QuotaShape::Bucket { burst } => windows(units.saturating_sub(burst), quota),
                QuotaShape::Sliding => windows(units.saturating_sub(quota.limit), quota),
                QuotaShape::Fixed => whole_windows(units, quota),
            }
        });
        let places = concurrency.map(|cap| scale(self.mean_latency, self.calls, u64::from(cap)));
        rates.chain(places).max().unwrap_or_default().saturating_add(self.median_latency)
    }
}

/// The time in which `units` come back at the quota's rate.
fn windows(units: u64, quota: &Quota) -> Duration {
    scale(quota.window, units, quota.limit)
}

fn whole_windows(units: u64, quota: &Quota) -> Duration {
    scale(quota.window, units.div_ceil(quota.limit.max(1)).saturating_sub(1), 1)
}

/// `duration x times / parts`, rounded up; a zero of parts counts as one.
fn scale(duration: Duration, times: u64, parts: u64) -> Duration {
    let nanos = duration.as_nanos().saturating_mul(u128::from(times)).div_ceil(u128::from(parts.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Admission, Latency, ProviderConfig, ProviderModel};
    use paceline_core::{Dimension, Instant};
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn job(calls: u64) -> Job {
        let cost = Cost::zero().with(Dimension::Requests, calls);
        let mean_latency = Duration::from_millis(600);
        Job { calls, cost, mean_latency, median_latency: Duration::from_millis(500) }
    }

    fn quota(limit: u64, shape: QuotaShape) -> Quota {
        Quota { dimension: Dimension::Requests, limit, window: MINUTE, shape }
    }

    #[test]
    fn finishing_times_of_known_limits() {
        let seconds = |calls, limits: &[Quota], cap| job(calls).finish_time(limits, cap).as_secs_f64();
        assert_eq!(seconds(2_000, &[quota(1_200, QuotaShape::Bucket { burst: 20 })], None), 99.5);
        assert_eq!(seconds(2_000, &[quota(600, QuotaShape::Fixed)], None), 180.5);
        assert_eq!(seconds(600, &[quota(600, QuotaShape::Fixed)], None), 0.5);
        assert_eq!(seconds(2_000, &[quota(1_000, QuotaShape::Sliding)], None), 60.5);
        assert_eq!(seconds(200, &[], Some(4)), 30.5);
        assert_eq!(seconds(200, &[quota(60, QuotaShape::Bucket { burst: 1 })], Some(4)), 199.5);
        assert_eq!(seconds(200, &[], None), 0.5);
    }

    /// The last admission of a client that sees the provider's state and sends as early as it can.
    fn greedy(calls: u64, quota: Quota) -> Duration {
        let latency = Latency::Uniform { low: Duration::ZERO, high: Duration::ZERO };
        let config = ProviderConfig { limits: vec![quota.into()], latency, ..Default::default() };
        let mut provider = ProviderModel::new(config, 0).expect("a sound configuration");
        let mut now = Instant::ZERO;
        for _ in 0..calls {
            while let Admission::Refused(refusal) = provider.arrive(now, &Cost::request()) {
                now += refusal.wait.expect("a limiter names its wait");
            }
            provider.finish(now);
        }
        now - Instant::ZERO
    }

    proptest! {
        #[test]
        fn no_client_is_faster_and_buckets_and_fixed_windows_are_met(
            calls in 1u64..400, limit in 1u64..100, burst in 1u64..50,
        ) {
            let oracle = |shape| job(calls).finish_time(&[quota(limit, shape)], None) - job(calls).median_latency;
            prop_assert_eq!(greedy(calls, quota(limit, QuotaShape::Fixed)), oracle(QuotaShape::Fixed));
            // Each wait is rounded up to a nanosecond, and a bucket that is full loses the rest.
            let bucket = QuotaShape::Bucket { burst };
            let late = greedy(calls, quota(limit, bucket)).checked_sub(oracle(bucket));
            prop_assert!(late.is_some_and(|late| late <= Duration::from_nanos(calls)), "{:?}", late);
            // A greedy client uses windows up at their starts, so it may end most of a window after the smooth rate.
            let late = greedy(calls, quota(limit, QuotaShape::Sliding)).checked_sub(oracle(QuotaShape::Sliding));
            prop_assert!(late.is_some_and(|late| late < MINUTE), "{:?}", late);
        }
    }
}
