//! Where everything was refused, a window may have been used up, such as many providers have, or the server was not well.

use core::time::Duration;

use super::rate::Rate;
use crate::time::Instant;

/// A window that was used up opens so long after its first call, ...
const WINDOWS: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(60)];

/// ... and a little later: the first calls of a start are few, and refused ones may count.
const LATER: Duration = Duration::from_secs(1);

/// The rate that such a window sustains is known well: growth makes up for at least so many seconds first.
pub(super) const KNOWN: f64 = 30.0;

/// An outage that is not the first comes after so many times its length in which calls passed, ...
const SELDOM: f64 = 10.0;

/// ... and they were so many times fewer than an even rate would have been.
const UNEVEN: f64 = 1.5;

/// When a canary may find the next end of a window whose first call left then.
pub(super) fn next_end(began: Instant, after: Instant) -> Option<Instant> {
    WINDOWS.into_iter().map(|window| began + window + LATER).filter(|end| *end > after).min()
}

/// Whether a canary found such an end that passed so many seconds after the first call.
pub(super) fn is_usual(seconds: f64) -> bool {
    WINDOWS.into_iter().any(|window| (seconds / (window + LATER).as_secs_f64() - 1.0).abs() < 0.05)
}

/// Calls that were admitted between two long closures, the seconds in which they were, and those of the closure behind them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycle {
    pub(super) n: f64,
    pub(super) passed: f64,
    pub(super) closed: f64,
}

impl Cycle {
    /// Whether the closure was an outage rather than a window that was used up. `worked`: the rate before it; `before`: so many
    /// calls were admitted before the last one. The first is one where a configured limit was trusted, or where no usual window
    /// can have been used up. A later one is seldom, and far fewer calls passed than at that rate, and not as many as before.
    pub(super) fn is_outage(&self, worked: &Rate, before: Option<f64>) -> bool {
        let Self { n, passed, closed } = *self;
        let is_one = match before {
            None => worked.trusts_config() || passed >= closed && self.is_longer(),
            Some(before) => {
                let even = worked.per_second() * (passed + closed);
                passed >= SELDOM * closed && even > UNEVEN * n && !alike(n, before, 1.1)
            }
        };
        is_one && !is_usual(passed + closed)
    }

    /// Whether a window that was used up is longer than all usual ones. At an even rate half of these calls or more were of that
    /// window, for the one before it was not used up.
    fn is_longer(&self) -> bool {
        WINDOWS.into_iter().all(|window| self.passed / 2.0 + self.closed > (window + LATER).as_secs_f64())
    }
}

/// Whether two numbers differ by that factor at most.
pub(super) fn alike(a: f64, b: f64, by: f64) -> bool {
    a <= by * b && b <= by * a
}
