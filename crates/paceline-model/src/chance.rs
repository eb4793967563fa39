//! Random refusals: a share of the calls is refused, whatever the limits and the client's rate are.

use std::time::Duration;

use paceline_core::{Instant, Rng};

/// A kind of random refusal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chance {
    /// The status of the answer: 429, 503 or 529.
    pub status: u16,
    /// The probability for each call, 0 to 1.
    pub share: f64,
    /// So many first calls are always refused.
    pub first: u64,
    /// The wait that such an answer asks for, in whole seconds, whatever the provider's hints are. Default: none.
    pub wait: Option<Duration>,
    /// When it begins. Default: the start.
    pub from: Duration,
    /// When it ends. Default: the end of the run.
    pub until: Option<Duration>,
}

impl Chance {
    /// Each call with that probability, for ever.
    pub const fn new(status: u16, share: f64) -> Self {
        Self { status, share, first: 0, wait: None, from: Duration::ZERO, until: None }
    }

    pub(crate) fn is_sound(&self) -> bool {
        matches!(self.status, 429 | 503 | 529)
            && (0.0..=1.0).contains(&self.share)
            // With a probability of 1 no job would end.
            && (self.share < 1.0 || self.until.is_some())
            && self.until.is_none_or(|until| until > self.from)
    }

    fn is_on(&self, now: Instant) -> bool {
        let now = now - Instant::ZERO;
        self.from <= now && self.until.is_none_or(|until| now < until)
    }
}

/// The dice of a provider.
#[derive(Clone, Debug)]
pub(crate) struct Dice {
    chances: Vec<Chance>,
    calls: u64,
    rng: Rng,
}

impl Dice {
    pub(crate) const fn new(chances: Vec<Chance>, seed: u64) -> Self {
        Self { chances, calls: 0, rng: Rng::new(seed) }
    }

    /// Whether an arriving call is refused, and by which kind.
    pub(crate) fn roll(&mut self, now: Instant) -> Option<Chance> {
        self.calls += 1;
        let (calls, rng) = (self.calls, &mut self.rng);
        self.chances
            .iter()
            .find(|chance| chance.is_on(now) && (calls <= chance.first || rng.unit() < chance.share))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_share_of_the_calls_or_the_first_ones_or_those_of_a_while() {
        let refused = |chance: Chance, calls: u64| {
            let mut dice = Dice::new(vec![chance], 7);
            (0..calls).filter(|second| dice.roll(at(*second)).is_some()).count()
        };
        let share = refused(Chance::new(503, 0.02), 100_000);
        assert!((1_900..2_100).contains(&share), "{share}");
        assert_eq!(refused(Chance { first: 3, ..Chance::new(429, 0.0) }, 1_000), 3);
        let (from, until) = (Duration::from_secs(60), Some(Duration::from_secs(65)));
        assert_eq!(refused(Chance { from, until, ..Chance::new(503, 1.0) }, 1_000), 5);
    }
}
