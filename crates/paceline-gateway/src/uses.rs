//! What clients use of their limits, for a program that keeps it over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use paceline::{Cost, Limiter, LimiterState, TakenState, Ticket};
use tokio::sync::Notify;

/// Where the program is told.
#[derive(Default)]
pub(crate) struct Uses {
    changed: Notify,
    note: OnceLock<Box<Note>>,
    /// Those that have room under the limits of their clients, by the hashes of the keys of these, and have not left yet.
    waiting: Mutex<BTreeMap<Arc<str>, BTreeSet<Ticket>>>,
    /// What calls under way have used beyond what they reserved, by their numbers, with the hashes of the keys of their clients.
    under_way: Mutex<BTreeMap<u64, (Arc<str>, Cost)>>,
    numbers: AtomicU64,
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

    /// The number of a call.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A call under way has used so much beyond what it reserved.
    pub(crate) fn goes_on(&self, number: u64, key: &Arc<str>, beyond: Cost) {
        self.under_way().insert(number, (Arc::clone(key), beyond));
        self.change();
    }

    /// A call is under way no longer, and counts.
    pub(crate) fn ends(&self, number: u64) {
        self.under_way().remove(&number);
        self.change();
    }

    /// A call waits for its turn: it counts in the limits of its client, and nothing of it is kept.
    pub(crate) fn waits(&self, key: &Arc<str>, ticket: Ticket) {
        self.waiting().entry(Arc::clone(key)).or_default().insert(ticket);
    }

    /// It waits no more. Returns whether it did.
    pub(crate) fn waits_no_more(&self, key: &Arc<str>, ticket: Ticket) -> bool {
        let mut waiting = self.waiting();
        let Some(tickets) = waiting.get_mut(key) else { return false };
        let did = tickets.remove(&ticket);
        if tickets.is_empty() {
            waiting.remove(key);
        }
        did
    }

    /// What is to be kept of a client: what calls under way have used beyond what they reserved, and nothing of those that wait.
    pub(crate) fn state_of(&self, key: &str, limiter: &Limiter) -> LimiterState {
        // A call that leaves meanwhile is in the state, or is noted after it.
        let waiting = self.waiting();
        let mut state = limiter.export_without(waiting.get(key).into_iter().flatten().copied());
        drop(waiting);
        for (_, beyond) in self.under_way().values().filter(|(of, _)| **of == *key) {
            for window in &mut state.pacer.account.windows {
                let units = beyond.get(&window.quota.dimension);
                window.taken.extend((units > 0).then_some(TakenState { ago: Duration::ZERO, units }));
            }
        }
        state
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, BTreeSet<Ticket>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<u64, (Arc<str>, Cost)>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
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
