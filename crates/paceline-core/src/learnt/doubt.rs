//! Evidence that throttles are chance: calls well below the refused rate are refused as often as the others.

use super::chance::LARGEST;

/// So many refusals below the refused rate are evidence; each time they turn out to be none it takes twice as many.
const PROOFS: f64 = 8.0;

/// The share of the calls below must be at least this part of that of the others.
const ALIKE: f64 = 0.5;

/// A refusal counts when so many calls were admitted since the last: those that come together are one event.
const ALONE: f64 = 3.0;

/// Calls that are remembered; and a belief that is refuted within so many was none.
const REMEMBERED: f64 = 1_000.0;

/// Calls, and how many of them were refused.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    all: f64,
    refused: f64,
}

impl Calls {
    fn halve(&mut self) {
        self.all *= 0.5;
        self.refused *= 0.5;
    }
}

#[derive(Clone, Debug)]
pub(super) struct Doubt {
    below: Calls,
    others: Calls,
    proofs: f64,
    /// Calls admitted since the last refusal, ...
    alone: f64,
    /// ... and since the last belief.
    believed: f64,
}

impl Default for Doubt {
    fn default() -> Self {
        Self { below: Calls::default(), others: Calls::default(), proofs: PROOFS, alone: 0.0, believed: 0.0 }
    }
}

impl Doubt {
    /// So many calls were admitted.
    pub(super) fn passed(&mut self, calls: f64, below: bool) {
        self.alone += calls;
        self.believed += calls;
        let side = if below { &mut self.below } else { &mut self.others };
        side.all += calls;
        if self.below.all + self.others.all > REMEMBERED {
            self.below.halve();
            self.others.halve();
        }
    }

    /// A call was refused: whether that counts.
    pub(super) fn is_alone(&mut self) -> bool {
        core::mem::take(&mut self.alone) >= ALONE
    }

    /// A refusal that counts. The share that is chance, once that is believed.
    pub(super) fn refused(&mut self, below: bool) -> Option<f64> {
        let side = if below { &mut self.below } else { &mut self.others };
        side.all += 1.0;
        side.refused += 1.0;
        let share = self.below.refused / self.below.all;
        let others = self.others.refused / self.others.all.max(1.0);
        let believed = self.below.refused >= self.proofs && share >= ALIKE * others && share <= LARGEST;
        if believed {
            (self.below, self.others, self.believed) = (Calls::default(), Calls::default(), 0.0);
        }
        believed.then_some(share)
    }

    /// It was our doing after all.
    pub(super) fn refuted(&mut self) {
        (self.below, self.others) = (Calls::default(), Calls::default());
        if self.believed < REMEMBERED {
            self.proofs *= 2.0;
        }
    }
}
