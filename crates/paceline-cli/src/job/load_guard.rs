//! Interruptions before the first call, while the input is read and taken into the journal.
//!
//! That is one long piece of work, which may wait for a pipe: no task can cancel it. So the process ends from
//! beside it, after removing what would have been removed had the input been refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use paceline_store::{Paths, beside_database};
use tracing::Level;

use crate::exit::{Failure, Status};
use crate::logging;
use crate::signals::Signals;

/// While it lives, an interruption ends the process.
pub(crate) struct LoadGuard {
    /// Taken by the first of the two: the end of the preparation or an interruption.
    over: Arc<AtomicBool>,
    unfinished: Arc<Mutex<Vec<PathBuf>>>,
}

impl LoadGuard {
    /// Begins once the job is locked: what is unfinished then belongs to no other process. `summarize`: prints the summary of
    /// a run that an interruption ends.
    ///
    /// # Errors
    /// An error of the operating system.
    pub(crate) fn watch(
        paths: &Paths,
        summarize: impl FnOnce() -> Result<Status, Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let mut signals = Signals::new().map_err(Failure::interrupted)?;
        let over = Arc::new(AtomicBool::new(false));
        let unfinished = Arc::new(Mutex::new(unfinished(paths)));
        let (taken, left) = (Arc::clone(&over), Arc::clone(&unfinished));
        tokio::spawn(async move {
            signals.next().await;
            if !taken.swap(true, Ordering::AcqRel) {
                give_up(&left.lock().unwrap_or_else(PoisonError::into_inner), summarize);
            }
        });
        Ok(Self { over, unfinished })
    }

    /// The job is there: its files stay from now on.
    pub(crate) fn begun(&self) {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        if self.over.swap(true, Ordering::AcqRel) {
            // The process is about to end: anything later would belong to a job whose files are removed.
            loop {
                std::thread::park();
            }
        }
    }
}

/// Files that are of no use until the job begins. A job that is there keeps its own.
fn unfinished(paths: &Paths) -> Vec<PathBuf> {
    let journal = paths.journal.as_ref();
    let new = [Some(&paths.input), journal].into_iter().flatten().filter(|path| !path.exists());
    let fresh = [Some(&paths.input), journal].into_iter().flatten().map(|path| ending(path, ".new"));
    let places: Vec<_> = new.cloned().chain(fresh).collect();
    let logs = places.iter().flat_map(|path| beside_database(path));
    let locks = std::iter::once(&paths.lock).chain(&paths.output_lock).cloned().chain([check_lock(paths)]);
    logs.chain(places.iter().cloned()).chain(locks).collect()
}

/// The lock of a check that begins no job.
pub(crate) fn check_lock(paths: &Paths) -> PathBuf {
    ending(&paths.input, ".check.lock")
}

fn ending(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn give_up(unfinished: &[PathBuf], summarize: impl FnOnce() -> Result<Status, Failure>) {
    for path in unfinished {
        // Most of them are not there; what cannot be removed is recognized by the next run.
        let _ = std::fs::remove_file(path);
    }
    logging::tell(Level::INFO, "interrupted before the first call: nothing was sent; run the same command again");
    if let Err(error) = summarize() {
        logging::tell(Level::ERROR, &error.to_string());
    }
    logging::flush();
    std::process::exit(i32::from(Status::Deferred.code()));
}

#[cfg(test)]
#[test]
fn what_sqlite_keeps_beside_a_journal_that_is_filled_goes_with_it() {
    let left = unfinished(&Paths::beside(Path::new("/nowhere/out.jsonl")));
    for name in
        ["out.journal.new", "out.journal.new-journal", "out.journal.new-wal", "out.journal-journal", "out.journal.lock"]
    {
        assert!(left.contains(&Path::new("/nowhere").join(name)), "{name}: {left:?}");
    }
}
