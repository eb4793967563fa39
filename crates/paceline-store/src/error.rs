//! What can go wrong with a journal, and what to do about it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use crate::disk_full::DiskFull;

/// Why a journal cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// Another run works on the same job.
    #[error("{} is in use by {}; wait for that run or stop it", path.display(), holder(*pid))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that holds it, if it could be read.
        pid: Option<u32>,
    },
    /// No file can be made where the journal belongs.
    #[error("cannot write in the folder {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The input is not the one that the job began with.
    #[error("{}{how}; restore the input, or use another output for the new one", changed(what, path))]
    InputChanged {
        /// The input.
        path: PathBuf,
        /// What differs: `length`, `beginning`, or where it has another name `input`.
        what: &'static str,
        /// ` (was 7 bytes, is 8 bytes)`; empty where no figures say how.
        how: String,
    },
    /// There are results, but no journal that says which items they belong to.
    #[error(
        "{} exists, but its journal {} is missing or empty, so that nothing tells which items are done; move the results away or \
         use another output",
        output.display(), journal.display()
    )]
    OutputWithoutJournal {
        /// The results, errors or report.
        output: PathBuf,
        /// Where the journal should be.
        journal: PathBuf,
    },
    /// There are results already, and the job is to have no journal.
    #[error("{} exists, and only a job with a journal can be continued; move it away or use another output", output.display())]
    OutputExists {
        /// The results, errors or report.
        output: PathBuf,
    },
    /// What stands where lines belong cannot take them: a folder, a pipe or a device.
    #[error("{} is no file, and lines are to be written there; move it away or use another output", output.display())]
    OutputIsNoFile {
        /// The results, errors or refused answers.
        output: PathBuf,
    },
    /// The journal covers results that are gone.
    #[error(
        "{} is missing, but its journal {} has recorded {covered} bytes of it; restore it",
        output.display(), journal.display()
    )]
    JournalWithoutOutput {
        /// The results or errors that are missing.
        output: PathBuf,
        /// The journal.
        journal: PathBuf,
        /// Bytes recorded in the journal.
        covered: u64,
    },
    /// A file of results was removed, replaced or cut short while the job wrote it.
    #[error("{} was removed, replaced or cut short while this run wrote it", output.display())]
    OutputTaken {
        /// The results or errors.
        output: PathBuf,
    },
    /// The journal was removed or replaced while the job wrote it.
    #[error(
        "the journal {} was removed or replaced while this run wrote it, and without it no run can go on with this job: put that file back, \
         or start a job with another -o and --done RESULTS, which takes the answers over",
        journal.display()
    )]
    JournalTaken {
        /// The journal.
        journal: PathBuf,
    },
    /// A file of results was changed behind the journal's back.
    #[error(
        "{} is damaged at byte {offset}: {why}; restore it, or move it and its journal away to start again",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first byte that is not as recorded.
        offset: u64,
        /// What is wrong there.
        why: &'static str,
    },
    /// A newer version of Paceline wrote this journal.
    #[error("{} has format {found}, this version knows up to {known}; use a newer version of paceline", path.display())]
    NewerVersion {
        /// The journal.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// A file stands where the journal should be, and it is none.
    #[error("{} is not a journal of paceline; move it away or name another journal", path.display())]
    NotAJournal {
        /// The file.
        path: PathBuf,
    },
    /// A store of durable work stands where the journal should be.
    #[error("{} is a store of tasks, not the journal of a run", path.display())]
    IsStore {
        /// The file.
        path: PathBuf,
    },
    /// The input is not in the journal yet: its first load goes on, or was cut off.
    #[error(
        "{} holds no job yet: a run still reads its input, or was interrupted while it did; then run the same command \
         again",
        path.display()
    )]
    NotLoaded {
        /// The journal.
        path: PathBuf,
    },
    /// Lines of the input have the `custom_id` of a line before.
    #[error(
        "line {line} repeats the custom_id of line {first_line}, the first of {count} to repeat one; give each its own"
    )]
    Duplicates {
        /// The first of them.
        line: u64,
        /// The line that had the same id first.
        first_line: u64,
        /// How many there are.
        count: u64,
    },
    /// Items that have ended are not in the new input as they were.
    #[error("{count} items that have ended are missing or changed in the new input; restore them")]
    EndedChanged {
        /// How many.
        count: u64,
    },
    /// The disk is full. Nothing was written.
    #[error("{0}")]
    DiskFull(DiskFull),
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The database is not what was written into it.
    #[error("the journal is damaged ({source}); restore a copy of it, or move it and its results away to start again")]
    DamagedJournal {
        /// What was found.
        source: rusqlite::Error,
    },
    /// The database could not be read or written.
    #[error("cannot {action} the journal: {source}")]
    Sqlite {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: rusqlite::Error,
    },
    /// The writer failed before and takes nothing more; what it acknowledged is safe.
    #[error("the run stopped: {cause}")]
    Stopped {
        /// The first failure.
        #[source]
        cause: Arc<JournalError>,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

fn changed(what: &str, path: &Path) -> String {
    match what {
        "input" => format!("{} is not the input that this job began with", path.display()),
        what => format!("the {what} of {} changed since this job began", path.display()),
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Whether the cause of an error of the file system is a disk that is full.
pub fn is_disk_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

impl JournalError {
    /// Whether the database cannot be opened or written by this user.
    pub fn may_not_be_opened(&self) -> bool {
        use rusqlite::ErrorCode::{CannotOpen, PermissionDenied, ReadOnly};
        let Self::Sqlite { source, .. } = self else { return false };
        matches!(source.sqlite_error_code(), Some(CannotOpen | PermissionDenied | ReadOnly))
    }

    /// Whether the journal is gone, so that no run can go on with the job.
    pub fn is_journal_taken(&self) -> bool {
        match self {
            Self::JournalTaken { .. } => true,
            Self::Stopped { cause } => cause.is_journal_taken(),
            _ => false,
        }
    }

    /// Whether results are not where the run wrote them, or not as it wrote them.
    pub fn is_output_taken(&self) -> bool {
        match self {
            Self::OutputTaken { .. } => true,
            Self::Stopped { cause } => cause.is_output_taken(),
            _ => false,
        }
    }

    /// Whether the cause is a disk that is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::DiskFull(_) => true,
            Self::Folder { source, .. } | Self::Io { source, .. } => is_disk_full(source),
            Self::Sqlite { source, .. } => source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Self::Stopped { cause } => cause.is_disk_full(),
            _ => false,
        }
    }

    /// For `map_err` at a file operation.
    pub(crate) fn io(action: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// For `map_err` at a database operation.
    pub(crate) fn sqlite(action: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseCorrupt) => Self::DamagedJournal { source },
            _ => Self::Sqlite { action, source },
        }
    }
}
