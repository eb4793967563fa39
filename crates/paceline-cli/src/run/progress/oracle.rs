//! The limits as an oracle that knows them all sees them: what a run is measured against, and foretold by.

use paceline_core::{Limits, Quota, QuotaShape};

/// The quotas, and the spacing of requests as the bucket that it is.
pub(crate) fn quotas(limits: &Limits) -> Vec<Quota> {
    let spacing = limits.spacing().map(|(quota, burst)| Quota { shape: QuotaShape::Bucket { burst }, ..quota.clone() });
    limits.quotas.iter().cloned().chain(spacing).collect()
}
