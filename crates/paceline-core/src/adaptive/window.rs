//! Windows that many providers have: where everything is refused, one of these may have been used up.

use core::time::Duration;

use crate::time::Instant;

/// A window that was used up opens so long after its first call, ...
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// ... and a little later: the first calls of a start are few, and refused ones may count.
const LATER: Duration = Duration::from_secs(1);

/// The rate that such a window sustains is known well: growth makes up for at least so many seconds first.
pub(super) const KNOWN: f64 = 30.0;

/// When a canary may find the next end of a window whose first call left then.
pub(super) fn next_end(began: Instant, after: Instant) -> Option<Instant> {
    WINDOWS.into_iter().map(|window| began + window + LATER).filter(|end| *end > after).min()
}

/// Whether a canary found such an end that passed so many seconds after the first call.
pub(super) fn is_usual(seconds: f64) -> bool {
    WINDOWS.into_iter().any(|window| (seconds / (window + LATER).as_secs_f64() - 1.0).abs() < 0.05)
}
