//! An upstream that is a gateway itself: it is told what a request may still take, so that both keep its bounds together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use paceline_http::gateway;

/// Whether a gateway made the last answer of an upstream.
#[derive(Debug, Default)]
pub(crate) struct Chained(AtomicBool);

impl Chained {
    /// An answer with this head came.
    pub(crate) fn came(&self, headers: &HeaderMap) {
        let is_chained = headers.contains_key(const { HeaderName::from_static(gateway::ATTEMPTS) });
        // Each call reads it, and hardly one changes it.
        if self.0.load(Ordering::Relaxed) != is_chained {
            self.0.store(is_chained, Ordering::Relaxed);
        }
    }

    /// Tells the gateway there the retries that a call has left, and how long it may wait.
    pub(crate) fn tell(&self, headers: &mut HeaderMap, retries: impl FnOnce() -> u32, left: Duration) {
        if self.0.load(Ordering::Relaxed) {
            gateway::tell_bounds(headers, retries(), left);
        }
    }
}
