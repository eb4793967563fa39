//! A table of comma-separated values: its records, and the lines in which they begin.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read;

use serde_json::{Map, Value};

/// What to do with a table of another form.
pub(crate) const SAVE_AS: &str = "save it as CSV UTF-8, comma delimited";

/// The position of a row.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Of a table: from 1, the header left out.
    pub(super) row: Option<u64>,
    /// That of the file in which it begins, from 1.
    pub(super) line: u64,
}

/// Why a copy was not made.
#[derive(Debug)]
pub(crate) enum Error {
    /// The source cannot be read.
    Read(std::io::Error),
    /// The copy cannot be written.
    Write(std::io::Error),
    /// No row can be read.
    Table(String),
}

/// Hands on every record of a table below its header, with its place; of one that does not fit the header, what is wrong with it.
/// `check` may refuse the names of the columns, or change them.
///
/// # Errors
/// What reading says, what is wrong with the header, a quote behind which rows cannot be told apart, and the errors of `check`
/// and `put`.
pub(super) fn each_record(
    from: impl Read,
    check: impl FnOnce(&mut [String]) -> Result<(), Error>,
    mut put: impl FnMut(Place, Result<Map<String, Value>, String>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut reader = csv::Reader::from_reader(Quotes::of(from));
    let in_header = |error| in_record(error).map_or_else(|error| error, |what| Error::Table(format!("line 1: {what}")));
    let header = reader.headers().map_err(in_header)?;
    let mut names: Vec<String> = header.iter().map(|name| name.trim().to_owned()).collect();
    let mut known = BTreeSet::new();
    if let Some(twice) = names.iter().find(|name| !known.insert(name.as_str())) {
        let advice = if twice.is_empty() { "; delete the empty columns" } else { "" };
        return Err(Error::Table(format!("its header names the column {twice:?} twice{advice}")));
    }
    if let [name] = &names[..]
        && let Some(separator) = name.chars().find(|letter| matches!(letter, ';' | '\t'))
    {
        return Err(Error::Table(format!(
            "its header is one column, {name:?}, whose names seem to be separated by {separator:?}: expected commas; {SAVE_AS}"
        )));
    }
    check(&mut names)?;
    // That of the header.
    reader.get_mut().starts.pop_front();
    let mut record = csv::StringRecord::new();
    for row in 1.. {
        let read = reader.read_record(&mut record);
        let line = reader.get_mut().starts.pop_front().unwrap_or_default();
        let record = match read {
            Ok(false) => break,
            Ok(true) => Ok(names.iter().cloned().zip(record.iter().map(Value::from)).collect()),
            Err(error) => Err(in_record(error)?),
        };
        put(Place { row: Some(row), line }, record)?;
    }
    Ok(())
}

/// Passes a table on and follows its quotes: a parser that forgives a missing one makes one field of all rows behind it.
struct Quotes<R> {
    from: R,
    state: Quote,
    line: u64,
    /// The line in which the last quote was opened.
    opened: u64,
    /// The next byte that ends no line begins a record.
    between: bool,
    /// The last byte was a `\r` that ended a line: a `\n` behind it belongs to that end.
    returned: bool,
    /// The lines in which the records begin that were read ahead. The parser counts another line where `\r` precedes `\n`, or
    /// where blank lines precede a record.
    starts: VecDeque<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    /// At the start of a field.
    Start,
    /// In a field without quotes.
    Bare,
    /// Behind a quote that is open.
    Open,
    /// Behind one that closes the field, or is the first of two that stand for one.
    Closed,
}

#[derive(Debug, thiserror::Error)]
enum WrongQuote {
    #[error("line {0}: a quote opens a field there and is never closed")]
    NeverClosed(u64),
    #[error("line {line}: text follows a closing quote (opened in line {opened}); write a quote inside a field twice")]
    TextBehind { line: u64, opened: u64 },
}

impl<R> Quotes<R> {
    const fn of(from: R) -> Self {
        Self { from, state: Quote::Start, line: 1, opened: 1, between: true, returned: false, starts: VecDeque::new() }
    }

    fn follow(&mut self, byte: u8) -> Result<(), WrongQuote> {
        let ends_line = matches!(byte, b'\n' | b'\r');
        if self.between && !ends_line {
            self.starts.push_back(self.line);
        }
        self.between = ends_line && (self.between || self.state != Quote::Open);
        let returns = byte == b'\r' && self.state != Quote::Open;
        let line = self.line + u64::from(returns || byte == b'\n' && !self.returned);
        self.returned = returns;
        self.state = match (self.state, byte) {
            (Quote::Open, b'"') => Quote::Closed,
            (Quote::Open, _) => Quote::Open,
            (Quote::Closed, b'"') => Quote::Open,
            (Quote::Start, b'"') => {
                self.opened = self.line;
                Quote::Open
            }
            (_, b',' | b'\n' | b'\r') => Quote::Start,
            (Quote::Closed, _) => return Err(WrongQuote::TextBehind { line: self.line, opened: self.opened }),
            // The mark at the front of a file that an editor has left is no text.
            (Quote::Start, 0xEF | 0xBB | 0xBF) if self.line == 1 => Quote::Start,
            (Quote::Start | Quote::Bare, _) => Quote::Bare,
        };
        self.line = line;
        Ok(())
    }
}

impl<R: Read> Read for Quotes<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(buffer)?;
        if read == 0 && !buffer.is_empty() && self.state == Quote::Open {
            return Err(std::io::Error::other(WrongQuote::NeverClosed(self.opened)));
        }
        buffer[..read].iter().try_for_each(|byte| self.follow(*byte)).map_err(std::io::Error::other)?;
        Ok(read)
    }
}

/// What is wrong with one record.
///
/// # Errors
/// What is wrong with all that follows.
fn in_record(error: csv::Error) -> Result<String, Error> {
    let message = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => Err(match error.downcast::<WrongQuote>() {
            Ok(wrong) => Error::Table(wrong.to_string()),
            Err(error) => Error::Read(error),
        }),
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Ok(format!("expected {expected_len} columns, as the header has, and found {len}"))
        }
        csv::ErrorKind::Utf8 { .. } => Ok(format!("not UTF-8; {SAVE_AS}")),
        _ => Ok(message),
    }
}
