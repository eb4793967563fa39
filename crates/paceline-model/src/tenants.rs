//! Strangers on the same limits: calls that the client neither sends nor sees.

use std::time::Duration;

use paceline_core::{Instant, Rng};

/// Other users of a provider. Their calls come at random (Poisson); one that is refused vanishes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tenants {
    /// Calls per second, always.
    pub base: f64,
    /// Further calls per second during the first `on` of each `period`.
    pub burst: f64,
    /// See `burst`.
    pub on: Duration,
    /// See `burst`. More than zero.
    pub period: Duration,
}

impl Tenants {
    /// The mean of their calls per second.
    pub fn mean(&self) -> f64 {
        self.base + self.burst * self.on.as_secs_f64() / self.period.as_secs_f64()
    }

    pub(crate) fn is_sound(&self) -> bool {
        let rate = |rate: f64| rate.is_finite() && rate >= 0.0;
        rate(self.base) && rate(self.burst) && !self.period.is_zero() && self.on <= self.period
    }

    fn rate(&self, at: f64) -> f64 {
        let busy = at % self.period.as_secs_f64() < self.on.as_secs_f64();
        if busy { self.base + self.burst } else { self.base }
    }
}

/// The arrivals of strangers, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Strangers {
    tenants: Tenants,
    rng: Rng,
    /// Seconds since the origin.
    next: f64,
}

impl Strangers {
    pub(crate) fn new(tenants: Tenants, seed: u64) -> Self {
        let mut strangers = Self { tenants, rng: Rng::new(seed), next: 0.0 };
        strangers.draw();
        strangers
    }

    /// The next arrival, if it is not after `now`.
    pub(crate) fn until(&mut self, now: Instant) -> Option<Instant> {
        let at = Instant::ZERO + Duration::try_from_secs_f64(self.next).ok()?;
        (at <= now).then(|| {
            self.draw();
            at
        })
    }

    /// Draws at the highest rate and drops what exceeds the present one.
    fn draw(&mut self) {
        let most = self.tenants.base + self.tenants.burst;
        if most == 0.0 {
            self.next = f64::INFINITY;
            return;
        }
        loop {
            self.next -= libm::log(1.0 - self.rng.unit()) / most;
            if self.rng.unit() * most < self.tenants.rate(self.next) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_as_often_as_told_and_more_often_in_their_busy_time() {
        let (on, period) = (Duration::from_secs(30), Duration::from_secs(90));
        let tenants = Tenants { base: 20.0, burst: 20.0, on, period };
        let mut strangers = Strangers::new(tenants, 3);
        let (mut busy, mut quiet) = (0, 0);
        while let Some(at) = strangers.until(Instant::ZERO + Duration::from_secs(9_000)) {
            let phase = at.as_nanos() % 90_000_000_000;
            *if phase < 30_000_000_000 { &mut busy } else { &mut quiet } += 1;
        }
        assert!((118_000..122_000).contains(&busy), "{busy} in 3,000 s at 40 a second");
        assert!((118_000..122_000).contains(&quiet), "{quiet} in 6,000 s at 20 a second");
        assert!((tenants.mean() - 26.67).abs() < 0.01);
    }
}
