//! A learnt bound on the calls in flight, only where refusals follow that number.
//!
//! A provider that counts calls in service refuses at the same number each time, whatever the rate is. Three such
//! refusals make a cap of it; refusals elsewhere undo it.

use super::rate::{FEW, Rate};

/// Similar numbers at refusal that make a cap.
const HITS: u8 = 3;

/// How far, in standard deviations, that number must stand out of the usual one.
const OUT: f64 = 1.3;

/// Smoothing of the usual number in flight.
const SMOOTHING: f64 = 0.01;

/// Refusals so close to the cap are explained by it.
const NEAR: f64 = 0.9;

/// What explains a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Explains {
    /// The cap explains it, nothing else reacts.
    All,
    /// The rate was too high.
    Nothing,
}

#[derive(Clone, Debug)]
pub(super) struct Cap {
    limit: Option<u32>,
    score: u8,
    /// Calls in flight at the last refusal that opened an epoch.
    at: f64,
    mean: f64,
    var: f64,
    /// Calls that left with the cap full, since it last changed.
    calls: u64,
    step: u32,
}

impl Cap {
    pub(super) const fn new() -> Self {
        Self { limit: None, score: 0, at: 0.0, mean: 0.0, var: 0.0, calls: 0, step: 1 }
    }

    /// As another process had learnt it.
    pub(super) fn restored(limit: Option<u32>) -> Self {
        let score = if limit.is_some() { HITS } else { 0 };
        Self { limit: limit.map(|limit| limit.max(1)), score, ..Self::new() }
    }

    pub(super) const fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// Whether one more than `in_flight` exceeds it.
    pub(super) fn is_full(&self, in_flight: u32) -> bool {
        self.limit.is_some_and(|limit| in_flight >= limit)
    }

    /// A call is sent as one of `in_flight`; `payment`: so many calls at the cap pay for trying a higher one.
    pub(super) fn sent(&mut self, in_flight: u32, payment: f64) {
        let off = f64::from(in_flight) - self.mean;
        self.mean += SMOOTHING * off;
        self.var += SMOOTHING * (off * off - self.var);
        let Some(limit) = &mut self.limit else { return };
        if in_flight < *limit {
            return;
        }
        self.calls += 1;
        if self.calls as f64 >= payment {
            *limit = limit.saturating_add(self.step);
            self.step = self.step.saturating_mul(2);
            self.calls = 0;
        }
    }

    /// A refusal that opens an epoch after `run` admitted calls, of a call that left as one of `in_flight`.
    pub(super) fn refused(&mut self, in_flight: u32, run: u64, rate: &mut Rate) -> Explains {
        let f = f64::from(in_flight);
        let hit = match self.limit {
            Some(limit) => f >= NEAR * f64::from(limit) && run as f64 >= FEW,
            None => self.is_alike(f) && run >= 2 && self.stands_out(f),
        };
        self.at = f;
        self.score = if hit { (self.score + 1).min(2 * HITS) } else { self.score.saturating_sub(1) };
        match self.limit {
            Some(_) if self.score == 0 => {
                self.limit = None;
                rate.scale(0.5);
                Explains::Nothing
            }
            Some(limit) if f < NEAR * f64::from(limit) => Explains::Nothing,
            None if self.score < HITS => Explains::Nothing,
            known => {
                let seen = known.map_or(in_flight, |limit| limit.min(in_flight));
                (self.limit, self.calls, self.step) = (Some((seen - 1).max(1)), 0, 1);
                if known.is_some() {
                    return Explains::All;
                }
                // From now on the cap works, and the rate only smooths.
                rate.scale(2.0);
                Explains::Nothing
            }
        }
    }

    fn is_alike(&self, f: f64) -> bool {
        f >= 2.0 && (f - self.at).abs() <= (0.06 * f).max(2.0)
    }

    fn stands_out(&self, f: f64) -> bool {
        let off = f - self.mean;
        off > 0.0 && off * off > OUT * OUT * self.var
    }
}

#[cfg(test)]
mod tests {
    use super::super::Start;
    use super::*;
    use alloc::vec::Vec;
    use core::time::Duration;

    /// Calls in flight rise to `most` and one is refused there, so often. Usually they are half as many.
    fn refuse(cap: &mut Cap, rate: &mut Rate, most: u32, times: u32) {
        for _ in 0..times {
            (0..100).for_each(|call| cap.sent(1 + call % (most / 2), 170.0));
            (1..=most).for_each(|in_flight| cap.sent(in_flight, 170.0));
            cap.refused(most, 100, rate);
        }
    }

    fn rate() -> Rate {
        Rate::new(Start::At(10.0), Duration::from_secs(60))
    }

    #[test]
    fn three_refusals_at_a_similar_and_unusual_number_make_a_cap_and_the_rate_only_smooths() {
        let (mut cap, mut rate) = (Cap::new(), rate());
        // The first only says where, two more are like it, and so is the next.
        refuse(&mut cap, &mut rate, 30, 3);
        assert_eq!((cap.limit(), rate.per_second()), (None, 10.0));
        refuse(&mut cap, &mut rate, 30, 1);
        assert_eq!((cap.limit(), rate.per_second()), (Some(29), 20.0));
        assert!(cap.is_full(29) && !cap.is_full(28));
    }

    #[test]
    fn refusals_at_other_numbers_or_at_the_usual_one_make_none() {
        let (mut cap, mut rate) = (Cap::new(), rate());
        for most in [30, 20, 30, 20, 40, 20, 30, 40] {
            refuse(&mut cap, &mut rate, most, 1);
        }
        assert_eq!(cap.limit(), None, "each at another number");
        let mut cap = Cap::new();
        for _ in 0..10 {
            (0..200).for_each(|call| cap.sent(20 + call % 21, 170.0));
            cap.refused(30, 100, &mut rate);
        }
        assert_eq!(cap.limit(), None, "as many as ever");
        let mut cap = Cap::new();
        for _ in 0..10 {
            (0..200).for_each(|_| cap.sent(1, 170.0));
            cap.refused(1, 100, &mut rate);
        }
        assert_eq!(cap.limit(), None, "one call at a time");
        let mut cap = Cap::new();
        (0..100).for_each(|call| cap.sent(1 + call % 15, 170.0));
        (0..10).for_each(|_| _ = cap.refused(30, 1, &mut rate));
        assert_eq!(cap.limit(), None, "nothing passed in between");
    }

    #[test]
    fn a_higher_cap_is_tried_once_a_payment_has_left_at_the_cap_and_steps_double() {
        let mut cap = Cap::restored(Some(8));
        let mut limits = Vec::new();
        for _ in 0..3 {
            (0..169).for_each(|_| cap.sent(cap.limit().expect("a cap"), 170.0));
            (0..100).for_each(|_| cap.sent(3, 170.0));
            limits.push(cap.limit());
            cap.sent(cap.limit().expect("a cap"), 170.0);
            limits.push(cap.limit());
        }
        assert_eq!(limits, [Some(8), Some(9), Some(9), Some(11), Some(11), Some(15)]);
    }

    #[test]
    fn a_refusal_at_the_cap_is_explained_by_it_and_refusals_elsewhere_undo_it() {
        let (mut cap, mut rate) = (Cap::restored(Some(20)), rate());
        assert_eq!(cap.refused(20, 100, &mut rate), Explains::All);
        assert_eq!((cap.limit(), rate.per_second()), (Some(19), 10.0));
        cap.limit = Some(20);
        assert_eq!(cap.refused(18, 100, &mut rate), Explains::All, "near it");
        assert_eq!(cap.limit(), Some(17));
        assert_eq!(cap.refused(15, 100, &mut rate), Explains::Nothing);
        assert_eq!(cap.limit(), Some(17));
        // However often it was confirmed, six refusals elsewhere are enough.
        (0..20).for_each(|_| {
            cap.limit = Some(20);
            cap.refused(20, 100, &mut rate);
        });
        (0..5).for_each(|_| _ = cap.refused(5, 100, &mut rate));
        assert_eq!((cap.limit(), rate.per_second()), (Some(19), 10.0));
        cap.refused(5, 100, &mut rate);
        assert_eq!((cap.limit(), rate.per_second()), (None, 5.0));
    }

    #[test]
    fn refusals_at_the_cap_that_come_too_soon_undo_it_too() {
        let (mut cap, mut rate) = (Cap::restored(Some(20)), rate());
        (0..3).for_each(|_| _ = cap.refused(20, 10, &mut rate));
        assert_eq!(cap.limit(), None);
    }
}
