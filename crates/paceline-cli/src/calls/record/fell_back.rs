//! Records what the fallback made of items, or what becomes of them without.

use paceline_store::{ClaimedItem, End, Finished, ResultBody, Unanswered};

use super::Recorder;
use crate::calls::fallback::{Answered, Down, Without};
use crate::calls::item::Context;
use crate::stops::fail_fast::Failed;
use crate::text;

impl Recorder {
    /// Leaves an item to the fallback. Its call has ended, whatever becomes of the item: a kill meanwhile must not make that
    /// unknown.
    pub(super) fn hand_over(&mut self, item: ClaimedItem, mut failed: Failed) {
        let Finished { ordinal, tally, adds, usage, .. } = &mut failed.finished;
        let (adds, usage) = (std::mem::take(adds), std::mem::take(usage));
        let ended = Unanswered { tally: tally.clone(), adds, usage };
        self.journal.release(*ordinal, Some(ended), self.acknowledge.reply());
        // Right behind it, so that no claim hands the item out.
        self.journal.claim_items(vec![*ordinal], drop);
        self.down.get_or_insert_default().push(Down { item, without: Without::Fails(Box::new(failed)) });
    }

    /// Items that came for the fallback since this was asked for last.
    pub(crate) fn take_down(&mut self) -> Vec<Down> {
        self.down.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether the items of a scope wait because they would all fail alike.
    pub(crate) fn is_alike(&self, scope: &str) -> bool {
        self.same.has_stopped(scope)
    }

    /// Records what the fallback made of an item, or what becomes of it without.
    pub(crate) fn fell_back(&mut self, context: &Context, (down, output): Answered) {
        let output = match output {
            Ok(output) => output,
            Err(why) => {
                let item = context.echo(&down.item).custom_id.to_string();
                tracing::warn!(item, "no result of the fallback: {}", text::printable(&why));
                return self.without_fallback(down);
            }
        };
        let (echo, tally) = (context.echo(&down.item), down.tally().clone());
        let answer = ResultBody::Fallback { code: down.reason(), message: down.message(), output: &output };
        let line = echo.line(down.item.ordinal, tally.sends(), End::FellBack, &answer);
        let mut finished = Finished::new(down.item.ordinal, End::FellBack, line);
        finished.tally = tally;
        finished.reason = Some(down.reason().to_owned());
        self.figures.fell_back();
        self.journal.finish(finished, self.acknowledge.reply());
    }

    /// Ends an item as if there were no fallback.
    pub(crate) fn without_fallback(&mut self, down: Down) {
        match down.without {
            Without::Fails(failed) => self.record_failure(*failed),
            Without::Waits(_) => _ = self.give_back(&down.item),
        }
    }
}
