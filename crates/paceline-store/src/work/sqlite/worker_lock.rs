//! One process works on a file: it holds the lock file beside it, and the log of the database.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::beside;
use crate::error::JournalError;
use crate::lock::{Holder, LockFile, RunLock};

/// The right to work on a store, held until dropped.
#[derive(Debug)]
pub(super) struct WorkerLock {
    /// Keeps a second process out after the lock file was deleted.
    _log: Option<File>,
    _file: LockFile,
}

impl WorkerLock {
    /// Takes both locks of a store that is open, or returns the holder of one.
    ///
    /// # Errors
    /// [`JournalError::Locked`]; [`JournalError::Folder`] when the lock file cannot be made.
    pub(super) fn take(path: &Path) -> Result<Self, JournalError> {
        let file = LockFile::take(&beside(path, ".lock"))?;
        Ok(Self { _log: lock_log(path)?, _file: file })
    }
}

/// The log stays for as long as a process has the store open. SQLite itself locks other files, and where a lock keeps others from
/// writing (not on Unix) the log is left alone. None where there is no log, or it cannot be locked.
fn lock_log(path: &Path) -> Result<Option<File>, JournalError> {
    let Some(log) = File::open(beside(path, "-wal")).ok().filter(|_| cfg!(unix)) else { return Ok(None) };
    for _ in 0..LOOKS {
        match log.try_lock() {
            Ok(()) => return Ok(Some(log)),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
    Err(JournalError::Locked { path: path.to_owned(), pid: None })
}

/// A command that only [looks](worker_of) whether there is a worker holds the log for an instant.
const LOOKS: u32 = 5;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Where the lock file of a store is: beside the file itself, whatever leads to it.
pub fn lock_of(store: &Path) -> PathBuf {
    beside_target(store, ".lock")
}

pub(super) fn beside_target(store: &Path, ending: &str) -> PathBuf {
    beside(&store.canonicalize().unwrap_or_else(|_| store.to_owned()), ending)
}

/// The process that may be at work on a store: one that holds a lock of it, or whose lock cannot be looked at. Holds a free
/// lock itself for an instant, in which a worker that begins would be refused.
pub fn worker_of(store: &Path) -> Option<Holder> {
    let lock = lock_of(store);
    if lock.exists() {
        let is_held = File::open(&lock).is_err() || RunLock::is_held(&lock);
        return is_held.then(|| RunLock::holder(&lock));
    }
    (cfg!(unix) && RunLock::is_held(&beside_target(store, "-wal"))).then(Holder::default)
}
