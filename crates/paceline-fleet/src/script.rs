//! The ledger on Redis or Valkey, without a connection: what is said to the server, and what its answers mean. One script does
//! each step as a whole.

use std::time::Duration;

use paceline_core::Instant;
use paceline_core::fleet::{
    Announced, BoardReply, BoardRequest, BoardStep, ByeRequest, Draw, FleetLimit, Grant, MemberId, MemberRequest, Note,
    Quiet, Stake, SyncReply, SyncRequest,
};
use sha1_smol::Sha1;

use crate::answer::LedgerAnswer;
use crate::constants::with_constants;
use crate::error::FleetError;
use crate::ledger_name::LedgerName;

const LEDGER: &str = include_str!("ledger.lua");

/// How long a ledger is kept that no member asks. One that is gone cannot be told from one that was lost, for which members
/// wait; so a job of every month finds its own.
const KEPT: Duration = Duration::from_hours(40 * 24);

/// Some servers of others do not let a script read the clock and then write.
const PROBE: &str = "local now = redis.call('TIME') redis.call('SET', KEYS[1], now[1], 'PX', 1000) return 1";

/// What a user of the server has to be allowed, as `ACL SETUSER` takes it; docs/fleet.md has the same.
const RIGHTS: &str = "~pl:* &pl:* +eval +evalsha +script +info +time +hset +hget +hmget +hgetall +hdel +hlen +zadd +zrem +zrange \
                      +zrangebyscore +zremrangebyscore +zcount +del +set +pexpire +publish +subscribe +multi +exec +ping";

/// How exactly the server says how long it has been up.
const UPTIME: Duration = Duration::from_secs(2);

/// A command and its arguments.
pub type RedisCommand = Vec<String>;

/// An answer of the server, whatever the version of its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAnswer {
    /// Nothing, or what a ledger never answers.
    Nothing,
    /// A number.
    Number(i64),
    /// A text or a state.
    Text(String),
    /// Several.
    List(Vec<RedisAnswer>),
}

/// What a member says to a Redis server, on one connection: [`greeting`](Self::greeting) as one transaction,
/// [`preparation`](Self::preparation), then its [requests](Self::request). Another connection begins anew with the greeting,
/// for it may lead to a server that has lost the ledger; and a client that connects again by itself must not do so here.
#[derive(Clone, Debug)]
pub struct RedisScript {
    name: LedgerName,
    script: String,
    sha: String,
}

impl RedisScript {
    /// What is said about that ledger.
    pub fn new(name: LedgerName) -> Self {
        Self::of(name, with_constants(LEDGER))
    }

    fn of(name: LedgerName, script: String) -> Self {
        let sha = sha(&script);
        Self { name, script, sha }
    }

    /// The same by the clock of a test, in the fields `s` and `us` of the hash `clock`.
    #[cfg(feature = "client")]
    pub(crate) fn with_clock_of_test(self) -> Self {
        Self::of(self.name, self.script.replace("call('TIME')", "call('HMGET', 'clock', 's', 'us')"))
    }

    /// The limits that the ledger divides.
    pub fn limits(&self) -> &[FleetLimit] {
        &self.name.limits
    }

    /// What is said first, as one transaction (`MULTI`, `EXEC`): which run of the server is that, and what has it not done?
    pub fn greeting(&self) -> [RedisCommand; 5] {
        let mark = self.mark();
        [
            command(&["INFO", "server"]),
            command(&["INFO", "replication"]),
            command(&["SCRIPT", "EXISTS", &sha(&mark)]),
            command(&["SCRIPT", "LOAD", &mark]),
            command(&["TIME"]),
        ]
    }

    /// The run of the server, and for how long it has given nothing, where that is certain: its process has loaded the mark of no
    /// member before, and it was never a replica, which has what another has given. `answers`: to the greeting, in order.
    ///
    /// # Errors
    /// The server does not say which run it is; in words.
    pub fn greeted(&self, answers: &RedisAnswer) -> Result<(u64, Option<Quiet>), String> {
        use RedisAnswer::{List, Number, Text};
        const NO_RUN: &str = "INFO server names no run_id, without which a lost ledger would not be noticed";
        let List(answers) = answers else { return Err(NO_RUN.to_owned()) };
        let [Text(server), Text(replication), List(known), _, List(time)] = &answers[..] else {
            return Err(NO_RUN.to_owned());
        };
        let run = info(server, "run_id").and_then(|id| u64::from_str_radix(id.get(..16)?, 16).ok()).ok_or(NO_RUN)?;
        let was_replica = info(replication, "role") != Some("master")
            || info(replication, "master_replid2").is_none_or(|id| id.bytes().any(|digit| digit != b'0'));
        let was_here = known[..] != [Number(0)];
        let asked = match time.iter().map(RedisAnswer::number).collect::<Option<Vec<_>>>().as_deref() {
            Some(&[seconds, micros]) => Instant::ZERO + Duration::from_secs(seconds) + Duration::from_micros(micros),
            _ => return Err("TIME gives no time".to_owned()),
        };
        let up = info(server, "uptime_in_seconds").and_then(|up| up.parse().ok()).map(Duration::from_secs);
        let quiet = up.filter(|_| !was_here && !was_replica);
        Ok((run, quiet.map(|up| Quiet { since: asked.saturating_sub(up.saturating_sub(UPTIME)), asked })))
    }

    /// What is said next: here is the script, may it read the clock, and may this user tell the others something? The script does
    /// that in the midst of its work, too late to be refused.
    pub fn preparation(&self) -> [RedisCommand; 3] {
        let probe = command(&["EVAL", PROBE, "1", &self.key("probe")]);
        [self.load(), probe, command(&["PUBLISH", &self.channel(), ""])]
    }

    /// Gives the server the script, also where it has forgotten it (`NOSCRIPT`).
    pub fn load(&self) -> RedisCommand {
        command(&["SCRIPT", "LOAD", &self.script])
    }

    /// The channel on which the ledger tells its members [more](crate::wire::Notice::all).
    pub fn channel(&self) -> String {
        format!("pl:{{{}}}", self.name.account)
    }

    /// A request, as `ledger.lua` reads it.
    pub fn request(&self, request: &MemberRequest) -> RedisCommand {
        let mut words = command(&["EVALSHA", &self.sha, "5"]);
        words.extend(["s", "m", "l", "q", "b"].map(|part| self.key(part)));
        words.extend(self.arguments(request));
        words
    }

    /// What the server has answered to that request.
    ///
    /// # Errors
    /// It is no answer of `ledger.lua`; in words.
    pub fn answer(&self, answer: &RedisAnswer, request: &MemberRequest) -> Result<LedgerAnswer, String> {
        match answer {
            RedisAnswer::Nothing => Some(LedgerAnswer::default()),
            answer => read(answer, request, self.name.lease),
        }
        .ok_or_else(|| format!("{answer:?} is no answer of a ledger"))
    }

    /// What an error of the server means, which begins with that code and goes on with those words.
    pub fn error(&self, server: &str, code: Option<&str>, words: &str) -> FleetError {
        let (server, why) = (server.to_owned(), [code.unwrap_or_default(), words].join(" ").trim_start().to_owned());
        match code {
            Some("LIMITS") => {
                FleetError::OtherLimits { server, theirs: words.to_owned(), ours: self.name.words.clone() }
            }
            // A server that begins, is not the master, or ends a script says so in these words; and one that lacks replicas,
            // memory, space on its disk, or room for clients.
            Some(
                "LOADING" | "MASTERDOWN" | "READONLY" | "BUSY" | "TRYAGAIN" | "CLUSTERDOWN" | "NOSCRIPT" | "NOREPLICAS"
                | "OOM" | "MISCONF",
            ) => FleetError::Away { server, why },
            _ if words.contains("max number of clients") => FleetError::Away { server, why },
            _ if why.contains("NOPERM") => {
                FleetError::Refused { server, why: format!("{why}; grant the user {RIGHTS}") }
            }
            _ => FleetError::Refused { server, why },
        }
    }

    /// Every member loads this script before it asks for anything: where a run of the server does not know it, that run has given
    /// nothing of the ledger. Of all versions of Paceline it is the same.
    fn mark(&self) -> String {
        format!("-- a member of the fleet {} was here\nreturn 1", self.name.account)
    }

    /// In a cluster all keys of a ledger are on one node.
    fn key(&self, part: &str) -> String {
        format!("pl:{{{}}}:{part}", self.name.account)
    }

    fn arguments(&self, request: &MemberRequest) -> Vec<String> {
        let name = &self.name;
        let (operation, member, seq, run, elapsed) = match request {
            MemberRequest::Sync(SyncRequest { member, seq, run, elapsed, .. }) => ("sync", member, seq, *run, elapsed),
            MemberRequest::Bye(ByeRequest { member, seq, elapsed, .. }) => ("bye", member, seq, 0, elapsed),
            MemberRequest::Board(BoardRequest { member, seq, step, .. }) => {
                let operation = match step {
                    BoardStep::Post { .. } => "post",
                    BoardStep::Take { .. } => "take",
                    BoardStep::Release => "release",
                    BoardStep::Draw(_) => "draw",
                };
                (operation, member, seq, 0, &Duration::ZERO)
            }
        };
        let mut arguments = vec![operation.to_owned(), micros(name.lease), id(*member), seq.to_string()];
        arguments.extend([format!("{run:016x}"), micros(*elapsed), self.channel()]);
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
                let (lasts, values) = match step {
                    BoardStep::Post { values, lasts } => (*lasts, values.clone()),
                    BoardStep::Take { lasts } => (*lasts, Vec::new()),
                    BoardStep::Release => (Duration::ZERO, Vec::new()),
                    BoardStep::Draw(draw) => (Duration::ZERO, numbers_of(draw)),
                };
                arguments.extend([topic.clone(), micros(lasts)]);
                arguments.extend(values.iter().map(u64::to_string));
            }
        }
        arguments
    }
}

impl RedisAnswer {
    fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn numbers(&self) -> Option<Vec<u64>> {
        self.list()?.iter().map(Self::number).collect()
    }
}

/// As `ledger.lua` answers: members, grants, wakes, a number and notes.
fn read(answer: &RedisAnswer, request: &MemberRequest, lease: Duration) -> Option<LedgerAnswer> {
    let [members, grants, wakes, number, notes] = answer.list()? else { return None };
    let grant = |grant: &RedisAnswer| match grant.numbers()?[..] {
        [has, target, quarantine, contended] => Some(Grant { has, target, quarantine, contended: contended == 1 }),
        _ => None,
    };
    let (number, notes) = (number.number()?, notes.list()?.iter().map(note).collect::<Option<Vec<_>>>()?);
    let mut answer = LedgerAnswer::default();
    match request {
        MemberRequest::Sync(SyncRequest { seq, .. }) => {
            let grants = grants.list()?.iter().map(grant).collect::<Option<_>>()?;
            let members = members.number()?;
            answer.reply = Some(SyncReply { seq: *seq, lease, members, grants, newest: number, notes });
        }
        MemberRequest::Bye(_) => {}
        MemberRequest::Board(BoardRequest { seq, .. }) => {
            let (units, waits) = (members.number()?, Duration::from_micros(number));
            let after = Duration::from_micros(grants.list()?.first().map_or(Some(0), RedisAnswer::number)?);
            answer.board = Some(BoardReply { seq: *seq, waits, units, after });
            answer.note = notes.into_iter().next();
        }
    }
    answer.wakes = wakes.list()?.iter().filter_map(|id| member(id.text()?)).collect();
    Some(answer)
}

/// As `ledger.lua` reads them.
fn numbers_of(draw: &Draw) -> Vec<u64> {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let Draw { units, lump, back, unpaid, announced } = draw;
    let mut numbers = vec![*units, *lump, *back, *unpaid];
    if let Some(Announced { limit, remaining, missing, left, gradually, window }) = announced {
        numbers.extend([*limit, *remaining, *missing, micros(*left), u64::from(*gradually), micros(*window)]);
    }
    numbers
}

fn note(note: &RedisAnswer) -> Option<Note> {
    let [number, from, left, values, topic] = note.list()? else { return None };
    let (from, left) = (member(from.text()?)?, Duration::from_micros(left.number()?));
    Some(Note { number: number.number()?, from, topic: topic.text()?.to_owned(), left, values: values.numbers()? })
}

/// A field of what `INFO` says.
fn info<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .find_map(|(name, value)| (name == field).then_some(value))
}

fn command(words: &[&str]) -> RedisCommand {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn sha(script: &str) -> String {
    Sha1::from(script).digest().to_string()
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
