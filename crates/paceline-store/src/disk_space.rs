//! Free disk space, checked before each batch is written: a batch that fails half-way ends a journal, one that waits loses
//! nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{folder_of, free_space};
use crate::error::JournalError;
use crate::paths::Paths;

/// Bytes that stay free while a run goes on. At its end the answers that waited may take them, and then the report.
const RESERVE: u64 = 1 << 20;

/// Bytes that a command takes in the database, whose log has whole pages: the commands of a batch change neighbours.
const BYTES_PER_COMMAND: u64 = 4 << 10;

/// How often a full disk is checked again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A disk that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFull {
    /// The folder on that disk.
    pub folder: PathBuf,
    /// Free bytes.
    pub left: u64,
    /// Bytes that the next write needs.
    pub needed: u64,
}

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes.div_ceil(1 << 10);
        let (folder, left, needed) = (self.folder.display(), kib(self.left), kib(self.needed));
        write!(f, "the disk of {folder} is full: {left} KiB are left, {needed} KiB are needed")
    }
}

/// The folders of a job, and whether their disks have space.
pub(crate) struct DiskSpace {
    folders: Vec<PathBuf>,
    free: fn(&Path) -> Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    disk_full: Option<DiskFull>,
    /// The caller does not wait for space any more.
    fail_when_full: bool,
    /// A command was refused: the commands behind it build on it, and are refused too.
    refused: bool,
}

impl DiskSpace {
    /// The folders of the results, and of the journal where there is one.
    pub(crate) fn of(paths: &Paths) -> Self {
        let files = std::iter::once(&paths.output).chain(&paths.journal);
        let folders = files.map(|file| folder_of(file).to_owned()).collect();
        Self { folders, free: free_space, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Refuses to begin on a full disk.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        self.lacks(RESERVE).map_or(Ok(()), |disk_full| Err(JournalError::DiskFull(disk_full)))
    }

    /// Waits until the disk has space for so many bytes of so many commands.
    ///
    /// # Errors
    /// Says how much is missing, after [`fail_when_full`](Self::fail_when_full).
    pub(crate) fn wait_for_space(&self, bytes: u64, commands: u64) -> Result<(), DiskFull> {
        if commands == 0 {
            return Ok(());
        }
        let own = 2 * bytes + BYTES_PER_COMMAND * commands;
        let mut state = self.state();
        loop {
            if !state.refused {
                state.disk_full = self.lacks(if state.fail_when_full { own } else { RESERVE + own });
            }
            match state.disk_full.clone() {
                None => return Ok(()),
                Some(disk_full) if state.fail_when_full => {
                    state.refused = true;
                    return Err(disk_full);
                }
                Some(_) => {}
            }
            state = self.changed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The full disk that a batch waits for.
    pub(crate) fn disk_full(&self) -> Option<DiskFull> {
        self.state().disk_full.clone()
    }

    /// A command that finds no space from now on is refused at once, and so are all behind it.
    pub(crate) fn fail_when_full(&self) {
        self.state().fail_when_full = true;
        self.changed.notify_all();
    }

    fn lacks(&self, needed: u64) -> Option<DiskFull> {
        self.folders.iter().find_map(|folder| {
            let left = (self.free)(folder).filter(|left| *left < needed)?;
            Some(DiskFull { folder: folder.clone(), left, needed })
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static LEFT_NOW: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_batch_waits_for_a_full_disk_until_the_caller_does_not() {
        let disk_space = DiskSpace {
            folders: vec!["/a".into()],
            free: |_| Some(LEFT_NOW.load(Ordering::Relaxed)),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        assert!(matches!(disk_space.check(), Err(JournalError::DiskFull(_))));
        assert!(disk_space.wait_for_space(0, 0).is_ok(), "a query needs no space");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| disk_space.wait_for_space(10, 1));
            while disk_space.disk_full().is_none() {
                std::thread::yield_now();
            }
            let words = disk_space.disk_full().unwrap().to_string();
            assert_eq!(words, "the disk of /a is full: 0 KiB are left, 1029 KiB are needed");
            LEFT_NOW.store(RESERVE + BYTES_PER_COMMAND + 20, Ordering::Relaxed);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert_eq!(disk_space.disk_full(), None);
        disk_space.fail_when_full();
        LEFT_NOW.store(BYTES_PER_COMMAND + 20, Ordering::Relaxed);
        assert!(disk_space.wait_for_space(10, 1).is_ok() && disk_space.wait_for_space(11, 1).is_err());
        assert!(disk_space.wait_for_space(1, 1).is_err(), "it may build on what was refused");
    }
}
