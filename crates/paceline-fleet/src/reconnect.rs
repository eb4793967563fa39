//! When a store is tried again.

use std::time::Duration;

/// The pauses between two tries to connect: 50 ms, doubled each time up to 2 s, and from the beginning once the store answers.
#[derive(Clone, Copy, Debug)]
pub struct Reconnect(Duration);

impl Reconnect {
    const FIRST: Duration = Duration::from_millis(50);

    const LONGEST: Duration = Duration::from_secs(2);

    /// Before the first try.
    pub const fn new() -> Self {
        Self(Self::FIRST)
    }

    /// A try has failed. Returns the pause before the next one.
    pub fn failed(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(Self::LONGEST);
        pause
    }

    /// The store has answered.
    pub const fn answered(&mut self) {
        self.0 = Self::FIRST;
    }
}

impl Default for Reconnect {
    fn default() -> Self {
        Self::new()
    }
}
