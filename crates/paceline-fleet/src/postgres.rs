//! The ledger on Postgres: a row that is locked for one step, which the ledger of the core does here.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::Instant;
use paceline_core::fleet::{FleetLimit, Ledger, MemberId, MemberRequest};
use paceline_postgres::Address;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Error, Statement};

use crate::answer::{LedgerAnswer, Notice};
use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::store::{Link, Linked};

/// A member that is suspended while it has the row lets go of it after a second; one that waits for it does so for less than
/// its member waits. What was committed has to outlive the server.
const SESSION: &str = "SET idle_in_transaction_session_timeout = '1s'; SET lock_timeout = '400ms';
    SET synchronous_commit = on; SET default_transaction_isolation = 'read committed'; LISTEN paceline_fleet;";

const TABLE: &str = "CREATE SCHEMA IF NOT EXISTS paceline_fleet;
    CREATE TABLE IF NOT EXISTS paceline_fleet.ledger (
        account text PRIMARY KEY, limits text NOT NULL, state text NOT NULL, touched timestamptz NOT NULL
    );";

/// "PaFl" in ASCII: an advisory lock held while the table is made.
const LOCK: i64 = 0x5061_466C;

/// Another one after a failover to a server that may not have all that was committed, and in a copy.
const RUN: &str = "SELECT (SELECT system_identifier FROM pg_control_system()),
    substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)";

/// How long it may take until a connection can be used: some twelve answers of the server.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);

/// How long one step may take.
const SILENT: Duration = Duration::from_secs(2);

/// A database, and the ledger in it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a password")]
pub struct PostgresLedger {
    address: Address,
    server: String,
    name: LedgerName,
    clock: &'static str,
}

/// A connection to it, for one request at a time.
#[expect(missing_debug_implementations, reason = "for tests alone")]
pub struct PostgresLink {
    client: Mutex<Client>,
    statements: Statements,
    store: PostgresLedger,
    run: u64,
}

struct Statements {
    read: Statement,
    clock: Statement,
    write: Statement,
    found: Statement,
    notify: Statement,
}

impl PostgresLedger {
    /// Reads `postgres://user@host/database`; `sslmode` and `sslrootcert` mean what they mean to Postgres's own programs.
    ///
    /// # Errors
    /// [`FleetError::Address`].
    pub fn open(url: &str, name: LedgerName) -> Result<Self, FleetError> {
        let address = Address::read(url).map_err(|error| FleetError::Address(error.to_string()))?;
        let clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        Ok(Self { server: address.describe(), address, name, clock })
    }

    /// The same ledger by the clock of a test, in the table `clock`.
    #[must_use]
    pub const fn with_clock_of_test(mut self) -> Self {
        self.clock = "SELECT us FROM clock";
        self
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn limits(&self) -> &[FleetLimit] {
        &self.name.limits
    }

    /// A connection, for a test, and the run of the server.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn link_with_run(&self) -> Result<(Arc<Link>, u64), FleetError> {
        let linked = self.connect().await?;
        Ok((linked.link, linked.run))
    }

    /// A server that accepts and says nothing, such as one that is suspended, is away.
    pub(crate) async fn connect(&self) -> Result<Linked, FleetError> {
        let connected = tokio::time::timeout(CONNECTS_WITHIN, self.connect_in_time()).await;
        connected.unwrap_or_else(|_| {
            let why = format!("it accepted a connection and has not answered for {} s", CONNECTS_WITHIN.as_secs());
            Err(FleetError::Away { server: self.server.clone(), why })
        })
    }

    async fn connect_in_time(&self) -> Result<Linked, FleetError> {
        let fail = |error| self.error(&error);
        let (client, mut connection) =
            self.address.with_password().connect(self.address.tls.clone()).await.map_err(fail)?;
        let (sender, notices) = unbounded_channel();
        let account = self.name.account.clone();
        // The task ends with the connection, and the connection with its client.
        tokio::spawn(async move {
            while let Some(message) = std::future::poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notification(heard)) => hint(&account, heard.payload(), &sender),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            // The task of the member may have ended.
            let _ = sender.send(Notice::Closed);
        });
        let made: Option<String> =
            client.query_one("SELECT to_regclass('paceline_fleet.ledger')::text", &[]).await.map_err(fail)?.get(0);
        if made.is_none() {
            let make = format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK}); {TABLE} COMMIT;");
            client.batch_execute(&make).await.map_err(fail)?;
        }
        client.batch_execute(SESSION).await.map_err(fail)?;
        let row = client.query_one(RUN, &[]).await.map_err(fail)?;
        let (system, timeline): (i64, String) = (row.get(0), row.get(1));
        let timeline = u64::from_str_radix(&timeline, 16).unwrap_or_default();
        let run = system.cast_unsigned().rotate_left(32) ^ timeline;
        let statements = self.prepare(&client).await.map_err(fail)?;
        let client = Mutex::new(client);
        let link = Arc::new(Link::Postgres(Box::new(PostgresLink { client, statements, store: self.clone(), run })));
        Ok(Linked { link, run, quiet: None, notices })
    }

    async fn prepare(&self, client: &Client) -> Result<Statements, Error> {
        Ok(Statements {
            read: client
                .prepare("SELECT limits, state FROM paceline_fleet.ledger WHERE account = $1 FOR UPDATE")
                .await?,
            clock: client.prepare(self.clock).await?,
            write: client
                .prepare("UPDATE paceline_fleet.ledger SET limits = $2, state = $3, touched = now() WHERE account = $1")
                .await?,
            found: client
                .prepare("INSERT INTO paceline_fleet.ledger VALUES ($1, '', '', now()) ON CONFLICT DO NOTHING")
                .await?,
            notify: client.prepare("SELECT pg_notify('paceline_fleet', $1)").await?,
        })
    }

    fn error(&self, error: &Error) -> FleetError {
        let (server, why) = (self.server.clone(), describe(error));
        match error.code() {
            // It stops, starts or has no place; it is read-only because it stands by; a row or a table is waited for.
            Some(code) if ["08", "57", "53", "40"].contains(&&code.code()[..2]) => FleetError::Away { server, why },
            Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::READ_ONLY_SQL_TRANSACTION) => {
                FleetError::Away { server, why }
            }
            Some(code) if ["25P03", "55000", "25P02"].contains(&code.code()) => FleetError::Away { server, why },
            Some(_) => FleetError::Refused { server, why },
            None => FleetError::Away { server, why },
        }
    }
}

impl PostgresLink {
    pub(crate) async fn ask(&self, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        let client = self.client.lock().await;
        let away = |why: &str| FleetError::Away { server: self.store.server.clone(), why: why.to_owned() };
        let asked = tokio::time::timeout(SILENT, self.step(&client, request)).await;
        match asked.map_err(|_| away("it has not answered for 2 s"))? {
            Ok(answer) => Ok(answer),
            Err(error) => {
                // Without the row: the next request begins anew, and a connection that is gone has no transaction.
                let _ = client.batch_execute("ROLLBACK").await;
                Err(error)
            }
        }
    }

    /// One step, as a whole: two round trips, between which this member has the row.
    async fn step(&self, client: &Client, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        let (name, statements) = (&self.store.name, &self.statements);
        let fail = |error| self.store.error(&error);
        let mut rows = self.read(client).await.map_err(fail)?;
        if rows.0.is_none() {
            client.batch_execute("ROLLBACK").await.map_err(fail)?;
            client.execute(&statements.found, &[&name.account]).await.map_err(fail)?;
            rows = self.read(client).await.map_err(fail)?;
        }
        let (Some((limits, state)), now) = rows else {
            return Err(FleetError::Away { server: self.store.server.clone(), why: "its row is gone".to_owned() });
        };
        let kept = serde_json::from_str::<Ledger>(&state);
        // What was committed is there: where there is nothing, no member was given anything.
        let found = || Ledger::found(&name.limits, name.lease, self.run);
        let mut ledger = match kept {
            _ if limits.is_empty() => found(),
            Ok(ledger) if limits == name.words => ledger,
            Err(error) if limits == name.words => {
                let why = format!("the ledger in its table cannot be read: {error}");
                return Err(FleetError::Refused { server: self.store.server.clone(), why });
            }
            Ok(ledger) if ledger.is_over(now) => found(),
            kept => self.adopted(kept.ok().zip(name.places_among(&limits)), now, request).ok_or_else(|| {
                FleetError::OtherLimits {
                    server: self.store.server.clone(),
                    theirs: limits.clone(),
                    ours: name.words.clone(),
                }
            })?,
        };
        let (mut board, mut note) = (None, None);
        let reply = match request {
            MemberRequest::Sync(request) => ledger.sync(now, request),
            MemberRequest::Bye(request) => {
                ledger.bye(now, request);
                None
            }
            MemberRequest::Board(request) => {
                let (reply, told) = ledger.board(now, request);
                (board, note) = (Some(reply), told);
                None
            }
        };
        let wakes: Vec<MemberId> = std::iter::from_fn(|| ledger.poll_wake()).collect();
        let state = serde_json::to_string(&ledger).expect("a ledger is a plain value");
        let words = wakes.iter().map(|MemberId(id)| format!(" {id:016x}")).collect::<String>();
        let words = note.as_ref().map_or(words, |note| format!(" {}", Notice::words(note)));
        let hint = format!("{}{words}", name.account);
        let write = async { client.execute(&statements.write, &[&name.account, &name.words, &state]).await };
        let notify = async {
            match wakes.is_empty() && note.is_none() {
                true => Ok(0),
                false => client.execute(&statements.notify, &[&hint]).await,
            }
        };
        // In this order on the wire, without waiting between them.
        let (written, notified, committed) = tokio::join!(biased; write, notify, client.batch_execute("COMMIT"));
        written.and(notified).and(committed.map(|()| 0)).map_err(fail)?;
        Ok(LedgerAnswer { reply, wakes, board, note })
    }

    /// Begins, takes the row, and reads the clock after that.
    async fn read(&self, client: &Client) -> Result<(Option<(String, String)>, Instant), Error> {
        let account = &self.store.name.account;
        let (begun, row, now) = tokio::join!(
            biased;
            client.batch_execute("BEGIN"),
            async { client.query_opt(&self.statements.read, &[account]).await },
            async { client.query_one(&self.statements.clock, &[]).await }
        );
        begun?;
        let (row, now) = (row?, now?);
        let now = Instant::ZERO + Duration::from_micros(now.get::<_, i64>(0).cast_unsigned());
        Ok((row.map(|row| (row.get(0), row.get(1))), now))
    }

    /// A ledger with other limits, once it has taken those of the member that asks.
    fn adopted(
        &self,
        kept: Option<(Ledger, Vec<Option<usize>>)>,
        now: Instant,
        request: &MemberRequest,
    ) -> Option<Ledger> {
        let (MemberRequest::Sync(request), Some((mut ledger, from))) = (request, kept) else { return None };
        let name = &self.store.name;
        ledger.adopt(now, (&name.limits, &from), name.lease, request.member).then_some(ledger)
    }
}

/// A message with its cause, without the words of the address.
fn describe(error: &Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Of all accounts on the server, the words about this one.
fn hint(account: &str, payload: &str, sender: &UnboundedSender<Notice>) {
    let Some(words) = payload.strip_prefix(account).and_then(|words| words.strip_prefix(' ')) else { return };
    for notice in Notice::all(words) {
        // The task of the member may have ended.
        let _ = sender.send(notice);
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A process that is suspended, or a pooler that holds its clients.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_says_nothing_is_away() -> Result<(), Box<dyn std::error::Error>> {
        let silent = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("postgres://a@{}/d", silent.local_addr()?);
        let name = LedgerName::new("account", &[], Duration::from_secs(3));
        let error = PostgresLedger::open(&url, name)?.connect().await.err().ok_or("it never answered")?;
        assert!(matches!(&error, FleetError::Away { why, .. } if why.contains("10 s")), "{error}");
        Ok(())
    }
}
