//! The connection to the server, and how it is made again when it breaks.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use paceline_core::Instant;
use tokio::sync::{Mutex, Notify};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, Row, Statement, Transaction};

use super::schema::SESSION;
use crate::work::clock::WorkClock;
use crate::work::error::{WorkError, in_full};
use paceline_postgres::Address;

/// One connection to one schema, for one transaction at a time.
pub(crate) struct Connection {
    address: Address,
    schema: String,
    /// What leads from each version of the tables to the next.
    migrations: &'static [&'static str],
    /// Times the waits between tries.
    clock: WorkClock,
    /// The server, for messages: never with a password.
    pub(crate) server: String,
    session: Mutex<Option<Session>>,
    notified: Arc<Notify>,
    /// A server that is away is waited for, for as long as it takes.
    stays: AtomicBool,
    /// Counts changes by this process and others that may have made items wait.
    changes: Arc<AtomicU64>,
}

/// A live connection and its prepared statements.
struct Session {
    client: Client,
    statements: std::sync::Mutex<HashMap<&'static str, Statement>>,
}

/// The body of a transaction; it may run again when the connection breaks.
pub(crate) type Operation<'t, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 't>>;

/// How long to try to reach a database again: longer than a restart takes.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// The first pause between two tries to connect; doubled each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);

const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A server that has not answered for so long is gone, and another connection is made, unless the address says something else
/// (`tcp_user_timeout`): a host that is lost, or a firewall that forgets, closes none.
const SILENT: Duration = Duration::from_secs(60);

impl Connection {
    /// Connects, and brings the tables up to this version.
    pub(crate) async fn open(
        address: Address,
        schema: &str,
        migrations: &'static [&'static str],
        notified: Arc<Notify>,
        stays: bool,
    ) -> Result<Self, WorkError> {
        let (server, clock) = (address.describe(), WorkClock::system());
        // Who says how long to wait for a connection means it.
        let stays = AtomicBool::new(stays && address.timeout.is_none());
        let (schema, session) = (schema.to_owned(), Mutex::new(None));
        let changes = Arc::default();
        let connection = Self { address, schema, migrations, clock, server, session, notified, stays, changes };
        let session = connection.connect_with_retries().await?;
        connection.migrate(&session.client).await?;
        *connection.session.lock().await = Some(session);
        Ok(connection)
    }

    /// Connects for the first time: tries again while the server is not there yet, but not if it refuses.
    async fn connect_with_retries(&self) -> Result<Session, WorkError> {
        let timeout = self.address.timeout.unwrap_or(RETRY_TIMEOUT);
        let mut wait = Wait::begin(&self.clock, timeout);
        loop {
            let error = match self.connect().await {
                Ok(session) => return Ok(session),
                Err(error) if kind_of(&error) == Kind::Broken => error,
                Err(error) => return Err(self.error("reach", error)),
            };
            let Some(pause) = wait.next(&self.clock, self.stays()) else {
                let (server, source) = (self.server.clone(), Arc::new(error));
                return Err(WorkError::Unreachable { server, waited: timeout, source });
            };
            if wait.is_first() {
                let (server, reason, how_long) = (&self.server, in_full(&error), self.how_long(timeout));
                tracing::warn!(
                    "the server of the store on {server} cannot be reached: {reason}; waiting {how_long} for it"
                );
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn stays(&self) -> bool {
        self.stays.load(Ordering::Relaxed)
    }

    fn how_long(&self, timeout: Duration) -> String {
        if self.stays() { "as long as it takes".to_owned() } else { format!("up to {} s", timeout.as_secs()) }
    }

    /// The worker is to end: a server that is away is waited for no longer than by any other.
    pub(crate) fn stays_no_longer(&self) {
        self.stays.store(false, Ordering::Relaxed);
    }

    /// The channel on which workers wake each other.
    pub(crate) fn channel(&self) -> String {
        format!("paceline_{}", self.schema)
    }

    /// Does `operation` in a transaction. When the connection breaks it is done anew on another one, with `true` as its second
    /// argument: the first may have been committed.
    pub(crate) async fn transact<T>(
        &self,
        action: &'static str,
        operation: impl for<'t> Fn(&'t Tx<'t>, bool) -> Operation<'t, T> + Send + Sync,
    ) -> Result<T, WorkError> {
        let mut held = self.session.lock().await;
        let (mut wait, mut retried) = (None, false);
        loop {
            let done = async {
                match self.session(&mut held).await {
                    Ok(session) => run_once(session, &self.changes, &operation, retried).await,
                    Err(error) => Err(error),
                }
            };
            let error = match tokio::time::timeout(self.silent(), done).await {
                Ok(Ok(done)) => {
                    if wait.is_some() {
                        tracing::info!(server = self.server, "the store is reached again");
                    }
                    return Ok(done);
                }
                Ok(Err(error)) => self.error(action, error),
                Err(_) => WorkError::Silent { action, server: self.server.clone(), waited: self.silent() },
            };
            match kind(&error) {
                Kind::Final => return Err(error),
                Kind::Collided => {}
                Kind::Broken => {
                    retried |= held.take().is_some();
                    let wait = wait.get_or_insert_with(|| {
                        let how_long = self.how_long(RETRY_TIMEOUT);
                        tracing::warn!("{error}; waiting {how_long} for it");
                        Wait::begin(&self.clock, RETRY_TIMEOUT)
                    });
                    let Some(pause) = wait.next(&self.clock, self.stays()) else { return Err(error) };
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }

    fn silent(&self) -> Duration {
        self.address.config.get_tcp_user_timeout().copied().unwrap_or(SILENT)
    }

    async fn session<'s>(&self, held: &'s mut Option<Session>) -> Result<&'s mut Session, Error> {
        if held.as_ref().is_none_or(|session| session.client.is_closed()) {
            *held = Some(self.connect().await?);
            // Notifications that were sent meanwhile are lost.
            self.changes.fetch_add(1, Ordering::Relaxed);
            self.notified.notify_waiters();
        }
        Ok(held.as_mut().expect("a session was put there just now"))
    }

    async fn connect(&self) -> Result<Session, Error> {
        let (client, mut connection) = self.address.config.connect(self.address.tls.clone()).await?;
        let (notified, changes) = (self.notified.clone(), self.changes.clone());
        // The task ends with the connection, and the connection with its client.
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(_)) => {
                        changes.fetch_add(1, Ordering::Relaxed);
                        notified.notify_waiters();
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        });
        let schema = &self.schema;
        client.batch_execute(&format!("{SESSION} SET search_path = {schema}; LISTEN {};", self.channel())).await?;
        Ok(Session { client, statements: std::sync::Mutex::default() })
    }

    async fn migrate(&self, client: &Client) -> Result<(), WorkError> {
        let schema = &self.schema;
        let fail = |error| self.error("prepare", error);
        // Of two processes that begin together the second waits, and finds the work done.
        let begin = format!(
            "BEGIN; SELECT pg_advisory_xact_lock({LOCK}); CREATE SCHEMA IF NOT EXISTS {schema};
             CREATE TABLE IF NOT EXISTS version (found bigint NOT NULL);"
        );
        client.batch_execute(&begin).await.map_err(fail)?;
        let found = client.query_opt("SELECT found FROM version", &[]).await.map_err(fail)?;
        let found: i64 = found.map_or(0, |row| row.get(0));
        let known = self.migrations.len() as i64;
        let Some(to_do) = usize::try_from(found).ok().and_then(|done| self.migrations.get(done..)) else {
            return Err(WorkError::NewerVersion { store: self.server.clone(), found, known });
        };
        let steps = to_do.concat();
        let end = format!("{steps} DELETE FROM version; INSERT INTO version VALUES ({known}); COMMIT;");
        client.batch_execute(&end).await.map_err(fail)
    }

    fn error(&self, action: &'static str, error: Error) -> WorkError {
        WorkError::Postgres { action, server: self.server.clone(), source: Arc::new(error) }
    }
}

/// "PaWk" in ASCII: an advisory lock held while tables are made.
const LOCK: i64 = 0x5061_576B;

/// A transaction, with the prepared statements of its connection.
pub(crate) struct Tx<'t> {
    inner: Transaction<'t>,
    statements: &'t std::sync::Mutex<HashMap<&'static str, Statement>>,
    changes: &'t AtomicU64,
}

impl Tx<'_> {
    /// How many changes there were that may have made items wait.
    pub(crate) fn notified(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Counts a change: this transaction makes items wait.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::Relaxed);
    }

    /// The rows of a statement, which is prepared once per connection.
    pub(crate) async fn query(&self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Error> {
        self.inner.query(&self.prepared(sql).await?, values).await
    }

    /// How many rows a statement changed.
    pub(crate) async fn execute(&self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.inner.execute(&self.prepared(sql).await?, values).await
    }

    async fn prepared(&self, sql: &'static str) -> Result<Statement, Error> {
        let known = self.statements.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.inner.prepare(sql).await?;
        self.statements.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(sql, statement.clone());
        Ok(statement)
    }
}

async fn run_once<T>(
    session: &mut Session,
    changes: &AtomicU64,
    operation: &impl for<'t> Fn(&'t Tx<'t>, bool) -> Operation<'t, T>,
    retried: bool,
) -> Result<T, Error> {
    let tx = Tx { inner: session.client.transaction().await?, statements: &session.statements, changes };
    let done = operation(&tx, retried).await?;
    tx.inner.commit().await?;
    Ok(done)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The connection is gone, or the server is not there yet.
    Broken,
    /// A deadlock or a serialization failure: the transaction is done again at once.
    Collided,
    /// Trying again would not help.
    Final,
}

fn kind(error: &WorkError) -> Kind {
    match error {
        WorkError::Postgres { source, .. } => kind_of(source),
        WorkError::Silent { .. } => Kind::Broken,
        _ => Kind::Final,
    }
}

fn kind_of(error: &Error) -> Kind {
    match error.code() {
        None if is_of_the_connection(error) => Kind::Broken,
        None => Kind::Final,
        // A server that stops, starts or has no place says so in these classes.
        Some(code) if code.code().starts_with("08") || code.code().starts_with("57P") => Kind::Broken,
        Some(&SqlState::TOO_MANY_CONNECTIONS) => Kind::Broken,
        // This process was suspended within a transaction, and the server ended that; or the server is read-only, as one that is
        // about to take over is.
        Some(code) if ["25P03", "25006"].contains(&code.code()) => Kind::Broken,
        Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE) => Kind::Collided,
        Some(_) => Kind::Final,
    }
}

/// Whether the connection failed, not the protocol on it: a certificate that is not trusted stays so.
fn is_of_the_connection(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let is_refused = |cause: &std::io::Error| cause.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    error.is_closed() || cause.is_some_and(|cause| !is_refused(cause))
}

/// The pauses between the tries to reach a server, and when they end.
struct Wait {
    until: Instant,
    pause: Duration,
}

impl Wait {
    fn begin(clock: &WorkClock, timeout: Duration) -> Self {
        Self { until: clock.now() + timeout, pause: FIRST_PAUSE / 2 }
    }

    /// The pause before the next try; none when it was waited for long enough, by who does not stay.
    fn next(&mut self, clock: &WorkClock, stays: bool) -> Option<Duration> {
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (stays || clock.now() + self.pause <= self.until).then_some(self.pause)
    }

    fn is_first(&self) -> bool {
        self.pause == FIRST_PAUSE
    }
}

/// Whether the server was not there, or went away: it may come back.
pub(crate) fn is_broken(error: &Error) -> bool {
    kind_of(error) == Kind::Broken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_stays_waits_for_its_server_until_it_is_to_end() {
        let clock = WorkClock::starting_at(paceline_core::Timestamp::from_millis(1_700_000_000_000));
        let pauses = async |stays: bool, most: usize| {
            let mut wait = Wait::begin(&clock, RETRY_TIMEOUT);
            let mut pauses = 0;
            while pauses < most
                && let Some(pause) = wait.next(&clock, stays)
            {
                tokio::time::sleep(pause).await;
                pauses += 1;
            }
            (pauses, wait.next(&clock, false))
        };
        let (bounded, _) = pauses(false, 10_000).await;
        assert!((30..40).contains(&bounded), "a minute: {bounded}");
        assert_eq!(pauses(true, 10_000).await, (10_000, None), "five hours, and then no longer");
    }
}
