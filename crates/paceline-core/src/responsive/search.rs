//! The default rule: a search for the shortest delay that holds.
//!
//! It keeps the largest delay that failed and the one it last stepped down from, which held. Steps down never pass the
//! middle between the present delay and the largest that failed, so they close in on it. Once they are there, shorter
//! delays are tried ever more rarely; one that holds makes the memory obsolete, and the search begins anew.

use super::{Knobs, below};
use crate::rng::Rng;

/// A delay this close to the largest that failed, as a share of it, is close enough.
const RESOLUTION: f64 = 1.0 / 64.0;

/// The pause between tries of shorter delays doubles so often at most: a limit that was raised must be found. With ten
/// successes at first, no more than one call in 160 is spent on it.
const MOST_DOUBLINGS: u32 = 4;

#[derive(Clone, Debug)]
pub(super) struct Search {
    pub(super) current: u64,
    pub(super) successes: u32,
    /// The largest delay that failed, while it still counts.
    failed: Option<u64>,
    /// The delay that the last step down left.
    held: Option<u64>,
    /// No step down has failed since the search began: each success is one, and each is larger than the one before.
    accelerating: bool,
    /// Steps down without a failure in between.
    steps: u32,
    /// Tries of shorter delays that failed, one after the other.
    rejected: u32,
}

impl Default for Search {
    fn default() -> Self {
        Self { current: 0, successes: 0, failed: None, held: None, accelerating: true, steps: 0, rejected: 0 }
    }
}

impl Search {
    pub(super) fn fail(&mut self, knobs: &Knobs, rng: &mut Rng) {
        (self.successes, self.steps) = (0, 0);
        let trial = self.is_trial();
        self.failed = self.failed.max(Some(self.current));
        self.current = match self.held.take() {
            Some(held) if held > self.current && (trial || self.current > 0) => {
                self.accelerating = false;
                self.rejected += u32::from(trial);
                held
            }
            _ => self.higher(knobs, rng),
        };
    }

    /// Returns whether it went down.
    pub(super) fn succeed(&mut self, knobs: &Knobs, rng: &mut Rng) -> bool {
        if self.current == 0 {
            return false;
        }
        self.successes = self.successes.saturating_add(1);
        if self.successes < self.needed(knobs) {
            return false;
        }
        if self.is_trial() {
            *self = Self { current: self.current, ..Self::default() };
        }
        self.successes = 0;
        self.steps += 1;
        self.held = Some(self.current);
        self.current = self.lower(knobs, rng);
        true
    }

    /// Halves the delay so often, and forgets which delays failed.
    pub(super) fn decay(&mut self, knobs: &Knobs, halvings: u64) {
        let halved = self.current.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0);
        *self = Self { current: if halved < knobs.min { 0 } else { halved }, ..Self::default() };
    }

    /// Whether the present delay is no longer than one that failed.
    fn is_trial(&self) -> bool {
        self.failed.is_some_and(|failed| self.current <= failed)
    }

    /// Whether the next step down would be a trial.
    fn is_settled(&self, knobs: &Knobs) -> bool {
        self.failed.is_some_and(|failed| {
            let near = failed.saturating_add((failed as f64 * RESOLUTION) as u64).max(knobs.min);
            failed < self.current && self.current <= near
        })
    }

    /// Successes in a row that a step down asks for.
    fn needed(&self, knobs: &Knobs) -> u32 {
        if self.is_settled(knobs) {
            knobs.threshold.saturating_mul(1 << self.rejected.min(MOST_DOUBLINGS))
        } else if self.accelerating && !self.is_trial() {
            1
        } else {
            knobs.threshold
        }
    }

    /// The delay after a failure: never below the present one, and spread, so that many callers that failed together
    /// do not return together. Near the longest delay it stays where randomness has put it.
    fn higher(&self, knobs: &Knobs, rng: &mut Rng) -> u64 {
        let spread = knobs.spread(knobs.max);
        let lowest = knobs.max - spread;
        let current = self.current as f64;
        if self.current >= lowest && current * knobs.up >= knobs.max as f64 {
            return self.current;
        }
        let target = match self.current {
            0 => knobs.jitter(knobs.initial, rng),
            _ => self.current.saturating_add(knobs.jitter((current * (knobs.up - 1.0)) as u64, rng).max(1)),
        };
        if target < knobs.max { target } else { self.current.max(lowest + below(spread, rng)) }
    }

    /// The delay after enough successes: never above the present one.
    fn lower(&self, knobs: &Knobs, rng: &mut Rng) -> u64 {
        let steps = if self.accelerating { self.steps } else { 1 };
        let factor = (1..steps).fold(knobs.down, |factor, _| factor * knobs.down);
        let fall = knobs.jitter((self.current as f64 * (1.0 - factor)) as u64, rng).max(1);
        let target = self.current.saturating_sub(fall);
        match self.failed {
            None if target < knobs.min => 0,
            None => target.max(self.current / 2),
            Some(_) if self.is_settled(knobs) => {
                if target < knobs.min {
                    0
                } else {
                    target
                }
            }
            Some(failed) => target.max(failed + (self.current - failed) / 2).max(knobs.min),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_down_ends_half_way_to_what_failed_and_at_the_shortest_delay() {
        let knobs = Knobs {
            initial: 10,
            max: 10_000,
            min: 10,
            max_randomization: 0,
            idle_half_life: None,
            up: 2.0,
            down: 0.875,
            randomization: 0.0,
            threshold: 10,
        };
        let settled = Some(1_000);
        for (current, failed, steps, accelerating, lower) in [
            // The first step takes an eighth, a later one more, and none more than half.
            (1_000, None, 1, true, 875),
            (1_000, None, 3, true, 670),
            (1_000, None, 3, false, 875),
            (1_000, None, 20, true, 500),
            // Below the shortest delay there is none.
            (11, None, 1, true, 10),
            (10, None, 1, true, 0),
            (1, None, 1, true, 0),
            // Not past the middle to what failed, nor below the shortest.
            (2_000, Some(1_000), 20, true, 1_500),
            (2_000, Some(1_950), 1, false, 1_975),
            (12, Some(2), 20, true, 10),
            // Close to what failed, a step passes it.
            (1_010, settled, 1, false, 884),
            (10, Some(9), 1, false, 0),
        ] {
            let search = Search { current, failed, steps, accelerating, ..Search::default() };
            let found = search.lower(&knobs, &mut Rng::new(0));
            assert_eq!(found, lower, "from {current}, failed {failed:?}, step {steps}, accelerating {accelerating}");
        }
    }
}
