//! Free disk space, checked before each batch is written: a batch that fails half-way ends a journal, one that waits loses
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::disk::{folder_of, free_space};
use crate::disk_full::{DiskFull, RESERVE};

/// Bytes that a command takes in the database, whose log has whole pages: the commands of a batch change neighbours.
const BYTES_PER_COMMAND: u64 = 4 << 10;

/// The assumed size of an answer before the first: larger than most.
const FIRST_ANSWER: u64 = 64 << 10;

/// With so much more free than is needed, ...
const AMPLE: u64 = 1 << 30;

/// ... so many calls leave before the disk is asked again. Each batch that is written asks too.
const UNMEASURED_CALLS: u32 = 64;

/// How often a full disk is checked again.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The folders of a job, and whether their disks have space. Clones share the measurements.
#[derive(Clone, Debug)]
pub struct DiskSpace(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    folders: Vec<PathBuf>,
    free: fn(&Path) -> Option<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    disk_full: Option<DiskFull>,
    /// Answers that are to come: each holds a [`Room`].
    expected: u64,
    /// The bytes of an answer: the largest, of late.
    answer: u64,
    /// Calls that may leave before the disk is asked again.
    unmeasured: u32,
    /// The caller does not wait for space any more.
    fail_when_full: bool,
    /// A command was refused: the commands behind it build on it, and are refused too.
    refused: bool,
}

impl DiskSpace {
    /// The space of the disks that those files are on, or are to be made on.
    pub fn of<'a>(files: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut folders: Vec<_> = files.into_iter().map(|file| folder_of(file).to_owned()).collect();
        folders.dedup();
        Self::with(folders, free_space)
    }

    pub(crate) fn with(folders: Vec<PathBuf>, free: fn(&Path) -> Option<u64>) -> Self {
        let state = State {
            disk_full: None,
            expected: 0,
            answer: FIRST_ANSWER,
            unmeasured: 0,
            fail_when_full: false,
            refused: false,
        };
        Self(Arc::new(Shared { folders, free, state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// The disk that is too full for a run to begin: less than 1 MiB is free.
    pub fn too_full_to_begin(&self) -> Option<DiskFull> {
        self.lacks(RESERVE)
    }

    /// Room for the answer of a call that is to leave, beside those of all calls in flight. None while there is not as much: the
    /// answer would be paid for, and could not be written.
    pub fn room_for_answer(&self) -> Option<Room> {
        let mut state = self.state();
        let needed = RESERVE + (state.expected + 1) * on_disk(state.answer, 1);
        let lacking = match state.unmeasured {
            0 => state.measured(self.least(), needed),
            _ => None,
        };
        state.unmeasured = state.unmeasured.saturating_sub(1);
        let has_room = lacking.is_none();
        // The end of a call in flight may leave room. Without one nothing does.
        if has_room || state.expected == 0 {
            state.disk_full = lacking;
        }
        state.expected += u64::from(has_room);
        has_room.then(|| Room(self.clone()))
    }

    /// Blocks until the disk has space for records of those lengths, in bytes. Returns how many of them have it: all, and after
    /// [`fail_when_full`](Self::fail_when_full) perhaps only the first few.
    pub fn wait_for_space(&self, records: impl Iterator<Item = usize> + Clone) -> usize {
        self.wait(records, self.least())
    }

    /// The same for a batch of the journal; on a disk that is full, or nearly so, `make_room` comes first.
    pub(crate) fn wait_for_batch(
        &self,
        records: impl Iterator<Item = usize> + Clone,
        make_room: impl FnOnce(),
    ) -> usize {
        let least = self.least_after(make_room);
        self.wait(records, least)
    }

    /// The folder with the least space; on a disk that is full, or nearly so, `make_room` comes first.
    fn least_after(&self, make_room: impl FnOnce()) -> Option<(u64, &PathBuf)> {
        let least = self.least();
        if self.disk_full().is_none() && full(least, 2 * RESERVE).is_none() {
            return least;
        }
        make_room();
        self.least()
    }

    /// `least`: the folder with the least space, as it was measured just now.
    fn wait<'a>(
        &'a self,
        records: impl Iterator<Item = usize> + Clone,
        mut least: Option<(u64, &'a PathBuf)>,
    ) -> usize {
        let Some(largest) = records.clone().max() else { return 0 };
        let (bytes, count) = records.clone().fold((0, 0), |(bytes, count), record| (bytes + record as u64, count + 1));
        let mut state = self.state();
        state.answer = (largest as u64).max(state.answer - state.answer / 8);
        while !state.fail_when_full {
            let needed = RESERVE + on_disk(bytes, count);
            state.disk_full = state.measured(least, needed);
            if state.disk_full.is_none() {
                return count as usize;
            }
            state = self.0.changed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
            least = self.least();
        }
        self.fitting(records, &mut state)
    }

    /// Blocks until the disk has space for so many changes of a database that holds no answers, or the caller waits no more.
    /// On a disk that is full, or nearly so, `make_room` comes first. Returns whether it had no space at first, and has some now.
    pub(crate) fn wait_for_changes(&self, changes: u64, make_room: impl Fn()) -> bool {
        let mut waited = false;
        while !self.state().fail_when_full {
            let lacking = full(self.least_after(&make_room), RESERVE + on_disk(0, changes));
            let mut state = self.state();
            // What a call that is to leave has found out is none of its business.
            if lacking.is_some() || waited {
                state.disk_full.clone_from(&lacking);
            }
            if lacking.is_none() {
                return waited;
            }
            waited = true;
            if !state.fail_when_full {
                drop(self.0.changed.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner));
            }
        }
        false
    }

    /// How many of the records have space. What follows one without space may build on it, so it has none either.
    fn fitting(&self, records: impl Iterator<Item = usize>, state: &mut State) -> usize {
        let (mut own, mut fitting) = (0, 0);
        for record in records {
            own += on_disk(record as u64, 1);
            if !state.refused {
                state.disk_full = self.lacks(own);
                state.refused = state.disk_full.is_some();
            }
            if state.refused {
                break;
            }
            fitting += 1;
        }
        fitting
    }

    /// The full disk that calls or records wait for.
    pub fn disk_full(&self) -> Option<DiskFull> {
        self.state().disk_full.clone()
    }

    /// Records wait for space again, as at first.
    pub fn wait_when_full(&self) {
        let mut state = self.state();
        (state.fail_when_full, state.refused) = (false, false);
    }

    /// From now on a record without space is refused at once, and so are all behind it.
    pub fn fail_when_full(&self) {
        self.state().fail_when_full = true;
        self.0.changed.notify_all();
    }

    fn lacks(&self, needed: u64) -> Option<DiskFull> {
        full(self.least(), needed)
    }

    /// The folder with the least space.
    fn least(&self) -> Option<(u64, &PathBuf)> {
        self.0.folders.iter().filter_map(|folder| Some(((self.0.free)(folder)?, folder))).min()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The disk that lacks the space, if one does; sees whether the next calls need not ask.
    fn measured(&mut self, least: Option<(u64, &PathBuf)>, needed: u64) -> Option<DiskFull> {
        let is_ample = least.is_some_and(|(left, _)| left >= needed.saturating_add(AMPLE));
        self.unmeasured = if is_ample { UNMEASURED_CALLS } else { 0 };
        full(least, needed)
    }
}

/// The disk with the least space, if that is less than is needed.
fn full(least: Option<(u64, &PathBuf)>, needed: u64) -> Option<DiskFull> {
    let (left, folder) = least.filter(|(left, _)| *left < needed)?;
    Some(DiskFull { folder: folder.clone(), left, needed })
}

/// Room on the disk for the answer of a call, kept until this is dropped.
#[derive(Debug)]
#[must_use = "the room is given back at once"]
pub struct Room(DiskSpace);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.state().expected -= 1;
    }
}

/// What records take on the disk: in the log of the database, and in their place.
const fn on_disk(bytes: u64, records: u64) -> u64 {
    2 * bytes + BYTES_PER_COMMAND * records
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static LEFT_NOW: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_batch_waits_for_a_full_disk_until_the_caller_does_not() {
        let disk_space = DiskSpace::with(vec!["/a".into()], |_| Some(LEFT_NOW.load(Ordering::Relaxed)));
        let space_for = |records: &[usize]| disk_space.wait_for_space(records.iter().copied());
        assert!(disk_space.too_full_to_begin().is_some());
        assert_eq!(space_for(&[]), 0, "a query needs no space");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| space_for(&[10]));
            while disk_space.disk_full().is_none() {
                std::thread::yield_now();
            }
            let message = disk_space.disk_full().unwrap().to_string();
            assert_eq!(
                message,
                "the disk of /a is full: 0 KiB are left; 1024 KiB must stay free, and the next writes need 5 KiB"
            );
            LEFT_NOW.store(RESERVE + BYTES_PER_COMMAND + 20, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap(), 1);
        });
        assert_eq!((disk_space.disk_full(), disk_space.too_full_to_begin()), (None, None));
        let told = |needed: u64| DiskFull { folder: "/a".into(), left: 1_000 << 10, needed }.to_string();
        assert!(told(RESERVE).ends_with(" full: 1000 KiB are left, and 1024 KiB must stay free"));
        assert!(told(2_000).ends_with(" full: 1000 KiB are left, and the next writes need 2 KiB"), "at the end");
        disk_space.fail_when_full();
        LEFT_NOW.store(BYTES_PER_COMMAND + 20, Ordering::Relaxed);
        assert_eq!((space_for(&[10]), space_for(&[4, 4])), (1, 1));
        assert_eq!(space_for(&[1]), 0, "it may build on what was refused");
    }

    static MEASURED: AtomicU64 = AtomicU64::new(0);
    static LEFT_OF_MUCH: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_disk_with_ample_space_is_not_measured_for_each_call() {
        let disk_space = DiskSpace::with(vec!["/a".into()], |_| {
            MEASURED.fetch_add(1, Ordering::Relaxed);
            Some(LEFT_OF_MUCH.load(Ordering::Relaxed))
        });
        let calls = |calls: u32| (0..calls).all(|_| disk_space.room_for_answer().is_some());
        LEFT_OF_MUCH.store(2 * AMPLE, Ordering::Relaxed);
        assert!(calls(UNMEASURED_CALLS) && MEASURED.swap(0, Ordering::Relaxed) == 1);
        // Another program fills it: a batch that is written, or one of the next calls, notices.
        LEFT_OF_MUCH.store(RESERVE, Ordering::Relaxed);
        assert!(!calls(UNMEASURED_CALLS));
        LEFT_OF_MUCH.store(2 * AMPLE, Ordering::Relaxed);
        assert!(calls(1));
        LEFT_OF_MUCH.store(RESERVE + on_disk(10, 1), Ordering::Relaxed);
        assert_eq!(disk_space.wait_for_space([10].into_iter()), 1);
        assert!(!calls(1));
        LEFT_OF_MUCH.store(AMPLE, Ordering::Relaxed);
        MEASURED.store(0, Ordering::Relaxed);
        assert!(calls(10) && MEASURED.load(Ordering::Relaxed) == 10);
    }

    static MEASURED_FOR_BATCH: AtomicU64 = AtomicU64::new(0);
    static LEFT_FOR_BATCH: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_batch_measures_the_disk_once_and_again_where_room_was_made() {
        let disk_space = DiskSpace::with(vec!["/a".into()], |_| {
            MEASURED_FOR_BATCH.fetch_add(1, Ordering::Relaxed);
            Some(LEFT_FOR_BATCH.load(Ordering::Relaxed))
        });
        for (left, made, measured) in [(2 * AMPLE, false, 1), (2 * RESERVE, false, 1), (RESERVE, true, 2)] {
            LEFT_FOR_BATCH.store(left, Ordering::Relaxed);
            let mut room = false;
            let make_room = || {
                room = true;
                LEFT_FOR_BATCH.store(2 * RESERVE, Ordering::Relaxed);
            };
            assert_eq!(disk_space.wait_for_batch([10].into_iter(), make_room), 1);
            assert_eq!((room, MEASURED_FOR_BATCH.swap(0, Ordering::Relaxed)), (made, measured), "{left}");
        }
    }

    static LEFT_FOR_ANSWERS: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn a_call_leaves_only_when_its_answer_will_have_room() {
        let disk_space = DiskSpace::with(vec!["/a".into()], |_| Some(LEFT_FOR_ANSWERS.load(Ordering::Relaxed)));
        let room_for = |answers: u64, bytes: u64| RESERVE + answers * on_disk(bytes, 1);
        LEFT_FOR_ANSWERS.store(room_for(2, FIRST_ANSWER), Ordering::Relaxed);
        let rooms = [disk_space.room_for_answer(), disk_space.room_for_answer()];
        assert!(rooms.iter().all(Option::is_some));
        assert!(disk_space.room_for_answer().is_none(), "two others are to come");
        assert_eq!(disk_space.disk_full(), None, "they may leave room");
        drop(rooms);
        LEFT_FOR_ANSWERS.store(room_for(1, FIRST_ANSWER) - 1, Ordering::Relaxed);
        assert!(disk_space.room_for_answer().is_none() && disk_space.disk_full().is_some());
        // Answers turn out to be small, then large.
        for _ in 0..100 {
            assert_eq!(disk_space.wait_for_space([500, 100].into_iter()), 2);
        }
        LEFT_FOR_ANSWERS.store(room_for(1, 510), Ordering::Relaxed);
        assert!(disk_space.room_for_answer().is_some() && disk_space.disk_full().is_none());
        LEFT_FOR_ANSWERS.store(room_for(1, 100_000), Ordering::Relaxed);
        assert_eq!(disk_space.wait_for_space([100, 90_000].into_iter()), 2);
        let room = disk_space.room_for_answer();
        assert!(room.is_some() && disk_space.room_for_answer().is_none());
    }
}
