//! One run per job, and one job per file of results: lock files that name their holder, and the results themselves.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use paceline_core::Timestamp;

use crate::disk::{folder_of, is_still_at, private_file};
use crate::error::JournalError;
use crate::paths::Paths;

/// The right to work on a job, held until dropped. The operating system releases it when the process dies, so no lock is
/// ever stale. The file goes with its holder where the system distinguishes a removed file from a new one of its name (Unix);
/// elsewhere it stays, and means nothing.
#[derive(Debug)]
pub struct RunLock {
    job: LockFile,
    _results: Option<LockFile>,
}

impl RunLock {
    /// Takes the locks of a job, or returns the holder of one. A run also locks the results that it writes, which keeps a second
    /// one out after its lock file was deleted.
    ///
    /// # Errors
    /// [`JournalError::Locked`]; [`JournalError::Folder`] when a file cannot be made.
    pub fn take(paths: &Paths) -> Result<Self, JournalError> {
        // No process waits for a lock, so their order does not matter.
        let job = LockFile::take(&paths.lock)?;
        let held = paths.lock.canonicalize().ok();
        let other = |path: &&Path| held.is_none() || path.canonicalize().ok() != held;
        let results = paths.output_lock.as_deref().filter(other).map(LockFile::take).transpose()?;
        if Self::is_held(&paths.output) {
            return Err(JournalError::Locked { path: paths.output.clone(), pid: None });
        }
        Ok(Self { job, _results: results })
    }

    /// Makes sure that the lock file was not deleted since it was taken, before there are results to lock.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        let LockFile { file, path } = &self.job;
        match is_still_at(file, path) {
            true => Ok(()),
            false => Err(JournalError::Locked { path: path.clone(), pid: holder(path) }),
        }
    }

    /// Says in the lock file at `path`, which this process holds, what it waits for: where not even a journal can be written,
    /// others read it there. The file takes no more room for it, and the time of its last change stays. What cannot be written
    /// is not said.
    pub fn tell_wait(path: &Path, wait: Option<&str>) {
        if holder(path) != Some(std::process::id()) {
            return;
        }
        let pid = std::process::id();
        let text = wait.map_or_else(|| format!("{pid}\n"), |wait| format!("{pid}\n{wait}\n"));
        let tell = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).open(path)?;
            let since = file.metadata()?.modified()?;
            file.write_all(text.as_bytes())?;
            file.set_len(text.len() as u64)?;
            file.set_modified(since)
        };
        let _ = tell();
    }

    /// The process that holds the lock at `path`, as far as it is known.
    pub fn holder(path: &Path) -> Holder {
        let said = said(path).unwrap_or_default();
        let mut lines = said.lines();
        let pid = lines.next().and_then(|pid| pid.trim().parse().ok());
        let waits_for = lines.next().map(str::to_owned).filter(|wait| !wait.is_empty());
        let changed = std::fs::metadata(path).and_then(|about| about.modified()).ok();
        let since = changed.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Holder { pid, since: since.map(|since| Timestamp::from_millis(since.as_millis() as i64)), waits_for }
    }

    /// Whether a process holds the lock at `path`. Holds a free one itself for an instant, in which a run that begins
    /// would be refused: use it only when there is no other way to know.
    pub fn is_held(path: &Path) -> bool {
        let Ok(file) = File::open(path) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

/// What a lock file says of the process that holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process; none where it has not yet written that, or locked files cannot be read.
    pub pid: Option<u32>,
    /// When it took the lock.
    pub since: Option<Timestamp>,
    /// What it [waits for](RunLock::tell_wait).
    pub waits_for: Option<String>,
}

/// Makes the file where it is missing, for its user alone, and locks it until the returned handle is dropped; none while another
/// process holds it.
///
/// # Errors
/// [`JournalError::Folder`] when it cannot be made, [`JournalError::Io`] when the file system has no locks.
pub fn lock_file(path: &Path) -> Result<Option<File>, JournalError> {
    loop {
        let opened = private_file().read(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|source| match path.is_dir() {
            true => JournalError::io("open", path)(source),
            false => JournalError::Folder { path: folder_of(path).to_owned(), source },
        })?;
        match file.try_lock() {
            // The holder before may have removed the file after it was opened here: then another process can make and lock
            // a new one.
            Ok(()) if !is_still_at(&file, path) => {}
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(JournalError::io("lock", path)(source)),
        }
    }
}

/// A locked file.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    path: PathBuf,
}

impl LockFile {
    /// Locks the file at `path`, or returns its holder.
    pub(crate) fn take(path: &Path) -> Result<Self, JournalError> {
        let Some(mut file) = lock_file(path)? else {
            return Err(JournalError::Locked { path: path.to_owned(), pid: holder(path) });
        };
        let pid = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.rewind()).map_err(JournalError::io("write", path))?;
        match file.write_all(pid.as_bytes()).map_err(JournalError::io("write", path)) {
            // The lock holds without a name.
            Err(error) if error.is_disk_full() => {}
            written => written?,
        }
        Ok(Self { file, path: path.to_owned() })
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if cfg!(unix) && is_still_at(&self.file, &self.path) {
            // A file that cannot be removed is as good as none.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The process that wrote its id into the file; none where it has not yet, or where locked files cannot be read.
fn holder(path: &Path) -> Option<u32> {
    RunLock::holder(path).pid
}

/// The beginning of the file, which is all that a holder writes.
fn said(path: &Path) -> Option<String> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MOST_SAID).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The longest path, and some words.
const MOST_SAID: u64 = 8 << 10;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_second_is_told_the_first_ones_pid_and_the_third_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.journal.lock");
        // A longer number of an earlier holder must not shine through.
        std::fs::write(&path, "4294967295\n").unwrap();
        let first = LockFile::take(&path).unwrap();
        let Err(JournalError::Locked { pid, .. }) = LockFile::take(&path) else { panic!("the lock was given twice") };
        assert_eq!(pid, Some(std::process::id()));
        assert!(RunLock::is_held(&path));
        let since = RunLock::holder(&path).since;
        for wait in [Some("room on the disk of /a"), None] {
            RunLock::tell_wait(&path, wait);
            let told = RunLock::holder(&path);
            assert_eq!((told.pid, told.waits_for.as_deref(), told.since), (pid, wait, since));
        }
        drop(first);
        assert!(!RunLock::is_held(&path));
        std::fs::write(&path, "4294967295\n").unwrap();
        assert!(!RunLock::is_held(&path), "what a killed run leaves is no lock");
        LockFile::take(&path).unwrap();
    }

    #[test]
    fn removing_the_file_never_lets_two_in() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.journal.lock");
        let inside = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut taken = 0;
                    while taken < 200 {
                        let Ok(lock) = LockFile::take(&path) else {
                            std::thread::yield_now();
                            continue;
                        };
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(lock);
                        taken += 1;
                    }
                });
            }
        });
        assert!(cfg!(not(unix)) || !path.exists());
    }
}
