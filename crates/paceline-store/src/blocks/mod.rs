//! One job on many hosts: its lines in blocks in Postgres, which workers claim, and its results, each of them once.
//!
//! This is no queue of items. What becomes of a line, and when, the worker that has its block decides with a journal of its own;
//! the store knows only who has which lines, and which have a result. A lost worker costs the lines of its blocks that have
//! none: others claim them.
//!
//! - A block belongs to one worker as long as that renews its lease. Only the database's clock counts, and no silence in which
//!   no worker could speak.
//! - The first success of a line is kept, else the first failure. A worker that lost its block may offer what it has all the
//!   same: a success is taken where the line has none; a failure is not, once another has claimed the block.
//! - Everything may be said twice. When a connection breaks, the worker cannot know whether the server heard its last word.

mod claim;
mod job;
mod load;
mod removal;
mod results;
mod schema;
mod watch;
mod words;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use paceline_core::Timestamp;
use tokio::sync::Notify;
use tokio_postgres::{Error, Row};

use crate::query::millis;
use crate::work::WorkError;
use crate::work::postgres::connection::{Connection, Manner, Tx};
use crate::work::postgres::place;
pub use job::{
    Block, BlockClaim, Departures, Difference, Held, HostId, HostStatus, JobStatus, Joined, KeptResult, NewBlock,
    Offer, Settings, SharedJob,
};

/// Jobs in a schema of a Postgres database, for any number of workers on any host.
///
/// A connection that breaks is made anew for a minute; what was under way is done again, and counts once.
pub struct BlockStore {
    connection: Connection,
    /// For short words: nothing else is said on it.
    words: Connection,
    /// Numbers the claims, so that one whose answer was lost is found again.
    batches: AtomicI64,
}

/// The schema of jobs where none is named.
const SCHEMA: &str = "paceline_jobs";

/// How long a server that is away is waited for, where nothing else is said.
const PATIENCE: Duration = Duration::from_secs(60);

/// A short word is answered within that time, or another connection is tried: a lease is several times as long.
const SHORT: Duration = Duration::from_secs(8);

/// A worker that froze within a transaction keeps its own blocks locked, and is lost with them a little later.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '20s';";

impl BlockStore {
    /// Connects to `postgres://user@host/database` and makes the tables, where they are not there, in the schema
    /// `paceline_jobs`. The address means what it means to [`PostgresStore`](crate::work::PostgresStore).
    ///
    /// # Errors
    /// [`WorkError::Address`], [`WorkError::Unreachable`], [`WorkError::Postgres`], [`WorkError::NewerVersion`].
    pub async fn open(url: &str) -> Result<Self, WorkError> {
        Self::open_in(url, SCHEMA).await
    }

    /// The same in a schema of that name: letters, digits and underscores.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_in(url: &str, schema: &str) -> Result<Self, WorkError> {
        Self::connect(url, schema, PATIENCE).await
    }

    /// As [`open`](Self::open); a server that is away is waited for so long, then and later.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_for(url: &str, patience: Duration) -> Result<Self, WorkError> {
        Self::connect(url, SCHEMA, patience).await
    }

    async fn connect(url: &str, schema: &str, patience: Duration) -> Result<Self, WorkError> {
        let (address, schema) = place(url, schema)?;
        let manner = Manner { stays: false, visits: false, patience, settings: SESSION };
        let connection =
            Connection::open_as(address, &schema, &schema::MIGRATIONS, Arc::new(Notify::new()), manner).await?;
        let words = connection.another(SHORT);
        Ok(Self { connection, words, batches: AtomicI64::new(1) })
    }

    /// The job of that name; none where there is none.
    ///
    /// # Errors
    /// [`WorkError::Postgres`], here and below.
    pub async fn find(&self, name: &str) -> Result<Option<SharedJob>, WorkError> {
        let name: Arc<str> = name.into();
        let operation = self.connection.transact("read", move |tx, _| {
            let name = name.clone();
            Box::pin(async move { find(tx, &name).await })
        });
        operation.await
    }

    /// The job of that name with these settings, made where there is none.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn join(&self, name: &str, settings: &Settings) -> Result<Joined, WorkError> {
        let json = serde_json::to_string(settings).expect("a map of texts is JSON");
        let shared: Arc<(Box<str>, String)> = Arc::new((name.into(), json));
        let operation = self.connection.transact("write", move |tx, _| {
            let shared = shared.clone();
            Box::pin(async move {
                let sql =
                    "INSERT INTO job (name, settings, created_ms) VALUES ($1, $2, now_ms()) ON CONFLICT DO NOTHING";
                tx.execute(sql, &[&&*shared.0, &shared.1]).await?;
                find(tx, &shared.0).await
            })
        });
        // Removed in the moment between: what joins now is a new one.
        let Some(job) = operation.await? else { return Box::pin(self.join(name, settings)).await };
        let differences = job::differences(&job.settings, settings);
        Ok(if differences.is_empty() { Joined::Job(job) } else { Joined::Differs(differences) })
    }

    /// Appends blocks, of which the first begins with the line `first`, where that is the next. Returns the line that is next
    /// now: another host with the same input may have been faster, and where a connection broke they may be there already. None
    /// when the job is gone.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn append(&self, job: i64, first: u64, blocks: Vec<NewBlock>) -> Result<Option<u64>, WorkError> {
        let blocks: Arc<[NewBlock]> = blocks.into();
        let operation = self.connection.alone("write", move |tx, _| {
            let blocks = blocks.clone();
            Box::pin(async move { load::append(tx, job, first, &blocks).await })
        });
        operation.await
    }

    /// The job has `lines` lines, all of them in blocks. Returns whether that is so.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn complete(&self, job: i64, lines: u64) -> Result<bool, WorkError> {
        let operation = self.connection.transact("write", move |tx, _| {
            Box::pin(async move {
                let sql = "UPDATE job SET complete = true WHERE id = $1 AND loaded = $2 AND name IS NOT NULL";
                Ok(tx.execute(sql, &[&job, &(lines as i64)]).await? > 0)
            })
        });
        operation.await
    }

    /// Begins a lease of that length. None when the job is gone.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn register(&self, job: i64, name: &str, lease: Duration) -> Result<Option<HostId>, WorkError> {
        let name: Arc<str> = name.into();
        let operation = self.connection.transact("write", move |tx, _| {
            let name = name.clone();
            Box::pin(async move { claim::register(tx, job, &name, millis(lease)).await })
        });
        operation.await
    }

    /// A word of the worker, in a moment, whatever else is said to the database meanwhile: its lease begins anew. Returns
    /// whether it still has one. It is said once, also where the server is away.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn lives(&self, worker: HostId) -> Result<bool, WorkError> {
        words::lives(&self.words, worker).await
    }

    /// Lines that must not be sent twice are about to be: who has the worker's blocks next finds them in doubt. Returns those
    /// that may leave; the others are not the worker's any more. It is said once, as [`lives`](Self::lives).
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn depart(&self, job: i64, worker: HostId, departures: &Departures) -> Result<Vec<u64>, WorkError> {
        words::depart(&self.words, job, worker, departures).await
    }

    /// The lines of the worker's blocks that are in doubt, as a [claim](BlockClaim::in_doubt) tells them.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn in_doubt(&self, worker: HostId) -> Result<Vec<u64>, WorkError> {
        self.connection.alone("read", move |tx, _| Box::pin(words::in_doubt(tx, worker))).await
    }

    /// These lines are sent though a lost worker may have sent them.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn again(&self, job: i64, lines: &[u64]) -> Result<(), WorkError> {
        let lines: Arc<[i64]> = lines.iter().map(|line| *line as i64).collect();
        let operation = self.connection.alone("write", move |tx, _| {
            let lines = lines.clone();
            Box::pin(async move { words::again(tx, job, &lines).await })
        });
        operation.await
    }

    /// Renews the lease; ends those of workers that were silent for theirs while this one spoke. Returns the blocks that are the
    /// worker's, none when its lease ran out.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn heartbeat(&self, worker: HostId) -> Result<Option<Vec<Held>>, WorkError> {
        let heard = self.connection.alone("write", move |tx, _| Box::pin(claim::heartbeat(tx, worker))).await;
        let (held, over) = heard?;
        if over {
            self.connection.transact("write", move |tx, _| Box::pin(claim::end_leases(tx, worker))).await?;
        }
        Ok(held)
    }

    /// Claims up to `most` blocks of which lines have no result. None when the worker's lease ran out: it registers again.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn claim(&self, worker: HostId, most: u32) -> Result<Option<BlockClaim>, WorkError> {
        let batch = self.batches.fetch_add(1, Ordering::Relaxed);
        let operation = self
            .connection
            .alone("write", move |tx, retried| Box::pin(claim::claim(tx, worker, most.into(), batch, retried)));
        operation.await
    }

    /// A worker came back under a new id: the blocks that were its own are so again, where no other worker has claimed them
    /// since. Returns all that it has.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn resume(&self, worker: HostId, held: &[Held]) -> Result<Vec<Held>, WorkError> {
        let held: Arc<[Held]> = held.into();
        let operation = self.connection.transact("write", move |tx, _| {
            let held = held.clone();
            Box::pin(async move { claim::resume(tx, worker, &held).await })
        });
        operation.await
    }

    /// The worker gives claims back of which it has sent nothing, such as one whose answer it never heard: others may take the
    /// blocks at once, and nothing of them is in doubt.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn release(&self, worker: HostId, unwanted: &[Held]) -> Result<(), WorkError> {
        let unwanted: Arc<[Held]> = unwanted.into();
        let operation = self.connection.transact("write", move |tx, _| {
            let unwanted = unwanted.clone();
            Box::pin(async move { claim::release(tx, worker, &unwanted).await })
        });
        operation.await
    }

    /// The worker ends in good order: others may claim its blocks at once, and nothing of them is in doubt.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn deregister(&self, worker: HostId) -> Result<(), WorkError> {
        self.connection.transact("write", move |tx, _| Box::pin(claim::deregister(tx, worker))).await
    }

    /// Keeps each result whose line has none yet. Returns how many are new: where a connection broke, those that were kept before
    /// it did are none.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn offer(&self, job: i64, mut offers: Vec<Offer>) -> Result<u64, WorkError> {
        // Of a line that is offered twice at once one is taken, a success before a failure, and that of the last claim.
        offers.sort_by_key(|offer| (offer.line, !offer.ok, -offer.held.fence));
        offers.dedup_by_key(|offer| offer.line);
        let offers: Arc<[Offer]> = offers.into();
        let operation = self.connection.alone("write", move |tx, _| {
            let offers = offers.clone();
            Box::pin(async move { results::offer(tx, job, &offers).await })
        });
        operation.await
    }

    /// Results from the line `from` on, in the order of the input: up to `most`, fewer where they are long. None follow an empty
    /// answer.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn results(&self, job: i64, from: u64, most: u32) -> Result<Vec<KeptResult>, WorkError> {
        let operation = self
            .connection
            .alone("read", move |tx, _| Box::pin(results::page(tx, job, from as i64, most.into(), false)));
        operation.await
    }

    /// The same of lines that failed alone.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn failures(&self, job: i64, from: u64, most: u32) -> Result<Vec<KeptResult>, WorkError> {
        let operation = self
            .connection
            .alone("read", move |tx, _| Box::pin(results::page(tx, job, from as i64, most.into(), true)));
        operation.await
    }

    /// Lines that failed are worked on again: their results are dropped. Returns how many, as [`offer`](Self::offer) counts. With
    /// `only`, of all that failed these lines.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn retry_failed(&self, job: i64, only: Option<&[u64]>) -> Result<u64, WorkError> {
        let only: Option<Arc<[i64]>> = only.map(|lines| lines.iter().map(|line| *line as i64).collect());
        let operation = self.connection.transact("write", move |tx, _| {
            let only = only.clone();
            Box::pin(async move { results::retry_failed(tx, job, only.as_deref()).await })
        });
        operation.await
    }

    /// All jobs by name, and who works on them.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn jobs(&self) -> Result<Vec<JobStatus>, WorkError> {
        self.connection.alone("read", |tx, _| Box::pin(watch::jobs(tx, None))).await
    }

    /// One of them; none where it is gone.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn status(&self, job: i64) -> Result<Option<JobStatus>, WorkError> {
        let found = self.connection.alone("read", move |tx, _| Box::pin(watch::jobs(tx, Some(job)))).await?;
        Ok(found.into_iter().next())
    }

    /// Removes a job with its blocks and results; false while workers are on it, and where there is none. What a
    /// removal leaves that is cut off, the next one removes.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub async fn forget(&self, name: &str) -> Result<bool, WorkError> {
        let name: Arc<str> = name.into();
        let begun = self.connection.transact("write", move |tx, retried| {
            let name = name.clone();
            Box::pin(async move { removal::begin(tx, &name, retried).await })
        });
        let begun = begun.await?;
        while self.connection.transact("write", |tx, _| Box::pin(removal::step(tx))).await? {}
        Ok(begun)
    }
}

impl fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BlockStore").field(&self.connection.server).finish()
    }
}

async fn find(tx: &Tx<'_>, name: &str) -> Result<Option<SharedJob>, Error> {
    let rows = tx.query("SELECT id, settings, loaded, complete, created_ms FROM job WHERE name = $1", &[&name]).await?;
    let job = |row: &Row| SharedJob {
        id: row.get(0),
        // A map that a later version writes otherwise differs from every other, and is told so.
        settings: serde_json::from_str(row.get(1)).unwrap_or_default(),
        loaded: count(row, 2),
        complete: row.get(3),
        created: Timestamp::from_millis(row.get(4)),
    };
    Ok(rows.first().map(job))
}

fn count(row: &Row, column: usize) -> u64 {
    row.get::<_, i64>(column).unsigned_abs()
}
