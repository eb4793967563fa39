//! Additive increase and multiplicative decrease of the calls in flight, in its classic form: it starts at the maximum,
//! grows by one per success and is halved by every single refusal.
//!
//! Source: the worker limit that batch runners for language models copy from each other.

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::crew::{After, Ask, Leave, Made, Rule, full_jitter};

#[derive(Debug)]
pub(super) struct Aimd {
    limit: u32,
    rng: Rng,
}

impl Aimd {
    const FLOOR: u32 = 5;
    const MOST: u32 = 50;
    const RETRIES: u32 = 7;

    pub(super) const fn new(seed: u64) -> Self {
        Self { limit: Self::MOST, rng: Rng::new(seed) }
    }
}

impl Rule for Aimd {
    fn admit(&mut self, _: Instant, ask: &Ask<'_>) -> Leave {
        if ask.in_flight < self.limit { Leave::Now } else { Leave::OnAnswer }
    }

    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        if answer.class == Class::Success {
            self.limit = (self.limit + 1).min(Self::MOST);
            return After::Done;
        }
        if answer.class == Class::Throttled {
            self.limit = (self.limit / 2).max(Self::FLOOR);
        }
        if call.attempt >= Self::RETRIES { After::Lost } else { After::Again(full_jitter(call.attempt, &mut self.rng)) }
    }

    fn limit(&self) -> Option<u32> {
        Some(self.limit)
    }
}
