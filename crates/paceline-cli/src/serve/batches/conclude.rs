//! The end of a run of a batch: whether the batch has ended, and what becomes of the requests that are left.

use paceline::clock;
use paceline_store::{End, Finished, JobCounts, Journal, JournalError, JournalItem, ResultBody, Rows};

use super::object::Status;
use crate::calls::item::Context;
use crate::lines::input::Span;
use crate::lines::line::{self, Echo};

/// How the items of a run stand at its end, and how the batch ends: items that are left end with it where it is over, and else
/// wait.
pub(super) fn conclude(
    journal: &Journal,
    context: &Context,
    ends_as: Option<Status>,
) -> Result<(JobCounts, Option<Status>), JournalError> {
    let reason = match ends_as {
        Some(Status::Cancelled) => Some(("batch_cancelled", "the batch was cancelled before this request was sent")),
        Some(_) => Some(("batch_expired", "the completion window of the batch ended before this request was answered")),
        None => None,
    };
    let (counts, mut any) = (journal.sums()?, false);
    if let Some((code, message)) = reason
        && counts.waiting + counts.in_flight > 0
    {
        let mut left = Vec::new();
        journal.report(clock::wall(), Rows::NotSimplySucceeded, |row| -> Result<(), JournalError> {
            if row.deferred.is_some() {
                left.push(row.item);
            }
            Ok(())
        })?;
        any = !left.is_empty();
        left.into_iter().for_each(|item| journal.finish(ended(item, context, code, message), drop));
    }
    let counts = if any { journal.sums()? } else { counts };
    let is_done = counts.waiting + counts.in_flight == 0;
    // All of a batch that is over in time has been done, whatever its clock says by now.
    let ends_as = match ends_as {
        Some(Status::Expired) if !any => Some(Status::Completed),
        None => Some(Status::Completed),
        other => other,
    };
    Ok((counts, ends_as.filter(|_| is_done)))
}

/// The end of an item without an answer.
fn ended(item: JournalItem, context: &Context, code: &str, message: &str) -> Finished {
    let bytes = context.input.read(Span { offset: item.src_off, len: item.src_len }).unwrap_or_default();
    let echo = Echo { custom_id: line::custom_id(&bytes, item.line), metadata: None, form: context.format.results() };
    let answer = ResultBody::Error { code, message };
    let line = echo.line(item.ordinal, item.tally.sends(), End::Failed, &answer);
    let mut finished = Finished::new(item.ordinal, End::Failed, line);
    finished.tally = item.tally;
    finished.reason = Some(code.to_owned());
    finished
}
