//! Items that are turned away again and again while others pass: they say nothing about the server.

use alloc::collections::BTreeMap;

/// So many calls of other items succeed in between, ...
const PROOFS: u64 = 2;

/// ... and of so many items it is known.
const REMEMBERED: usize = 256;

/// Outcomes that say something about the server.
#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    succeeded: u64,
    failed: u64,
}

/// What others did since an item failed last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Repeats {
    outcomes: Outcomes,
    /// The outcomes when an item failed last; none of one that is bad.
    failed: BTreeMap<u64, Option<Outcomes>>,
}

impl Repeats {
    pub(crate) fn succeeded(&mut self, item: u64) {
        self.outcomes.succeeded += 1;
        self.failed.remove(&item);
    }

    /// Returns whether the item is bad: it failed again, and most others had succeeded in between, once.
    pub(crate) fn failed(&mut self, item: u64) -> bool {
        let is_bad = self.failed.get(&item).is_some_and(|before| {
            let Some(before) = before else { return true };
            let succeeded = self.outcomes.succeeded - before.succeeded;
            succeeded >= PROOFS && succeeded > self.outcomes.failed - before.failed
        });
        self.outcomes.failed += u64::from(!is_bad);
        self.failed.insert(item, (!is_bad).then_some(self.outcomes));
        if self.failed.len() > REMEMBERED {
            self.failed.pop_first();
        }
        is_bad
    }

    /// Whether an item failed again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64) -> bool {
        matches!(self.failed.get(&item), Some(None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_fails_again_while_most_others_pass_is_bad_until_it_succeeds() {
        let mut repeats = Repeats::default();
        assert!(!repeats.failed(1), "the first time");
        repeats.succeeded(2);
        assert!(!repeats.failed(1), "one other is not enough");
        repeats.failed(3);
        repeats.failed(4);
        (5..7).for_each(|item| repeats.succeeded(item));
        assert!(!repeats.failed(1), "as many others failed");
        (7..9).for_each(|item| repeats.succeeded(item));
        assert!(repeats.failed(1) && repeats.is_bad(1));
        assert!(repeats.failed(1), "without others in between, too");
        repeats.succeeded(1);
        assert!(!repeats.is_bad(1) && !repeats.failed(1));
    }

    #[test]
    fn few_are_remembered() {
        let mut repeats = Repeats::default();
        (0..1_000).for_each(|item| assert!(!repeats.failed(item)));
        assert_eq!(repeats.failed.len(), REMEMBERED);
    }
}
