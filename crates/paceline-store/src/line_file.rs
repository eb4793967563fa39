//! A file that grows by whole lines: appended to, synced, and cut back to what counts.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use crate::disk::{is_still_at, private_file, sync_folder_of};
use crate::error::JournalError;
use crate::line::{BEGINNING, CustomId, verify_line};

/// A file that lines are appended to. What [`append`](Self::append) took survives a power cut, and nothing follows a line that
/// could not be written whole.
#[derive(Debug)]
pub struct LineFile {
    path: PathBuf,
    file: File,
    /// Where the next line begins.
    end: u64,
}

impl LineFile {
    /// Opens the file to append at its end, or makes it, for its user alone: its name survives a power cut, then.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let opened = private_file().read(true).create(true).truncate(false).open(path);
        let action = if path.exists() { "write" } else { "create" };
        let file = opened.map_err(JournalError::io(action, path))?;
        sync_folder_of(path)?;
        Self::of(file, path)
    }

    /// A file that is open for reading and writing, to append at its end.
    pub(crate) fn of(file: File, path: &Path) -> Result<Self, JournalError> {
        let mut opened = Self { path: path.to_owned(), file, end: 0 };
        let len = opened.len()?;
        opened.continue_at(len)?;
        Ok(opened)
    }

    /// Keeps other processes from appending for as long as this is open. False when one of them does it.
    ///
    /// # Errors
    /// When the file system has no locks.
    pub fn lock(&self) -> Result<bool, JournalError> {
        match self.file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(JournalError::io("lock", &self.path)(error)),
        }
    }

    /// Appends whole lines, and returns once they are on the disk. What could not be written whole is taken back.
    ///
    /// # Errors
    /// When the system refuses, and when the file was moved, removed, replaced or cut short: each further line would be lost.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), JournalError> {
        self.check_place()?;
        let written = self.file.write_all(lines).map_err(JournalError::io("write", &self.path));
        let written = written.and_then(|()| self.file.sync_data().map_err(JournalError::io("sync", &self.path)));
        if written.is_err() {
            // It may be in vain on a broken disk. The next recovery cuts the rest, then.
            let _ = self.cut(self.end);
        }
        written?;
        self.check_place()?;
        self.continue_at(self.end + lines.len() as u64)
    }

    /// Cuts off a last line that an interruption left without its end, and lines that a power cut left full of zeros. Returns how
    /// many bytes that were. Any other line stays, also one that another program wrote.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn cut_torn_lines(&mut self) -> Result<u64, JournalError> {
        let len = self.len()?;
        let keep = self.torn_from(len).map_err(JournalError::io("read", &self.path))?;
        self.cut(keep)
    }

    /// The answers whose lines begin at `from` or later, as far as each line proves itself. What a fallback gave is none: its
    /// item is tried again.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn results_from(&self, from: u64) -> Result<KnownResults, JournalError> {
        let read = || {
            let (mut known, mut line) = (HashMap::new(), Vec::new());
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(from))?;
            let mut reader = BufReader::new(file);
            while reader.read_until(b'\n', &mut line)? > 0 {
                let answer = verify_line(&line).filter(|result| !result.fell_back);
                if let Some(answer) = answer {
                    known.insert((answer.ordinal, answer.key), answer.call);
                }
                line.clear();
            }
            Ok(KnownResults(known))
        };
        read().map_err(JournalError::io("read", &self.path))
    }

    /// Cuts off what follows `len`, where the next line will begin; returns how much that was.
    pub(crate) fn cut(&mut self, len: u64) -> Result<u64, JournalError> {
        let was = self.len()?;
        if was > len {
            self.file.set_len(len).and_then(|()| self.file.sync_all()).map_err(JournalError::io("cut", &self.path))?;
        }
        self.continue_at(len)?;
        Ok(was.saturating_sub(len))
    }

    /// Makes sure that the file is still where it belongs and as long as it was, and not moved, removed, replaced or cut short
    /// behind our back.
    ///
    /// # Errors
    /// When it is not, and when the system refuses.
    pub fn check_place(&self) -> Result<(), JournalError> {
        match is_still_at(&self.file, &self.path) && self.ends_with_a_line()? {
            true => Ok(()),
            false => Err(JournalError::OutputTaken { output: self.path.clone() }),
        }
    }

    /// Whether a line end stands before `end`, where the file continues then. There is none where the file is shorter, nor where
    /// it was cut short and then written at `end`: the system fills what lies between with zeros.
    fn ends_with_a_line(&self) -> Result<bool, JournalError> {
        let Some(last) = self.end.checked_sub(1) else { return Ok(true) };
        let (mut file, mut byte) = (&self.file, Vec::with_capacity(1));
        let read = file.seek(SeekFrom::Start(last)).and_then(|_| file.take(1).read_to_end(&mut byte));
        // Where it reads and where it writes is one place.
        read.and_then(|_| file.seek(SeekFrom::Start(self.end))).map_err(JournalError::io("read", &self.path))?;
        Ok(byte == b"\n")
    }

    /// The file, to be read.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// The next line begins there.
    pub(crate) fn continue_at(&mut self, end: u64) -> Result<(), JournalError> {
        self.end = end;
        self.file.seek(SeekFrom::Start(end)).map(|_| ()).map_err(JournalError::io("write", &self.path))
    }

    /// Where the next line will begin.
    pub const fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn len(&self) -> Result<u64, JournalError> {
        self.file.metadata().map(|about| about.len()).map_err(JournalError::io("read", &self.path))
    }

    /// Where the last lines begin that are not whole; the end of the file where each is.
    fn torn_from(&mut self, len: u64) -> io::Result<u64> {
        let mut end = self.line_start(len)?;
        let mut line = Vec::new();
        while end > 0 {
            let start = self.line_start(end - 1)?;
            self.file.seek(SeekFrom::Start(start))?;
            line.clear();
            (&self.file).take(end - start).read_to_end(&mut line)?;
            // No JSON has such a byte: the system had counted the line, but not written it.
            if !line.contains(&0) {
                break;
            }
            end = start;
        }
        Ok(end)
    }

    /// Where the line begins that goes on until `end`.
    fn line_start(&mut self, mut end: u64) -> io::Result<u64> {
        let mut block = Vec::new();
        while end > 0 {
            let start = end.saturating_sub(BLOCK);
            self.file.seek(SeekFrom::Start(start))?;
            block.clear();
            (&self.file).take(end - start).read_to_end(&mut block)?;
            if let Some(last) = memchr::memrchr(b'\n', &block) {
                return Ok(start + last as u64 + 1);
            }
            end = start;
        }
        Ok(0)
    }
}

/// Whether a file begins with a result line, or with what an interruption left of one, or is empty.
///
/// # Errors
/// When the system refuses.
pub fn may_hold_results(path: &Path) -> io::Result<bool> {
    let mut begins = Vec::with_capacity(BEGINNING.len());
    File::open(path)?.take(BEGINNING.len() as u64).read_to_end(&mut begins)?;
    // A power cut may leave zeros.
    Ok(begins.iter().zip(BEGINNING).all(|(byte, expected)| byte == expected || *byte == 0))
}

/// Results that stand in a file, by the number and the id of their items, with the call of each that answered last.
#[derive(Debug, Default)]
pub struct KnownResults(HashMap<(u64, [u8; 16]), u32>);

impl KnownResults {
    /// Whether the result of that item is among them, by a call of it that came after so many.
    pub fn contains(&self, ordinal: u64, custom_id: &CustomId, after: u32) -> bool {
        self.0.get(&(ordinal, custom_id.key())).is_some_and(|call| *call > after)
    }
}

/// As much is read at a time to find the beginning of a line.
const BLOCK: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::End;
    use crate::line::{LineForm, ResultBody, ResultLine};

    #[test]
    fn answers_are_recalled_and_what_a_fallback_gave_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = LineFile::open(&folder.path().join("lines")).unwrap();
        let custom_id = CustomId::from("a");
        let line =
            |ordinal| ResultLine { ordinal, call: 1, custom_id: &custom_id, metadata: None, form: LineForm::OpenAi };
        let answer = ResultBody::Response { status: 200, request_id: "r", headers: None, body: b"{}" };
        let fallback = ResultBody::Fallback { code: "max_retries", message: "it is down", output: b"{}" };
        file.append(&line(1).encode(End::Succeeded, &answer)).unwrap();
        let from = file.end();
        file.append(&line(2).encode(End::FellBack, &fallback)).unwrap();
        file.append(&line(3).encode(End::Succeeded, &answer)).unwrap();
        file.append(b"{\"of\": \"another program\"}\n").unwrap();
        let known =
            |from, after| [1, 2, 3].map(|item| file.results_from(from).unwrap().contains(item, &custom_id, after));
        let recalled = |from| known(from, 0);
        assert_eq!((recalled(0), recalled(from)), ([true, false, true], [false, false, true]));
    }

    #[test]
    fn torn_lines_are_cut_and_whole_ones_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let long = "x".repeat(3 * BLOCK as usize);
        let zeros = "\0".repeat(5_000);
        for (before, kept) in [
            ("", ""),
            ("old\n", "old\n"),
            ("old\ncut", "old\n"),
            ("cut", ""),
            (&format!("old\n{long}"), "old\n"),
            (&format!("{long}\n"), &format!("{long}\n")),
            (&long, ""),
            (&format!("old\n{{\"id\":{zeros}\n"), "old\n"),
            (&format!("old\n{zeros}\n{zeros}\ncut"), "old\n"),
            (&zeros, ""),
        ] {
            std::fs::write(&path, before).unwrap();
            let mut file = LineFile::open(&path).unwrap();
            assert_eq!(file.cut_torn_lines().unwrap(), (before.len() - kept.len()) as u64);
            file.append(b"new\n").unwrap();
            file.append(b"newer\n").unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{kept}new\nnewer\n"));
        }
    }

    #[test]
    fn what_begins_otherwise_holds_no_results() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        for (content, may) in [
            ("", true),
            ("{\"id\":\"pl-0-1-801d8dff\",\"custom_id\":7}\n", true),
            ("{\"i", true),
            ("{\"id\":\0\0\0\0\0", true),
            ("{\"id\":\"batch_req_1\"}\n", false),
            ("{\"key\":\"a\",\"payload\":1}", false),
            ("\n", false),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(may_hold_results(&path).unwrap(), may, "{content}");
        }
    }

    #[test]
    fn a_file_that_is_taken_away_takes_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut file = LineFile::open(&path).unwrap();
        assert!(file.lock().unwrap() && !LineFile::open(&path).unwrap().lock().unwrap());
        file.append(b"one\n").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.append(b"two\n"), Err(JournalError::OutputTaken { .. })));
    }

    #[test]
    fn a_file_that_is_cut_short_takes_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        for left in ["", "on", "one\ntw"] {
            let mut file = LineFile::open(&path).unwrap();
            file.cut(0).unwrap();
            file.append(b"one\n").unwrap();
            file.append(b"two\n").unwrap();
            file.check_place().unwrap();
            std::fs::write(&path, left).unwrap();
            assert!(matches!(file.check_place(), Err(JournalError::OutputTaken { .. })));
            assert!(matches!(file.append(b"three\n"), Err(JournalError::OutputTaken { .. })));
            assert_eq!(std::fs::read_to_string(&path).unwrap(), left, "nothing follows a gap");
        }
    }

    #[test]
    fn a_file_that_is_cut_short_just_before_a_write_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut file = LineFile::open(&path).unwrap();
        file.append(b"one\n").unwrap();
        std::fs::write(&path, "").unwrap();
        (&file.file).write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"\0\0\0\0two\n");
        assert!(matches!(file.check_place(), Err(JournalError::OutputTaken { .. })));
    }
}
