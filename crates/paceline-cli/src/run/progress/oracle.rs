//! The limits for the oracle, against which a run is measured and by which it is forecast.

use paceline_core::{Limits, Quota, QuotaShape};

/// The quotas, and the spacing of requests as the bucket that it is.
pub(crate) fn quotas(limits: &Limits) -> Vec<Quota> {
    let spacing = limits.spacing().map(|(quota, burst)| Quota { shape: QuotaShape::Bucket { burst }, ..quota.clone() });
    limits.quotas.iter().cloned().chain(spacing).collect()
}
