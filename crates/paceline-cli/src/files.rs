//! How many files and connections this process may have open at once.

use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_http::Shortage;

/// What a run opens at the least, beside what is open when it begins: the files of its job, those of the client, and one call.
const LEAST: u64 = 20;

/// What a run opens besides its connections: results, journal, locks, the terminal, lookups of names.
const OWN: u64 = 24;

/// What a call opens: a connection, and one more that stays open for a while beside the one that took its place.
pub(crate) const OF_A_CALL: u64 = 2;

/// So many connections may be kept for the next calls to many hosts: those of 20 s.
const BETWEEN_CALLS: u64 = 1_000;

/// What a command opens: its pipes, a descriptor of its process, and one end of each pipe more while it begins.
pub(crate) const OF_A_COMMAND: u64 = 8;

/// Descriptors that are kept for the files of the end.
const KEPT: usize = 6;

/// What a file takes that is replaced: its own descriptor, and that of its folder.
const OF_A_FILE: usize = 2;

/// So often a file is tried with descriptors that are kept for it: the system gives one that is let go to the thread that asks
/// next, which may be another one.
const TRIES: usize = 3;

/// The descriptors that are kept for that; none before they are asked for.
static SPARES: Mutex<Spares> = Mutex::new(Spares { wanted: 0, kept: Vec::new() });

/// Lets this process open as many files as it may. Where that is refused, the limit stays as it was.
#[cfg(unix)]
pub(crate) fn raise_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // More than macOS gives in spite of a hard limit that says otherwise, and than any run needs.
    const MOST: u64 = 1 << 18;
    let limit = getrlimit(Resource::Nofile);
    for most in [MOST, 10_240] {
        let wanted = limit.maximum.unwrap_or(most).min(most);
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if limit.current.is_none_or(|current| current >= wanted) || setrlimit(Resource::Nofile, raised).is_ok() {
            return;
        }
    }
}

/// Elsewhere there is no such limit.
#[cfg(not(unix))]
pub(crate) const fn raise_limit() {}

/// Why a run has no room for its own files, and what to do; none where it has.
#[cfg(unix)]
pub(crate) fn too_few() -> Option<String> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    let needed = open_now() + LEAST;
    (limit < needed).then(|| {
        format!(
            "the system lets this process open {limit} files at once, and the run needs {needed}, more for several calls at once: \
             raise `ulimit -n` (LimitNOFILE= of a systemd service)"
        )
    })
}

/// Likewise.
#[cfg(not(unix))]
pub(crate) const fn too_few() -> Option<String> {
    None
}

/// A system without this folder reports none; a process that begins has a dozen.
#[cfg(unix)]
fn open_now() -> u64 {
    std::fs::read_dir("/dev/fd").map_or(12, |open| open.count() as u64)
}

/// How many calls have room at once, of which each opens so many; none where there is no limit.
pub(crate) fn room_for_calls(each: u64) -> Option<u32> {
    left().map(|left| u32::try_from((left / each).max(1)).unwrap_or(u32::MAX))
}

/// How many files may be opened for calls; none where there is no limit.
#[cfg(unix)]
fn left() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current?;
    Some(limit.saturating_sub(open_now() + OWN + KEPT as u64))
}

/// Likewise.
#[cfg(not(unix))]
const fn left() -> Option<u64> {
    None
}

/// Whether connections to many hosts may be kept between so many calls at once: few files would be left to calls.
pub(crate) fn may_keep_connections(calls: u32) -> bool {
    left().is_none_or(|left| left >= OF_A_CALL * u64::from(calls) + BETWEEN_CALLS)
}

/// A file that is everywhere.
const NOTHING: &str = if cfg!(windows) { "NUL" } else { "/dev/null" };

/// Descriptors for the files that are written at the end. Calls that take all others leave these.
#[derive(Debug)]
pub(crate) struct Kept(#[expect(dead_code, reason = "they are only held")] Vec<File>);

impl Kept {
    /// Kept until this is dropped; fewer where there are no more.
    pub(crate) fn for_the_end() -> Self {
        Self::new(KEPT)
    }

    fn new(count: usize) -> Self {
        Self(some(count).collect())
    }
}

/// So many descriptors, fewer where there are no more.
fn some(count: usize) -> impl Iterator<Item = File> {
    (0..count).map_while(|_| File::open(NOTHING).ok())
}

/// Descriptors that are let go for the file of one caller, and taken again.
struct Spares {
    wanted: usize,
    kept: Vec<File>,
}

impl Spares {
    /// Takes again what was let go, as soon as others leave it.
    fn refill(&mut self) {
        self.kept.extend(some(self.wanted - self.kept.len()));
    }
}

fn spares() -> MutexGuard<'static, Spares> {
    SPARES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether this process can open no more files now.
pub(crate) fn are_missing() -> bool {
    File::open(NOTHING).is_err_and(|error| Shortage::is_why(&error))
}

/// From now on [`with_spare`] has descriptors of its own, whatever else the process opens.
pub(crate) fn keep_spare() {
    let mut spares = spares();
    spares.wanted = TRIES * OF_A_FILE;
    spares.refill();
}

/// Opens or writes a file; where no descriptor is left, again with those that are kept for that.
///
/// # Errors
/// What the operating system says.
pub(crate) fn with_spare<T>(write: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let mut written = write();
    if !written.as_ref().is_err_and(|error| Shortage::is_why(error)) {
        // Another caller that is short of them goes on as it is.
        if let Ok(mut spares) = SPARES.try_lock() {
            spares.refill();
        }
        return written;
    }
    let mut spares = spares();
    while written.as_ref().is_err_and(|error| Shortage::is_why(error)) && !spares.kept.is_empty() {
        let left = spares.kept.len().saturating_sub(OF_A_FILE);
        spares.kept.truncate(left);
        written = write();
    }
    spares.refill();
    written
}

#[cfg(all(test, unix))]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_finds_no_descriptor_is_done_with_those_that_are_kept() {
        const NO_FILES: i32 = 24;
        let done_after = |failures: usize, with: fn() -> io::Error| {
            let tries = Cell::new(0);
            let write = || if tries.replace(tries.get() + 1) < failures { Err(with()) } else { Ok(()) };
            with_spare(write).is_ok()
        };
        let no_files = || io::Error::from_raw_os_error(NO_FILES);
        assert!(!done_after(1, no_files), "none are kept yet");
        keep_spare();
        assert!(done_after(1, no_files));
        assert!(done_after(TRIES, no_files), "other threads took what was let go first");
        assert!(!done_after(TRIES + 1, no_files), "and all of it");
        assert!(done_after(TRIES, no_files), "what is free again is kept again");
        assert!(!done_after(1, || io::ErrorKind::PermissionDenied.into()), "another reason");
    }
}
