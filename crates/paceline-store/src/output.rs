//! The files of results, errors and refused answers: appended in groups, synced before the journal counts them.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use crate::disk::private_file;
use crate::error::JournalError;
use crate::item::End;
use crate::line::verify_line;
use crate::line_file::LineFile;
use crate::paths::Paths;
use crate::query::{RecordedPrefix, Run};

/// The files of a job.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub(crate) results: OutputFile,
    pub(crate) errors: OutputFile,
    /// Its lines end no item.
    pub(crate) refused_answers: OutputFile,
}

impl Outputs {
    /// Refuses to begin a job over results that are there. Empty files are no results.
    pub(crate) fn refuse_existing(paths: &Paths) -> Result<(), JournalError> {
        let packed = paths.compress.then(|| paths.packed());
        let Paths { output, errors, report, refused_answers, .. } = paths;
        for output in [output, errors, report, refused_answers].into_iter().cloned().chain(packed) {
            if holds_something(&output) {
                return Err(match paths.journal.clone() {
                    Some(journal) => JournalError::OutputWithoutJournal { output, journal },
                    None => JournalError::OutputExists { output },
                });
            }
        }
        Ok(())
    }

    /// Refuses files that are not the job's own where it would compress its results, or keep refused answers for the first time.
    pub(crate) fn refuse_strange(paths: &Paths, run: &Run) -> Result<(), JournalError> {
        let packed = Some(paths.packed()).filter(|_| paths.compress && !run.packed);
        let refused_answers = Some(paths.refused_answers.clone()).filter(|_| run.refused_answers.is_none());
        match packed.into_iter().chain(refused_answers).find(|output| holds_something(output)) {
            Some(output) => Err(JournalError::OutputExists { output }),
            None => Ok(()),
        }
    }

    /// Makes sure, before a call costs anything, that lines can be written to the files that are not open yet: a folder that
    /// takes no second file, a file of another user, or a process that may open no more, would show that at the first line.
    pub(crate) fn prove(&mut self) -> Result<(), JournalError> {
        self.errors.prove()?;
        self.refused_answers.prove()
    }

    /// The files of a new job. Results exist from now on, the others once there is a line for them.
    pub(crate) fn create(paths: &Paths) -> Result<Self, JournalError> {
        let mut results = OutputFile::absent(&paths.output);
        results.open()?;
        let errors = OutputFile::absent(&paths.errors);
        Ok(Self { results, errors, refused_answers: OutputFile::absent(&paths.refused_answers) })
    }

    /// Those that a journal covers so far.
    pub(crate) fn reopen(paths: &Paths, journal: &Path, run: &Run) -> Result<Self, JournalError> {
        let errors = OutputFile::reopen(&paths.errors, journal, run.errors)?;
        let covered = run.refused_answers.unwrap_or_default();
        let refused_answers = OutputFile::reopen(&paths.refused_answers, journal, covered)?;
        if run.packed {
            let results = OutputFile::packed(&paths.output, &paths.packed(), journal, run.results)?;
            return Ok(Self { results, errors, refused_answers });
        }
        let mut results = OutputFile::reopen(&paths.output, journal, run.results)?;
        if results.file.is_none() {
            results.open()?;
        }
        Ok(Self { results, errors, refused_answers })
    }

    /// The file for the line of such an end.
    pub(crate) fn of(&mut self, end: End) -> &mut OutputFile {
        match end {
            End::Succeeded | End::FellBack => &mut self.results,
            End::Failed | End::Skipped | End::Cancelled => &mut self.errors,
        }
    }

    /// Appends what is staged, and returns once it would survive a power cut. A file for which nothing is staged is checked too.
    pub(crate) fn write(&mut self) -> Result<(), JournalError> {
        // First: an item whose end stands in the errors is not asked for again, and what it was refused before would be missing.
        self.refused_answers.write()?;
        self.results.write()?;
        self.errors.write()
    }

    /// Makes sure that they are still where they belong, and not removed, replaced or cut short behind our back.
    pub(crate) fn check_places(&self) -> Result<(), JournalError> {
        self.results.check_place()?;
        self.errors.check_place()?;
        self.refused_answers.check_place()
    }
}

/// Refuses a folder, a device, or a pipe: to open one waits until another process reads it.
fn refuse_special(path: &Path) -> Result<(), JournalError> {
    match path.metadata() {
        Ok(there) if !there.is_file() => Err(JournalError::OutputIsNoFile { output: path.to_owned() }),
        _ => Ok(()),
    }
}

fn holds_something(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| about.len() > 0)
}

/// A file that grows by whole lines.
#[derive(Debug)]
pub(crate) struct OutputFile {
    pub(crate) path: PathBuf,
    file: Option<LineFile>,
    len: u64,
    crc: crc32fast::Hasher,
    staged: Vec<u8>,
    /// A descriptor for the file, until it is made.
    kept: Option<File>,
}

impl OutputFile {
    fn absent(path: &Path) -> Self {
        let crc = crc32fast::Hasher::new();
        Self { path: path.to_owned(), file: None, len: 0, crc, staged: Vec::new(), kept: None }
    }

    /// Opens the file where it is there, else makes it and removes it again.
    fn prove(&mut self) -> Result<(), JournalError> {
        if self.file.is_some() || self.kept.is_some() {
            return Ok(());
        }
        let made = match private_file().create_new(true).open(&self.path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return self.open(),
            made => made.map_err(JournalError::io("create", &self.path))?,
        };
        std::fs::remove_file(&self.path).map_err(JournalError::io("remove", &self.path))?;
        self.kept = Some(made);
        Ok(())
    }

    /// Opens a file whose beginning is recorded, and makes sure that it is as recorded. Changes nothing.
    fn reopen(path: &Path, journal: &Path, covered: RecordedPrefix) -> Result<Self, JournalError> {
        let mut output = Self::absent(path);
        refuse_special(path)?;
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound && covered.len == 0 => return Ok(output),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (output, journal) = (path.to_owned(), journal.to_owned());
                return Err(JournalError::JournalWithoutOutput { output, journal, covered: covered.len });
            }
            Err(source) => return Err(JournalError::Io { action: "open", path: path.to_owned(), source }),
        };
        let damaged = |offset, why| JournalError::Damaged { path: path.to_owned(), offset, why };
        let file = alone(LineFile::of(file, path)?, path)?;
        let len = file.len()?;
        if len < covered.len {
            return Err(damaged(len, "it ends there, before what its journal recorded"));
        }
        output.crc = checksum(file.file(), covered.len).map_err(JournalError::io("read", path))?;
        if output.crc.clone().finalize() != covered.crc {
            return Err(match first_damage(file.file(), covered.len).map_err(JournalError::io("read", path))? {
                Some(offset) => damaged(offset, "the line there is not what its journal recorded"),
                None => damaged(0, "its lines are whole, but not those that its journal recorded"),
            });
        }
        output.len = covered.len;
        output.file = Some(file);
        Ok(output)
    }

    /// Results that stand compressed, after making sure that they unpack to what is recorded. Nothing can be appended.
    fn packed(path: &Path, packed: &Path, journal: &Path, covered: RecordedPrefix) -> Result<Self, JournalError> {
        let file = match File::open(packed) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (output, journal) = (packed.to_owned(), journal.to_owned());
                return Err(JournalError::JournalWithoutOutput { output, journal, covered: covered.len });
            }
            Err(source) => return Err(JournalError::Io { action: "open", path: packed.to_owned(), source }),
        };
        let damaged = |offset, why| JournalError::Damaged { path: packed.to_owned(), offset, why };
        let mut crc = crc32fast::Hasher::new();
        match read_all(MultiGzDecoder::new(BufReader::new(file)), |bytes| crc.update(bytes)) {
            Err(_) => return Err(damaged(0, "it cannot be unpacked")),
            Ok(len) if len != covered.len => return Err(damaged(len, "unpacked, it has not the recorded length")),
            Ok(_) if crc.finalize() != covered.crc => {
                return Err(damaged(0, "unpacked, it is not what its journal recorded"));
            }
            Ok(_) => {}
        }
        let mut output = Self::absent(path);
        output.covers(covered);
        Ok(output)
    }

    /// The file at its path was replaced by one of which that much is recorded, or removed if that is nothing.
    pub(crate) fn replaced(&mut self, covered: RecordedPrefix) -> Result<(), JournalError> {
        self.covers(covered);
        self.file = None;
        if self.path.exists() {
            self.open()?;
            let file = self.file.as_mut().expect("it was opened above");
            file.continue_at(covered.len)?;
        }
        Ok(())
    }

    fn covers(&mut self, covered: RecordedPrefix) {
        self.len = covered.len;
        self.crc = crc32fast::Hasher::new_with_initial_len(covered.crc, covered.len);
    }

    /// The lines after the recorded part, as they are.
    pub(crate) fn tail(&self) -> Result<Tail, JournalError> {
        let reader = match &self.file {
            Some(file) => {
                let mut file = file.file().try_clone().map_err(JournalError::io("read", &self.path))?;
                // A crash of the process alone leaves lines that only the system's memory has.
                file.sync_data().map_err(JournalError::io("sync", &self.path))?;
                file.seek(SeekFrom::Start(self.len)).map_err(JournalError::io("read", &self.path))?;
                Some(BufReader::with_capacity(1 << 16, file))
            }
            None => None,
        };
        Ok(Tail { path: self.path.clone(), reader })
    }

    /// Counts the next line of the tail as recorded.
    pub(crate) fn cover(&mut self, line: &[u8]) {
        self.len += line.len() as u64;
        self.crc.update(line);
    }

    /// Cuts off what follows the recorded part; returns how much that was.
    pub(crate) fn cut(&mut self) -> Result<u64, JournalError> {
        self.file.as_mut().map_or(Ok(0), |file| file.cut(self.len))
    }

    /// The offset that the next staged line will have.
    pub(crate) fn next_offset(&self) -> u64 {
        self.len + self.staged.len() as u64
    }

    /// Keeps a line for the next write.
    pub(crate) fn stage(&mut self, line: &[u8]) {
        self.staged.extend_from_slice(line);
    }

    fn write(&mut self) -> Result<(), JournalError> {
        if self.staged.is_empty() {
            return self.check_place();
        }
        self.open()?;
        let file = self.file.as_mut().expect("it was opened above");
        file.append(&self.staged)?;
        self.crc.update(&self.staged);
        self.len += self.staged.len() as u64;
        self.staged.clear();
        // One group with a huge answer must not keep its memory for the rest of the run.
        self.staged.shrink_to(1 << 20);
        Ok(())
    }

    fn check_place(&self) -> Result<(), JournalError> {
        self.file.as_ref().map_or(Ok(()), LineFile::check_place)
    }

    fn open(&mut self) -> Result<(), JournalError> {
        if self.file.is_none() {
            refuse_special(&self.path)?;
            self.kept = None;
            self.file = Some(alone(LineFile::open(&self.path)?, &self.path)?);
        }
        Ok(())
    }

    /// What is recorded once the present turn commits.
    pub(crate) fn covered(&self) -> RecordedPrefix {
        RecordedPrefix { len: self.len, crc: self.crc.clone().finalize() }
    }
}

/// The file, locked: a run whose lock file was deleted still keeps others out. Not where a lock keeps readers out too.
fn alone(file: LineFile, path: &Path) -> Result<LineFile, JournalError> {
    match cfg!(not(unix)) || file.lock()? {
        true => Ok(file),
        false => Err(JournalError::Locked { path: path.to_owned(), pid: None }),
    }
}

/// Lines of unknown wholeness.
pub(crate) struct Tail {
    path: PathBuf,
    reader: Option<BufReader<File>>,
}

impl Tail {
    /// Replaces `line` by the next one, with its line end unless the file ends without; false at the end.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> Result<bool, JournalError> {
        line.clear();
        let Some(reader) = &mut self.reader else { return Ok(false) };
        reader.read_until(b'\n', line).map_err(JournalError::io("read", &self.path)).map(|read| read > 0)
    }
}

/// The checksum of the first `len` bytes.
fn checksum(mut file: &File, len: u64) -> std::io::Result<crc32fast::Hasher> {
    file.rewind()?;
    let mut crc = crc32fast::Hasher::new();
    read_all(file.take(len), |bytes| crc.update(bytes))?;
    Ok(crc)
}

/// Shows everything to `see`, piece by piece; returns how many bytes that were.
fn read_all(mut from: impl Read, mut see: impl FnMut(&[u8])) -> std::io::Result<u64> {
    let (mut buffer, mut len) = (vec![0; 1 << 18], 0);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(len);
        }
        see(&buffer[..read]);
        len += read as u64;
    }
}

/// Where the first line begins that does not prove itself; none when each does.
fn first_damage(mut file: &File, len: u64) -> std::io::Result<Option<u64>> {
    file.rewind()?;
    let mut reader = BufReader::new(file.take(len));
    let (mut offset, mut line) = (0, Vec::new());
    while reader.read_until(b'\n', &mut line)? > 0 {
        if verify_line(&line).is_none() {
            return Ok(Some(offset));
        }
        offset += line.len() as u64;
        line.clear();
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_not_needed_yet_can_be_made_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = Paths::beside(&folder.path().join("out.jsonl"));
        let mut outputs = Outputs::create(&paths).unwrap();
        outputs.prove().unwrap();
        assert!(paths.output.exists() && !paths.errors.exists() && !paths.refused_answers.exists());
        assert!(outputs.errors.kept.is_some(), "its descriptor is no other file's");
        outputs.errors.stage(b"{}\n");
        outputs.write().unwrap();
        assert_eq!(std::fs::read(&paths.errors).unwrap(), b"{}\n");
        assert!(outputs.errors.kept.is_none() && outputs.prove().is_ok());

        paths.refused_answers = folder.path().join("x".repeat(300));
        drop(outputs);
        let refused = Outputs::create(&paths).unwrap().prove().unwrap_err().to_string();
        assert!(refused.contains("xxx") && refused.contains("create"), "{refused}");
    }

    #[test]
    fn what_cannot_take_lines_is_refused_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::beside(&folder.path().join("out.jsonl"));
        let refused = |paths: &Paths| Outputs::create(paths).unwrap().prove().unwrap_err().to_string();
        std::fs::create_dir(&paths.errors).unwrap();
        assert!(refused(&paths).starts_with(&format!("{} is no file", paths.errors.display())), "{}", refused(&paths));
        std::fs::remove_dir(&paths.errors).unwrap();
        std::fs::write(&paths.refused_answers, "").unwrap();
        let mut rights = std::fs::metadata(&paths.refused_answers).unwrap().permissions();
        rights.set_readonly(true);
        std::fs::set_permissions(&paths.refused_answers, rights).unwrap();
        // Root may write all the same.
        if OpenOptions::new().write(true).open(&paths.refused_answers).is_err() {
            let told = format!("cannot write {}: ", paths.refused_answers.display());
            assert!(refused(&paths).starts_with(&told), "{}", refused(&paths));
        }
    }

    #[test]
    fn a_file_that_is_there_is_open_before_anything_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::beside(&folder.path().join("out.jsonl"));
        std::fs::write(&paths.errors, "").unwrap();
        let mut outputs = Outputs::create(&paths).unwrap();
        outputs.prove().unwrap();
        assert!(outputs.errors.file.is_some(), "it takes no further descriptor");
    }
}
