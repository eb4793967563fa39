//! The lock, the alarm and the thread of the driver; in this crate's unit tests those of a model checker.
//!
//! The checker runs the same code of the driver in thousands of orders, in a time that stands still until a test moves it.
//! There a timed wait ends by the alarm only: a test that moves the time rings it.

#[cfg(test)]
pub(crate) use shuttle::sync::atomic::{AtomicI64, AtomicU64};
#[cfg(test)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicI64, AtomicU64};
#[cfg(not(test))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// Starts a thread that ends by itself.
///
/// # Errors
/// The system allows no more threads.
#[cfg(not(test))]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

#[cfg(test)]
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    if model::refuses_threads() {
        return Err(std::io::ErrorKind::WouldBlock.into());
    }
    shuttle::thread::Builder::new().name(name.into()).spawn(work).map(drop)
}

/// A place where the checker may let another thread go first; nothing else has one between two locks.
#[cfg(test)]
pub(crate) fn others_may_run() {
    shuttle::thread::sleep(std::time::Duration::ZERO);
}

#[cfg(not(test))]
pub(crate) const fn others_may_run() {}

/// The time of a test under the model checker, whose threads all run on the test's own.
#[cfg(test)]
pub(crate) mod model {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::time::Duration;

    use tokio::time::Instant;

    static ORIGIN: OnceLock<Instant> = OnceLock::new();

    std::thread_local! {
        static PASSED: Cell<Option<Duration>> = const { Cell::new(None) };
        static SUSPENDED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
        static REFUSES_THREADS: Cell<bool> = const { Cell::new(false) };
    }

    /// What the clock shows instead of the real time; `None`: outside of such a test.
    #[expect(clippy::disallowed_methods, reason = "the model's time needs some origin")]
    pub(crate) fn now() -> Option<Instant> {
        PASSED.get().map(|passed| *ORIGIN.get_or_init(Instant::now) + passed)
    }

    /// The time begins anew.
    pub(crate) fn begin() {
        PASSED.set(Some(Duration::ZERO));
        SUSPENDED.set(Duration::ZERO);
        REFUSES_THREADS.set(false);
    }

    pub(crate) fn pass(time: Duration) {
        PASSED.set(PASSED.get().map(|passed| passed + time));
    }

    /// The machine sleeps: its monotonic clock stands still meanwhile.
    pub(crate) fn suspend(time: Duration) {
        SUSPENDED.set(SUSPENDED.get() + time);
    }

    /// How long the machine has slept in such a test.
    pub(crate) fn suspended() -> Option<Duration> {
        PASSED.get().map(|_| SUSPENDED.get())
    }

    /// Whether the system starts no more threads for the driver.
    pub(crate) fn refuse_threads(refuse: bool) {
        REFUSES_THREADS.set(refuse);
    }

    pub(super) fn refuses_threads() -> bool {
        REFUSES_THREADS.get()
    }
}
