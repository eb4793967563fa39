//! The exported state of a limiter, as a value that outlives its process.

use paceline_core::{PacerState, Timestamp};

use crate::clock;

/// The state of a limiter, for another one of the same account: [`Limiter::export`](crate::Limiter::export) makes it,
/// [`Limiter::restore`](crate::Limiter::restore) takes it.
///
/// With the feature `serde` it is written as one flat map: `version` (1), `at_ms`, `account` and `scopes`. Names that end in
/// `_ms` are whole milliseconds; rates are calls, or tokens, a second. No key is in it, but the names of scopes are.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LimiterState {
    /// When it was exported, by the wall clock: milliseconds since 1970.
    #[cfg_attr(feature = "serde", serde(rename = "at_ms"))]
    pub at: Timestamp,
    /// The state at that time.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub pacer: PacerState,
}

impl LimiterState {
    pub(crate) fn now(pacer: PacerState) -> Self {
        Self { at: clock::wall(), pacer }
    }
}
