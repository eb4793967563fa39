//! What a member and the ledger tell each other. All amounts are absolute.

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
}

/// The ledger's side of one limit, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// What the member holds now.
    pub has: u64,
    /// What it is meant to hold: what is above is to be given back as it comes free, what is below follows.
    pub target: u64,
    /// What no member may use, because one that fell silent may have used it.
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
