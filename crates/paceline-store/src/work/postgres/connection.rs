//! The connection to the server, and how it is made again when it breaks.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_core::Instant;
use tokio::sync::{Mutex, Notify, watch};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Error, Row};

use super::away::{Kind, RETRY_TIMEOUT, Wait, kind, kind_of};
use super::schema::SESSION;
use super::tx::Session;
pub(crate) use super::tx::{Operation, Tx};
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
    stays: bool,
    /// The worker is to end: from then on no longer than by any other.
    ending: watch::Sender<bool>,
    /// It looks, or changes what a person asks for: it makes no tables, and hears of no changes.
    visits: bool,
    /// How long a server that is away is waited for else.
    patience: Duration,
    /// Until when it is, for all operations that meet the same outage.
    outage: std::sync::Mutex<Option<Instant>>,
    /// Of each session, behind those of all.
    settings: &'static str,
    /// As [`SILENT`], unless the address says something else.
    silent: Duration,
    /// Counts changes by this process and others that may have made items wait.
    changes: Arc<AtomicU64>,
}

/// How a connection waits for its server, and how the server is told to treat it.
pub(crate) struct Manner {
    /// A server that is away is waited for, for as long as it takes.
    pub(crate) stays: bool,
    /// It looks, or changes what a person asks for.
    pub(crate) visits: bool,
    /// How long a server that is away is waited for by who does not stay.
    pub(crate) patience: Duration,
    /// Settings of each session, behind those of all.
    pub(crate) settings: &'static str,
}

/// A server that has not answered for so long is gone, and another connection is made, unless the address says something else
/// (`tcp_user_timeout`): a host that is lost, or a firewall that forgets, closes none. One that is at work for longer is left
/// more time each time.
const SILENT: Duration = Duration::from_secs(30);

/// The longest time that is left to a server that is at work.
const LONGEST_WORK: Duration = Duration::from_secs(16 * 60);

/// After so long without an answer that is told, ...
const TELL_AFTER: Duration = Duration::from_secs(10);

/// ... or so long after the worker was asked to end, ...
const TELL_AT_THE_END: Duration = Duration::from_secs(1);

/// ... and then it is waited no longer for an answer than that.
const WAIT_AT_THE_END: Duration = Duration::from_secs(5);

impl Connection {
    /// Connects, and brings the tables up to this version.
    pub(crate) async fn open(
        address: Address,
        schema: &str,
        migrations: &'static [&'static str],
        notified: Arc<Notify>,
        stays: bool,
    ) -> Result<Self, WorkError> {
        let manner = Manner { stays, visits: false, patience: RETRY_TIMEOUT, settings: "" };
        Self::open_as(address, schema, migrations, notified, manner).await
    }

    /// Connects to look: where there are no tables, none are made. Those of an older version are brought up to this one.
    pub(crate) async fn open_to_look(
        address: Address,
        schema: &str,
        migrations: &'static [&'static str],
        notified: Arc<Notify>,
    ) -> Result<Self, WorkError> {
        let manner = Manner { stays: false, visits: true, patience: RETRY_TIMEOUT, settings: "" };
        Self::open_as(address, schema, migrations, notified, manner).await
    }

    /// Connects in that manner, and brings the tables up to this version.
    pub(crate) async fn open_as(
        address: Address,
        schema: &str,
        migrations: &'static [&'static str],
        notified: Arc<Notify>,
        manner: Manner,
    ) -> Result<Self, WorkError> {
        let Manner { stays, visits, patience, settings } = manner;
        let (server, clock) = (address.describe(), WorkClock::system());
        let (schema, session, changes) = (schema.to_owned(), Mutex::new(None), Arc::default());
        let ending = watch::Sender::new(false);
        let connection = Self {
            address,
            schema,
            migrations,
            clock,
            server,
            session,
            notified,
            stays,
            ending,
            visits,
            patience,
            outage: std::sync::Mutex::default(),
            settings,
            silent: SILENT,
            changes,
        };
        let session = connection.begin_with_retries().await?;
        *connection.session.lock().await = Some(session);
        Ok(connection)
    }

    /// One more to the same schema, which is made with its first question; a server that is silent for so long is gone there.
    pub(crate) fn another(&self, silent: Duration) -> Self {
        let (mut address, silent) = (self.address.clone(), silent.min(self.silent()));
        address.config.tcp_user_timeout(silent);
        Self {
            address,
            schema: self.schema.clone(),
            migrations: self.migrations,
            clock: WorkClock::system(),
            server: self.server.clone(),
            session: Mutex::default(),
            notified: Arc::new(Notify::new()),
            stays: false,
            ending: watch::Sender::new(false),
            visits: true,
            patience: self.patience,
            outage: std::sync::Mutex::default(),
            settings: self.settings,
            silent,
            changes: Arc::default(),
        }
    }

    /// Asks once, in a statement that is a transaction of its own: nothing is held between two parts of it. A connection that
    /// breaks is made anew by the next question.
    pub(crate) async fn ask(
        &self,
        action: &'static str,
        sql: &'static str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, WorkError> {
        let mut held = self.session.lock().await;
        let done = async { self.session(&mut held).await?.query(sql, values).await };
        let error = match tokio::time::timeout(self.silent(), done).await {
            Ok(Ok(rows)) => return Ok(rows),
            Ok(Err(error)) => self.error(action, error),
            Err(_) => WorkError::Silent { action, server: self.server.clone(), waited: self.silent() },
        };
        if kind(&error) != Kind::Collided {
            *held = None;
        }
        Err(error)
    }

    /// Connects for the first time: tries again while the server is not there yet, or cannot be written for a time, but not if it
    /// refuses.
    async fn begin_with_retries(&self) -> Result<Session, WorkError> {
        let timeout = self.address.timeout.unwrap_or(self.patience);
        let mut wait = Wait::begin(&self.clock, timeout);
        loop {
            let began = async {
                let session = self.connect().await.map_err(|error| self.error("reach", error))?;
                self.migrate(&session.client).await?;
                Ok(session)
            };
            let error = match self.answered("reach", self.silent().min(timeout), began).await {
                Ok(session) => return Ok(session),
                Err(error) => error,
            };
            // Who says how long to wait for a connection means it.
            let stays = match kind(&error) {
                Kind::Broken => self.stays() && self.address.timeout.is_none(),
                // A unit that begins again at once is soon begun no more.
                Kind::Refused if self.stays => false,
                Kind::Refused | Kind::Collided | Kind::Final => return Err(error),
            };
            let Some(pause) = wait.next(&self.clock, stays) else {
                return Err(match error {
                    WorkError::Postgres { server, source, .. } if kind_of(&source) == Kind::Broken => {
                        WorkError::Unreachable { server, waited: timeout, source }
                    }
                    error => error,
                });
            };
            if wait.is_first() {
                let (server, reason, how_long) = (&self.server, in_short(&error), how_long(stays, timeout));
                tracing::warn!(
                    "the server of the store on {server} cannot be reached: {reason}; waiting {how_long} for it"
                );
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Whether a server that is away is waited for as long as it takes.
    fn stays(&self) -> bool {
        self.stays && !self.is_ending()
    }

    fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// The worker is to end: a server that is away is waited for no longer than by any other.
    pub(crate) fn stays_no_longer(&self) {
        self.ending.send_replace(true);
    }

    /// What the server does, unless it does not answer for so long. That is told before.
    async fn answered<T>(
        &self,
        action: &'static str,
        bound: Duration,
        work: impl Future<Output = Result<T, WorkError>>,
    ) -> Result<T, WorkError> {
        let began = self.clock.now();
        let waited = || self.clock.now().saturating_since(began);
        let silence = async {
            let is_ending = self.is_ending();
            tokio::select! {
                () = tokio::time::sleep(TELL_AFTER.min(bound)) => {}
                () = self.ends(TELL_AT_THE_END), if !is_ending => {}
            }
            let left = || if self.is_ending() { WAIT_AT_THE_END } else { bound.saturating_sub(waited()) };
            let (server, seconds, more) = (&self.server, waited().as_secs(), left().as_millis().div_ceil(1_000));
            if more > 0 {
                tracing::warn!(
                    "the store on {server} has not answered for {seconds} s; it is waited for {more} s more"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(left()) => {}
                () = self.ends(WAIT_AT_THE_END), if !self.is_ending() => {}
            }
        };
        tokio::select! {
            done = work => done,
            () = silence => Err(WorkError::Silent { action, server: self.server.clone(), waited: waited() }),
        }
    }

    /// Waits until the worker is to end, and so long then.
    async fn ends(&self, more: Duration) {
        // This sender outlives the wait.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
        tokio::time::sleep(more).await;
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
        self.done(action, true, operation).await
    }

    /// The same, with each statement a transaction of its own: a server far away is asked once for each.
    pub(crate) async fn alone<T>(
        &self,
        action: &'static str,
        operation: impl for<'t> Fn(&'t Tx<'t>, bool) -> Operation<'t, T> + Send + Sync,
    ) -> Result<T, WorkError> {
        self.done(action, false, operation).await
    }

    async fn done<T>(
        &self,
        action: &'static str,
        together: bool,
        operation: impl for<'t> Fn(&'t Tx<'t>, bool) -> Operation<'t, T> + Send + Sync,
    ) -> Result<T, WorkError> {
        let mut held = self.session.lock().await;
        let (mut wait, mut retried, mut bound) = (None, false, self.silent());
        loop {
            let done = async {
                let done = match self.session(&mut held).await {
                    Ok(session) => session.run_once(together, (&self.changes, self.visits), &operation, retried).await,
                    Err(error) => Err(error),
                };
                done.map_err(|error| self.error(action, error))
            };
            let error = match self.answered(action, bound, done).await {
                Ok(done) => {
                    if self.outage().take().is_some() {
                        tracing::info!(server = self.server, "the store is reached again");
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            if matches!(error, WorkError::Silent { .. }) {
                bound = (bound * 2).min(LONGEST_WORK);
                held.iter().for_each(|session| self.cancel(session));
            }
            match kind(&error) {
                Kind::Final => return Err(error),
                Kind::Collided => {}
                kind @ (Kind::Broken | Kind::Refused) => {
                    retried |= held.take().is_some();
                    // A password that was changed may be one that a new start has.
                    let stays = kind == Kind::Broken && self.stays();
                    let wait = wait.get_or_insert_with(|| self.wait_out(&error, stays));
                    let Some(pause) = wait.next(&self.clock, stays) else { return Err(error) };
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.ends(Duration::ZERO), if stays => {}
                    }
                }
            }
        }
    }

    /// The wait of an operation that found the server away: an outage is told once, and waited for once, by however many
    /// operations one after the other. One that comes after that, and not long after, tries once.
    fn wait_out(&self, error: &WorkError, stays: bool) -> Wait {
        let (now, mut outage) = (self.clock.now(), self.outage());
        let known = outage.filter(|until| now < *until + self.patience);
        if known.is_none() {
            tracing::warn!("{error}; waiting {} for it", how_long(stays, self.patience));
        }
        let until = *outage.insert(known.unwrap_or(now + self.patience));
        Wait::until(until)
    }

    fn outage(&self) -> MutexGuard<'_, Option<Instant>> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server is still at work on, if it is, keeps rows locked for which the next try would wait.
    fn cancel(&self, session: &Session) {
        let (token, tls) = (session.client.cancel_token(), self.address.tls.clone());
        tokio::spawn(async move {
            // A server that is gone hears of it as little as of the rest.
            let _ = tokio::time::timeout(WAIT_AT_THE_END, token.cancel_query(tls)).await;
        });
    }

    fn silent(&self) -> Duration {
        self.address.silent.unwrap_or(self.silent)
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
        let (client, mut connection) = self.address.with_password().connect(self.address.tls.clone()).await?;
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
        let (schema, settings) = (&self.schema, self.settings);
        // A server that is a standby tells of no changes.
        let listen = if self.visits { String::new() } else { format!("LISTEN {};", self.channel()) };
        client.batch_execute(&format!("{SESSION} {settings} SET search_path = {schema}; {listen}")).await?;
        Ok(Session::of(client))
    }

    /// Brings the tables up to this version. Where they are, nothing is written.
    async fn migrate(&self, client: &Client) -> Result<(), WorkError> {
        let (schema, known) = (&self.schema, self.migrations.len() as i64);
        let fail = |error| self.error("prepare", error);
        let there = format!("SELECT to_regclass('{schema}.version') IS NOT NULL");
        let is_there = client.query_one(&there, &[]).await.map_err(fail)?.get(0);
        let found = match is_there {
            true => client.query_opt("SELECT found FROM version", &[]).await.map_err(fail)?,
            false if self.visits => return Err(WorkError::NoStore { server: self.server.clone() }),
            false => None,
        };
        if found.is_some_and(|found| found.get::<_, i64>(0) == known) {
            return Ok(());
        }
        // Of two processes that begin together the second waits, and finds the work done.
        let begin = format!(
            "BEGIN; SELECT pg_advisory_xact_lock({LOCK}); CREATE SCHEMA IF NOT EXISTS {schema};
             CREATE TABLE IF NOT EXISTS version (found bigint NOT NULL);"
        );
        client.batch_execute(&begin).await.map_err(fail)?;
        let found = client.query_opt("SELECT found FROM version", &[]).await.map_err(fail)?;
        let found: i64 = found.map_or(0, |row| row.get(0));
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

fn how_long(stays: bool, timeout: Duration) -> String {
    if stays { "as long as it takes".to_owned() } else { format!("up to {} s", timeout.as_secs()) }
}

/// Why a try to connect failed.
fn in_short(error: &WorkError) -> String {
    match error {
        WorkError::Postgres { source, .. } => in_full(source),
        WorkError::Silent { waited, .. } => format!("it has not answered for {} s", waited.as_secs()),
        error => error.to_string(),
    }
}
