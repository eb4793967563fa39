//! Commands of the writer thread.

use std::sync::Arc;

use paceline_core::Timestamp;

use crate::error::JournalError;
use crate::history::Minute;
use crate::item::{ClaimExcept, ClaimedItems, Departure, FinishStatus, Finished, Rescheduled, Unanswered};
use crate::journal_db::JournalDb;
use crate::scope::ScopeRow;
use crate::snapshot::SnapshotUpdate;

/// Called with the result of a command, on the writer thread.
pub(crate) type Reply<T> = Box<dyn FnOnce(Result<T, JournalError>) + Send>;

/// Reads or changes the database between two batches.
pub(crate) type Query = Box<dyn FnOnce(Result<&mut JournalDb, JournalError>) + Send>;

/// A command of the writer thread.
pub(crate) enum Command {
    /// Record the end of an item.
    Finish(Box<Finished>, Reply<FinishStatus>),
    /// Keep an answer that was refused.
    Refused { line: Vec<u8>, reply: Reply<()> },
    /// Record a later try.
    Reschedule(Box<Rescheduled>, Reply<FinishStatus>),
    /// Put an item back.
    Release { ordinal: u64, sent: Option<Box<Unanswered>>, reply: Reply<FinishStatus> },
    /// Note that a call is sent. Without a reply it waits for what comes next.
    Leaves { departure: Departure, reply: Option<Reply<()>> },
    /// Hand out due items.
    Claim { now: Timestamp, limit: usize, except: ClaimExcept, reply: Reply<ClaimedItems> },
    /// Hand out these items.
    ClaimItems { ordinals: Vec<u64>, reply: Reply<ClaimedItems> },
    /// Change the state of a scope.
    Scope { row: ScopeRow, reply: Reply<()> },
    /// Hand out nothing of a scope before then. Nothing of it is stored.
    HoldForThisRun { name: Arc<str>, until: Option<Timestamp> },
    /// Time for which the scope is held, of which none counts against the deadlines of its waiting items.
    StandsStill { name: Arc<str>, from: Timestamp, until: Timestamp },
    /// Write what has changed of the snapshot.
    Snapshot { update: SnapshotUpdate, reply: Reply<()> },
    /// Add to the history.
    History { minutes: Vec<Minute>, reply: Reply<()> },
    /// Read or change the database between two batches.
    Query(Query),
}

impl Command {
    pub(crate) fn bytes(&self) -> usize {
        let body = match self {
            Self::Finish(finished, _) => finished.line.len(),
            Self::Refused { line, .. } => line.len(),
            Self::Snapshot { update, .. } => update.bytes(),
            _ => 0,
        };
        body + size_of::<Finished>()
    }

    /// It only reads, or checks the disk space itself.
    pub(crate) const fn is_query(&self) -> bool {
        matches!(self, Self::Query(_))
    }

    /// The item whose call has ended, if one has.
    pub(crate) fn outcome_of(&self) -> Option<u64> {
        match self {
            Self::Finish(finished, _) => Some(finished.ordinal),
            Self::Reschedule(next, _) => Some(next.ordinal),
            Self::Release { ordinal, .. } => Some(*ordinal),
            _ => None,
        }
    }

    pub(crate) fn refuse(self, error: JournalError) {
        match self {
            Self::Finish(_, reply) | Self::Reschedule(_, reply) | Self::Release { reply, .. } => reply(Err(error)),
            Self::Claim { reply, .. } | Self::ClaimItems { reply, .. } => reply(Err(error)),
            Self::Leaves { reply, .. } => _ = reply.map(|reply| reply(Err(error))),
            Self::Refused { reply, .. }
            | Self::Scope { reply, .. }
            | Self::Snapshot { reply, .. }
            | Self::History { reply, .. } => reply(Err(error)),
            Self::HoldForThisRun { .. } | Self::StandsStill { .. } => {}
            Self::Query(query) => query(Err(error)),
        }
    }
}
