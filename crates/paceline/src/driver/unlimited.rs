//! The driver of waits without a limiter: it has no limits, and keeps the time alone.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use paceline_core::{Pace, Pacer, PacerConfig, Retry};

use super::Driver;
use crate::clock::{self, Clock};

/// The one of a process, while anything waits, so that all of them have one thread.
static SHARED: Mutex<(u32, Weak<Driver>)> = Mutex::new((0, Weak::new()));

impl Driver {
    /// That of all waits of this process. Where a test has paused Tokio's clock it is one for this wait alone: other tests have
    /// other times.
    pub(crate) fn without_limits() -> Arc<Self> {
        if clock::is_virtual() {
            return Self::unlimited();
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread of a driver does not outlive a fork.
        let process = std::process::id();
        if let Some(driver) = shared.1.upgrade().filter(|_| shared.0 == process) {
            return driver;
        }
        let driver = Self::unlimited();
        *shared = (process, Arc::downgrade(&driver));
        driver
    }

    fn unlimited() -> Arc<Self> {
        let (config, clock) = (PacerConfig::default().with_pace(Pace::None).with_in_flight(u32::MAX), Clock::new());
        let pacer = Pacer::new(config, 0, clock.now()).expect("a configuration that can be");
        Self::new(pacer, Retry::default(), clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_waits_of_a_process_have_one_driver_and_none_stays_when_they_are_over() {
        let (one, other) = (Driver::without_limits(), Driver::without_limits());
        assert!(Arc::ptr_eq(&one, &other));
        let ended = Arc::downgrade(&one);
        drop((one, other));
        assert!(ended.upgrade().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_in_virtual_time_is_no_other_test_s() {
        assert!(!Arc::ptr_eq(&Driver::without_limits(), &Driver::without_limits()));
    }
}
