//! The ledger on Redis or Valkey: one script, which does each step as a whole.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::Instant;
use paceline_core::fleet::{
    BoardReply, BoardRequest, BoardStep, ByeRequest, FleetLimit, Grant, MemberId, MemberRequest, Note, Quiet, Stake,
    SyncReply, SyncRequest,
};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, InfoDict, IntoConnectionInfo as _, ProtocolVersion,
    PushInfo, PushKind, RedisError, Script, Value,
};
use tokio::sync::mpsc::unbounded_channel;

use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::store::{LedgerAnswer, Link, Linked, Notice};

const LEDGER: &str = include_str!("ledger.lua");

/// How long a ledger is kept that no member asks. One that is gone cannot be told from one that was lost, for which members
/// wait; so a job of every month finds its own.
const KEPT: Duration = Duration::from_hours(40 * 24);

/// Some servers of others do not let a script read the clock and then write.
const PROBE: &str = "local now = redis.call('TIME') redis.call('SET', KEYS[1], now[1], 'PX', 1000) return 1";

/// How long one try to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that does not answer for so long is made anew. A member gives a request up before.
const SILENT: Duration = Duration::from_secs(2);

/// How exactly the server says how long it has been up.
const UPTIME: Duration = Duration::from_secs(2);

/// A server, and the ledger on it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "it has a password")]
pub struct RedisLedger {
    client: Client,
    server: String,
    name: LedgerName,
    script: String,
}

/// A connection to it.
#[expect(missing_debug_implementations, reason = "for tests alone")]
pub struct RedisLink {
    connection: MultiplexedConnection,
    store: RedisLedger,
    sha: String,
}

impl RedisLedger {
    /// Reads `redis://user:password@host:port/database`, or `rediss://` for one with TLS.
    ///
    /// # Errors
    /// [`FleetError::Address`].
    pub fn open(url: &str, name: LedgerName) -> Result<Self, FleetError> {
        let unread = |_: RedisError| FleetError::Address("that is no address of a Redis server".to_owned());
        let info = url.into_connection_info().map_err(unread)?;
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        let server = info.addr().to_string();
        let client = Client::open(info).map_err(unread)?;
        Ok(Self { client, server, name, script: LEDGER.to_owned() })
    }

    /// The same ledger by the clock of a test, in the fields `s` and `us` of the hash `clock`.
    #[must_use]
    pub fn with_clock_of_test(mut self) -> Self {
        self.script = LEDGER.replace("call('TIME')", "call('HMGET', 'clock', 's', 'us')");
        self
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn limits(&self) -> &[FleetLimit] {
        &self.name.limits
    }

    /// A connection, for a test.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub async fn link(&self) -> Result<Arc<Link>, FleetError> {
        Ok(self.connect().await?.link)
    }

    pub(crate) async fn connect(&self) -> Result<Linked, FleetError> {
        let (sender, notices) = unbounded_channel();
        let push = move |info: PushInfo| {
            let heard = match info.kind {
                PushKind::Disconnection => vec![Notice::Closed],
                PushKind::Message => hints(&info.data),
                _ => Vec::new(),
            };
            heard.into_iter().try_for_each(|notice| sender.send(notice))
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(SILENT))
            .set_push_sender(push);
        let fail = |error| self.error(&error);
        let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(fail)?;
        let (run, quiet) = self.run(&mut connection).await.map_err(fail)?;
        let sha = load(&mut connection, &self.script).await.map_err(fail)?;
        let probe =
            redis::cmd("EVAL").arg(PROBE).arg(1).arg(self.key("probe")).query_async::<()>(&mut connection).await;
        probe.map_err(fail)?;
        connection.subscribe(self.channel()).await.map_err(fail)?;
        let link = Arc::new(Link::Redis(Box::new(RedisLink { connection, store: self.clone(), sha })));
        Ok(Linked { link, run, quiet, notices })
    }

    /// Every member loads this script before it asks for anything: where a run of the server does not know it, that run has given
    /// nothing of the ledger. Of all versions of Paceline it is the same.
    fn mark(&self) -> String {
        format!("-- a member of the fleet {} was here\nreturn 1", self.name.account)
    }

    /// The run of the server, and for how long it has given nothing, where that is certain: its process has loaded the mark of no
    /// member before, and it was never a replica, which has what another has given.
    async fn run(&self, connection: &mut MultiplexedConnection) -> Result<(u64, Option<Quiet>), RedisError> {
        let words = self.mark();
        let mark = Script::new(&words);
        let (info, replication, (was_here,), _, (seconds, micros)): (InfoDict, InfoDict, (bool,), String, (u64, u64)) =
            redis::pipe()
                .atomic()
                .cmd("INFO")
                .arg("server")
                .cmd("INFO")
                .arg("replication")
                .cmd("SCRIPT")
                .arg("EXISTS")
                .arg(mark.get_hash())
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(&words)
                .cmd("TIME")
                .query_async(connection)
                .await?;
        let id = info.get::<String>("run_id").unwrap_or_default();
        let run = id.get(..16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let Some(run) = run else {
            let why = "INFO server names no run_id, without which a lost ledger would not be noticed";
            return Err(RedisError::from((ErrorKind::Client, "no run", why.to_owned())));
        };
        let was_replica = replication.get::<String>("role").as_deref() != Some("master")
            || replication.get::<String>("master_replid2").is_none_or(|id| id.bytes().any(|digit| digit != b'0'));
        let asked = Instant::ZERO + Duration::from_secs(seconds) + Duration::from_micros(micros);
        let up = info.get::<u64>("uptime_in_seconds").map(Duration::from_secs);
        let quiet = up.filter(|_| !was_here && !was_replica);
        Ok((run, quiet.map(|up| Quiet { since: asked.saturating_sub(up.saturating_sub(UPTIME)), asked })))
    }

    /// In a cluster all keys of a ledger are on one node.
    fn key(&self, part: &str) -> String {
        format!("pl:{{{}}}:{part}", self.name.account)
    }

    fn channel(&self) -> String {
        format!("pl:{{{}}}", self.name.account)
    }

    fn error(&self, error: &RedisError) -> FleetError {
        let server = self.server.clone();
        match (error.kind(), error.code()) {
            (_, Some("LIMITS")) => {
                let theirs = error.detail().unwrap_or_default().to_owned();
                FleetError::OtherLimits { server, theirs, ours: self.name.words.clone() }
            }
            // A server that begins, is not the master, or ends a script says so in these words.
            (_, Some("LOADING" | "MASTERDOWN" | "READONLY" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOSCRIPT"))
            | (ErrorKind::Io, _) => FleetError::Away { server, why: error.to_string() },
            _ if error.is_timeout() || error.is_connection_dropped() || error.is_io_error() => {
                FleetError::Away { server, why: error.to_string() }
            }
            _ => FleetError::Refused { server, why: error.to_string() },
        }
    }
}

impl RedisLink {
    pub(crate) async fn ask(&self, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        let mut connection = self.connection.clone();
        let arguments = self.arguments(request);
        let mut evaluate = redis::cmd("EVALSHA");
        evaluate.arg(&self.sha).arg(5);
        evaluate.arg(&["s", "m", "l", "q", "b"].map(|part| self.store.key(part))).arg(&arguments);
        let mut answered = evaluate.query_async::<Value>(&mut connection).await;
        if answered.as_ref().is_err_and(|error| error.code() == Some("NOSCRIPT")) {
            load(&mut connection, &self.store.script).await.map_err(|error| self.store.error(&error))?;
            answered = evaluate.query_async::<Value>(&mut connection).await;
        }
        let answer = answered.and_then(|value| read(&value, request, self.store.name.lease));
        answer.map_err(|error| self.store.error(&error))
    }

    /// As `ledger.lua` reads them.
    fn arguments(&self, request: &MemberRequest) -> Vec<String> {
        let name = &self.store.name;
        let (operation, member, seq, run, elapsed) = match request {
            MemberRequest::Sync(SyncRequest { member, seq, run, elapsed, .. }) => ("sync", member, seq, *run, elapsed),
            MemberRequest::Bye(ByeRequest { member, seq, elapsed, .. }) => ("bye", member, seq, 0, elapsed),
            MemberRequest::Board(BoardRequest { member, seq, step, .. }) => {
                let operation = match step {
                    BoardStep::Post { .. } => "post",
                    BoardStep::Take { .. } => "take",
                    BoardStep::Release => "release",
                };
                (operation, member, seq, 0, &Duration::ZERO)
            }
        };
        let mut arguments = vec![operation.to_owned(), micros(name.lease), id(*member), seq.to_string()];
        arguments.extend([format!("{run:016x}"), micros(*elapsed), self.store.channel()]);
        arguments.extend([KEPT.max(name.forgotten_after()).as_millis().to_string(), name.words.clone()]);
        arguments.push(name.limits.len().to_string());
        for limit in &name.limits {
            let FleetLimit { units, .. } = limit;
            arguments.push(units.to_string());
            arguments.extend([limit.quarantine(), limit.turn(), limit.divided_every()].map(micros));
        }
        match request {
            MemberRequest::Sync(SyncRequest { weight, quiet, heard, stakes, .. }) => {
                let since =
                    |at: fn(&Quiet) -> Instant| quiet.as_ref().map_or("-1".to_owned(), |quiet| at_micros(at(quiet)));
                arguments.extend([weight.to_string(), since(|quiet| quiet.since), since(|quiet| quiet.asked)]);
                arguments.push(heard.to_string());
                for Stake { has, want, lump } in stakes {
                    arguments.extend([has, want, lump].map(u64::to_string));
                }
            }
            MemberRequest::Bye(ByeRequest { taken, .. }) => {
                for taken in taken {
                    arguments.push(taken.len().to_string());
                    taken.iter().for_each(|taken| arguments.extend([micros(taken.ago), taken.units.to_string()]));
                }
            }
            MemberRequest::Board(BoardRequest { topic, step, .. }) => {
                let (lasts, values): (_, &[u64]) = match step {
                    BoardStep::Post { values, lasts } => (*lasts, values),
                    BoardStep::Take { lasts } => (*lasts, &[]),
                    BoardStep::Release => (Duration::ZERO, &[]),
                };
                arguments.extend([topic.clone(), micros(lasts)]);
                arguments.extend(values.iter().map(u64::to_string));
            }
        }
        arguments
    }
}

/// As `ledger.lua` answers.
fn read(value: &Value, request: &MemberRequest, lease: Duration) -> Result<LedgerAnswer, RedisError> {
    type Grants = Vec<(u64, u64, u64, u64)>;
    type Notes = Vec<(u64, String, u64, Vec<u64>, String)>;
    type Answer = (u64, Grants, Vec<String>, u64, Notes);
    let Some((members, grants, wakes, number, notes)) = Option::<Answer>::from_redis_value_ref(value)? else {
        return Ok(LedgerAnswer::default());
    };
    let grant = |(has, target, quarantine, contended)| Grant { has, target, quarantine, contended: contended == 1 };
    let note = |(number, from, left, values, topic): (u64, String, u64, Vec<u64>, String)| {
        let (from, left) = (member(&from)?, Duration::from_micros(left));
        Some(Note { number, from, topic, left, values })
    };
    let mut notes = notes.into_iter().filter_map(note);
    let mut answer = LedgerAnswer::default();
    match request {
        MemberRequest::Sync(SyncRequest { seq, .. }) => {
            let (grants, notes) = (grants.into_iter().map(grant).collect(), notes.collect());
            answer.reply = Some(SyncReply { seq: *seq, lease, members, grants, newest: number, notes });
        }
        MemberRequest::Bye(_) => {}
        MemberRequest::Board(BoardRequest { seq, .. }) => {
            answer.board = Some(BoardReply { seq: *seq, waits: Duration::from_micros(number) });
            answer.note = notes.next();
        }
    }
    answer.wakes = wakes.iter().filter_map(|id| member(id)).collect();
    Ok(answer)
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> Result<String, RedisError> {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await
}

/// What a message says: a note, or the members to which to ask would be of use.
fn hints(message: &[Value]) -> Vec<Notice> {
    let words = message.get(1).and_then(|value| String::from_redis_value_ref(value).ok()).unwrap_or_default();
    match Notice::note(&words) {
        Some(note) => vec![note],
        None => words.split(' ').filter_map(member).map(Notice::Hint).collect(),
    }
}

fn id(MemberId(id): MemberId) -> String {
    format!("{id:016x}")
}

fn member(id: &str) -> Option<MemberId> {
    u64::from_str_radix(id, 16).ok().map(MemberId)
}

fn micros(time: Duration) -> String {
    time.as_micros().to_string()
}

fn at_micros(at: Instant) -> String {
    (at.as_nanos() / 1_000).to_string()
}
