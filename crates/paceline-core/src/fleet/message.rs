//! What a member and the ledger tell each other. All amounts are absolute.

use alloc::string::String;
use alloc::vec::Vec;
use core::time::Duration;

use crate::state::TakenState;
use crate::time::Instant;

/// A member, for as long as its process lives: a random number, which a fork has to draw anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct MemberId(pub u64);

/// What a member has to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberRequest {
    /// Its claims and wants.
    Sync(SyncRequest),
    /// It leaves.
    Bye(ByeRequest),
    /// Something for the board.
    Board(BoardRequest),
}

impl MemberRequest {
    /// The number that its answer names.
    pub const fn seq(&self) -> u64 {
        match self {
            Self::Sync(request) => request.seq,
            Self::Bye(request) => request.seq,
            Self::Board(request) => request.seq,
        }
    }
}

/// A member is alive, has this and wants that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncRequest {
    /// Who.
    pub member: MemberId,
    /// Rises with each request of the member.
    pub seq: u64,
    /// The run of the store behind its connection; another one means that writes may be lost.
    pub run: u64,
    /// What that run has not done; told with the first request of a connection alone.
    pub quiet: Option<Quiet>,
    /// Its part among members that want more than there is, 1 to 16.
    pub weight: u64,
    /// How long ago, for the member, it sent the last request that was answered; zero before.
    pub elapsed: Duration,
    /// The newest note that it has heard, and with it all before.
    pub heard: u64,
    /// One for each limit, in order.
    pub stakes: Vec<Stake>,
}

/// A run of a store has given nothing of any ledger between two instants on its clock, and this was said once only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet {
    /// When the run began.
    pub since: Instant,
    /// When it was asked.
    pub asked: Instant,
}

/// A member's side of one limit, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Stake {
    /// What it holds: never less than what its window still counts.
    pub has: u64,
    /// What it could use: used and waiting.
    pub want: u64,
    /// What its next call costs, at least 1: less than that is of no use to it.
    pub lump: u64,
}

impl Stake {
    /// What may be held beyond the wants, where there is enough for all members: a quarter more, for calls that come before the
    /// next sync. Callers with one call at a time have few in the queue, however many they make.
    pub(super) const fn spare(want: u64) -> u64 {
        want.div_ceil(4)
    }

    /// The most that is of use to a member with that want.
    pub(super) fn ceiling(want: u64, contended: bool, limit: u64) -> u64 {
        if contended { want } else { want.saturating_add(Self::spare(want)).min(limit) }
    }
}

/// What the ledger says to a sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncReply {
    /// The request that it answers.
    pub seq: u64,
    /// How long the member may use its allowances, counted from before it sent the request.
    pub lease: Duration,
    /// The members that the ledger knows.
    pub members: u64,
    /// One for each limit, in order.
    pub grants: Vec<Grant>,
    /// The newest note.
    pub newest: u64,
    /// The notes that it has not heard, the oldest first.
    pub notes: Vec<Note>,
}

/// The ledger's side of one limit, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What the member holds now.
    pub has: u64,
    /// What it is meant to hold: what is above is to be given back as it comes free, what is below follows.
    pub target: u64,
    /// What no member may use, because one that fell silent may have used it, or one that a lost ledger knew.
    pub quarantine: u64,
    /// Some member wants more than it gets: nothing is to be kept in vain.
    pub contended: bool,
}

/// A member stops. Nothing of it leaves after this was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ByeRequest {
    /// Who.
    pub member: MemberId,
    /// Rises with each request of the member.
    pub seq: u64,
    /// As in [`SyncRequest::elapsed`].
    pub elapsed: Duration,
    /// For each limit, in order, what still counts with its age when this was sent first.
    pub taken: Vec<Vec<TakenState>>,
}

/// A member tells something to all, or takes what one of them alone may have.
///
/// A topic is a text of at most 200 bytes, which the ledger does not read. It keeps 256 of each kind at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardRequest {
    /// Who.
    pub member: MemberId,
    /// Rises with each request of the member.
    pub seq: u64,
    /// What it is about.
    pub topic: String,
    /// What it does.
    pub step: BoardStep,
}

/// What a member does with a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardStep {
    /// It tells this to all members, and for so long to those that come later.
    Post {
        /// What they are told, at most 24 numbers below 2^53.
        values: Vec<u64>,
        /// For how long.
        lasts: Duration,
    },
    /// It takes the topic for so long, or keeps it: only one member has it.
    Take {
        /// For how long.
        lasts: Duration,
    },
    /// It gives the topic back.
    Release,
    /// It draws of what a server has left of a limit for all members together.
    Draw(Draw),
}

/// A member's side of a limit that a server has announced, in its units. What it draws counts as spent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// What it has a use for, on top of what it has drawn.
    pub units: u64,
    /// What its next call costs, at least 1: less than that is of no use to it.
    pub lump: u64,
    /// What it had drawn and has no use for.
    pub back: u64,
    /// What left without being drawn, and is not known to be counted in what the server said.
    pub unpaid: u64,
    /// What the server said to it last, if that is new.
    pub announced: Option<Announced>,
}

/// What a server has announced of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The whole limit.
    pub limit: u64,
    /// What is left of it, with what has come back since it was told.
    pub remaining: u64,
    /// What was missing when it was told.
    pub missing: u64,
    /// How long that takes to come back: from now on, or, where it does so bit by bit, from then on.
    pub left: Duration,
    /// Whether it comes back bit by bit.
    pub gradually: bool,
    /// How long the next window is, where it is reset at once.
    pub window: Duration,
}

/// What the ledger says to a request for the board.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoardReply {
    /// The request that it answers.
    pub seq: u64,
    /// For how long another member has the topic at most; zero: the step was done. For what was drawn, how long it may be used,
    /// or when to ask again where that is nothing; zero: nothing is known of such a limit.
    pub waits: Duration,
    /// What was drawn.
    pub units: u64,
    /// When that may be used.
    pub after: Duration,
}

/// What a member told all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its number: the next note has the next one.
    pub number: u64,
    /// Who told it.
    pub from: MemberId,
    /// What it is about.
    pub topic: String,
    /// For how long it is kept from now on.
    pub left: Duration,
    /// What it says.
    pub values: Vec<u64>,
}
