//! That a run waits for the turn of another process, for those who look at it.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_core::Timestamp;

use super::lock;

/// The turn of another process, for which this one has waited a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OthersTurn {
    /// That process, where it is known.
    pub(crate) pid: Option<u32>,
    /// When this one began to wait.
    pub(crate) since: Timestamp,
}

impl OthersTurn {
    /// That process, for people.
    pub(crate) fn holder(&self) -> String {
        lock::named(self.pid)
    }
}

/// Where a run that waits for its turn says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnWait(Arc<Mutex<Option<OthersTurn>>>);

impl TurnWait {
    /// The turn that is waited for now.
    pub(crate) fn get(&self) -> Option<OthersTurn> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, turn: Option<OthersTurn>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = turn;
    }
}
