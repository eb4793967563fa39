//! Netflix's concurrency-limits: the calls in flight follow response times.
//!
//! Source: `VegasLimit`, `Gradient2Limit` and `ExpAvgMeasurement` of Netflix/concurrency-limits, with their defaults.

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::crew::{After, Ask, Leave, Made, Rule, full_jitter};

/// An estimate of how many calls should be in flight.
pub(super) trait Estimate {
    fn limit(&self) -> f64;
    /// A response time in seconds, the calls in flight when it began, and whether it was refused.
    fn sample(&mut self, rtt: f64, in_flight: u32, dropped: bool);
}

/// Calls under such an estimate, tried again for ever.
#[derive(Debug)]
pub(super) struct Limited<E> {
    estimate: E,
    rng: Rng,
}

impl<E> Limited<E> {
    pub(super) const fn new(estimate: E, seed: u64) -> Self {
        Self { estimate, rng: Rng::new(!seed) }
    }
}

impl<E: Estimate> Rule for Limited<E> {
    fn admit(&mut self, _: Instant, ask: &Ask<'_>) -> Leave {
        if ask.in_flight < self.estimate.limit() as u32 { Leave::Now } else { Leave::OnAnswer }
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>, call: Made) -> After {
        if answer.class != Class::Transient {
            self.estimate.sample((now - answer.sent).as_secs_f64(), answer.in_flight, answer.is_refused());
        }
        if answer.class == Class::Success {
            return After::Done;
        }
        After::Again(full_jitter(call.attempt, &mut self.rng))
    }

    fn limit(&self) -> Option<u32> {
        Some(self.estimate.limit() as u32)
    }
}

/// Compares each response time with the shortest one.
#[derive(Debug)]
pub(super) struct Vegas {
    limit: f64,
    /// The shortest response time since the last probe.
    no_load: Option<f64>,
    probes: u32,
    jitter: f64,
    rng: Rng,
}

impl Vegas {
    const MOST: f64 = 1_000.0;
    const PROBE_EVERY: f64 = 30.0;

    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let jitter = 0.5 + 0.5 * rng.unit();
        Self { limit: 20.0, no_load: None, probes: 0, jitter, rng }
    }

    /// The limit that the queue in front of the service asks for; none when it says nothing.
    fn wanted(&self, queue: f64, in_flight: u32, dropped: bool) -> Option<f64> {
        let unit = libm::floor(libm::log10(self.limit)).max(1.0);
        let (alpha, beta) = (3.0 * unit, 6.0 * unit);
        if dropped {
            return Some(self.limit - unit);
        }
        if f64::from(in_flight) * 2.0 < self.limit {
            return None;
        }
        if queue <= unit {
            Some(self.limit + beta)
        } else if queue < alpha {
            Some(self.limit + unit)
        } else if queue > beta {
            Some(self.limit - unit)
        } else {
            None
        }
    }
}

impl Estimate for Vegas {
    fn limit(&self) -> f64 {
        self.limit
    }

    fn sample(&mut self, rtt: f64, in_flight: u32, dropped: bool) {
        self.probes += 1;
        if self.jitter * Self::PROBE_EVERY * self.limit <= f64::from(self.probes) {
            (self.probes, self.jitter, self.no_load) = (0, 0.5 + 0.5 * self.rng.unit(), Some(rtt));
            return;
        }
        let Some(no_load) = self.no_load.filter(|no_load| *no_load <= rtt) else {
            self.no_load = Some(rtt);
            return;
        };
        let queue = libm::ceil(self.limit * (1.0 - no_load / rtt));
        if let Some(wanted) = self.wanted(queue, in_flight, dropped) {
            self.limit = wanted.clamp(1.0, Self::MOST);
        }
    }
}

/// Compares each response time with their long mean.
#[derive(Debug)]
pub(super) struct Gradient2 {
    limit: f64,
    long: f64,
    samples: u32,
}

impl Gradient2 {
    const LEAST: f64 = 20.0;
    const MOST: f64 = 200.0;
    const WARMUP: u32 = 10;
    const WINDOW: f64 = 600.0;

    pub(super) const fn new() -> Self {
        Self { limit: 20.0, long: 0.0, samples: 0 }
    }

    fn add(&mut self, rtt: f64) {
        if self.samples < Self::WARMUP {
            self.long = (self.long * f64::from(self.samples) + rtt) / f64::from(self.samples + 1);
            self.samples += 1;
        } else {
            let factor = 2.0 / (Self::WINDOW + 1.0);
            self.long = self.long * (1.0 - factor) + rtt * factor;
        }
    }
}

impl Estimate for Gradient2 {
    fn limit(&self) -> f64 {
        self.limit
    }

    fn sample(&mut self, rtt: f64, in_flight: u32, _: bool) {
        const QUEUE: f64 = 4.0;
        const SMOOTHING: f64 = 0.2;
        const TOLERANCE: f64 = 1.5;
        self.add(rtt);
        let long = self.long;
        if long / rtt > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let gradient = (TOLERANCE * long / rtt).clamp(0.5, 1.0);
        let wanted = self.limit * gradient + QUEUE;
        self.limit = (self.limit * (1.0 - SMOOTHING) + wanted * SMOOTHING).clamp(Self::LEAST, Self::MOST);
    }
}
