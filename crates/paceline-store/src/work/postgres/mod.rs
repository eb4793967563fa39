//! The store in Postgres, for workers on several machines.

mod answers;
mod away;
mod claim;
mod clock;
pub(crate) mod connection;
mod notes;
mod record;
mod rows;
mod schema;
mod scopes;
mod tx;
mod workers;

use crate::state::State;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::Timestamp;
use tokio::sync::{Mutex, Notify};
use tokio_postgres::Error;

use super::answers::NotedAnswers;
use super::checks::{check, keepable};
use super::error::WorkError;
use super::item::{
    Added, Amend, Claim, ClaimOutcome, ClaimRequest, EVENTS, Filter, HistoryEntry, NewItem, Pruned, PrunedKeys,
    RecordStatus, StateCounts, WorkItem, WorkerId,
};
use super::notes::{NoteChange, ScopeNote};
use super::store::{StoreFuture, WorkStore};
use crate::query::millis;
use crate::scope::{ScopeRow, ScopeStatus};
use crate::work::columns::{after_item, item_columns};
use claim::{Batch, KnownLanes};
use clock::now;
use connection::{Connection, Tx};
use paceline_postgres::Address;
use record::{begins, filtered};
use schema::MIGRATIONS;
use workers::PUT_BACK;

/// A [`WorkStore`] in a schema of a Postgres database, which any number of processes share.
///
/// Only the database's clock counts. A connection that breaks is made anew for a minute; what was under way is done again,
/// and never twice.
pub struct PostgresStore {
    connection: Connection,
    changed: Arc<Notify>,
    batches: AtomicI64,
    /// The latest claim that was committed.
    committed: AtomicI64,
    lanes: Arc<Mutex<KnownLanes>>,
    /// Items of lost workers that wait again for this one.
    taken_over: AtomicU64,
}

/// The schema of a store that names none.
const SCHEMA: &str = "paceline";

impl PostgresStore {
    /// Connects to `postgres://user@host/database` and makes the tables, where they are not there, in the schema
    /// `paceline`. A server that is not there is waited for, a minute or as long as the `connect_timeout` of the
    /// address says.
    ///
    /// `sslmode` and `sslrootcert` of the address mean what they mean to Postgres's own programs: `disable`, `prefer` (the
    /// default: encrypted where the server can, to any server that answers), `require`, `verify-ca` and `verify-full`, which
    /// alone makes sure who is at the other end. Without `sslrootcert` the certificates count that the machine trusts.
    ///
    /// # Errors
    /// [`WorkError::Address`]; [`WorkError::Unreachable`]; [`WorkError::Silent`]; [`WorkError::Postgres`] when the server
    /// refuses: a wrong password or an unknown database at once; [`WorkError::NewerVersion`].
    pub async fn open(url: &str) -> Result<Self, WorkError> {
        Self::open_in(url, SCHEMA).await
    }

    /// The same for a worker that stays: a server that is away, now or later, is waited for as long as it takes, until the run
    /// [is to end](WorkStore::ending), and so is one that is read-only or lets this role not in for a time. A `connect_timeout`
    /// in the address ends that sooner at the start. A wrong password and an unknown database are tried for a minute.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_to_stay(url: &str) -> Result<Self, WorkError> {
        Self::connect(url, SCHEMA, true).await
    }

    /// The same in a schema of that name: letters, digits and underscores.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_in(url: &str, schema: &str) -> Result<Self, WorkError> {
        Self::connect(url, schema, false).await
    }

    /// The same to look, or to change what is there: nothing is written until that is asked for, and no tables are made. A server
    /// that can only be read is enough to read.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`WorkError::NoStore`].
    pub async fn open_to_look(url: &str) -> Result<Self, WorkError> {
        let (address, schema) = place(url, SCHEMA)?;
        let changed = Arc::new(Notify::new());
        Ok(Self::on(Connection::open_to_look(address, &schema, &MIGRATIONS, changed.clone()).await?, changed))
    }

    async fn connect(url: &str, schema: &str, stays: bool) -> Result<Self, WorkError> {
        let (address, schema) = place(url, schema)?;
        let changed = Arc::new(Notify::new());
        Ok(Self::on(Connection::open(address, &schema, &MIGRATIONS, changed.clone(), stays).await?, changed))
    }

    fn on(connection: Connection, changed: Arc<Notify>) -> Self {
        let (batches, committed, taken_over) = (AtomicI64::new(1), AtomicI64::new(0), AtomicU64::new(0));
        Self { connection, changed, batches, committed, lanes: Arc::default(), taken_over }
    }

    /// Counts the items that were taken over, once that is committed.
    fn note_taken_over<'a, T: Send + 'a>(
        &'a self,
        done: impl Future<Output = Result<(T, u64), WorkError>> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let (done, items) = done.await?;
            self.taken_over.fetch_add(items, Ordering::Relaxed);
            Ok(done)
        })
    }
}

/// The server and the schema of a store.
pub(crate) fn place(url: &str, schema: &str) -> Result<(Address, String), WorkError> {
    let letters = |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    if schema.is_empty() || schema.len() > 48 || !letters(schema) {
        return Err(WorkError::address(format!("{schema:?} is no name for a schema")));
    }
    let address = Address::read(url).map_err(|error| WorkError::address(error.to_string()))?;
    Ok((address, schema.to_ascii_lowercase()))
}

/// Whether the server was not there, or went away.
pub(crate) fn is_away(error: &Error) -> bool {
    away::is_broken(error)
}

/// Wakes every worker, once per batch and when it is committed. Every change that makes items wait calls it: claims rely on that.
async fn wake(tx: &Tx<'_>, channel: &str) -> Result<(), Error> {
    tx.note_change();
    tx.execute("SELECT pg_notify($1, '')", &[&channel]).await.map(drop)
}

impl WorkStore for PostgresStore {
    fn now(&self) -> StoreFuture<'_, Timestamp> {
        Box::pin(self.connection.transact("read", |tx, _| Box::pin(now(tx))))
    }

    fn ending(&self) {
        self.connection.stays_no_longer();
    }

    fn insert(&self, items: Vec<NewItem>) -> StoreFuture<'_, Vec<Added>> {
        if let Err(error) = items.iter().try_for_each(check) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let shared = Arc::new((items, self.connection.channel()));
        Box::pin(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let added = record::insert(tx, &shared.0, now(tx).await?).await?;
                wake(tx, &shared.1).await?;
                Ok(added)
            })
        }))
    }

    fn register(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        let shared: Arc<(Box<str>, String)> = Arc::new((name.into(), self.connection.channel()));
        self.note_taken_over(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let now = clock::note(tx).await?;
                scopes::open_stopped(tx, now).await?;
                if tx.execute(BEGIN_DEFERRED, &[]).await? > 0 {
                    wake(tx, &shared.1).await?;
                }
                workers::join(tx, &shared, lease, now).await
            })
        }))
    }

    fn reregister(&self, name: &str, lease: Duration) -> StoreFuture<'_, WorkerId> {
        let shared: Arc<(Box<str>, String)> = Arc::new((name.into(), self.connection.channel()));
        self.note_taken_over(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move { workers::join(tx, &shared, lease, clock::note(tx).await?).await })
        }))
    }

    fn heartbeat(&self, worker: WorkerId) -> StoreFuture<'_, bool> {
        let channel: Arc<str> = self.connection.channel().into();
        self.note_taken_over(self.connection.transact("write", move |tx, _| {
            let channel = channel.clone();
            Box::pin(async move {
                let now = clock::note(tx).await?;
                let sql = "UPDATE worker SET lease_until_ms = lease_ms + $2 WHERE id = $1";
                let renewed = tx.execute(sql, &[&worker.0, &now.as_millis()]).await?;
                Ok((renewed > 0, workers::reclaim(tx, &channel, now).await?))
            })
        }))
    }

    fn taken_over(&self) -> u64 {
        self.taken_over.swap(0, Ordering::Relaxed)
    }

    fn workers(&self) -> StoreFuture<'_, Option<u64>> {
        Box::pin(self.connection.transact("read", move |tx, _| {
            Box::pin(async move {
                let sql = "SELECT count(*) FROM worker WHERE lease_until_ms > $1";
                let rows = tx.query(sql, &[&now(tx).await?.as_millis()]).await?;
                Ok(rows.first().map(|row| row.get::<_, i64>(0).unsigned_abs()))
            })
        }))
    }

    fn claim(&self, worker: WorkerId, ask: ClaimRequest) -> StoreFuture<'_, Claim> {
        let number = self.batches.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let operation = self.connection.transact("write", move |tx, retried| {
                let lanes = self.lanes.clone();
                let batch = Batch { number, retried, committed: self.committed.load(Ordering::Relaxed) };
                Box::pin(async move {
                    let now = clock::now_or_repair(tx).await?;
                    claim::claim(tx, worker, ask, batch, &mut *lanes.lock().await, now).await
                })
            });
            let claim = operation.await?;
            self.committed.store(number, Ordering::Relaxed);
            Ok(claim)
        })
    }

    fn note_sent(&self, item: u64, fence: i64) -> StoreFuture<'_, bool> {
        Box::pin(
            self.connection.transact("write", move |tx, _| {
                Box::pin(async move { record::note_sent(tx, item as i64, fence).await })
            }),
        )
    }

    fn record(&self, mut outcomes: Vec<ClaimOutcome>, mut scopes: Vec<ScopeRow>) -> StoreFuture<'_, Vec<RecordStatus>> {
        keepable(&mut outcomes, &mut scopes);
        let shared = Arc::new((outcomes, scopes, self.connection.channel()));
        Box::pin(self.connection.transact("write", move |tx, retried| {
            let shared = shared.clone();
            Box::pin(async move {
                let (outcomes, rows, channel) = &*shared;
                let now = now(tx).await?;
                let kept = record::record(tx, outcomes, retried, now).await?;
                for row in rows {
                    scopes::set(tx, row, now).await?;
                }
                // Others do not know yet of what waits anew, and may do it when its time comes.
                let waits = |outcome: &ClaimOutcome| outcome.next.state() == State::Waiting;
                if outcomes.iter().any(waits) || rows.iter().any(|row| row.state == ScopeStatus::Open) {
                    wake(tx, channel).await?;
                }
                Ok(kept)
            })
        }))
    }

    fn deregister(&self, worker: WorkerId) -> StoreFuture<'_, ()> {
        let channel: Arc<str> = self.connection.channel().into();
        Box::pin(self.connection.transact("write", move |tx, _| {
            let channel = channel.clone();
            Box::pin(async move {
                tx.execute("DELETE FROM worker WHERE id = $1", &[&worker.0]).await?;
                tx.execute(PUT_BACK, &[&vec![worker.0], &0_i64]).await?;
                wake(tx, &channel).await
            })
        }))
    }

    fn scopes(&self) -> StoreFuture<'_, Vec<ScopeRow>> {
        Box::pin(
            self.connection.transact("read", |tx, _| Box::pin(async move { scopes::list(tx, now(tx).await?).await })),
        )
    }

    fn counts(&self) -> StoreFuture<'_, StateCounts> {
        Box::pin(self.connection.transact("read", |tx, _| {
            Box::pin(async move {
                let mut counts = StateCounts::default();
                for row in tx.query("SELECT state, count(*) FROM item GROUP BY state", &[]).await? {
                    if let Some(state) = State::from_code(row.get::<_, i16>(0).into()) {
                        counts.by_state[state as usize] = row.get::<_, i64>(1).unsigned_abs();
                    }
                }
                Ok(counts)
            })
        }))
    }

    fn list(&self, filter: Filter, after: u64, limit: usize) -> StoreFuture<'_, Vec<WorkItem>> {
        let values = Arc::new(record::values(&filter));
        Box::pin(self.connection.transact("read", move |tx, _| {
            let values = values.clone();
            Box::pin(async move {
                let sql = concat!(
                    "SELECT ",
                    item_columns!(),
                    " FROM item JOIN lane ON lane.id = item.lane WHERE ",
                    filtered!(),
                    " AND item.id > $4 ORDER BY item.id LIMIT $5"
                );
                let (after, limit) = (after as i64, limit as i64);
                let rows = tx.query(sql, &[&values.0, &values.1, &values.2, &after, &limit]).await?;
                Ok(rows.iter().map(rows::item).collect())
            })
        }))
    }

    fn show(&self, key: &str) -> StoreFuture<'_, Option<(WorkItem, String, Vec<HistoryEntry>)>> {
        let key: Arc<str> = key.into();
        Box::pin(self.connection.transact("read", move |tx, _| {
            let key = key.clone();
            Box::pin(async move {
                let sql = concat!(
                    "SELECT ",
                    item_columns!(),
                    ", payload.body FROM item JOIN lane ON lane.id = item.lane JOIN payload ON payload.item = item.id \
                     WHERE item.key = $1"
                );
                let rows = tx.query(sql, &[&&*key]).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                let item = rows::item(row);
                let events = tx.query(rows::EVENTS, &[&vec![item.id as i64], &(EVENTS as i64)]).await?;
                Ok(Some((item, row.get(after_item(0)), events.iter().map(|row| rows::event(row).1).collect())))
            })
        }))
    }

    fn amend(&self, filter: Filter, amend: Amend) -> StoreFuture<'_, u64> {
        let shared = Arc::new((filter, self.connection.channel()));
        Box::pin(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let changed = record::amend(tx, &shared.0, amend, now(tx).await?).await?;
                wake(tx, &shared.1).await?;
                Ok(changed)
            })
        }))
    }

    fn save_state(&self, account: &str, state: &str) -> StoreFuture<'_, ()> {
        let shared: Arc<(Box<str>, Box<str>)> = Arc::new((account.into(), state.into()));
        Box::pin(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let sql = "INSERT INTO limiter (account, state) VALUES ($1, $2)
                     ON CONFLICT (account) DO UPDATE SET state = $2";
                tx.execute(sql, &[&&*shared.0, &&*shared.1]).await.map(drop)
            })
        }))
    }

    fn replace_state(&self, account: &str, before: Option<&str>, state: &str) -> StoreFuture<'_, bool> {
        let shared: [Arc<str>; 2] = [account.into(), state.into()];
        let before: Option<Arc<str>> = before.map(Into::into);
        Box::pin(self.connection.transact("write", move |tx, _| {
            let ([account, state], before) = (shared.clone(), before.clone());
            Box::pin(async move {
                let changed = match before.as_deref() {
                    Some(before) => {
                        let sql = "UPDATE limiter SET state = $2 WHERE account = $1 AND state = $3";
                        tx.execute(sql, &[&&*account, &&*state, &before]).await?
                    }
                    None => {
                        let sql =
                            "INSERT INTO limiter (account, state) VALUES ($1, $2) ON CONFLICT (account) DO NOTHING";
                        tx.execute(sql, &[&&*account, &&*state]).await?
                    }
                };
                Ok(changed > 0)
            })
        }))
    }

    fn load_state(&self, account: &str) -> StoreFuture<'_, Option<String>> {
        let account: Arc<str> = account.into();
        Box::pin(self.connection.transact("read", move |tx, _| {
            let account = account.clone();
            Box::pin(async move {
                let rows = tx.query("SELECT state FROM limiter WHERE account = $1", &[&&*account]).await?;
                Ok(rows.first().map(|row| row.get(0)))
            })
        }))
    }

    fn note_answers(&self, noted: Vec<NotedAnswers>) -> StoreFuture<'_, ()> {
        let noted: Arc<[NotedAnswers]> = noted.into();
        Box::pin(self.connection.transact("write", move |tx, _| {
            let noted = noted.clone();
            Box::pin(async move { answers::note(tx, &noted, now(tx).await?).await })
        }))
    }

    fn answers(&self, since: Timestamp) -> StoreFuture<'_, Vec<NotedAnswers>> {
        Box::pin(
            self.connection.transact("read", move |tx, _| Box::pin(async move { answers::since(tx, since).await })),
        )
    }

    fn change_notes(&self, scopes: Vec<Arc<str>>, change: NoteChange) -> StoreFuture<'_, ()> {
        let shared = Arc::new((scopes, change));
        Box::pin(self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move { notes::change(tx, &shared.0, &shared.1, now(tx).await?).await })
        }))
    }

    fn notes(&self, since: Timestamp) -> StoreFuture<'_, Vec<ScopeNote>> {
        Box::pin(self.connection.transact("read", move |tx, _| Box::pin(async move { notes::since(tx, since).await })))
    }

    fn prune(&self, filter: Filter, older_than: Duration, keys: PrunedKeys) -> StoreFuture<'_, Pruned> {
        Box::pin(async move {
            let (filter, mut removed) = (Arc::new(filter), Pruned::default());
            loop {
                let filter = filter.clone();
                let gone = self.connection.transact("write", move |tx, _| {
                    let filter = filter.clone();
                    Box::pin(async move {
                        let before = now(tx).await?.as_millis().saturating_sub(millis(older_than));
                        record::prune(tx, &filter, before, keys, PRUNED_AT_ONCE).await
                    })
                });
                let gone = gone.await?;
                removed += gone;
                if gone.items < PRUNED_AT_ONCE.unsigned_abs() {
                    return Ok(removed);
                }
            }
        })
    }

    fn changed(&self) -> StoreFuture<'_, ()> {
        let changed = self.changed.notified();
        Box::pin(async move {
            changed.await;
            Ok(())
        })
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PostgresStore").field(&self.connection.server).finish()
    }
}

/// Items removed in one transaction.
const PRUNED_AT_ONCE: i64 = 10_000;

/// The items that were left to this run, before all others. Whose time goes on has it still.
const BEGIN_DEFERRED: &str = concat!("UPDATE item SET ", begins!(), " WHERE state = 6");
