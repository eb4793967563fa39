//! Policies that are only a rule for retries: the OpenAI client, tenacity, and a shared responsive delay.
//!
//! Sources: openai-python's `_base_client.py`; tenacity's `wait_random_exponential(min=1, max=60)`.

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::crew::{After, Made, Rule};

/// The OpenAI client's own retries: two, then the item is lost.
#[derive(Debug)]
pub(super) struct OpenAi(Rng);

impl OpenAi {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }
}

impl Rule for OpenAi {
    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        const RETRIES: u32 = 2;
        const LONGEST_HINT: f64 = 120.0;
        if answer.class == Class::Success {
            return After::Done;
        }
        if call.attempt >= RETRIES {
            return After::Lost;
        }
        let hint = answer.wait.map(|hint| hint.wait.as_secs_f64()).filter(|wait| *wait > 0.0 && *wait <= LONGEST_HINT);
        let own = (0.5 * f64::from(1u32 << call.attempt)).min(8.0) * (1.0 - 0.25 * self.0.unit());
        After::Again(hint.unwrap_or(own))
    }
}

/// tenacity's random exponential wait, for ever.
#[derive(Debug)]
pub(super) struct Tenacity(Rng);

impl Tenacity {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }
}

impl Rule for Tenacity {
    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        if answer.class == Class::Success {
            return After::Done;
        }
        let most = f64::from(1u32 << call.attempt.min(16)).min(60.0);
        After::Again((self.0.unit() * most).max(1.0))
    }
}

/// Each worker has a delay between its calls: longer at each failure, shorter after ten successes.
#[derive(Debug)]
pub(super) struct Responsive {
    rng: Rng,
    /// By worker.
    delays: Vec<Delay>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Delay {
    seconds: f64,
    successes: u32,
}

impl Responsive {
    const INITIAL: f64 = 0.5;

    pub(super) const fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), delays: Vec::new() }
    }

    fn jitter(&mut self, delay: f64) -> f64 {
        let spread = (0.3 * delay).min(120.0);
        delay - spread + 2.0 * spread * self.rng.unit()
    }

    fn longer(&mut self, delay: f64) -> f64 {
        if delay == 0.0 { Self::INITIAL } else { self.jitter(delay * 1.5).min(900.0) }
    }

    fn shorter(&mut self, delay: f64) -> f64 {
        let shorter = self.jitter(delay * 0.9);
        if shorter < Self::INITIAL { 0.0 } else { shorter }
    }
}

impl Rule for Responsive {
    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        let worker = call.worker as usize;
        if worker >= self.delays.len() {
            self.delays.resize(worker + 1, Delay::default());
        }
        let Delay { seconds, successes } = self.delays[worker];
        if answer.class != Class::Success {
            let seconds = self.longer(seconds);
            self.delays[worker].seconds = seconds;
            return After::Again(seconds);
        }
        if seconds == 0.0 {
            return After::Done;
        }
        self.delays[worker] = if successes + 1 == 10 {
            Delay { seconds: self.shorter(seconds), successes: 0 }
        } else {
            Delay { seconds, successes: successes + 1 }
        };
        After::Rest(self.delays[worker].seconds)
    }
}
