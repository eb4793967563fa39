//! What one request takes of the limits of its client, until its end is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::{Class, Cost, Outcome, Permit};
use tokio::sync::Notify;

/// What a request takes of its client's limits: what it reserved, and once that is known what its last call used. A request
/// that was never sent takes nothing.
pub(crate) struct Spent {
    permit: Option<Permit>,
    calls: Mutex<Calls>,
    changed: Arc<Notify>,
}

/// The calls of one request.
#[derive(Default)]
struct Calls {
    /// One has left, and its end is not known.
    is_out: bool,
    /// What the last one that was answered used.
    used: Option<Option<Cost>>,
}

impl Spent {
    /// What that permit of its client's limiter reserved.
    pub(crate) fn new(permit: Permit, changed: Arc<Notify>) -> Self {
        changed.notify_one();
        Self { permit: Some(permit), calls: Mutex::default(), changed }
    }

    /// A call leaves.
    pub(crate) fn leaves(&self) {
        self.calls().is_out = true;
    }

    /// It ended, and used so much.
    pub(crate) fn used(&self, cost: Option<Cost>) {
        *self.calls() = Calls { is_out: false, used: Some(cost) };
    }

    /// It ended, and no server got it.
    pub(crate) fn was_not_sent(&self) {
        self.calls().is_out = false;
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        let Calls { is_out, used } = std::mem::take(&mut *self.calls());
        let Some(permit) = self.permit.take() else { return };
        // However it ended: the limits of a client count what it asks for, and learn nothing of servers.
        match used {
            Some(usage) => drop(permit.complete(Outcome { usage, ..Outcome::new(Class::Success) })),
            None if is_out => drop(permit.complete(Outcome::new(Class::Abandoned))),
            None => permit.withdraw(),
        }
        self.changed.notify_one();
    }
}
