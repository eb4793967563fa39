//! Client-side adaptive throttling: refuse locally as often as the provider did lately.
//!
//! Source: "Handling Overload" in Google's Site Reliability Engineering book.

use std::collections::VecDeque;

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::crew::{After, Ask, Leave, Made, Rule, full_jitter, seconds};

#[derive(Debug)]
pub(super) struct Throttling {
    /// How many requests are let through for each that was accepted.
    k: f64,
    requests: Recent,
    accepts: Recent,
    /// After a local refusal, when the next worker tries.
    next: f64,
    rng: Rng,
}

/// The times of the last two minutes.
#[derive(Debug, Default)]
struct Recent(VecDeque<f64>);

impl Recent {
    fn count(&mut self, now: f64) -> f64 {
        const WINDOW: f64 = 120.0;
        while self.0.front().is_some_and(|at| at + WINDOW <= now) {
            self.0.pop_front();
        }
        self.0.len() as f64
    }
}

impl Throttling {
    pub(super) fn new(k: f64, seed: u64) -> Self {
        Self { k, requests: Recent::default(), accepts: Recent::default(), next: 0.0, rng: Rng::new(seed) }
    }
}

impl Rule for Throttling {
    fn admit(&mut self, now: Instant, ask: &Ask<'_>) -> Leave {
        let now = seconds(now);
        if now < self.next {
            return Leave::At(self.next);
        }
        let (requests, accepts) = (self.requests.count(now), self.accepts.count(now));
        let refuse = ((requests - self.k * accepts) / (requests + 1.0)).max(0.0);
        self.requests.0.push_back(now);
        if self.rng.unit() >= refuse {
            return Leave::Now;
        }
        // Each idle worker tries once a second.
        self.next = now + 1.0 / ask.idle;
        Leave::At(self.next)
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>, call: Made) -> After {
        if !answer.is_refused() {
            self.accepts.0.push_back(seconds(now));
        }
        if answer.class == Class::Success {
            return After::Done;
        }
        After::Again(full_jitter(call.attempt, &mut self.rng))
    }
}
