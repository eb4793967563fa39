//! What a member is told when it is made, what happens to it, and what changes with that.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::FleetLimit;
#[cfg(doc)]
use super::Member;
use super::message::{BoardReply, MemberId, Note, Quiet, SyncReply};
use crate::time::Instant;

/// What a member does once its lease has ended and the ledger is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnLoss {
    /// It stops, but for what was set aside for it: exact. For limits that were told.
    #[default]
    Strict,
    /// It goes on with its last shares: exact only where the ledger is away for all. For limits that were learnt.
    Keep,
}

/// What a member is told when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberConfig {
    /// Who it is.
    pub id: MemberId,
    /// Its part among members that want more than there is: 1 to 16.
    pub weight: u64,
    /// The limits that the members share, in the order of the ledger.
    pub limits: Vec<FleetLimit>,
    /// What it does without the ledger.
    pub on_loss: OnLoss,
    /// Units of each limit that it may use without the ledger, in order; none where it is shorter. They have to be set aside:
    /// the ledger's limit is what is left when those of all members are subtracted.
    pub alone_share: Vec<u64>,
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// No ledger was ever there, or it has left.
    Out,
    /// It is linked, and has no reply yet.
    Joining,
    /// It has a lease.
    Live,
    /// Its lease has ended without a reply.
    Alone,
    /// It has said that it leaves.
    Leaving,
}

/// What a member knows of its fleet, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberView {
    /// Who it is.
    pub id: MemberId,
    /// Its part among members that want more than there is.
    pub weight: u64,
    /// Where it stands.
    pub state: MemberState,
    /// Members that the ledger knew last.
    pub members: u64,
    /// Until when it may go on without the ledger; none without a lease.
    pub lease_ends: Option<Instant>,
    /// Each limit, in order.
    pub limits: Vec<LimitView>,
    /// The ledger divides other limits, as others told it.
    pub other_limits: bool,
    /// Why the ledger does not answer, since it did the last time.
    pub problem: Option<Arc<str>>,
}

/// What a member knows of one limit, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitView {
    /// What it may use without a lease.
    pub alone: u64,
    /// What no member may use.
    pub quarantine: u64,
    /// By when that counts no longer, where it is all of the limit.
    pub back_by: Option<Instant>,
}

impl OnLoss {
    /// The name used in configurations and in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Keep => "keep",
        }
    }
}

impl MemberState {
    /// The name used in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Joining => "joining",
            Self::Live => "live",
            Self::Alone => "alone",
            Self::Leaving => "leaving",
        }
    }
}

/// What changes for the calls of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// From now on it may use `units` of a limit, until then: its window has that limit, and none after `until`. That may be
    /// below what the window counts.
    Allow {
        /// The limit, by its place.
        limit: usize,
        /// Units in any window, calls in flight or millionths of the rate.
        units: u64,
        /// To be checked where a call leaves, on a clock that goes on while the host is suspended.
        until: Instant,
    },
    /// It has a lease.
    Joined,
    /// The lease ended without a reply.
    Alone,
    /// No request on its connection was answered within half a second for two seconds: another connection is to be made.
    Unanswered,
    /// The ledger knows that it left, or does not answer.
    Left,
    /// Another member told this to all.
    Told(Note),
    /// It wanted to take a topic of the board.
    Taken {
        /// Which.
        topic: String,
        /// For how long another member has it at most; zero: it is this one's.
        waits: Duration,
    },
    /// It wanted to draw of a limit that a server has announced.
    Drawn {
        /// Which.
        topic: String,
        /// What it has got, beside what it had.
        units: u64,
        /// After how long, from now on, it may be used.
        after: Duration,
        /// For how long it may be used; when to ask again, where it has got nothing; zero: no such limit is known.
        waits: Duration,
        /// From when on that counts.
        since: Instant,
    },
}

/// What happens to a member. A pacer tells it ([`Pacer::hear`](crate::Pacer::hear)), with its demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberInput {
    /// Nothing but time.
    Time,
    /// See [`Member::linked`].
    Linked {
        /// The run of the store.
        run: u64,
        /// What that run has not done.
        quiet: Option<Quiet>,
    },
    /// See [`Member::unlinked`].
    Unlinked,
    /// See [`Member::is_away`].
    Away(Arc<str>),
    /// See [`Member::has_other_limits`].
    OtherLimits,
    /// See [`Member::notice`].
    Notice,
    /// See [`Member::reply`].
    Reply(SyncReply),
    /// See [`Member::lost`].
    Lost(u64),
    /// See [`Member::leave`].
    Leave,
    /// See [`Member::bye_done`].
    ByeDone(u64),
    /// See [`Member::told`].
    Told(Note),
    /// See [`Member::answered`].
    Answered(BoardReply),
}
