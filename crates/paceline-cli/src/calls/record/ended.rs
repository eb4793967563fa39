//! The end of an item without success, where others may fail alike.

use std::sync::Arc;

use paceline_store::{ACCOUNT, Journal};

use super::{Recorded, Recorder, stop_scope};
use crate::calls::item::Context;
use crate::calls::on_their_way::OnTheirWay;
use crate::stops::fail_fast::{FailFastDecision, Failed};

/// Whether the job has several scopes, as far as its input is read.
pub(super) fn has_scopes(journal: &Journal) -> impl FnOnce() -> bool {
    || journal.scopes().is_ok_and(|rows| rows.iter().filter(|row| *row.name != *ACCOUNT).count() > 1)
}

/// Whether the scope has other items that have not ended: in the journal, or on their way; or may have some that other hosts of
/// the job have, or none yet.
pub(super) fn more_wait(
    context: &Context,
    journal: &Journal,
    on_their_way: &mut OnTheirWay,
    scope: &str,
) -> impl FnMut() -> bool {
    move || context.others.have_lines() || on_their_way.are_more(scope, || journal.waits_in(scope).unwrap_or(true))
}

impl Recorder {
    /// The end of an item without success.
    pub(super) fn ended(&mut self, context: &Context, failed: Failed, others: &mut OnTheirWay) -> Recorded {
        let scope = Arc::clone(&failed.scope);
        let decision = if failed.may_be_alike() {
            self.same.failed(failed, has_scopes(&self.journal), more_wait(context, &self.journal, others, &scope))
        } else {
            let mut all = self.same.ended_otherwise(&scope, None, more_wait(context, &self.journal, others, &scope));
            all.push(failed);
            FailFastDecision::Record(all)
        };
        self.follow(context, &scope, decision)
    }

    /// Does what the watch over the first items of the run decided.
    pub(super) fn follow(&mut self, context: &Context, scope: &Arc<str>, decision: FailFastDecision) -> Recorded {
        match decision {
            FailFastDecision::HeldBack => Recorded::default(),
            FailFastDecision::Stop(stop) => Recorded { stop: Some(stop), ..Recorded::default() },
            FailFastDecision::PutBack { items, stop } => {
                items.into_iter().for_each(|failed| self.put_back(failed));
                stop.map_or_else(Recorded::default, |stop| stop_scope(context, scope, stop))
            }
            FailFastDecision::Record(all) => {
                all.into_iter().for_each(|failed| self.fail(failed));
                Recorded::default()
            }
            FailFastDecision::StopScope { failed, waits, stop } => {
                failed.into_iter().for_each(|failed| self.fail(failed));
                waits.into_iter().for_each(|failed| self.put_back(failed));
                stop_scope(context, scope, stop)
            }
        }
    }
}
