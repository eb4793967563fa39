//! A token bucket in floating point, as client libraries have it.

use super::crew::Leave;

/// Time is in seconds since any origin.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    rate: f64,
    capacity: f64,
    level: f64,
    at: f64,
}

impl Bucket {
    /// A full one.
    pub(super) const fn full(rate: f64, capacity: f64) -> Self {
        Self { rate, capacity, level: capacity, at: 0.0 }
    }

    pub(super) const fn rate(&self) -> f64 {
        self.rate
    }

    /// Another rate and capacity from now on.
    pub(super) fn set(&mut self, now: f64, rate: f64, capacity: f64) {
        self.refill(now);
        (self.rate, self.capacity) = (rate, capacity);
        self.level = self.level.min(capacity);
    }

    /// When so many units are there; a call larger than the bucket goes when it is full.
    pub(super) fn ready(&mut self, now: f64, units: f64) -> f64 {
        self.refill(now);
        let missing = units.min(self.capacity) - self.level;
        // A level that is short by a rounding error counts as enough.
        if missing <= 1e-9 { now } else { now + missing / self.rate }
    }

    /// When a call may leave.
    pub(super) fn leave(&mut self, now: f64) -> Leave {
        match self.ready(now, 1.0) {
            ready if ready > now => Leave::At(ready),
            _ => Leave::Now,
        }
    }

    pub(super) fn take(&mut self, now: f64, units: f64) {
        self.refill(now);
        self.level -= units;
    }

    fn refill(&mut self, now: f64) {
        self.level = ((now - self.at).max(0.0) * self.rate + self.level).min(self.capacity);
        self.at = self.at.max(now);
    }
}
