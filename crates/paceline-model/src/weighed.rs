//! A fixed window that counts a part of the one before, and refused calls, as the rates of HAProxy's stick tables do.

use std::time::Duration;

use paceline_core::Instant;

use crate::limiter::duration;

/// The units of a fixed window and of the one before.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Weighed {
    /// When the window ends; none before the first call.
    pub(crate) end: Option<Instant>,
    now: u64,
    before: u64,
}

impl Weighed {
    /// The part of the window before that counts, and the units of this one.
    pub(crate) fn held(&self, now: Instant, window: Duration) -> u64 {
        let left = self.end.map_or(0, |end| (end - now).as_nanos());
        self.now + u64::try_from(u128::from(self.before) * left / window.as_nanos()).expect("no more than before")
    }

    /// After two windows without a call one begins with the next.
    pub(crate) fn turn(&mut self, now: Instant, window: Duration) {
        let Some(end) = self.end.filter(|end| *end <= now) else { return };
        if end + window <= now {
            *self = Self::default();
        } else {
            *self = Self { end: Some(end + window), now: 0, before: self.now };
        }
    }

    pub(crate) fn enter(&mut self, now: Instant, window: Duration, units: u64) {
        self.end.get_or_insert(now + window);
        self.now += units;
    }

    /// Time until so many units fit, in this window or in the next.
    pub(crate) fn wait(&self, now: Instant, (limit, window): (u64, Duration), units: u64) -> Duration {
        let Some(end) = self.end else { return Duration::ZERO };
        // How much may be left of a window where the one before had so many units, and there is room for so many of them.
        let left = |before: u64, room: u64| match before {
            0 => window,
            before => window.min(duration((u128::from(room + 1) * window.as_nanos() - 1) / u128::from(before))),
        };
        let in_this = limit.checked_sub(self.now + units).map(|room| end.saturating_sub(left(self.before, room)));
        let in_next = || (end + window).saturating_sub(left(self.now, limit.saturating_sub(units)));
        in_this.filter(|at| *at < end).unwrap_or_else(in_next).saturating_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    /// How many of so many calls at an instant are within 40 a window; all of them count.
    fn pass(weighed: &mut Weighed, now: Instant, calls: u64) -> u64 {
        weighed.turn(now, WINDOW);
        let passes = |weighed: &mut Weighed| {
            let fits = weighed.wait(now, (40, WINDOW), 1).is_zero();
            weighed.enter(now, WINDOW, 1);
            u64::from(fits)
        };
        (0..calls).map(|_| passes(weighed)).sum()
    }

    #[test]
    fn a_window_counts_a_part_of_the_one_before_and_what_was_refused_there() {
        let mut weighed = Weighed::default();
        assert_eq!(pass(&mut weighed, at(1.0), 80), 40);
        // Three eighths of the next window are left, and of 80 calls 30 count.
        assert_eq!(pass(&mut weighed, at(17.25), 11), 10);
        assert_eq!(weighed.held(at(17.25), WINDOW), 41);
        assert_eq!(pass(&mut weighed, at(41.0), 41), 40, "after two windows without a call nothing counts");
    }
}
