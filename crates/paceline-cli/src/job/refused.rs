//! Lines that cannot be sent, in a job that continues without them: each ends before the first call.

use paceline_core::Class;
use paceline_store::{CustomId, End, Finished, Journal, JournalError, JournalItem, LastAnswer, LineForm, ResultBody};

use crate::job::acknowledge::Acknowledge;
use crate::lines::input::{Input, Span};
use crate::lines::line::{self, Echo};
use crate::lines::wrong::Wrong;

/// Lines read at a time.
const PAGE: usize = 1_000;

/// Writes the error line of every refused line that has none yet, and returns how many those were. A run that dies in
/// between leaves the rest to the next.
///
/// # Errors
/// An error of the journal.
pub(crate) fn settle(
    journal: &Journal,
    input: &Input,
    form: LineForm,
    acknowledge: &Acknowledge,
) -> Result<u64, JournalError> {
    let mut settled = 0;
    loop {
        let page = journal.refused(PAGE)?;
        if page.is_empty() {
            return Ok(settled);
        }
        settled += page.len() as u64;
        for item in page {
            journal.finish(finished(item, input, form), acknowledge.reply());
        }
    }
}

fn finished(item: JournalItem, input: &Input, form: LineForm) -> Finished {
    let unknown = LastAnswer::new(Class::Invalid);
    let last = item.tally.last.as_ref().unwrap_or(&unknown);
    let (code, message) = (last.code.as_deref().unwrap_or_default(), last.message.as_deref().unwrap_or_default());
    let echo = Echo { custom_id: custom_id(&item, input), metadata: None, form };
    let answer = ResultBody::Refused { code, message, line: item.line };
    let line = echo.line(item.ordinal, item.tally.sends(), End::Failed, &answer);
    let mut finished = Finished::new(item.ordinal, End::Failed, line);
    finished.tally = item.tally;
    finished.reason = Some(Class::Invalid.as_str().to_owned());
    finished
}

/// The id that the line gives, unless that is another item's.
pub(crate) fn custom_id(item: &JournalItem, input: &Input) -> CustomId {
    let span = Span { offset: item.src_off, len: item.src_len };
    let repeated = item.tally.last.as_ref().is_some_and(|last| last.code.as_deref() == Some(Wrong::REPEATED));
    if repeated || span.is_too_long() {
        return CustomId::Absent;
    }
    input.read(span).ok().and_then(|bytes| line::readable_id(&bytes)).unwrap_or(CustomId::Absent)
}
