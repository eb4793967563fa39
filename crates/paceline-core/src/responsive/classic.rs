//! The classic rule, in whole nanoseconds and with its defects: the first delay and the longest are the same for
//! all workers, failures do not interrupt a streak, randomness may turn a step around, and a delay below the initial one
//! is none at all.

use super::Knobs;
use crate::rng::Rng;

#[derive(Clone, Debug, Default)]
pub(super) struct Classic {
    pub(super) current: u64,
    pub(super) successes: u32,
}

impl Classic {
    pub(super) fn fail(&mut self, knobs: &Knobs, rng: &mut Rng) {
        self.current = match self.current {
            0 => knobs.initial,
            current => knobs.jitter((current as f64 * knobs.up) as u64, rng).min(knobs.max),
        };
    }

    /// Returns whether it went down.
    pub(super) fn succeed(&mut self, knobs: &Knobs, rng: &mut Rng) -> bool {
        if self.current == 0 {
            return false;
        }
        self.successes += 1;
        if self.successes < knobs.threshold {
            return false;
        }
        self.successes = 0;
        let lower = knobs.jitter((self.current as f64 * knobs.down) as u64, rng);
        self.current = if lower < knobs.initial { 0 } else { lower };
        true
    }
}
