//! The interface of a store, which every engine implements.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Timestamp;

use super::answers::NotedAnswers;
use super::error::WorkError;
use super::item::{
    Added, Amend, Claim, ClaimOutcome, ClaimRequest, Filter, HistoryEntry, NewItem, Pruned, PrunedKeys, RecordStatus,
    StateCounts, WorkItem, WorkerId,
};
use super::notes::{NoteChange, ScopeNote};
use crate::scope::ScopeRow;

/// The result of an operation on a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, WorkError>> + Send + 'a>>;

/// Items and their outcomes, in storage that outlives the process.
///
/// Everything goes in batches, and a batch is recorded whole or not at all. The store's own clock decides what is due, so
/// that callers speak of durations only: several machines never have to agree on the time.
///
/// An item is with one worker at a time. Each change of hands raises its fence, and an outcome is taken only with the
/// present one, in the statement that records it.
pub trait WorkStore: Send + Sync {
    /// The time by the store's own clock: that of the database where it is one.
    fn now(&self) -> StoreFuture<'_, Timestamp>;

    /// Adds items. A key that is there already, or was kept when its item was [pruned](Self::prune), is left as it is.
    ///
    /// # Errors
    /// [`WorkError::TooLong`] and [`WorkError::Nul`] for one of them; none is added then.
    fn insert(&self, items: Vec<NewItem>) -> StoreFuture<'_, Vec<Added>>;

    /// Begins a run: registers a worker of that name, for as long as its heartbeats renew its lease. Items that were left to the
    /// next run wait again, before all others, and stopped groups are tried once more.
    ///
    /// # Errors
    /// [`WorkError::Files`] when another process works on a SQLite store.
    fn register(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId>;

    /// Registers a worker anew within its run, because its lease ran out: what was left to the next run stays there, and stopped
    /// groups stay stopped.
    fn reregister(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId>;

    /// Renews the lease of a worker; false when it ran out and another worker noticed. Its items then belong to other workers,
    /// and it has to [`reregister`](Self::reregister). Puts back the items of workers whose lease ran out.
    fn heartbeat(&self, worker: WorkerId) -> StoreFuture<'_, bool>;

    /// How many items of other workers that ended without a word, by a crash say, this process has put back since that was last
    /// asked: up to so many calls were cut off. Of a file [`take_over`](super::SqliteStore::take_over) tells it.
    fn taken_over(&self) -> u64 {
        0
    }

    /// Hands out items of groups that may send.
    fn claim(&self, worker: WorkerId, ask: ClaimRequest) -> StoreFuture<'_, Claim>;

    /// Records that a call of a claimed item is sent, which must not be made twice: without an outcome the item
    /// [may be done](WorkItem::may_be_done) from then on. Returns false, and the call must not be sent, when the claim is over.
    fn note_sent(&self, item: u64, fence: i64) -> StoreFuture<'_, bool>;

    /// Records the outcomes of items, and the state of groups with them. A NUL character in their messages becomes `\u{FFFD}`.
    fn record(&self, outcomes: Vec<ClaimOutcome>, scopes: Vec<ScopeRow>) -> StoreFuture<'_, Vec<RecordStatus>>;

    /// Puts back the items that a worker still has, and removes the worker.
    fn deregister(&self, worker: WorkerId) -> StoreFuture<'_, ()>;

    /// The groups that are held or stopped, by name; [`ACCOUNT`](crate::ACCOUNT) stands for all of them.
    fn scopes(&self) -> StoreFuture<'_, Vec<ScopeRow>>;

    /// How many items are in each state.
    fn counts(&self) -> StoreFuture<'_, StateCounts>;

    /// Items with an id above `after`, by id, at most `limit`.
    fn list(&self, filter: Filter, after: u64, limit: usize) -> StoreFuture<'_, Vec<WorkItem>>;

    /// The payload of an item and every decision about it, the oldest first; none when there is no such key.
    fn show(&self, key: &str) -> StoreFuture<'_, Option<(WorkItem, String, Vec<HistoryEntry>)>>;

    /// Applies a person's change; returns how many items it changed.
    fn amend(&self, filter: Filter, amend: Amend) -> StoreFuture<'_, u64>;

    /// Saves a text of the caller under a name, in place of the one before: such as the limiter state of an account. Of several
    /// workers the last one counts. The name must not contain a key.
    fn save_state(&self, name: &str, state: &str) -> StoreFuture<'_, ()>;

    /// The same where the text is still the one that was [loaded](Self::load_state) `before`; returns whether it was. So workers
    /// that change one text lose nothing of each other.
    fn replace_state(&self, name: &str, before: Option<&str>, state: &str) -> StoreFuture<'_, bool>;

    /// The text that was saved last under that name; none before the first time.
    fn load_state(&self, name: &str) -> StoreFuture<'_, Option<String>>;

    /// Notes which scopes have answered and which did not, for the workers that start later and the others: the last word on each
    /// scope counts, and some thousands are kept.
    fn note_answers(&self, _noted: Vec<NotedAnswers>) -> StoreFuture<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// What was noted since then, the latest last.
    fn answers(&self, _since: Timestamp) -> StoreFuture<'_, Vec<NotedAnswers>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Changes the notes about some scopes, all in one step: of workers that change one at the same time the second changes what
    /// the first noted. Some thousands are kept, those that were changed last.
    fn change_notes(&self, scopes: Vec<Arc<str>>, change: NoteChange) -> StoreFuture<'_, ()> {
        let _ = (scopes, change);
        Box::pin(std::future::ready(Ok(())))
    }

    /// The notes that were changed since then, the latest last.
    fn notes(&self, _since: Timestamp) -> StoreFuture<'_, Vec<ScopeNote>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Removes items that ended at least so long ago, with their payloads and decisions; of the filter's
    /// states those that end an item count. The room that they took on the disk is given back where the engine can do that
    /// and no worker is at work. A kept key has no group: with one in the filter, none that was kept before is forgotten.
    fn prune(&self, filter: Filter, older_than: Duration, keys: PrunedKeys) -> StoreFuture<'_, Pruned>;

    /// The run is to end: an operation that waits for its server as long as it takes waits for a minute at most from now on.
    fn ending(&self) {}

    /// How many workers are alive, where the store tells of those of other machines too; none where a file and its lock do.
    fn workers(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Waits until another caller or process may have added or changed something.
    fn changed(&self) -> StoreFuture<'_, ()>;
}
