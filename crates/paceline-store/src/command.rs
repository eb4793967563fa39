//! What the thread that owns the journal can be asked to do.

use std::sync::Arc;

use paceline_core::Timestamp;

use crate::book::Book;
use crate::error::Error;
use crate::history::Minute;
use crate::item::{Claim, Finished, Kept, Rescheduled, Unanswered};
use crate::scope::ScopeRow;
use crate::snapshot::SnapshotUpdate;

/// How a command is answered, on the writer's thread.
pub(crate) type Reply<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// A question that is answered between two turns.
pub(crate) type Question = Box<dyn FnOnce(Result<&mut Book, Error>) + Send>;

/// What the writer can be asked to do.
pub(crate) enum Command {
    /// Record an end.
    Finish(Box<Finished>, Reply<Kept>),
    /// Record a later try.
    Reschedule(Box<Rescheduled>, Reply<Kept>),
    /// Put back.
    Release { ordinal: u64, sent: Option<Box<Unanswered>>, reply: Reply<Kept> },
    /// Hand out due items.
    Claim { now: Timestamp, limit: usize, except: Vec<Arc<str>>, reply: Reply<Claim> },
    /// Hand out these items.
    ClaimItems { ordinals: Vec<u64>, reply: Reply<Claim> },
    /// Change the state of a scope.
    Scope { row: ScopeRow, reply: Reply<()> },
    /// Write what has changed of the snapshot.
    Snapshot { update: SnapshotUpdate, reply: Reply<()> },
    /// Add to the history.
    History { minutes: Vec<Minute>, reply: Reply<()> },
    /// Look, or work between two turns.
    Query(Question),
}

impl Command {
    pub(crate) fn bytes(&self) -> usize {
        let body = match self {
            Self::Finish(finished, _) => finished.line.len(),
            Self::Snapshot { update, .. } => update.bytes(),
            _ => 0,
        };
        body + size_of::<Finished>()
    }

    /// It only looks, or says by itself when it finds no room.
    pub(crate) const fn is_query(&self) -> bool {
        matches!(self, Self::Query(_))
    }

    pub(crate) fn refuse(self, error: Error) {
        match self {
            Self::Finish(_, reply) | Self::Reschedule(_, reply) | Self::Release { reply, .. } => reply(Err(error)),
            Self::Claim { reply, .. } | Self::ClaimItems { reply, .. } => reply(Err(error)),
            Self::Scope { reply, .. } | Self::Snapshot { reply, .. } | Self::History { reply, .. } => {
                reply(Err(error));
            }
            Self::Query(question) => question(Err(error)),
        }
    }
}
