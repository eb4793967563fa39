//! What the last calls used: of a job whose first calls wrote a cache the mean of all says too much of those to come.

use std::collections::VecDeque;

use super::{BudgetKind, Sum};

/// So many calls are kept; the later half of them is what the last calls used.
const KEPT: usize = 100;

/// Fewer calls say nothing.
const LEAST: usize = 8;

/// What calls of this run used, of the last of them.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Sum>);

impl Recent {
    pub(super) fn add(&mut self, call: Sum) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back(call);
    }

    /// The mean of the later half; none while there are only a few calls.
    pub(super) fn mean(&self, purse: BudgetKind) -> Option<u64> {
        let later = self.0.range(self.0.len() / 2..);
        let calls = later.len() as u64;
        (self.0.len() >= LEAST).then(|| later.map(|call| call.of(purse)).fold(0, u64::saturating_add) / calls)
    }
}
