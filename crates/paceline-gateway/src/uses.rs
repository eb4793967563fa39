//! What clients use of their limits, for a program that keeps it over restarts.

use std::sync::OnceLock;

use paceline::Cost;
use tokio::sync::Notify;

/// Where the program is told.
#[derive(Default)]
pub(crate) struct Uses {
    changed: Notify,
    note: OnceLock<Box<Note>>,
}

/// Told of the hash of a key, in hexadecimal digits, and of what a call of it takes.
type Note = dyn Fn(&str, &Cost) + Send + Sync;

impl Uses {
    /// This is told from now on what calls take; the first one stays.
    pub(crate) fn tell(&self, note: impl Fn(&str, &Cost) + Send + Sync + 'static) {
        let _ = self.note.set(Box::new(note));
    }

    /// A client has used so much more, and what counts for it has changed.
    pub(crate) fn more(&self, key: &str, cost: &Cost) {
        self.note.get().into_iter().for_each(|note| note(key, cost));
        self.change();
    }

    /// What counts for a client has changed.
    pub(crate) fn change(&self) {
        self.changed.notify_one();
    }

    /// Returns once that has changed since it was told last.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}
