//! Items whose calls do not fit into what is left of a budget: they stay claimed, so that others go first.

use super::Dispatcher;
use crate::calls::item::{Tried, TryEnd};

impl Dispatcher {
    /// Whether a try is over for this run because its call does not fit. Not where other hosts have lines of the job: they would
    /// wait for those that this one keeps.
    pub(super) fn leaves_out(&mut self, tried: &Tried) -> bool {
        let TryEnd::OverBudget(exceeded) = &tried.end else { return false };
        let is_left_out = self.stop.is_none()
            && self.parts.hosts.is_none()
            && self.parts.context.budget.leaves_out(exceeded.at_line(tried.item.line));
        if is_left_out {
            self.left_out.push(tried.item.ordinal);
        }
        is_left_out
    }

    /// The next run has them.
    pub(super) fn give_back_left_out(&mut self) {
        for ordinal in self.left_out.drain(..) {
            self.parts.journal.release(ordinal, None, self.parts.recorder.acknowledge.reply());
        }
    }
}
