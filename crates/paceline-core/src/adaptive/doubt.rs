//! When a trial has to find out whether throttles are random: they come too soon after one another for a limit.

/// So many refusals that come too soon start a trial; ...
const DOUBTS: f64 = 4.0;

/// ... each trial that refutes the doubt doubles that, up to this.
const MOST: f64 = 48.0;

/// A refusal that a limit explains lowers the score by so much.
const EXPLAINED: f64 = 0.6;

/// A refusal counts when so many calls were admitted since the last: those that come together are one event.
const ALONE: f64 = 3.0;

#[derive(Clone, Debug)]
pub(super) struct Doubt {
    score: f64,
    /// The score that starts a trial.
    needed: f64,
    /// Calls admitted since the last refusal.
    alone: f64,
}

impl Default for Doubt {
    fn default() -> Self {
        Self { score: 0.0, needed: DOUBTS, alone: 0.0 }
    }
}

impl Doubt {
    /// So many calls were admitted.
    pub(super) fn passed(&mut self, calls: f64) {
        self.alone += calls;
    }

    /// A call was refused. Returns whether the refusal counts.
    pub(super) fn is_alone(&mut self) -> bool {
        core::mem::take(&mut self.alone) >= ALONE
    }

    /// A refusal that counts; too soon for a limit or not. Returns whether to start a trial.
    pub(super) fn refused(&mut self, soon: bool) -> bool {
        self.score = if soon { self.score + 1.0 } else { (self.score - EXPLAINED).max(0.0) };
        self.score >= self.needed
    }

    /// Our rate was the cause after all.
    pub(super) fn refuted(&mut self) {
        (self.score, self.needed) = (0.0, (2.0 * self.needed).min(MOST));
    }

    /// The refusals were random.
    pub(super) fn confirmed(&mut self) {
        (self.score, self.needed) = (0.0, DOUBTS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refusals that come too soon or not, in turn; how many until it is time to find out.
    fn refusals(doubt: &mut Doubt, soon: &[bool]) -> Option<usize> {
        (0..1_000).position(|refusal| doubt.refused(soon[refusal % soon.len()])).map(|index| index + 1)
    }

    #[test]
    fn four_refusals_in_a_row_are_doubted_and_more_where_a_limit_explains_some() {
        assert_eq!(refusals(&mut Doubt::default(), &[true]), Some(4));
        assert_eq!(refusals(&mut Doubt::default(), &[true, false]), Some(17));
        assert_eq!(refusals(&mut Doubt::default(), &[true, false, false]), None, "a limit explains two of three");
    }

    #[test]
    fn each_doubt_in_vain_takes_twice_as_many() {
        let mut doubt = Doubt::default();
        doubt.refuted();
        assert_eq!(refusals(&mut doubt, &[true]), Some(8));
        (0..10).for_each(|_| doubt.refuted());
        assert_eq!(refusals(&mut doubt, &[true]), Some(48));
        doubt.confirmed();
        assert_eq!(refusals(&mut doubt, &[true]), Some(4));
    }

    #[test]
    fn refusals_that_come_together_are_one_event() {
        let mut doubt = Doubt::default();
        doubt.passed(2.0);
        assert!(!doubt.is_alone());
        doubt.passed(2.0);
        assert!(!doubt.is_alone());
        doubt.passed(3.0);
        assert!(doubt.is_alone() && !doubt.is_alone());
    }
}
