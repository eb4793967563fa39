//! Room on the disk, asked for before anything is written: a turn that fails half-way ends a journal, one that waits loses
//! nothing.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{folder_of, free_space};
use crate::error::Error;
use crate::paths::Paths;

/// What has to be left while a run goes on. At its end the answers that waited may take it, and then the report.
const LEFT: u64 = 1 << 20;

/// What a command takes in the index, whose log has whole pages: a group of them changes neighbours.
const PAGES: u64 = 4 << 10;

/// How often a full disk is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A disk that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The folder that has no room.
    pub folder: PathBuf,
    /// The bytes that it has left.
    pub left: u64,
    /// The bytes that it needs to go on.
    pub needed: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes.div_ceil(1 << 10);
        let (folder, left, needed) = (self.folder.display(), kib(self.left), kib(self.needed));
        write!(f, "the disk of {folder} is full: {left} KiB are left, {needed} KiB are needed")
    }
}

/// The places of a job, and whether they have room.
pub(crate) struct Room {
    folders: Vec<PathBuf>,
    free: fn(&Path) -> Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    short: Option<Shortage>,
    /// The caller waits no more.
    hurry: bool,
    /// Something was refused: what came behind it builds on it, and is refused too.
    refused: bool,
}

impl Room {
    /// Of the results, and of the journal where there is one.
    pub(crate) fn of(paths: &Paths) -> Self {
        let files = std::iter::once(&paths.output).chain(&paths.journal);
        let folders = files.map(|file| folder_of(file).to_owned()).collect();
        Self { folders, free: free_space, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Refuses to begin where there is none.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.shortage_of(LEFT).map_or(Ok(()), |shortage| Err(Error::NoRoom { shortage }))
    }

    /// Waits until so many bytes of so many commands have room.
    ///
    /// # Errors
    /// Says how much is missing, once the caller is in a hurry.
    pub(crate) fn wait_for(&self, bytes: u64, commands: u64) -> Result<(), Shortage> {
        if commands == 0 {
            return Ok(());
        }
        let own = 2 * bytes + PAGES * commands;
        let mut state = self.state();
        loop {
            if !state.refused {
                state.short = self.shortage_of(if state.hurry { own } else { LEFT + own });
            }
            match state.short.clone() {
                None => return Ok(()),
                Some(shortage) if state.hurry => {
                    state.refused = true;
                    return Err(shortage);
                }
                Some(_) => {}
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What is waited for.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.state().short.clone()
    }

    /// What finds no room from now on is refused at once, with everything behind it.
    pub(crate) fn hurry(&self) {
        self.state().hurry = true;
        self.changed.notify_all();
    }

    fn shortage_of(&self, needed: u64) -> Option<Shortage> {
        self.folders.iter().find_map(|folder| {
            let left = (self.free)(folder).filter(|left| *left < needed)?;
            Some(Shortage { folder: folder.clone(), left, needed })
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
    fn a_full_disk_is_waited_for_until_the_caller_hurries() {
        let room = Room {
            folders: vec!["/a".into()],
            free: |_| Some(LEFT_NOW.load(Ordering::Relaxed)),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        assert!(matches!(room.check(), Err(Error::NoRoom { .. })));
        assert!(room.wait_for(0, 0).is_ok(), "to look needs no room");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| room.wait_for(10, 1));
            while room.shortage().is_none() {
                std::thread::yield_now();
            }
            let words = room.shortage().unwrap().to_string();
            assert_eq!(words, "the disk of /a is full: 0 KiB are left, 1029 KiB are needed");
            LEFT_NOW.store(LEFT + PAGES + 20, Ordering::Relaxed);
            assert!(waiting.join().unwrap().is_ok());
        });
        assert_eq!(room.shortage(), None);
        room.hurry();
        LEFT_NOW.store(PAGES + 20, Ordering::Relaxed);
        assert!(room.wait_for(10, 1).is_ok() && room.wait_for(11, 1).is_err());
        assert!(room.wait_for(1, 1).is_err(), "it may build on what was refused");
    }
}
