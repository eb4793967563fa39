//! Where the files of a job are, and how its input is recognized again.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::disk_space::DiskSpace;
use crate::error::JournalError;
use crate::output::Outputs;
use crate::schema::hash;

/// The files of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Lines of items that succeeded.
    pub output: PathBuf,
    /// Lines of items that ended otherwise; made when first needed.
    pub errors: PathBuf,
    /// Lines of answers that the user's expectation refused, which end no item; made when first needed.
    pub refused_answers: PathBuf,
    /// The journal; none for a job that cannot be resumed.
    pub journal: Option<PathBuf>,
    /// Held while a run works on the job.
    pub lock: PathBuf,
    /// Held as well where the journal is elsewhere, so that no other job writes the same results: the lock that a journal
    /// beside them would have.
    pub output_lock: Option<PathBuf>,
    /// One row for each item that did not simply succeed; written by the runner.
    pub report: PathBuf,
    /// A copy of an input that cannot be read twice; written by the runner.
    pub input: PathBuf,
    /// Whether [`Journal::order`](crate::Journal::order) leaves the results compressed, as [`packed`](Self::packed).
    pub compress: bool,
}

impl Paths {
    /// The files beside an output: `results.jsonl` gives `results.errors.jsonl`, `results.journal` and so on. Of another
    /// name nothing is taken away, but `.gz`: `results.jsonl.gz` is `results.jsonl`, to be compressed in the end.
    pub fn beside(output: &Path) -> Self {
        if output.extension().is_some_and(|end| end == "gz") {
            return Self { compress: true, ..Self::beside(&output.with_extension("")) };
        }
        let name = output.file_name().unwrap_or(output.as_os_str());
        let stem =
            Path::new(name).file_stem().filter(|_| Path::new(name).extension().is_some_and(|end| end == "jsonl"));
        let beside = |suffix: &str| output.with_file_name(with_suffix(stem.unwrap_or(name).to_owned(), suffix));
        let journal = beside(".journal");
        Self {
            output: output.to_owned(),
            errors: beside(".errors.jsonl"),
            refused_answers: beside(".refused.jsonl"),
            lock: beside(".journal.lock"),
            output_lock: None,
            journal: Some(journal),
            report: beside(".report.jsonl"),
            input: beside(".input"),
            compress: false,
        }
    }

    /// Refuses a job that would begin over results that are there, as [`Journal::open`](crate::Journal::open) does.
    ///
    /// # Errors
    /// [`JournalError::OutputWithoutJournal`], [`JournalError::OutputExists`].
    pub fn refuse_results(&self) -> Result<(), JournalError> {
        Outputs::refuse_existing(self)
    }

    /// The disks of the results, and of the journal where there is one.
    pub fn disk_space(&self) -> DiskSpace {
        DiskSpace::of(std::iter::once(&*self.output).chain(self.journal.as_deref()))
    }

    /// Where compressed results stand: the output with `.gz` behind.
    pub fn packed(&self) -> PathBuf {
        with_suffix(self.output.clone().into_os_string(), ".gz").into()
    }

    /// Files that are there only while a run works, or after it was killed: those that take the place of another once they
    /// are complete, and the journal's log.
    pub fn temporary_files(&self) -> Vec<PathBuf> {
        let packed = self.packed();
        let replaced = [&self.output, &self.errors, &self.input, &packed].into_iter().chain(&self.journal);
        let fresh = replaced.map(|path| with_suffix(path.clone().into(), ".new").into());
        let databases = self
            .journal
            .iter()
            .flat_map(|journal| [journal.clone(), with_suffix(journal.clone().into(), ".new").into()]);
        fresh.chain(databases.flat_map(|path| beside_database(&path))).collect()
    }

    /// With the journal, and its lock, at another place.
    #[must_use]
    pub fn with_journal(mut self, journal: PathBuf) -> Self {
        let lock = PathBuf::from(with_suffix(journal.clone().into_os_string(), ".lock"));
        let beside = std::mem::replace(&mut self.lock, lock);
        self.output_lock = Some(beside).filter(|beside| *beside != self.lock);
        self.journal = Some(journal);
        self
    }

    /// With the journal in memory: the job cannot be resumed.
    #[must_use]
    pub fn without_journal(mut self) -> Self {
        self.journal = None;
        self
    }
}

/// The files that SQLite keeps beside a database: its logs, and what processes share of one.
pub fn beside_database(path: &Path) -> [PathBuf; 3] {
    ["-journal", "-wal", "-shm"].map(|suffix| with_suffix(path.into(), suffix).into())
}

/// `name` followed by `suffix`.
pub(crate) fn with_suffix(mut name: OsString, suffix: &str) -> OsString {
    name.push(suffix);
    name
}

/// Bytes of the input's beginning that are hashed: enough for the first lines to differ, and read at once.
const HEAD: u64 = 64 * 1024;

/// By what an input is recognized when its job is resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputFingerprint {
    /// The input.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// Its time of change in milliseconds since 1970; 0 where the file system has none.
    pub mtime_ms: i64,
    /// The hash of its first 64 KiB.
    pub head_hash: [u8; 16],
}

impl InputFingerprint {
    /// The mark of a file as it is now.
    ///
    /// # Errors
    /// [`JournalError::Io`] when the file cannot be read.
    pub fn of(path: &Path) -> Result<Self, JournalError> {
        let file = File::open(path).map_err(JournalError::io("open", path))?;
        let about = file.metadata().map_err(JournalError::io("read", path))?;
        let changed = about.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let mtime_ms = changed.and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0);
        let mut head = Vec::new();
        file.take(HEAD).read_to_end(&mut head).map_err(JournalError::io("read", path))?;
        Ok(Self { path: path.to_owned(), len: about.len(), mtime_ms, head_hash: hash(&head) })
    }

    /// Refuses an input that differs from what it `was` at the beginning of the job. The time of change alone proves nothing:
    /// a restored copy has another.
    ///
    /// # Errors
    /// [`JournalError::InputChanged`].
    pub fn same_as(&self, was: &Self) -> Result<(), JournalError> {
        let changed = |what, how| JournalError::InputChanged { path: self.path.clone(), what, how };
        if self.len != was.len && self.path.file_name() != was.path.file_name() {
            let how = format!(" ({} bytes and not {}: that was {})", self.len, was.len, was.path.display());
            return Err(changed("input", how));
        }
        if self.len != was.len {
            return Err(changed("length", format!(" (was {} bytes, is {} bytes)", was.len, self.len)));
        }
        if self.head_hash != was.head_hash {
            return Err(changed("beginning", String::new()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beside_an_output() {
        for (output, errors, journal) in [
            ("results.jsonl", "results.errors.jsonl", "results.journal"),
            ("a/b.c.jsonl", "a/b.c.errors.jsonl", "a/b.c.journal"),
            ("out.txt", "out.txt.errors.jsonl", "out.txt.journal"),
            ("out", "out.errors.jsonl", "out.journal"),
            (".jsonl", ".jsonl.errors.jsonl", ".jsonl.journal"),
        ] {
            let paths = Paths::beside(Path::new(output));
            assert_eq!(paths.errors, Path::new(errors));
            assert_eq!(paths.journal.as_deref(), Some(Path::new(journal)));
            assert_eq!(paths.lock, Path::new(&format!("{journal}.lock")));
        }
        let packed = Paths::beside(Path::new("a/results.jsonl.gz"));
        assert_eq!((packed.output.as_path(), packed.compress), (Path::new("a/results.jsonl"), true));
        assert_eq!(packed.errors, Path::new("a/results.errors.jsonl"));
        assert_eq!(packed.packed(), Path::new("a/results.jsonl.gz"));
        let elsewhere = Paths::beside(Path::new("r.jsonl")).with_journal("j/k.db".into());
        assert_eq!(elsewhere.lock, Path::new("j/k.db.lock"));
        assert_eq!(elsewhere.output_lock.as_deref(), Some(Path::new("r.journal.lock")));
        assert_eq!(Paths::beside(Path::new("r.jsonl")).with_journal("r.journal".into()).output_lock, None);
    }
}
