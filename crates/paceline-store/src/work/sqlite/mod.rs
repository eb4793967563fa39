//! The store in one SQLite file: the default.

mod answers;
mod claim;
mod clock;
#[cfg(test)]
mod full;
mod lanes;
mod limiter_state;
mod log;
mod notes;
#[cfg(test)]
mod plans;
mod record;
mod rows;
mod schema;
mod scopes;
mod thread;
mod worker_lock;

use crate::state::State;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter, types::Value};
use tokio::sync::{Notify, oneshot};

use super::answers::NotedAnswers;
use super::checks::{check, keepable};
use super::clock::WorkClock;
use super::error::WorkError;
use super::item::{
    Added, Amend, Claim, ClaimOutcome, ClaimRequest, Filter, HistoryEntry, NewItem, Pruned, PrunedKeys, RecordStatus,
    StateCounts, WorkItem, WorkerId,
};
use super::notes::{NoteChange, ScopeNote};
use super::store::{StoreFuture, WorkStore};
use crate::disk::has_other_names;
use crate::disk_space::DiskSpace;
use crate::query::millis;
use crate::schema::checkpoint;
use crate::scope::ScopeRow;
use crate::work::columns::{after_item, item_columns};
use lanes::KnownLanes;
pub use log::make_room_beside;
use thread::StoreThread;
use worker_lock::WorkerLock;
pub use worker_lock::{lock_of, worker_of};

/// A [`WorkStore`] in one SQLite file.
///
/// Any number of processes may add, look and amend. One process works: it locks a file beside the store and the log of the
/// database, so what another one left in flight when it died is waiting again at once. Within that process any number of workers
/// share the store.
///
/// A user without write permission on the file or its folder may read it.
///
/// A worker is notified at once of items that its own process adds, and within a second of those of another one.
#[derive(Debug)]
pub struct SqliteStore {
    thread: StoreThread,
    path: PathBuf,
    clock: WorkClock,
    changed: Notify,
    /// The number of the last change of another process that all waiting callers heard of.
    seen_version: AtomicI64,
    lanes: Shared,
    /// Held from the first worker on.
    lock: Arc<Mutex<Option<WorkerLock>>>,
}

/// The canonical path of a file that may not exist yet: its lock file is beside it.
fn canonical_path(path: PathBuf) -> Result<PathBuf, WorkError> {
    if let Ok(path) = path.canonicalize() {
        return Ok(path);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| ".".as_ref());
    match (folder.canonicalize(), path.file_name()) {
        (_, None) => Err(WorkError::NotAStore { path }),
        // SQLite reports an error of the folder.
        (Err(_), Some(_)) => Ok(path),
        (Ok(folder), Some(name)) => Ok(folder.join(name)),
    }
}

/// Used by the store's thread; the other callers only invalidate it.
type Shared = Arc<Mutex<KnownLanes>>;

fn locked(lanes: &Shared) -> MutexGuard<'_, KnownLanes> {
    lanes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Items removed in one transaction, so that a worker does not wait long to record an outcome.
const PRUNED_AT_ONCE: usize = 10_000;

/// How often the store checks whether other processes changed the file: it reads one number in shared memory.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl SqliteStore {
    /// Opens a store, or makes it where there is none.
    ///
    /// # Errors
    /// [`WorkError::NotAStore`], [`WorkError::NewerVersion`], [`WorkError::ManyNames`], and errors of SQLite.
    pub fn open(path: impl Into<PathBuf>, clock: WorkClock) -> Result<Self, WorkError> {
        Self::open_on(path, clock, None)
    }

    /// The same; while the `disk` is full nothing is read or written, and all of it is done once there is space.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_on(path: impl Into<PathBuf>, clock: WorkClock, disk: Option<DiskSpace>) -> Result<Self, WorkError> {
        let path = canonical_path(path.into())?;
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return Err(WorkError::NotAStore { path });
        }
        if has_other_names(&path) {
            return Err(WorkError::ManyNames { path });
        }
        let is_new = !path.exists();
        let conn = schema::open(&path, clock.wall().as_millis()).inspect_err(|error| {
            // An empty file would pass for a store without items. One that a second process has just begun is not empty.
            if is_new && error.is_full() && path.metadata().is_ok_and(|made| made.len() == 0) {
                let _ = std::fs::remove_file(&path);
            }
        })?;
        let seen_version = AtomicI64::new(version(&conn).map_err(WorkError::sqlite("read"))?);
        let lanes = Shared::default();
        let thread = StoreThread::start(conn, path.clone(), disk, {
            let lanes = lanes.clone();
            move || locked(&lanes).forget()
        })?;
        Ok(Self { thread, path, clock, changed: Notify::new(), seen_version, lanes, lock: Arc::default() })
    }

    /// Does work within a transaction, with the time at which that begins.
    fn transact<T: Send + 'static>(
        &self,
        action: &'static str,
        mut work: impl FnMut(&Connection, Timestamp) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let clock = self.clock.clone();
        self.thread.submit(move |conn| work(conn, clock.wall()).map_err(WorkError::sqlite(action)))
    }

    /// The same, and wakes every caller that waits for a change.
    fn transact_and_notify<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection, Timestamp) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreFuture<'_, T> {
        let done = self.transact("write", work);
        Box::pin(async move {
            let done = done.await?;
            self.changed.notify_waiters();
            Ok(done)
        })
    }

    /// Makes this process the one that works on the file, as the first [`register`](WorkStore::register) does otherwise. Returns
    /// how many items a worker had that ended without a word, by a crash say: up to so many tries were cut off.
    ///
    /// # Errors
    /// [`WorkError::Files`] when another process works on it.
    pub async fn take_over(&self) -> Result<u64, WorkError> {
        let (lock, path, clock) = (self.lock.clone(), self.path.clone(), self.clock.clone());
        let taken = self.thread.submit(move |conn| {
            let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
            take_lock(conn, &mut lock, &path, clock.wall())
        });
        taken.await
    }

    /// Gives what removed items took back to the file system. Not while a worker is at work, which would have to wait for as
    /// long as the whole file takes to be written.
    async fn shrink(&self) -> Result<(), WorkError> {
        let Ok(alone) = WorkerLock::take(&self.path) else { return Ok(()) };
        let (path, clock) = (self.path.clone(), self.clock.clone());
        let (reply, answer) = oneshot::channel();
        let shrink = move || {
            let conn = schema::open(&path, clock.wall().as_millis())?;
            conn.execute_batch("VACUUM").map_err(WorkError::sqlite("write"))?;
            checkpoint(&conn).map_err(|error| WorkError::Files(Arc::new(error)))
        };
        std::thread::Builder::new()
            .name("paceline-shrink".into())
            .spawn(move || {
                let shrunk = shrink();
                drop(alone);
                // The caller that asked may have gone.
                let _ = reply.send(shrunk);
            })
            .map_err(|error| {
                WorkError::Files(Arc::new(crate::JournalError::io("start the thread of", "the store".as_ref())(error)))
            })?;
        answer.await.unwrap_or(Err(WorkError::Closed))
    }

    /// Makes a worker known, after `begin`. The first one of a process takes the lock.
    fn join(
        &self,
        name: &str,
        lease: Duration,
        mut begin: impl FnMut(&Connection, Timestamp) -> rusqlite::Result<()> + Send + 'static,
    ) -> StoreFuture<'_, WorkerId> {
        let (name, lock, path, clock) = (name.to_owned(), self.lock.clone(), self.path.clone(), self.clock.clone());
        let lanes = self.lanes.clone();
        self.thread.submit(move |conn| {
            let mut lock = lock.lock().unwrap_or_else(PoisonError::into_inner);
            let now = clock.wall();
            take_lock(conn, &mut lock, &path, now)?;
            locked(&lanes).forget();
            begin(conn, now).and_then(|()| join(conn, &name, lease, now)).map_err(WorkError::sqlite("write"))
        })
    }
}

impl WorkStore for SqliteStore {
    fn now(&self) -> StoreFuture<'_, Timestamp> {
        Box::pin(std::future::ready(Ok(self.clock.wall())))
    }

    fn insert(&self, items: Vec<NewItem>) -> StoreFuture<'_, Vec<Added>> {
        if let Err(error) = items.iter().try_for_each(check) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let lanes = self.lanes.clone();
        self.transact_and_notify(move |conn, now| {
            let mut lanes = locked(&lanes);
            items.iter().map(|item| record::insert(conn, item, &mut lanes, now)).collect()
        })
    }

    fn register(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        self.join(name, lease, begin_run)
    }

    fn reregister(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        self.join(name, lease, |_, _| Ok(()))
    }

    fn heartbeat(&self, worker: WorkerId) -> StoreFuture<'_, bool> {
        let lanes = self.lanes.clone();
        let done = self.transact("write", move |conn, now| {
            let renewed = conn
                .prepare_cached("UPDATE worker SET lease_until_ms = lease_ms + ?2 WHERE id = ?1")?
                .execute([worker.0, now.as_millis()])?;
            clock::note(conn, now)?;
            let reclaimed = reclaim(conn, now)?;
            if reclaimed {
                locked(&lanes).forget();
            }
            Ok((renewed > 0, reclaimed))
        });
        Box::pin(async move {
            let (renewed, reclaimed) = done.await?;
            if reclaimed {
                self.changed.notify_waiters();
            }
            Ok(renewed)
        })
    }

    fn claim(&self, worker: WorkerId, ask: ClaimRequest) -> StoreFuture<'_, Claim> {
        let lanes = self.lanes.clone();
        self.transact("write", move |conn, now| claim::claim(conn, worker, ask, &mut locked(&lanes), now))
    }

    fn note_sent(&self, item: u64, fence: i64) -> StoreFuture<'_, bool> {
        self.transact("write", move |conn, _| Ok(conn.prepare_cached(NOTE_SENT)?.execute([item as i64, fence])? > 0))
    }

    fn record(&self, mut outcomes: Vec<ClaimOutcome>, mut scopes: Vec<ScopeRow>) -> StoreFuture<'_, Vec<RecordStatus>> {
        keepable(&mut outcomes, &mut scopes);
        let lanes = self.lanes.clone();
        self.transact("write", move |conn, now| {
            let mut lanes = locked(&lanes);
            let kept = outcomes.iter().map(|outcome| record::record(conn, outcome, &mut lanes, now));
            let kept = kept.collect::<Result<_, _>>()?;
            scopes.iter().try_for_each(|row| scopes::set(conn, row, now))?;
            Ok(kept)
        })
    }

    fn deregister(&self, worker: WorkerId) -> StoreFuture<'_, ()> {
        let lanes = self.lanes.clone();
        self.transact_and_notify(move |conn, _| {
            locked(&lanes).forget();
            conn.execute("DELETE FROM worker WHERE id = ?1", [worker.0])?;
            put_back(conn, worker.0, 0)
        })
    }

    fn scopes(&self) -> StoreFuture<'_, Vec<ScopeRow>> {
        self.transact("read", scopes::list)
    }

    fn counts(&self) -> StoreFuture<'_, StateCounts> {
        self.transact("read", |conn, _| {
            let mut counts = StateCounts::default();
            let mut select = conn.prepare_cached("SELECT state, count(*) FROM item GROUP BY state")?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                if let Some(state) = State::from_code(row.get(0)?) {
                    counts.by_state[state as usize] = row.get::<_, i64>(1)?.unsigned_abs();
                }
            }
            Ok(counts)
        })
    }

    fn list(&self, filter: Filter, after: u64, limit: usize) -> StoreFuture<'_, Vec<WorkItem>> {
        self.transact("read", move |conn, _| {
            let (condition, mut values) = record::condition(&filter);
            let sql = concat!("SELECT ", item_columns!(), " FROM item JOIN lane ON lane.id = item.lane");
            let sql = format!("{sql} WHERE {condition} AND item.id > ? ORDER BY item.id LIMIT ?");
            values.extend([Value::Integer(after as i64), Value::Integer(limit as i64)]);
            let mut select = conn.prepare(&sql)?;
            let rows = select.query_map(params_from_iter(values), rows::item)?;
            rows.collect()
        })
    }

    fn show(&self, key: &str) -> StoreFuture<'_, Option<(WorkItem, String, Vec<HistoryEntry>)>> {
        let key = key.to_owned();
        self.transact("read", move |conn, _| {
            let sql = concat!(
                "SELECT ",
                item_columns!(),
                ", payload.body FROM item JOIN lane ON lane.id = item.lane JOIN payload ON payload.item = item.id \
                 WHERE item.key = ?1"
            );
            let found = conn
                .query_row(sql, [&key], |row| Ok((rows::item(row)?, row.get::<_, String>(after_item(0))?)))
                .optional()?;
            let Some((item, payload)) = found else { return Ok(None) };
            let events = rows::events(conn, item.id as i64, super::item::EVENTS)?;
            Ok(Some((item, payload, events)))
        })
    }

    fn amend(&self, filter: Filter, amend: Amend) -> StoreFuture<'_, u64> {
        let lanes = self.lanes.clone();
        self.transact_and_notify(move |conn, now| {
            locked(&lanes).forget();
            record::amend(conn, &filter, amend, now)
        })
    }

    fn save_state(&self, account: &str, state: &str) -> StoreFuture<'_, ()> {
        let (account, state) = (account.to_owned(), state.to_owned());
        self.transact("write", move |conn, _| limiter_state::save(conn, &account, &state))
    }

    fn replace_state(&self, account: &str, before: Option<&str>, state: &str) -> StoreFuture<'_, bool> {
        let (account, before, state) = (account.to_owned(), before.map(ToOwned::to_owned), state.to_owned());
        self.transact("write", move |conn, _| limiter_state::replace(conn, &account, before.as_deref(), &state))
    }

    fn load_state(&self, account: &str) -> StoreFuture<'_, Option<String>> {
        let account = account.to_owned();
        self.transact("read", move |conn, _| limiter_state::load(conn, &account))
    }

    fn note_answers(&self, noted: Vec<NotedAnswers>) -> StoreFuture<'_, ()> {
        self.transact("write", move |conn, now| answers::note(conn, &noted, now))
    }

    fn answers(&self, since: Timestamp) -> StoreFuture<'_, Vec<NotedAnswers>> {
        self.transact("read", move |conn, _| answers::since(conn, since))
    }

    fn change_notes(&self, scopes: Vec<Arc<str>>, change: NoteChange) -> StoreFuture<'_, ()> {
        self.transact("write", move |conn, now| notes::change(conn, &scopes, &change, now))
    }

    fn notes(&self, since: Timestamp) -> StoreFuture<'_, Vec<ScopeNote>> {
        self.transact("read", move |conn, _| notes::since(conn, since))
    }

    fn prune(&self, filter: Filter, older_than: Duration, keys: PrunedKeys) -> StoreFuture<'_, Pruned> {
        Box::pin(async move {
            let mut removed = Pruned::default();
            loop {
                let filter = filter.clone();
                let gone = self.transact("write", move |conn, now| {
                    let before = now.as_millis().saturating_sub(millis(older_than));
                    record::prune(conn, &filter, (before, now.as_millis()), keys, PRUNED_AT_ONCE)
                });
                let gone = gone.await?;
                removed += gone;
                if gone.items < PRUNED_AT_ONCE as u64 {
                    break;
                }
            }
            if removed != Pruned::default() {
                self.shrink().await?;
            }
            Ok(removed)
        })
    }

    fn changed(&self) -> StoreFuture<'_, ()> {
        let changed = self.changed.notified();
        Box::pin(async move {
            tokio::pin!(changed);
            loop {
                let found = self.transact("read", |conn, _| version(conn)).await?;
                if self.seen_version.swap(found, Ordering::Relaxed) != found {
                    self.changed.notify_waiters();
                }
                tokio::select! {
                    () = &mut changed => return Ok(()),
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        })
    }
}

/// A number that other processes' commits change, and ours do not.
fn version(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA data_version", [], |row| row.get(0))
}

/// A file beside the store, whose name begins with the store's.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Takes the lock, if this process has not got it, and what the worker before left in flight; returns how many items that are.
fn take_lock(conn: &Connection, lock: &mut Option<WorkerLock>, path: &Path, now: Timestamp) -> Result<u64, WorkError> {
    if lock.is_some() {
        return Ok(0);
    }
    *lock = Some(WorkerLock::take(path)?);
    let count = "SELECT count(*) FROM item WHERE state = 1";
    let left = conn.query_row(count, [], |row| row.get::<_, i64>(0)).map_err(WorkError::sqlite("read"))?;
    take_over(conn, now).map_err(WorkError::sqlite("write"))?;
    Ok(left.unsigned_abs())
}

/// What is in flight was left by the dead: no other process works on this file.
fn take_over(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    conn.execute("UPDATE worker SET lease_until_ms = 0", [])?;
    reclaim(conn, now)?;
    clock::repair(conn, now)
}

/// What was left to this run waits again, and stopped groups are tried once more.
fn begin_run(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    conn.execute("UPDATE store SET last_ms = ?1", [now.as_millis()])?;
    scopes::open_stopped(conn, now)?;
    record::begin_deferred(conn)?;
    Ok(())
}

fn join(conn: &Connection, name: &str, lease: Duration, now: Timestamp) -> rusqlite::Result<WorkerId> {
    reclaim(conn, now)?;
    conn.execute(
        "INSERT INTO worker (name, lease_ms, lease_until_ms) VALUES (?1, ?2, ?3)",
        params![name, millis(lease), (now + lease).as_millis()],
    )?;
    Ok(WorkerId(conn.last_insert_rowid()))
}

/// Puts back the items of workers whose lease ran out; returns whether there were any.
fn reclaim(conn: &Connection, now: Timestamp) -> rusqlite::Result<bool> {
    let mut delete = conn.prepare_cached("DELETE FROM worker WHERE lease_until_ms <= ?1 RETURNING id")?;
    let dead: Vec<i64> = delete.query_map([now.as_millis()], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for worker in &dead {
        put_back(conn, *worker, 1)?;
    }
    Ok(!dead.is_empty())
}

/// A call of a claim is under way.
const NOTE_SENT: &str = "UPDATE item SET sent = 1 WHERE id = ?1 AND fence = ?2 AND state = 1";

/// The items of a worker wait again, as they did before.
const PUT_BACK: &str = "UPDATE item SET state = 0, worker = NULL, fence = fence + 1, crashes = crashes + ?2,
         in_doubt = in_doubt OR sent = 1, abandoned = abandoned + (sent = 1), sent = iif(sent = 1, 2, sent)
     WHERE state = 1 AND worker = ?1";

fn put_back(conn: &Connection, worker: i64, crashes: i64) -> rusqlite::Result<()> {
    conn.prepare_cached(PUT_BACK)?.execute([worker, crashes])?;
    Ok(())
}
