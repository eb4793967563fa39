//! A configured limit that several pacers have together.

use alloc::sync::Arc;

use crate::admit::WaitCause;
use crate::config::Quota;

/// A configured limit that is divided among pacers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DividedLimit {
    /// The tier whose limit it is; none for one of the account.
    pub tier: Option<Arc<str>>,
    /// The limit of all pacers together.
    pub quota: Quota,
    /// Whether it bounds the calls in flight: then the window is how long a call may be.
    pub in_flight: bool,
    /// Its place among those of its level.
    pub(crate) place: usize,
}

impl DividedLimit {
    /// What it counts, as a word for files and JSON: `concurrency` are calls in flight.
    pub fn dimension(&self) -> &str {
        if self.in_flight { "concurrency" } else { self.quota.dimension.as_str() }
    }

    /// What a call waits for that has no room in the share of its pacer.
    pub(crate) fn cause(&self) -> WaitCause {
        let Quota { dimension, limit, window, .. } = self.quota.clone();
        WaitCause::Share { dimension, limit, window, in_flight: self.in_flight }
    }
}
