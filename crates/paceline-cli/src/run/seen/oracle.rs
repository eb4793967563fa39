//! The limits as somebody sees them who knows them all: what a run is measured against, and foretold by.

use std::time::Duration;

use paceline_core::{Dimension, Limits, Quota, Shape};

/// The quotas, with the spacing of requests as the bucket that it is.
pub(crate) fn quotas(limits: &Limits) -> Vec<Quota> {
    let mut quotas = limits.quotas.clone();
    if let Some(burst) = limits.burst {
        let spaced = quotas
            .iter_mut()
            .filter(|quota| quota.dimension == Dimension::Requests && quota.window <= Duration::from_secs(60))
            .min_by_key(|quota| quota.window);
        if let Some(quota) = spaced {
            quota.shape = Shape::Bucket { burst };
        }
    }
    quotas
}
