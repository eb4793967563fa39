//! `paceline stats --items`: the items that did not simply succeed, for people and for scripts.

use std::io::{self, BufWriter, Write};

use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::{DeferReason, Reader, ReportRow, Rows, State};

use crate::exit::Failure;
use crate::lines::input::Input;
use crate::progress::report::{self, ReportError, Row};
use crate::text;

/// Prints them: as a table, or one object a line.
///
/// # Errors
/// The journal or the input cannot be read.
pub(super) fn print(reader: &Reader, as_json: bool, bounded: bool, running: bool) -> Result<(), Failure> {
    let path = reader.input().map_err(Failure::refused)?.path;
    let input = Input::open(&path).map_err(Failure::refused)?;
    let now = clock::wall();
    let mut table = Table { out: BufWriter::new(io::stdout().lock()), as_json, rows: 0 };
    let under_way = reader.in_flight().map_err(Failure::refused)?;
    let printed = reader.report(now, Rows::NotSimplySucceeded, |mut found| -> Result<(), ReportError> {
        let is_noted = under_way.contains(&found.ordinal);
        if is_noted && !running && found.deferred.is_some() {
            // It was cut off, and the next run counts it so.
            found.item.tally.abandoned += 1;
            found.deferred =
                found.deferred.map(|why| if why == DeferReason::NotStarted { DeferReason::RunBound } else { why });
        }
        let mut row = report::row(&found, Some(&input), now, bounded);
        if found.state == State::InFlight && is_noted && running {
            (row.state, row.reason, row.calls) = (IN_FLIGHT, Some(IN_FLIGHT.to_owned()), row.calls + 1);
        }
        Ok(table.add(&found, &row, now)?)
    });
    match printed.and_then(|()| table.end().map_err(ReportError::from)) {
        // The reader has seen enough.
        Err(ReportError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::refused),
    }
}

/// The state of an item whose call was sent and has no answer yet.
const IN_FLIGHT: &str = "in_flight";

struct Table<W> {
    out: W,
    as_json: bool,
    rows: u64,
}

impl<W: Write> Table<W> {
    fn add(&mut self, found: &ReportRow, row: &Row, now: Timestamp) -> io::Result<()> {
        self.rows += 1;
        if self.as_json {
            serde_json::to_writer(&mut self.out, row)?;
            return self.out.write_all(b"\n");
        }
        if self.rows == 1 {
            writeln!(self.out, "{HEAD}")?;
        }
        writeln!(self.out, "{}", line(found, row, now))
    }

    fn end(mut self) -> io::Result<()> {
        if self.rows == 0 && !self.as_json {
            writeln!(self.out, "every item succeeded at its first call")?;
        }
        self.out.flush()
    }
}

const HEAD: &str = "ITEM                     STATE      CALLS  STATUS  WHY                     LAST ANSWER, NEXT TRY";

/// The longest id shown, in columns. More than its column: it may push its line to the right a little.
const LONGEST_ID: usize = 40;

fn line(found: &ReportRow, row: &Row, now: Timestamp) -> String {
    let status = row.status_code.map(|status| status.to_string());
    let why = row.reason.as_deref().or(row.class).unwrap_or("retried");
    let messages =
        [row.code.as_deref(), row.last_error.as_deref()].map(|details| Some(short(details?, LONGEST_MESSAGE)));
    let details: Vec<String> = messages.into_iter().flatten().chain(next_try(found, now)).collect();
    let line = format!(
        "{} {:<9} {:>6} {:>7}  {why:<22}  {}",
        text::padded(&short(&row.custom_id.to_string(), LONGEST_ID), 24),
        row.state,
        row.calls,
        status.as_deref().unwrap_or("-"),
        details.join("; "),
    );
    line.trim_end().to_owned()
}

fn next_try(found: &ReportRow, now: Timestamp) -> Option<String> {
    found.retry_not_before(now).map(|at| format!("not before {}", text::moment(at)))
}

/// The longest message shown, in columns.
const LONGEST_MESSAGE: usize = 80;

fn short(details: &str, width: usize) -> String {
    text::cut(&text::printable(details), width)
}
