//! What every engine can do.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::error::WorkError;
use super::item::{Added, Amend, Ask, Claim, ClaimOutcome, Counts, Event, Filter, Item, Kept, NewItem, WorkerId};
use crate::scope::ScopeRow;

/// An answer of a store, which may take its time.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorkError>> + Send + 'a>>;

/// Items and what became of them, kept where they outlive the process.
///
/// Everything goes in batches, and a batch is recorded whole or not at all. The store's own clock decides what is due, so
/// that callers speak of durations only: several machines never have to agree on the time.
///
/// An item is with one worker at a time. Each change of hands raises its fence, and an outcome is taken only with the
/// present one, in the statement that records it.
pub trait WorkStore: Send + Sync {
    /// Adds items. A key that is there already is left as it is.
    ///
    /// # Errors
    /// [`WorkError::TooLong`] and [`WorkError::Nul`] for one of them; none is added then.
    fn insert(&self, items: Vec<NewItem>) -> Pending<'_, Vec<Added>>;

    /// Begins a run: a worker of that name is known from now on, for as long as it renews its lease. Items that were left
    /// to the next run wait again, before all others, and stopped groups are tried once more.
    ///
    /// # Errors
    /// [`WorkError::Files`] when another process works on a SQLite store.
    fn enlist(&self, name: &str, lease: Duration) -> Pending<'_, WorkerId>;

    /// Goes on with a run as another worker, because the lease ran out: what was left to the next run stays there, and
    /// stopped groups stay stopped.
    fn rejoin(&self, name: &str, lease: Duration) -> Pending<'_, WorkerId>;

    /// Renews the lease of a worker; false when it ran out and another worker noticed. Its items are then other
    /// workers', and it has to rejoin. Puts back the items of workers whose lease ran out.
    fn renew(&self, worker: WorkerId) -> Pending<'_, bool>;

    /// Hands out items of groups that may send.
    fn claim(&self, worker: WorkerId, ask: Ask) -> Pending<'_, Claim>;

    /// Records what became of items, and with it what became of groups. A NUL character in their words becomes `\u{FFFD}`.
    fn record(&self, outcomes: Vec<ClaimOutcome>, scopes: Vec<ScopeRow>) -> Pending<'_, Vec<Kept>>;

    /// Puts back what a worker still has, and forgets the worker.
    fn leave(&self, worker: WorkerId) -> Pending<'_, ()>;

    /// The groups that are held or stopped, by name; [`ACCOUNT`](crate::ACCOUNT) stands for all of them.
    fn scopes(&self) -> Pending<'_, Vec<ScopeRow>>;

    /// How many items stand where.
    fn counts(&self) -> Pending<'_, Counts>;

    /// Items with an id above `after`, by id, at most `limit`.
    fn list(&self, filter: Filter, after: u64, limit: usize) -> Pending<'_, Vec<Item>>;

    /// The payload of an item and every decision about it, the oldest first; none when there is no such key.
    fn show(&self, key: &str) -> Pending<'_, Option<(Item, String, Vec<Event>)>>;

    /// Does what a person asks for; says how many items it changed.
    fn amend(&self, filter: Filter, amend: Amend) -> Pending<'_, u64>;

    /// Keeps what the limiter of an account knows, as a text, in place of what was kept before: of several workers the last one
    /// counts. The name may hold no key.
    fn keep_limiter(&self, account: &str, state: &str) -> Pending<'_, ()>;

    /// What was kept last for that account; none before the first time.
    fn kept_limiter(&self, account: &str) -> Pending<'_, Option<String>>;

    /// Removes items that ended at least so long ago, with their payloads and decisions, and says how many; of the filter's
    /// states those that end an item count. The room that they took on the disk is given back where the engine can do that
    /// and no worker is at work. The key of a removed item may be added again.
    fn prune(&self, filter: Filter, older_than: Duration) -> Pending<'_, u64>;

    /// Waits until another caller or process may have added or changed something.
    fn changed(&self) -> Pending<'_, ()>;
}
