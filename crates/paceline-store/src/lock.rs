//! One run per job, and one job per file of results: lock files that name their holder, and the results themselves.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

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

    /// Whether a process holds the lock at `path`. Holds a free one itself for an instant, in which a run that begins
    /// would be refused: use it only when there is no other way to know.
    pub fn is_held(path: &Path) -> bool {
        let Ok(file) = File::open(path) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }
}

/// Makes the file where it is missing, for its user alone, and locks it until the returned handle is dropped; none while another
/// process holds it.
///
/// # Errors
/// [`JournalError::Folder`] when it cannot be made, [`JournalError::Io`] when the file system has no locks.
pub fn lock_file(path: &Path) -> Result<Option<File>, JournalError> {
    loop {
        let opened = private_file().read(true).create(true).truncate(false).open(path);
        let file = opened.map_err(|source| JournalError::Folder { path: folder_of(path).to_owned(), source })?;
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
    let mut text = String::new();
    File::open(path).ok()?.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

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
