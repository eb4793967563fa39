//! A trial: another rate for some calls, to find out whether their refusals follow it.
//!
//! Refusals caused by the rate all but end at half of it, or at a quarter where other callers fill the gap, and
//! become many at twice the rate. Random refusals come as often as before. A trial begins where refusals were just more
//! frequent than usual, so a small fall proves nothing: it would come anyway.

/// The first outcomes of a slower trial still come from the time before it: the provider's queue is full.
const FULL_QUEUE: f64 = 10.0;

/// A trial looks at the outcomes of this time, in seconds, ...
const TIME: f64 = 10.0;

/// ... but at least and at most at so many.
const CALLS: (f64, f64) = (30.0, 60.0);

/// It continues for up to this time, in seconds, ...
const LONGER: f64 = 3.0;

/// ... until so many would be refused at the usual share: before that it cannot be distinguished from none.
const EVIDENCE: f64 = 8.0;

/// It continues where fewer than so many would have been refused at the share before, and some were: one of them is no fall.
const HARDLY: f64 = 4.0;

/// It ends early when none was refused where so many would have been, ...
const EXPECTED: f64 = 5.0;

/// ... or when after so many outcomes ...
const SOON: f64 = 20.0;

/// ... the share is so far above the one before.
const FAR_ABOVE: f64 = 0.2;

/// A share that falls to this part of what it was fell because of our rate: down *to* a quarter, since it falls a little after
/// each false alarm.
const FELL: f64 = 0.25;

/// A share that falls to this part may have: other callers may fill the gap.
const FELL_A_LITTLE: f64 = 0.6;

/// A share so far above the one before does not stand still: the overload still grows.
const ROSE: f64 = 0.08;

/// At least this part of the usual share is the usual share.
const USUAL: f64 = 0.5;

/// At twice the rate a share up to this, ...
const FEW: f64 = 0.12;

/// ... or up to so many times the usual one, is independent of the rate.
const TIMES: f64 = 1.5;

/// The rate is the cause after so many refusals, ...
const PROOFS: f64 = 4.0;

/// ... of more than this share of the outcomes, ...
const PROVEN: f64 = 0.2;

/// ... and more than so many times the usual one.
const PROVEN_TIMES: f64 = 2.0;

/// A larger share is not random, whatever a trial shows.
pub(super) const LARGEST: f64 = 0.3;

/// The rate of a trial relative to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speed {
    /// A half.
    Slower,
    /// A quarter, or less.
    Deeper,
    /// Twice as much.
    Faster,
}

/// The result of a slower trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// Refusals follow the rate.
    Fell,
    /// They do not.
    Stayed,
    /// Inconclusive: it takes a deeper trial.
    Unclear,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    speed: Speed,
    /// The share before it began, and over a long time.
    pub(super) before: f64,
    usual: f64,
    /// Outcomes from those on that were not queued before it (negative: as many are to come), and how many were refused.
    outcomes: f64,
    refused: f64,
    /// Outcomes from the last reaction to its beginning.
    pub(super) run: f64,
}

impl Trial {
    /// At half the rate.
    pub(super) const fn slower(before: f64, usual: f64, run: f64) -> Self {
        Self { speed: Speed::Slower, before, usual, outcomes: -FULL_QUEUE, refused: 0.0, run }
    }

    /// The same question at half of that. A share that rose is what it has to fall from.
    pub(super) fn deeper(&self, share: f64) -> Self {
        let before = if self.rose(share) { share } else { self.before };
        Self { speed: Speed::Deeper, ..Self::slower(before, self.usual, self.run) }
    }

    /// At twice the rate.
    pub(super) const fn faster(before: f64, usual: f64) -> Self {
        Self { speed: Speed::Faster, outcomes: 0.0, ..Self::slower(before, usual, 0.0) }
    }

    pub(super) fn is_faster(&self) -> bool {
        self.speed == Speed::Faster
    }

    /// So many outcomes, and how many of them were refused.
    pub(super) fn count(&mut self, outcomes: f64, refused: f64) {
        self.refused += if self.outcomes >= 0.0 { refused } else { 0.0 };
        self.outcomes += outcomes;
    }

    /// Twice the rate was too much: there is no need for the rest of the trial.
    pub(super) fn is_too_fast(&self) -> bool {
        let share = PROVEN.max(PROVEN_TIMES * self.usual);
        self.refused >= PROOFS && self.refused > share * self.outcomes
    }

    /// The share that was refused in it, once enough outcomes are there at so many calls a second.
    pub(super) fn share(&self, per_second: f64) -> Option<f64> {
        let (least, most) = CALLS;
        let long = self.outcomes >= (TIME * per_second).clamp(least, most);
        let ended = long && (self.is_faster() || self.is_clear(per_second)) || !self.is_faster() && self.is_plain();
        ended.then(|| self.refused / self.outcomes)
    }

    /// Enough outcomes to distinguish a share that fell from one that is as usual, and from one that stayed.
    fn is_clear(&self, per_second: f64) -> bool {
        let usual = self.outcomes >= LONGER * per_second || self.outcomes * self.usual >= EVIDENCE;
        usual && (self.refused == 0.0 || self.outcomes * self.before >= HARDLY)
    }

    /// None was refused, or far too many: there is no need for the rest of the trial.
    fn is_plain(&self) -> bool {
        let none = self.refused == 0.0 && self.outcomes * self.before >= EXPECTED;
        none || self.outcomes >= SOON && self.refused >= (self.before + FAR_ABOVE) * self.outcomes
    }

    /// What that share shows at a lower rate.
    pub(super) fn shows(&self, share: f64) -> Shows {
        let as_usual = self.outcomes * self.usual >= EVIDENCE && share >= USUAL * self.usual;
        if self.fell_to(share) && !as_usual {
            return Shows::Fell;
        }
        let little = self.speed == Speed::Slower && share <= FELL_A_LITTLE * self.before;
        if little || self.rose(share) { Shows::Unclear } else { Shows::Stayed }
    }

    /// Whether that share at twice the rate is independent of the rate.
    pub(super) fn is_chance(&self, share: f64) -> bool {
        share <= FEW.max(TIMES * self.usual).min(LARGEST)
    }

    fn fell_to(&self, share: f64) -> bool {
        share <= FELL * self.before
    }

    fn rose(&self, share: f64) -> bool {
        share > self.before + ROSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial at ten calls a second that began at that share, one refusal in so many outcomes.
    fn ended(mut trial: Trial, one_in: u32) -> (f64, f64) {
        for outcome in 0..10_000_u32 {
            trial.count(1.0, f64::from(u32::from(outcome % one_in == one_in - 1)));
            if let Some(share) = trial.share(10.0) {
                return (share, trial.outcomes);
            }
        }
        panic!("{trial:?} does not end");
    }

    #[test]
    fn half_the_rate_shows_what_causes_refusals() {
        let trial = Trial::slower(0.2, 0.0, 100.0);
        let shows = |one_in| trial.shows(ended(trial, one_in).0);
        assert_eq!(shows(5), Shows::Stayed);
        assert_eq!(shows(10), Shows::Unclear, "half of the refusals are gone: other callers may fill the gap");
        assert_eq!(shows(1_000), Shows::Fell);
        assert_eq!(shows(2), Shows::Unclear, "the overload still grows");
    }

    #[test]
    fn a_deeper_trial_is_the_last_unless_refusals_rise() {
        let slower = Trial::slower(0.2, 0.0, 100.0);
        assert_eq!(slower.deeper(0.1).shows(0.1), Shows::Stayed);
        assert_eq!(slower.deeper(0.1).shows(0.04), Shows::Fell);
        assert_eq!(slower.deeper(0.5).before, 0.5, "it has to fall from what it rose to");
        assert_eq!(slower.deeper(0.5).shows(0.6), Shows::Unclear);
    }

    #[test]
    fn what_is_as_usual_did_not_fall() {
        let of = |usual| Trial { outcomes: 400.0, ..Trial::slower(0.1, usual, 100.0) };
        assert_eq!(of(0.02).shows(0.02), Shows::Unclear, "2 % were refused all the time");
        assert_eq!(of(0.0).shows(0.02), Shows::Fell);
    }

    #[test]
    fn a_trial_ends_when_it_is_conclusive() {
        let (_, none) = ended(Trial::slower(0.25, 0.0, 0.0), 10_001);
        assert_eq!(none, 20.0, "none was refused, and five would have been");
        let (_, many) = ended(Trial::slower(0.1, 0.0, 0.0), 2);
        assert_eq!(many, 20.0, "far more are refused");
        let (_, few) = ended(Trial::slower(0.05, 0.0, 0.0), 40);
        assert_eq!(few, 80.0, "one refusal says nothing where three would have been");
    }

    #[test]
    fn twice_the_rate_is_refused_by_a_limit_and_not_by_chance() {
        let mut trial = Trial::faster(0.02, 0.02);
        let (share, outcomes) = ended(trial, 50);
        assert!(trial.is_chance(share) && outcomes == 60.0, "{share} of {outcomes}");
        trial.count(4.0, 3.0);
        assert!(!trial.is_too_fast());
        trial.count(2.0, 1.0);
        assert!(trial.is_too_fast() && !trial.is_chance(0.5));
        assert!(!Trial { usual: 0.4, ..trial }.is_too_fast(), "two of three are no more than twice as many as usual");
    }
}
