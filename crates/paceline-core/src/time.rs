//! The two kinds of time that Paceline knows.
//!
//! The engine sees only [`Instant`]: monotonic, counted from an origin that its driver chooses. Dates that servers send
//! and due times that outlive the process are [`Timestamp`]s; they are converted outside the engine, where the wall
//! clock is known.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};
use core::time::Duration;

/// How late a timer may be without shifting the schedule of what it is late for.
pub(crate) const LATE: Duration = Duration::from_millis(5);

/// A point on a monotonic clock: nanoseconds since an origin chosen by the driver.
///
/// The engine never reads a clock. Whoever drives it passes the present as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// The end of time: 584 years after the origin. Something due then never happens.
    pub const MAX: Self = Self(u64::MAX);

    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` moved back by `duration`, at most to the origin.
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

/// Nanoseconds of a duration, at most 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at [`Instant::MAX`].
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// Zero when `earlier` is later: a clock that goes backwards is survived, not punished.
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_since(earlier)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// A point on the wall clock: milliseconds since 1970-01-01T00:00:00Z, leap seconds ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The timestamp `millis` milliseconds after 1970.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero when `earlier` is later.
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        let millis = self.0.saturating_sub(earlier.0);
        Duration::from_millis(if millis > 0 { millis as u64 } else { 0 })
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates; parts of a millisecond are rounded up, so that a due time is never early.
    fn add(self, duration: Duration) -> Self {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }
}
