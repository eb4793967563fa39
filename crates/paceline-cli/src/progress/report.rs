//! The side report: one row for each item that did not simply succeed. Readers of results need not know it.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use paceline_core::{Class, Timestamp};
use paceline_store::{CustomId, DeferReason, Journal, JournalError, ReportRow, Rows, State, create_in_place_of};
use serde::Serialize;

use crate::job::refused;
use crate::lines::input::{Input, Span};
use crate::lines::line;
use crate::text;

/// Why an item is not succeeded, or what it took.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) custom_id: CustomId,
    pub(crate) state: &'static str,
    pub(crate) class: Option<&'static str>,
    pub(crate) code: Option<String>,
    error_type: Option<String>,
    pub(crate) status_code: Option<u16>,
    /// A person must act on the key, the account or the request.
    fatal: bool,
    retryable: bool,
    rate_limited: bool,
    /// All calls for it, in all runs: beside those below also what no server took, and what was cut off.
    pub(crate) calls: u32,
    attempts: u32,
    deferrals: u32,
    retry_not_before: Option<String>,
    pub(crate) last_error: Option<String>,
    pub(crate) reason: Option<String>,
}

/// What can go wrong while a report is written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The input or the report cannot be read or written.
    #[error("cannot write the report: {0}")]
    Io(#[from] io::Error),
    /// The user does not want to wait for it.
    #[error("interrupted while writing the report")]
    Interrupted,
}

impl ReportError {
    /// Whether the cause is a disk that is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Journal(error) => error.is_disk_full(),
            Self::Io(error) => paceline_store::is_disk_full(error),
            Self::Interrupted => false,
        }
    }
}

/// The end of a run, as its report needs to know it.
pub(crate) struct Ending<'a> {
    /// The wall clock.
    pub(crate) now: Timestamp,
    /// See [`row`].
    pub(crate) bounded: bool,
    /// Set when the user interrupts again: a report of millions of items takes a while.
    pub(crate) enough: &'a AtomicBool,
}

/// Rewrites the report: readers see the old one or the new one, never a part.
///
/// # Errors
/// An error of the journal or the file system; the old report stays then.
pub(crate) fn write(path: &Path, journal: &Journal, input: &Input, ending: &Ending<'_>) -> Result<(), ReportError> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let made = create_in_place_of(path, fresh.as_ref()).map_err(ReportError::from);
    let filled = made.and_then(|file| fill(file, journal, input, ending));
    let written = filled.and_then(|()| Ok(std::fs::rename(&fresh, path)?));
    if written.is_err() {
        // On a full disk even a part is in the way.
        let _ = std::fs::remove_file(&fresh);
    }
    written
}

fn fill(fresh: File, journal: &Journal, input: &Input, ending: &Ending<'_>) -> Result<(), ReportError> {
    let Ending { now, bounded, enough } = *ending;
    let mut file = BufWriter::new(fresh);
    journal.report(now, Rows::NotSimplySucceeded, |row| -> Result<(), ReportError> {
        if enough.load(Ordering::Relaxed) {
            return Err(ReportError::Interrupted);
        }
        serde_json::to_writer(&mut file, &self::row(&row, Some(input), now, bounded)).map_err(io::Error::from)?;
        file.write_all(b"\n")?;
        Ok(())
    })?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?;
    Ok(())
}

/// The row of an item. `bounded`: the run ended at a bound of its own, which is why what never started did not.
pub(crate) fn row(row: &ReportRow, input: Option<&Input>, now: Timestamp, bounded: bool) -> Row {
    let last = row.tally.last.as_ref();
    let is_answered = row.state == State::Succeeded && !row.fell_back();
    let class = last.map(|last| last.class).filter(|_| !is_answered);
    let fatal = matches!(class, Some(Class::Account | Class::Invalid | Class::Filtered));
    let pending = matches!(row.state, State::Waiting | State::InFlight);
    Row {
        custom_id: custom_id(row, input),
        state: match row.state {
            _ if pending => "deferred",
            _ if row.fell_back() => "fallback",
            state => state.as_str(),
        },
        class: class.map(Class::as_str),
        code: last.and_then(|last| last.code.clone()),
        error_type: last.and_then(|last| last.error_type.clone()),
        status_code: last.and_then(|last| last.status),
        fatal,
        retryable: !is_answered && !fatal,
        rate_limited: matches!(class, Some(Class::Throttled | Class::QuotaExhausted)),
        calls: row.tally.sends(),
        attempts: row.tally.attempts,
        deferrals: row.tally.deferrals,
        retry_not_before: row.retry_not_before(now).map(|at| at.to_string()),
        last_error: last.and_then(|last| last.message.clone()),
        reason: row
            .deferred
            .map(|reason| shown_reason(reason, bounded).as_str())
            .map(str::to_owned)
            .or_else(|| row.reason.clone()),
    }
}

/// The reason for waiting, as shown when a run ended at a bound of its own.
pub(crate) fn shown_reason(reason: DeferReason, bounded: bool) -> DeferReason {
    match reason {
        DeferReason::NotStarted if bounded => DeferReason::RunBound,
        other => other,
    }
}

/// The id is in the input. If that is gone, its line number still identifies the item.
fn custom_id(row: &ReportRow, input: Option<&Input>) -> CustomId {
    let Some(input) = input else { return line::custom_id(&[], row.line) };
    if row.is_refused() {
        return refused::custom_id(row, input);
    }
    let span = Span { offset: row.src_off, len: row.src_len };
    line::custom_id(&input.read(span).unwrap_or_default(), row.line)
}

/// Why an item waits, for people.
pub(super) const fn reason_text(reason: DeferReason) -> &'static str {
    match reason {
        DeferReason::ScopeStopped => "waiting until the cause is fixed",
        DeferReason::ScopeHeld => "waiting for a pause to end",
        DeferReason::NotBefore => "waiting until their own next try is due",
        DeferReason::NotStarted => "not started",
        DeferReason::RunBound => "left for the next run",
    }
}

/// Adds those that wait for a cause to be fixed, and were not tried, to those whose last try tells the cause. Of calls without a
/// connection one finds the cause, such as a certificate, and the others are cut off: those are told in one line.
pub(super) fn with_those_untried(groups: &mut Vec<(String, u64)>) {
    let reason = reason_text(DeferReason::ScopeStopped);
    let place = |why: &str| groups.iter().position(|(label, _)| *label == format!("{reason} (last try: {why})"));
    if let Some((cause, cut_off)) = place("no connection").zip(place("no connection, or no answer in time")) {
        groups[cut_off].1 += groups[cause].1;
        groups.remove(cause);
    }
    let untried = groups.iter().position(|(label, _)| label == reason);
    let tried =
        groups.iter().position(|(label, _)| label.strip_prefix(reason).is_some_and(|why| why.starts_with(" (")));
    if let Some((untried, tried)) = untried.zip(tried) {
        let (items, (label, of_them)) = (groups[untried].1, &mut groups[tried]);
        let why = label[reason.len()..].replacen(" (", &format!(" ({} of them: ", text::count(*of_them)), 1);
        (*label, *of_them) = (format!("{reason}{why}"), *of_them + items);
        groups.remove(untried);
    }
}

/// How the last try of an item ended, for people. The class of a used-up quota is also that of an answer which names none
/// and asks for a long wait.
pub(super) fn answered(class: Class, status: Option<u16>) -> String {
    match class {
        Class::QuotaExhausted => "last answer: a long pause".to_owned(),
        Class::Transient => match status {
            Some(status @ 400..) => format!("last try: {status}"),
            Some(_) => "last try: an answer that cannot be used".to_owned(),
            None => "last try: no connection, or no answer in time".to_owned(),
        },
        class => format!("last answer: {}", class.description()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_cause_keeps_waiting_is_told_in_one_line() {
        let of = |class| format!("waiting until the cause is fixed ({})", answered(class, None));
        let refused = "waiting until the cause is fixed (last try: no connection)".to_owned();
        let untried = reason_text(DeferReason::ScopeStopped).to_owned();
        let mut groups = vec![(untried, 5), (of(Class::Transient), 3), (refused, 1)];
        with_those_untried(&mut groups);
        let line = "waiting until the cause is fixed (4 of them: last try: no connection, or no answer in time)";
        assert_eq!(groups, [(line.to_owned(), 9)]);
    }
}
