//! When calls were made, and how many of them within any window.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use paceline_core::Instant;

use crate::clock::Clock;

/// The times of calls. Its clones record into the same list.
#[derive(Clone, Default)]
pub struct Recorder {
    /// Made by the first call: that is inside the runtime whose time counts.
    clock: Arc<OnceLock<Clock>>,
    calls: Arc<Mutex<Vec<(Instant, u64)>>>,
}

impl Recorder {
    /// A recorder without calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a call that is made now.
    pub fn record(&self) {
        self.record_units(1);
    }

    /// Records a call that is made now and counts as so many units, as tokens.
    pub fn record_units(&self, units: u64) {
        let now = self.clock.get_or_init(Clock::new).now();
        self.lock().push((now, units));
    }

    /// The number of calls.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// When the calls were made, in order, counted from the first.
    pub fn times(&self) -> Vec<Duration> {
        let calls = self.lock();
        calls.iter().map(|(at, _)| *at - calls[0].0).collect()
    }

    /// The most units within any window of that length, and when that window began, counted from the first call. Two calls at a
    /// distance of exactly `window` are not in the same one. Zero where there was no call.
    pub fn most_within(&self, window: Duration) -> (u64, Duration) {
        let calls = self.lock();
        let (mut most, mut first, mut sum) = ((0, Duration::ZERO), 0, 0);
        for (at, units) in calls.iter() {
            sum += units;
            while *at - calls[first].0 >= window {
                sum -= calls[first].1;
                first += 1;
            }
            if sum > most.0 {
                most = (sum, calls[first].0 - calls[0].0);
            }
        }
        most
    }

    /// Checks that no window of that length has more than so many units.
    ///
    /// # Panics
    /// With the number of units and the begin of the worst window.
    #[track_caller]
    pub fn assert_at_most(&self, limit: u64, window: Duration) {
        let (most, began) = self.most_within(window);
        assert!(
            most <= limit,
            "{most} within {window:?}, from {began:?} after the first call; expected at most {limit}"
        );
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Instant, u64)>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("count", &self.count()).finish_non_exhaustive()
    }
}
