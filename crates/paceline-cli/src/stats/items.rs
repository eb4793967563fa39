//! `paceline stats --items`: the items that did not simply succeed, for people and for scripts.

use std::io::{self, BufWriter, Write};

use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::{Reader, ReportRow, Rows};

use crate::exit::Failure;
use crate::run::lines::input::Input;
use crate::run::seen::report::{self, ReportError, Row};
use crate::text;

/// Prints them: as a table, or one object a line.
///
/// # Errors
/// The journal or the input cannot be read.
pub(super) fn print(reader: &Reader, as_json: bool, bounded: bool) -> Result<(), Failure> {
    let path = reader.input().map_err(Failure::refused)?.path;
    let input = Input::open(&path).map_err(Failure::refused)?;
    let now = clock::wall();
    let mut out = BufWriter::new(io::stdout().lock());
    if !as_json {
        writeln!(out, "{HEAD}").map_err(Failure::interrupted)?;
    }
    let printed = reader.report(now, Rows::NotSimplySucceeded, |found| -> Result<(), ReportError> {
        let row = report::row(&found, &input, now, bounded);
        if as_json {
            serde_json::to_writer(&mut out, &row).map_err(io::Error::from)?;
            out.write_all(b"\n")?;
        } else {
            writeln!(out, "{}", line(&found, &row, now))?;
        }
        Ok(())
    });
    match printed.and_then(|()| out.flush().map_err(ReportError::from)) {
        // The reader has seen enough.
        Err(ReportError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Failure::interrupted),
    }
}

const HEAD: &str = "ITEM                     STATE      CALLS  STATUS  WHY                     LAST ANSWER, NEXT TRY";

/// Longer ids push their line to the right; the columns of the others stay.
fn line(found: &ReportRow, row: &Row, now: Timestamp) -> String {
    let status = row.status_code.map(|status| status.to_string());
    let why = row.reason.as_deref().or(row.class).unwrap_or("retried");
    let mut words = row.code.clone().unwrap_or_default();
    for more in row.last_error.as_deref().map(one_line).into_iter().chain(next_try(found, now)) {
        words += if words.is_empty() { "" } else { "; " };
        words += &more;
    }
    let line = format!(
        "{:<24} {:<9} {:>6} {:>7}  {why:<22}  {words}",
        row.custom_id.to_string(),
        row.state,
        found.tally.sends(),
        status.as_deref().unwrap_or("-"),
    );
    line.trim_end().to_owned()
}

fn next_try(found: &ReportRow, now: Timestamp) -> Option<String> {
    found.retry_not_before(now).map(|at| format!("not before {}", text::moment(at)))
}

/// The longest message shown, in characters.
const WORDS: usize = 80;

fn one_line(words: &str) -> String {
    let mut line: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS).collect();
    if words.chars().nth(WORDS).is_some() {
        line.push('…');
    }
    line
}
