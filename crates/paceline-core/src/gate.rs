//! Closed until an instant, then opened by one canary.
//!
//! A server that asked for a pause, or refused everything, is not met by the whole crowd when the pause ends: one call
//! goes first, and the others follow when it was not refused.

use core::time::Duration;

use crate::admit::{Admit, Policy};
use crate::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Open,
    /// After `until`, one call may leave.
    Ajar,
    /// That call is under way.
    Canary(u64),
}

/// The gate of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    until: Instant,
    door: Door,
    /// Closures of our own choice since a call was last admitted.
    strikes: u32,
    /// It was closed and has not been seen open since.
    closed: bool,
}

impl Gate {
    pub(crate) const fn new() -> Self {
        Self { until: Instant::ZERO, door: Door::Open, strikes: 0, closed: false }
    }

    pub(crate) fn admit(&self, now: Instant) -> Admit {
        match self.door {
            Door::Canary(_) if self.until <= now => Admit::OnRelease { policy: Policy::Canary },
            Door::Open | Door::Ajar | Door::Canary(_) => Admit::at(self.until, now, || Policy::Gate),
        }
    }

    /// Nothing leaves before `until`; the latest end wins.
    pub(crate) fn hold(&mut self, until: Instant) {
        self.until = self.until.max(until);
        self.closed = true;
    }

    /// Whether a closure has ended since this was asked last.
    pub(crate) fn reopens(&mut self, now: Instant) -> bool {
        let reopens = self.closed && self.until <= now;
        self.closed &= !reopens;
        reopens
    }

    /// Nothing leaves before `until`, and then one call goes first.
    pub(crate) fn hold_for_canary(&mut self, until: Instant) {
        self.hold(until);
        self.door = Door::Ajar;
    }

    /// Closes because of refusals: twice as long each time in a row, from `base` to `longest`.
    pub(crate) fn close(&mut self, now: Instant, base: Duration, longest: Duration) {
        let wait = base.saturating_mul(1 << self.strikes.min(16)).min(longest);
        self.strikes += 1;
        self.hold_for_canary(now + wait);
    }

    /// A call left as `number`.
    pub(crate) fn left(&mut self, number: u64) {
        if self.door == Door::Ajar {
            self.door = Door::Canary(number);
        }
    }

    /// A call that left as `number` was answered, and not refused. Says whether that opened the gate.
    pub(crate) fn passed(&mut self, number: u64) -> bool {
        self.strikes = 0;
        let opens = self.door == Door::Canary(number);
        if opens {
            self.door = Door::Open;
        }
        opens
    }

    /// A call ended without proving anything: the next one may be the canary.
    pub(crate) fn lost(&mut self, number: u64) {
        if self.door == Door::Canary(number) {
            self.door = Door::Ajar;
        }
    }

    /// Until when the gate is closed, if it is.
    pub(crate) fn closed_until(&self, now: Instant) -> Option<Instant> {
        (self.until > now).then_some(self.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn one_canary_goes_first_and_its_success_opens() {
        let mut gate = Gate::new();
        gate.hold_for_canary(at(10));
        assert_eq!(gate.admit(at(3)), Admit::At { at: at(10), policy: Policy::Gate });
        assert!(gate.admit(at(10)).is_now());
        gate.left(7);
        assert_eq!(gate.admit(at(11)), Admit::OnRelease { policy: Policy::Canary });
        assert!(!gate.passed(6), "an older call is no canary");
        assert!(gate.passed(7));
        assert!(gate.admit(at(11)).is_now());
    }

    #[test]
    fn closures_in_a_row_double_up_to_the_longest() {
        let mut gate = Gate::new();
        let mut now = at(0);
        for expected in [1, 2, 4, 5, 5] {
            gate.close(now, Duration::from_secs(1), Duration::from_secs(5));
            assert_eq!(gate.closed_until(now), Some(now + Duration::from_secs(expected)));
            now += Duration::from_secs(expected);
        }
        gate.passed(1);
        gate.close(now, Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(gate.closed_until(now), Some(now + Duration::from_secs(1)));
    }

    #[test]
    fn the_latest_end_wins_and_a_lost_canary_is_replaced() {
        let mut gate = Gate::new();
        gate.hold_for_canary(at(10));
        gate.hold(at(5));
        assert_eq!(gate.closed_until(at(6)), Some(at(10)));
        gate.left(1);
        gate.lost(1);
        assert!(gate.admit(at(10)).is_now());
    }
}
