//! Calls that leave, told before they do.

use std::sync::{Arc, PoisonError, RwLock};

use paceline_core::Request;

use super::permit::Permit;

/// Hears of the request of each call that leaves.
type Note = dyn Fn(&Request) + Send + Sync;

/// What hears of the calls of a limiter, if anything does.
#[derive(Default)]
pub(crate) struct Departures(RwLock<Option<Arc<Note>>>);

impl Departures {
    pub(crate) fn name(&self, note: Arc<Note>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(note);
    }

    fn note(&self) -> Option<Arc<Note>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Permit {
    /// The call leaves now: what [`Limiter::note_departures`](crate::Limiter::note_departures) has named hears of it, before this
    /// returns. For those who send; a call that leaves without it is in no note.
    pub fn departs(&self) {
        if let Some(note) = self.driver().departures.note() {
            note(&self.request());
        }
    }
}
