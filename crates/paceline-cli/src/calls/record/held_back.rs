//! Failures that are not recorded before it is known whether they stop their scope, or the run.

use std::sync::atomic::Ordering;

use paceline_store::{Finished, Unanswered};

use super::Recorder;
use crate::calls::item::Context;
use crate::stops::fail_fast::Failed;
use crate::stops::stop::StopReason;

impl Recorder {
    /// Whether failures are held back.
    pub(crate) const fn holds_back(&self) -> bool {
        self.same.held_back() > 0
    }

    /// Failures that were held back are recorded: nothing follows from them.
    pub(crate) fn record_held_back(&mut self, context: &Context) {
        self.same.take_held_back().into_iter().for_each(|failed| self.fail(failed));
        context.held_back.store(0, Ordering::Relaxed);
    }

    /// At the end of a run: failures held back are recorded after all, unless they are the reason to stop.
    pub(crate) fn settle_held_back(&mut self, stop: Option<&StopReason>) {
        let pending = matches!(stop, Some(StopReason::SameFailure { scope: None, .. }));
        for failed in self.same.take_held_back() {
            if pending { self.put_back(failed) } else { self.fail(failed) }
        }
    }

    /// The item waits again, as if it had not ended; but for one whose call may have been executed and must not be made twice.
    pub(super) fn put_back(&mut self, failed: Failed) {
        if failed.is_unknown() {
            return self.fail(failed);
        }
        let Finished { ordinal, tally, adds, usage, .. } = failed.finished;
        self.journal.release(ordinal, Some(Unanswered { tally, adds, usage }), self.acknowledge.reply());
    }
}
