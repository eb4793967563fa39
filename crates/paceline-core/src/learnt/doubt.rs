//! When it is time to find out whether throttles are chance: they come too soon after one another for a limit.

/// So many refusals that come too soon are doubted; ...
const DOUBTS: f64 = 4.0;

/// ... each time in vain it takes twice as many, up to this.
const MOST: f64 = 48.0;

/// A refusal counts when so many calls were admitted since the last: those that come together are one event.
const ALONE: f64 = 3.0;

#[derive(Clone, Debug)]
pub(super) struct Doubt {
    score: f64,
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

    /// A call was refused: whether that counts.
    pub(super) fn is_alone(&mut self) -> bool {
        core::mem::take(&mut self.alone) >= ALONE
    }

    /// A refusal that counts; too soon for a limit or not. Says whether to find out.
    pub(super) fn refused(&mut self, soon: bool) -> bool {
        self.score = if soon { self.score + 1.0 } else { 0.5 * self.score };
        self.score >= self.needed
    }

    /// They were our doing after all.
    pub(super) fn refuted(&mut self) {
        (self.score, self.needed) = (0.0, (2.0 * self.needed).min(MOST));
    }

    /// They were chance.
    pub(super) fn confirmed(&mut self) {
        (self.score, self.needed) = (0.0, DOUBTS);
    }
}
