//! A store with a ledger, and a connection to it.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::fleet::{BoardReply, FleetLimit, MemberId, MemberRequest, Note, Quiet, SyncReply};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::error::FleetError;
use crate::ledger_name::LedgerName;
use crate::postgres::{PostgresLedger, PostgresLink};
use crate::redis::{RedisLedger, RedisLink};

/// Where the ledger is.
#[derive(Clone)]
pub(crate) enum Store {
    Redis(RedisLedger),
    Postgres(PostgresLedger),
}

/// A connection to a store.
#[expect(missing_debug_implementations, reason = "for tests alone")]
pub enum Link {
    /// To Redis or Valkey.
    Redis(Box<RedisLink>),
    /// To Postgres.
    Postgres(Box<PostgresLink>),
}

/// What a store said when it was reached, and what it says by itself.
pub(crate) struct Linked {
    pub(crate) link: Arc<Link>,
    pub(crate) run: u64,
    pub(crate) quiet: Option<Quiet>,
    pub(crate) notices: UnboundedReceiver<Notice>,
}

/// What a store says by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// To ask would help this member.
    Hint(MemberId),
    /// A member told this to all.
    Note(Note),
    /// The connection is gone.
    Closed,
}

/// The answer to a request: no reply to a sync that was overtaken, and to a bye; what all members are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "for tests alone")]
pub struct LedgerAnswer {
    pub reply: Option<SyncReply>,
    pub wakes: Vec<MemberId>,
    pub board: Option<BoardReply>,
    pub note: Option<Note>,
}

impl Notice {
    /// A note as a text: `! NUMBER FROM LEFT VALUE,VALUE TOPIC`, with the time that is left in microseconds.
    pub(crate) fn note(words: &str) -> Option<Self> {
        let mut words = words.strip_prefix("! ")?.splitn(5, ' ');
        let number = words.next()?.parse().ok()?;
        let from = MemberId(u64::from_str_radix(words.next()?, 16).ok()?);
        let left = Duration::from_micros(words.next()?.parse().ok()?);
        let values = words.next()?.split(',').filter(|value| !value.is_empty());
        let values = values.map(|value| value.parse().ok()).collect::<Option<_>>()?;
        Some(Self::Note(Note { number, from, topic: words.next()?.to_owned(), left, values }))
    }

    /// The text of a note.
    pub(crate) fn words(note: &Note) -> String {
        let Note { number, from: MemberId(from), topic, left, values } = note;
        let values = values.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        format!("! {number} {from:016x} {} {values} {topic}", left.as_micros())
    }
}

impl Store {
    pub(crate) fn open(url: &str, name: LedgerName) -> Result<Self, FleetError> {
        match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("redis" | "rediss" | "redis+unix") => RedisLedger::open(url, name).map(Self::Redis),
            Some("postgres" | "postgresql") => PostgresLedger::open(url, name).map(Self::Postgres),
            // Its words may hold a password.
            _ => Err(FleetError::Address("that is no address of a fleet's store".to_owned())),
        }
    }

    /// The store for people, without a password.
    pub(crate) fn server(&self) -> &str {
        match self {
            Self::Redis(store) => store.server(),
            Self::Postgres(store) => store.server(),
        }
    }

    pub(crate) fn limits(&self) -> &[FleetLimit] {
        match self {
            Self::Redis(store) => store.limits(),
            Self::Postgres(store) => store.limits(),
        }
    }

    pub(crate) async fn connect(&self) -> Result<Linked, FleetError> {
        match self {
            Self::Redis(store) => store.connect().await,
            Self::Postgres(store) => store.connect().await,
        }
    }
}

impl Link {
    /// Asks the ledger.
    ///
    /// # Errors
    /// The connection is of no use any more, or the ledger refuses.
    pub async fn ask(&self, request: &MemberRequest) -> Result<LedgerAnswer, FleetError> {
        match self {
            Self::Redis(link) => link.ask(request).await,
            Self::Postgres(link) => link.ask(request).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let (from, left) = (MemberId(0xA5), Duration::from_micros(61_000_001));
        for (topic, values) in [("gate", vec![]), ("gate a model, with words", vec![2, 1 << 52])] {
            let note = Note { number: 7, from, topic: topic.to_owned(), left, values };
            assert_eq!(Notice::note(&Notice::words(&note)), Some(Notice::Note(note)));
        }
        assert_eq!(Notice::note("00000000000000a5"), None);
    }
}
