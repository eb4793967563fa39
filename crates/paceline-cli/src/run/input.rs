//! The input file.
//!
//! It is read twice: once from front to back when a job is loaded, where every line is checked before anything is sent,
//! and then line by line at the moment of sending. Neither needs more memory than one line.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The longest line accepted, in bytes: twice what the largest request bodies of today need.
const LONGEST_LINE: u64 = 64 << 20;

/// Where a line stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Bytes before it.
    pub(crate) offset: u64,
    /// Its bytes, without the line end.
    pub(crate) len: u64,
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

    /// The next line that is not blank: its number, its place and its bytes. `None` at the end.
    ///
    /// # Errors
    /// A line longer than 64 MiB, or what the file system says.
    pub(crate) fn next_line(&mut self) -> io::Result<Option<(u64, Span, &[u8])>> {
        const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
        loop {
            self.buffer.clear();
            let read = (&mut self.reader).take(LONGEST_LINE + 1).read_until(b'\n', &mut self.buffer)? as u64;
            if read == 0 {
                return Ok(None);
            }
            if read > LONGEST_LINE {
                let message = format!("line {} is longer than {} MiB", self.number + 1, LONGEST_LINE >> 20);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            let start = self.offset;
            self.number += 1;
            self.offset += read;
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
    path: PathBuf,
    file: Mutex<File>,
}

impl Input {
    /// Opens `source`; `-` (standard input) and `*.gz` are first copied to `spool`, which a resumed run then finds.
    ///
    /// # Errors
    /// What the file system says, and a copy that differs from the one of the run before.
    pub(crate) fn open(source: &Path, spool: &Path) -> io::Result<Self> {
        let path = if source == Path::new("-") {
            keep(&mut io::stdin().lock(), spool)?;
            spool.to_owned()
        } else if source.extension().is_some_and(|extension| extension == "gz") {
            keep(&mut flate2::read::MultiGzDecoder::new(File::open(source)?), spool)?;
            spool.to_owned()
        } else {
            source.to_owned()
        };
        let file = File::open(&path)?;
        if file.metadata()?.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a folder, expected a file of JSON lines"));
        }
        Ok(Self { path, file: Mutex::new(file) })
    }

    /// The file that is really read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All lines, from the front.
    ///
    /// # Errors
    /// What the file system says.
    pub(crate) fn lines(&self) -> io::Result<Lines<BufReader<File>>> {
        Ok(Lines::new(BufReader::with_capacity(1 << 18, File::open(&self.path)?)))
    }

    /// The bytes of one line.
    ///
    /// # Errors
    /// What the file system says; the file ending before the line does.
    pub(crate) fn read(&self, span: Span) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(span.len).map_err(io::Error::other)?];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(span.offset))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Copies `from` to `spool`, unless the same bytes are there already. An empty pipe means the copy of the run before.
fn keep(from: &mut dyn Read, spool: &Path) -> io::Result<()> {
    let mut fresh = spool.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    let mut copy = File::create(&fresh)?;
    let copied = io::copy(from, &mut copy)?;
    copy.sync_all()?;
    if !spool.exists() {
        return std::fs::rename(&fresh, spool);
    }
    let unchanged = copied == 0 || same_bytes(&fresh, spool)?;
    std::fs::remove_file(&fresh)?;
    if unchanged {
        return Ok(());
    }
    let message = format!(
        "differs from {}, the copy that the run before worked on; remove its files or name another output",
        spool.display()
    );
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

fn same_bytes(a: &Path, b: &Path) -> io::Result<bool> {
    if std::fs::metadata(a)?.len() != std::fs::metadata(b)?.len() {
        return Ok(false);
    }
    let (mut a, mut b) = (BufReader::new(File::open(a)?), BufReader::new(File::open(b)?));
    loop {
        let (left, right) = (a.fill_buf()?, b.fill_buf()?);
        let n = left.len().min(right.len());
        if n == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left[..n] != right[..n] {
            return Ok(false);
        }
        a.consume(n);
        b.consume(n);
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
    fn a_changed_pipe_is_refused_and_an_empty_one_goes_on() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let spool = folder.path().join("results.input");
        keep(&mut "one".as_bytes(), &spool).expect("first copy");
        keep(&mut "one".as_bytes(), &spool).expect("the same again");
        keep(&mut "".as_bytes(), &spool).expect("nothing: the copy stands");
        assert!(keep(&mut "two".as_bytes(), &spool).is_err());
        assert_eq!(std::fs::read(&spool).expect("still there"), b"one");
    }
}
