//! The two clocks of a worker, and what a step of the wall clock may do: nothing while the process runs.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::{Instant, Timestamp};

/// Where due times come from: a monotonic clock, by which is waited, and the wall clock, by which they are stored.
///
/// Stored times are those of the wall clock at the beginning, carried on by the monotonic one. A wall clock that is set
/// back therefore makes no item wait longer. One that leaps forward by more than a second is followed, because a machine
/// that slept looks just like that: what was due meanwhile is due at once. Clones share what they have seen.
#[derive(Clone)]
pub struct WorkClock(Arc<Inner>);

struct Inner {
    monotonic: Box<dyn Fn() -> Instant + Send + Sync>,
    wall: Box<dyn Fn() -> Timestamp + Send + Sync>,
    /// The wall clock's time at the monotonic origin.
    origin: Mutex<Timestamp>,
}

/// A leap below this is a correction of the wall clock, not a machine that slept.
const LEAP: Duration = Duration::from_secs(1);

impl WorkClock {
    /// The clocks of the machine: Tokio's monotonic one, which tests can pause, and the system's wall clock.
    pub fn system() -> Self {
        let origin = tokio_now();
        Self::new(move || Instant::ZERO + tokio_now().saturating_duration_since(origin), system_wall)
    }

    /// The machine's monotonic clock, and a wall clock that began at `start` and never steps: for tests and simulations.
    pub fn starting_at(start: Timestamp) -> Self {
        let origin = tokio_now();
        let since = move || tokio_now().saturating_duration_since(origin);
        Self::new(move || Instant::ZERO + since(), move || start + since())
    }

    /// These clocks.
    pub fn new(
        monotonic: impl Fn() -> Instant + Send + Sync + 'static,
        wall: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> Self {
        let origin = since(monotonic(), wall());
        Self(Arc::new(Inner { monotonic: Box::new(monotonic), wall: Box::new(wall), origin: Mutex::new(origin) }))
    }

    /// The monotonic time.
    pub fn now(&self) -> Instant {
        (self.0.monotonic)()
    }

    /// The time that is stored.
    pub fn wall(&self) -> Timestamp {
        let now = self.now();
        let shown = since(now, (self.0.wall)());
        let mut origin = self.0.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.saturating_since(*origin) > LEAP {
            *origin = shown;
        }
        // Whole milliseconds that have passed: rounding up here would make what is due a little early.
        let passed = i64::try_from(now.as_nanos() / 1_000_000).unwrap_or(i64::MAX);
        Timestamp::from_millis(origin.as_millis().saturating_add(passed))
    }
}

impl fmt::Debug for WorkClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.wall()).finish()
    }
}

/// The wall clock's time at the monotonic origin, when it shows `wall` at `now`.
fn since(now: Instant, wall: Timestamp) -> Timestamp {
    let passed = i64::try_from(now.as_nanos() / 1_000_000).unwrap_or(i64::MAX);
    Timestamp::from_millis(wall.as_millis().saturating_sub(passed))
}

#[expect(clippy::disallowed_methods, reason = "the reading of the wall clock behind every stored time")]
fn system_wall() -> Timestamp {
    let passed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(passed.as_millis()).unwrap_or(i64::MAX))
}

#[expect(clippy::disallowed_methods, reason = "the reading of the monotonic clock behind every wait")]
fn tokio_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_step_back_is_ignored_and_a_leap_forward_followed() {
        let wall = Arc::new(AtomicI64::new(1_700_000_000_000));
        let monotonic = Arc::new(AtomicU64::new(5_000_000_000));
        let clock = {
            let (wall, monotonic) = (wall.clone(), monotonic.clone());
            WorkClock::new(
                move || Instant::from_nanos(monotonic.load(Ordering::SeqCst)),
                move || Timestamp::from_millis(wall.load(Ordering::SeqCst)),
            )
        };
        let mut shown = Vec::new();
        for (passed_ms, wall_ms) in [(0, 0), (100, 100), (100, -3_600_000), (100, 100), (100, 3_600_000), (100, 100)] {
            monotonic.fetch_add(passed_ms * 1_000_000, Ordering::SeqCst);
            wall.fetch_add(wall_ms, Ordering::SeqCst);
            shown.push(clock.wall().as_millis() - 1_700_000_000_000);
        }
        assert_eq!(shown, [0, 100, 200, 300, 400, 500], "an hour back, and the same hour forward again");
        wall.fetch_add(3_600_000, Ordering::SeqCst);
        assert_eq!(clock.wall().as_millis() - 1_700_000_000_000, 3_600_300, "the wall clock leapt ahead of both");
    }
}
