//! Requests that the gateway itself refused.

use prometheus::{IntCounterVec, Opts};

/// Requests that were refused before they had an upstream.
#[derive(Debug)]
pub(crate) struct TurnedAway(pub(super) IntCounterVec);

impl Default for TurnedAway {
    fn default() -> Self {
        Self(refusals(""))
    }
}

impl TurnedAway {
    /// One more, with that code.
    pub(crate) fn count(&self, code: &'static str) {
        self.0.with_label_values(&[code]).inc();
    }
}

/// Refusals by code.
pub(super) fn refusals(upstream: &str) -> IntCounterVec {
    let of = Opts::new("paceline_refusals_total", "Requests that the gateway itself refused, by code");
    IntCounterVec::new(of.const_label("upstream", upstream), &["code"]).expect("the names are those of the source")
}
