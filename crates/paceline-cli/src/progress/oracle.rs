//! The limits for the oracle, against which a run is measured and by which it is forecast.

use std::time::Duration;

use paceline_core::{Cost, Limits, Quota, QuotaShape};
use paceline_model::Job;

/// The time that limits alone ask for, were each answer there at once; none where there are no limits.
pub(crate) fn least(limits: &Limits, calls: u64, cost: Cost) -> Option<Duration> {
    let quotas = quotas(limits);
    let job = Job { calls, cost, mean_latency: Duration::ZERO, median_latency: Duration::ZERO };
    (!quotas.is_empty()).then(|| job.finish_time(&quotas, None))
}

/// The quotas, and the spacing of requests as the bucket that it is.
pub(crate) fn quotas(limits: &Limits) -> Vec<Quota> {
    let spacing = limits.spacing().map(|(quota, burst)| Quota { shape: QuotaShape::Bucket { burst }, ..quota.clone() });
    limits.quotas.iter().cloned().chain(spacing).collect()
}
