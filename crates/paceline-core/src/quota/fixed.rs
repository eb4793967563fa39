//! The fixed window.

use core::time::Duration;

use super::LARGEST_LIMIT;
use crate::time::Instant;

/// A counter that starts with the first unit and is reset one window later. Debt goes into the next window.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    pub(super) limit: u64,
    window: Duration,
    pub(super) start: Option<Instant>,
    pub(super) used: u64,
}

impl FixedWindow {
    pub(super) const fn new(limit: u64, window: Duration) -> Self {
        Self { limit, window, start: None, used: 0 }
    }

    /// The window that `now` lies in (none: it would begin now) and the units used in it.
    pub(super) fn current(&self, now: Instant) -> (Option<Instant>, u64) {
        let Some(start) = self.start else { return (None, 0) };
        let windows = (now - start).as_nanos() / self.window.as_nanos();
        if windows == 0 {
            return (Some(start), self.used);
        }
        let paid = u128::from(self.limit).saturating_mul(windows);
        let debt = u128::from(self.used).saturating_sub(paid) as u64;
        let started = Instant::from_nanos(start.as_nanos() + (windows * self.window.as_nanos()) as u64);
        ((debt > 0).then_some(started), debt)
    }

    /// When the window ends that `now` lies in; one that has not begun would begin with the next unit.
    pub(super) fn end(&self, now: Instant) -> Instant {
        self.current(now).0.map_or(Instant::MAX, |start| start + self.window)
    }

    #[inline(never)]
    pub(super) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let (start, used) = self.current(now);
        let excess = used.saturating_add(units).saturating_sub(self.limit);
        if excess == 0 {
            return now;
        }
        let windows = excess.div_ceil(self.limit).max(1);
        let wait = self.window.as_nanos().saturating_mul(u128::from(windows));
        start.unwrap_or(now) + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    #[inline(never)]
    pub(super) fn take(&mut self, now: Instant, units: u64) {
        let (start, used) = self.current(now);
        self.start = Some(start.unwrap_or(now));
        self.used = used.saturating_add(units).min(LARGEST_LIMIT);
    }

    pub(super) fn refund(&mut self, taken: Instant, units: u64) {
        if self.start.is_some_and(|start| taken >= start) {
            self.used = self.used.saturating_sub(units);
        }
    }

    /// Goes on with the window that another one is in. A longer one does not record when its units left, so they count from
    /// now on, and at most as one full window.
    pub(super) fn inherit(&mut self, now: Instant, known: &Self) {
        (self.start, self.used) = known.current(now);
        if self.window < known.window {
            self.start = self.start.map(|start| start.max(now));
            self.used = self.used.min(self.limit);
        }
    }
}
