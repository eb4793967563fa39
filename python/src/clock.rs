//! The time of a limiter: that of the machine, or one that a test moves.

use std::sync::atomic::{AtomicU64, Ordering};

use paceline_core::{Instant, Timestamp};
use pyo3::prelude::*;

/// A clock for limiters. Without `seconds` it is that of the machine; with them it stands there until a test moves it.
#[pyclass(frozen, subclass, module = "paceline._engine")]
pub(crate) struct Clock(Source);

enum Source {
    Machine(paceline::Clock),
    /// Nanoseconds, and the wall clock's time at 0.
    Test(AtomicU64, Timestamp),
}

impl Clock {
    pub(crate) fn present(&self) -> Instant {
        match &self.0 {
            Source::Machine(clock) => clock.now(),
            Source::Test(nanos, _) => Instant::from_nanos(nanos.load(Ordering::Acquire)),
        }
    }

    /// The present with what the machine has slept.
    pub(crate) fn awake(&self) -> Instant {
        if let Source::Machine(clock) = &self.0 {
            clock.notice_suspension();
        }
        self.present()
    }

    pub(crate) fn wall(&self) -> Timestamp {
        match &self.0 {
            Source::Machine(_) => paceline::clock::wall(),
            Source::Test(_, start) => *start + (self.present() - Instant::ZERO),
        }
    }
}

#[pymethods]
impl Clock {
    #[new]
    #[pyo3(signature = (seconds=None))]
    fn new(seconds: Option<f64>) -> Self {
        let test = |seconds: f64| Source::Test(AtomicU64::new((seconds * 1e9) as u64), paceline::clock::wall());
        Self(seconds.map_or_else(|| Source::Machine(paceline::Clock::new()), test))
    }

    /// Seconds since an origin in the past.
    fn now(&self) -> f64 {
        self.present().as_nanos() as f64 / 1e9
    }

    /// Whether only a test moves it.
    #[getter]
    pub(crate) fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Test(..))
    }

    /// Moves a test's clock on by so many seconds; the machine's stays.
    fn advance(&self, seconds: f64) {
        if let Source::Test(nanos, _) = &self.0 {
            nanos.fetch_add((seconds * 1e9).ceil() as u64, Ordering::AcqRel);
        }
    }
}
