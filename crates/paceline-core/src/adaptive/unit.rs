//! What the limit counts: calls, or their tokens. No header shows which, but refusals do.
//!
//! Under a limit on calls it is chance which of them is refused. Under a limit on tokens a call is refused when its tokens
//! do not fit, so its chance is in proportion to them: those of `c` tokens are refused `c / mean` times as often as chance
//! would have it. So each refusal multiplies the odds on tokens by that number. Once they are a hundred to one the rate
//! counts tokens; where it was calls after all, the odds fall again. The more the costs vary, the sooner it is known, and
//! the more there is to gain. Where all calls cost the same the odds never move, and counting calls is right.

/// The odds at which tokens count.
const TOKENS: f64 = 100.0;

/// The odds at which calls count again.
const CALLS: f64 = 1.0;

/// The lower bound of the odds, ...
const LEAST: f64 = 0.1;

/// ... and the upper one, so that a limit may change.
const MOST: f64 = 1e4;

/// Smoothing of what a call costs.
const SMOOTHING: f64 = 0.01;

/// The estimated unit of one scope's limit.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    /// Tokens of a call, smoothed.
    mean: f64,
    /// Calls that it is the mean of.
    calls: f64,
    /// That the limit counts tokens, against that it counts calls.
    odds: f64,
    is_tokens: bool,
}

/// A call in the unit of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Weight {
    /// Its weight in average calls.
    pub(super) of: f64,
    /// The factor by which the average call has become more expensive with it.
    pub(super) dearer: f64,
}

impl Weight {
    /// That of an average call, or where calls are what counts.
    const USUAL: Self = Self { of: 1.0, dearer: 1.0 };
}

impl Unit {
    pub(super) const fn new() -> Self {
        Self { mean: 0.0, calls: 0.0, odds: 1.0, is_tokens: false }
    }

    /// As another process had learnt it: the tokens of an average call, if tokens are what counts.
    pub(super) fn restored(tokens: Option<f64>) -> Self {
        match tokens.filter(|tokens| tokens.is_finite() && *tokens > 0.0) {
            Some(mean) => Self { mean, calls: 1.0 / SMOOTHING, odds: TOKENS, is_tokens: true },
            None => Self::new(),
        }
    }

    /// A call of so many tokens leaves.
    pub(super) fn sent(&mut self, tokens: u64) -> Weight {
        let (tokens, before) = (tokens as f64, self.mean);
        self.calls += 1.0;
        self.mean += (tokens - before) * SMOOTHING.max(1.0 / self.calls);
        if self.is_tokens && self.mean > 0.0 && before > 0.0 {
            Weight { of: tokens / self.mean, dearer: self.mean / before }
        } else {
            Weight::USUAL
        }
    }

    /// A call of so many tokens leaves where another process knows what an average call is.
    pub(super) fn weight(&self, tokens: u64) -> Weight {
        if self.is_tokens && self.mean > 0.0 {
            Weight { of: tokens as f64 / self.mean, dearer: 1.0 }
        } else {
            Weight::USUAL
        }
    }

    /// So many calls of so many tokens in all left elsewhere. Returns by what factor the average call has become dearer.
    pub(super) fn sent_many(&mut self, calls: u64, tokens: u64) -> f64 {
        let Some(mean) = (calls > 0).then(|| tokens / calls) else { return 1.0 };
        (0..calls.min(1_000)).fold(1.0, |dearer, _| dearer * self.sent(mean).dearer)
    }

    /// Another process knows the tokens of an average call, where tokens are what counts.
    pub(super) fn is_told(&mut self, tokens: Option<f64>) {
        self.is_tokens = tokens.is_some();
        self.mean = tokens.unwrap_or(self.mean);
    }

    /// A call of so many tokens was too much.
    pub(super) fn refused(&mut self, tokens: u64) {
        if self.mean > 0.0 {
            self.odds = (self.odds * tokens as f64 / self.mean).clamp(LEAST, MOST);
            self.is_tokens = self.odds >= if self.is_tokens { CALLS } else { TOKENS };
        }
    }

    /// The tokens of so many calls, if tokens are what counts.
    pub(super) fn tokens(&self, calls: f64) -> Option<f64> {
        self.is_tokens.then_some(calls * self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// From 1 to 100 tokens, most of them few.
    fn cost(rng: &mut Rng) -> u64 {
        let unit = rng.unit();
        1 + (99.0 * unit * unit * unit) as u64
    }

    /// Calls of such costs, of which those are refused that chance picks, by their tokens or not. Returns after how many
    /// refusals tokens were counted.
    fn refuse(unit: &mut Unit, rng: &mut Rng, refusals: u32, by_tokens: bool) -> u32 {
        let mut counted = 0;
        for _ in 0..refusals {
            for _ in 0..100 {
                unit.sent(cost(rng));
            }
            let refused = loop {
                let tokens = cost(rng);
                if !by_tokens || 100.0 * rng.unit() < tokens as f64 {
                    break tokens;
                }
            };
            unit.refused(refused);
            counted += u32::from(unit.is_tokens);
        }
        counted
    }

    #[test]
    fn refusals_show_what_the_limit_counts() {
        for seed in 0..50 {
            let (mut unit, mut rng) = (Unit::new(), Rng::new(seed));
            assert_eq!(refuse(&mut unit, &mut rng, 40, false), 0, "seed {seed}: chance");
            refuse(&mut unit, &mut rng, 40, true);
            assert!(unit.is_tokens, "seed {seed}: tokens");
            refuse(&mut unit, &mut rng, 40, false);
            assert!(!unit.is_tokens, "seed {seed}: another limit");
        }
    }

    /// Two refusals in a thousand, over a hundred jobs of a hundred thousand calls.
    #[test]
    fn chance_is_hardly_ever_taken_for_tokens() {
        let wrong: u32 = (0..100).map(|seed| refuse(&mut Unit::new(), &mut Rng::new(seed), 1_000, false)).sum();
        assert!(wrong < 200, "{wrong} of 100,000");
    }

    #[test]
    fn calls_that_cost_the_same_or_nothing_show_nothing() {
        for tokens in [0, 1, 500] {
            let mut unit = Unit::new();
            for _ in 0..1_000 {
                assert_eq!(unit.sent(tokens), Weight { of: 1.0, dearer: 1.0 });
                unit.refused(tokens);
            }
            assert_eq!((unit.odds, unit.tokens(1.0)), (1.0, None));
        }
    }

    /// What passes is a number of tokens a second, whatever calls cost.
    #[test]
    fn a_usual_call_may_become_dearer() {
        let mut unit = Unit { mean: 100.0, calls: 1_000.0, odds: MOST, is_tokens: true };
        let mut rate = 10.0;
        for _ in 0..1_000 {
            rate /= unit.sent(300).dearer;
            assert!((unit.tokens(rate).expect("tokens") - 1_000.0).abs() < 1e-6);
        }
        assert!((3.33..3.34).contains(&rate), "{rate}");
    }

    #[test]
    fn what_another_process_knew_of_the_tokens_of_a_call_is_that_of_a_hundred_calls() {
        let mut unit = Unit::restored(Some(100.0));
        assert_eq!(unit.sent(200), Weight { of: 200.0 / 101.0, dearer: 1.01 });
        for nonsense in [None, Some(0.0), Some(-1.0), Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(Unit::restored(nonsense).tokens(1.0), None, "{nonsense:?}");
        }
    }
}
