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
/// The engine never reads a clock. Its driver passes the present as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

/// The earlier of two instants that may not be known.
#[inline]
pub(crate) fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
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
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
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

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds: `2023-11-14T22:13:20.000Z`. After the year 9999, for which it has no form, `never`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, millis) = (self.0.div_euclid(DAY), self.0.rem_euclid(DAY));
        let (year, month, day) = date(days);
        if year > 9_999 {
            return f.pad("never");
        }
        let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1_000 % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1_000)
    }
}

const DAY: i64 = 86_400_000;

/// Year, month and day of the Gregorian calendar, so many days after 1970-01-01. Years are taken to begin in March, so that the
/// day that some of them have more comes last; then months of 31 and 30 days alternate in rows of five, 153 days each.
const fn date(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097;
    // Since 0000-03-01; 400 years are one era.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Saturates; parts of a millisecond are rounded up, so that a due time is never early.
    fn add(self, duration: Duration) -> Self {
        let millis = duration.as_nanos().div_ceil(1_000_000);
        Self(self.0.saturating_add(i64::try_from(millis).unwrap_or(i64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn instants_carry_milliseconds_and_know_the_calendar() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (1_795_176_000_042, "2026-11-20T12:00:00.042Z"),
            (-62_167_219_200_000, "0000-01-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (253_402_300_800_000, "never"),
            (i64::MAX, "never"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }

    #[test]
    fn what_has_passed_on_the_wall_clock_is_never_less_than_nothing() {
        let at = Timestamp::from_millis;
        let since = |earlier| at(1_000).saturating_since(at(earlier));
        assert_eq!([0, 999, 1_000, 1_001].map(since), [1_000, 1, 0, 0].map(Duration::from_millis));
    }

    #[test]
    fn an_instant_says_how_long_after_the_beginning_it_is() {
        assert_eq!(Instant::from_nanos(1_500_000_000).to_string(), "1.5s");
    }
}
