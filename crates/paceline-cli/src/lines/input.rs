//! The input file.
//!
//! It is read twice: once from front to back when a job is loaded, where every line is checked before anything is sent,
//! and then line by line at the moment of sending. Neither needs more memory than one line.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline_store::{InputCursor, InputFingerprint};

use crate::lines::convert::Converter;
use crate::lines::error::{InputError, name};
use crate::lines::spool::{self, Earlier, Spool};

/// The longest line accepted, in bytes: twice what the largest request bodies of today need.
pub(crate) const LONGEST_LINE: u64 = 64 << 20;

/// How much of the file is read at once where lines are sent, in bytes.
const READ_AHEAD: usize = 16 << 10;

/// What is kept of the buffer after a line of unusual length.
const USUAL_LINE: usize = 1 << 20;

/// The position of a line in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes before it.
    pub(crate) offset: u64,
    /// Its bytes, without the line end.
    pub(crate) len: u64,
}

impl Span {
    /// Whether the line is longer than any that is accepted: it is never read whole.
    pub(crate) const fn is_too_long(&self) -> bool {
        self.len > LONGEST_LINE
    }
}

/// The lines of a file from front to back, blank ones left out.
pub(crate) struct Lines<R> {
    reader: R,
    offset: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    /// Starts at the front of the file.
    pub(crate) const fn new(reader: R) -> Self {
        Self { reader, offset: 0, number: 0, buffer: Vec::new() }
    }

    /// Goes on where other lines were left; the reader stands there.
    pub(crate) const fn resume(reader: R, from: InputCursor) -> Self {
        Self { reader, offset: from.offset, number: from.lines, buffer: Vec::new() }
    }

    /// How far it has come.
    pub(crate) const fn position(&self) -> InputCursor {
        InputCursor { offset: self.offset, lines: self.number }
    }

    /// The next line that is not blank: its number, its place and its bytes. Of a line that is too long only the
    /// beginning is read, and its span says so. `None` at the end.
    ///
    /// # Errors
    /// An error of the file system.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<(u64, Span, &[u8])>> {
        const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
        loop {
            self.buffer.clear();
            self.buffer.shrink_to(USUAL_LINE);
            let read = (&mut self.reader).take(LONGEST_LINE + 1).read_until(b'\n', &mut self.buffer)? as u64;
            if read == 0 {
                return Ok(None);
            }
            let start = self.offset;
            self.number += 1;
            self.offset += read;
            if read > LONGEST_LINE && !self.buffer.ends_with(b"\n") {
                self.offset += self.reader.skip_until(b'\n')? as u64;
                let span = Span { offset: start, len: self.offset - start };
                return Ok(Some((self.number, span, &self.buffer)));
            }
            let skipped =
                if start == 0 && self.buffer.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            let len = self.buffer[skipped..].trim_ascii_end().len();
            if len > 0 {
                let span = Span { offset: start + skipped as u64, len: len as u64 };
                return Ok(Some((self.number, span, &self.buffer[skipped..skipped + len])));
            }
        }
    }
}

/// The file that a run reads: the one named, or a copy of what came compressed or through a pipe.
#[derive(Debug)]
pub(crate) struct Input {
    /// As it was given.
    source: PathBuf,
    path: PathBuf,
    place: Mutex<Place>,
    spool: Option<Spool>,
    /// What an input that holds no requests should hold.
    expected: &'static str,
    /// Its lines were made of rows.
    of_rows: bool,
}

impl Input {
    /// Opens a file of requests as it is.
    ///
    /// # Errors
    /// [`InputError::Unreadable`], [`InputError::Folder`], [`InputError::Parquet`].
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        let file = File::open(path).map_err(InputError::unreadable(path))?;
        if file.metadata().map_err(InputError::unreadable(path))?.is_dir() {
            return Err(InputError::Folder { path: path.to_owned() });
        }
        let head = spool::head(&mut &file).map_err(InputError::unreadable(path))?;
        InputError::of_columns(path, &head)?;
        Ok(Self {
            source: path.to_owned(),
            path: path.to_owned(),
            place: Mutex::new(Place { at: None, reader: BufReader::with_capacity(READ_AHEAD, file) }),
            spool: None,
            expected: "one JSON object a line",
            of_rows: false,
        })
    }

    /// Opens the file of the lines that this host has of a job of many, which grows; made where it is not there.
    ///
    /// # Errors
    /// [`InputError::Unreadable`].
    pub(crate) fn of_blocks(path: &Path, job: &str) -> Result<Self, InputError> {
        let made = paceline_store::private_file().append(true).create(true).open(path);
        made.map_err(InputError::unreadable(path))?;
        Ok(Self { source: job.into(), ..Self::open(path)? })
    }

    /// Opens what a run was given. Pipes, `*.gz` and rows that are to become requests are first copied to `spool`, which a
    /// later run of the job finds. Until [`settle`](Self::settle) the copy has another name, and goes when the input is
    /// dropped.
    ///
    /// # Errors
    /// As for [`open`](Self::open); [`InputError::Gzip`], [`InputError::Copy`]; [`InputError::Differs`] from an
    /// `earlier` copy that must be the same.
    pub(crate) fn prepare(
        source: &Path,
        spool: &Path,
        earlier: &Earlier,
        converter: Option<&Converter>,
    ) -> Result<Self, InputError> {
        let Some(spool) = Spool::fill(source, spool, earlier, converter)? else { return Self::open(source) };
        let copy = Self::open(spool.path())?;
        let expected = converter.map_or(copy.expected, Converter::expected);
        let of_rows = converter.is_some();
        Ok(Self { source: source.to_owned(), spool: Some(spool), expected, of_rows, ..copy })
    }

    /// Gives the copy its lasting name: the job begins.
    ///
    /// # Errors
    /// [`InputError::Copy`].
    pub(crate) fn settle(&mut self) -> Result<(), InputError> {
        if let Some(spool) = &mut self.spool {
            spool.settle()?;
            spool.path().clone_into(&mut self.path);
        }
        Ok(())
    }

    /// By what the input is known to its job.
    ///
    /// # Errors
    /// An error of the file system.
    pub(crate) fn mark(&self) -> Result<InputFingerprint, paceline_store::JournalError> {
        let lasting = self.spool.as_ref().map_or(&*self.path, Spool::lasting);
        Ok(InputFingerprint { path: lasting.to_owned(), ..InputFingerprint::of(&self.path)? })
    }

    /// By what a compressed input is known.
    pub(crate) fn packed(&self) -> Option<&str> {
        self.spool.as_ref()?.packed()
    }

    /// The flags by which requests were made of its rows, where it has some.
    pub(crate) fn made(&self) -> Option<&BTreeMap<String, String>> {
        self.spool.as_ref().map(Spool::made)
    }

    /// What it is called in messages.
    pub(crate) fn name(&self) -> String {
        name(&self.source)
    }

    /// Whether its lines were made of the rows of a table or a list.
    pub(crate) const fn is_of_rows(&self) -> bool {
        self.of_rows
    }

    /// What it should hold where it holds no requests.
    pub(crate) const fn expected(&self) -> &'static str {
        self.expected
    }

    /// All lines, from the front.
    ///
    /// # Errors
    /// An error of the file system.
    pub(crate) fn lines(&self) -> io::Result<Lines<BufReader<File>>> {
        Ok(Lines::new(BufReader::with_capacity(1 << 18, File::open(&self.path)?)))
    }

    /// The lines after those that were read.
    ///
    /// # Errors
    /// An error of the file system.
    pub(crate) fn lines_from(&self, from: InputCursor) -> io::Result<Lines<BufReader<File>>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(from.offset))?;
        Ok(Lines::resume(BufReader::with_capacity(1 << 18, file), from))
    }

    /// The bytes of one line.
    ///
    /// # Errors
    /// An error of the file system; the file ending before the line does.
    pub(crate) fn read(&self, span: Span) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(span.len).map_err(io::Error::other)?];
        self.place.lock().unwrap_or_else(PoisonError::into_inner).read(span.offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// Where the file was read last. Most items leave in the order of their lines, so one read of the file serves many.
#[derive(Debug)]
struct Place {
    reader: BufReader<File>,
    /// None after an error.
    at: Option<u64>,
}

impl Place {
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        match self.at.take().and_then(|at| offset.checked_signed_diff(at)) {
            Some(further) => self.reader.seek_relative(further)?,
            None => drop(self.reader.seek(SeekFrom::Start(offset))?),
        }
        self.reader.read_exact(bytes)?;
        self.at = Some(offset + bytes.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_lead_back_to_the_lines() {
        let text = "\u{feff}{\"a\":1}\r\n\n  \n{\"b\":\"\u{e4}\"}";
        let mut lines = Lines::new(text.as_bytes());
        let mut seen = Vec::new();
        while let Some((number, span, bytes)) = lines.next_line().expect("memory does not fail") {
            let start = span.offset as usize;
            assert_eq!(&text.as_bytes()[start..start + span.len as usize], bytes);
            seen.push((number, String::from_utf8_lossy(bytes).into_owned()));
        }
        assert_eq!(seen, [(1, "{\"a\":1}".to_owned()), (4, "{\"b\":\"\u{e4}\"}".to_owned())]);
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_and_the_next_one_found() {
        let long = LONGEST_LINE + 10;
        let text = io::repeat(b'x').take(long).chain("\n{}\n".as_bytes());
        let mut lines = Lines::new(BufReader::new(text));
        let (number, span, _) = lines.next_line().expect("memory does not fail").expect("a line");
        assert_eq!((number, span.is_too_long()), (1, true));
        let (number, span, bytes) = lines.next_line().expect("memory does not fail").expect("a line");
        assert_eq!((number, span.offset, bytes), (2, long + 1, "{}".as_bytes()));
        assert!(!span.is_too_long());
    }
}
