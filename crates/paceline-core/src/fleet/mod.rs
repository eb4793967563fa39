//! The limits of one key over many processes and hosts, without a round trip for a call.
//!
//! Each process is a [`Member`] and holds an **allowance** of every limit, which is the limit of its own exact sliding
//! window. The [`Ledger`] divides: it keeps who holds how much, and knows no call. What a member does not need goes back,
//! what it needs more of it asks for; while demand stands still, nothing is said but that the member is alive.
//!
//! Both are values without a clock, IO or randomness. The ledger in a store has to answer like this one, reply by reply.
//!
//! # Why no window holds more than its limit
//!
//! Let `u(i)` be the units that member `i` started within the last window `W`, and `L` the limit.
//!
//! 1. **`u(i) <= held(i)`**. The member's own window counts up to its allowance, and what it claims to hold is never less
//!    than what its window still counts: it gives back a unit once the unit has left the window.
//!    What it used under a lease that ended at the ledger is in quarantine there (5), and its new allowance counts it again.
//! 2. **What a member holds, the ledger has counted before.** A member lowers itself and then tells; the ledger counts a
//!    raise and then tells. A claim is an absolute number, never more than the ledger has counted for the member, and has a
//!    sequence number: a message that is lost, late, doubled or overtaken changes nothing, or leaves the ledger with more
//!    counted than is held.
//! 3. **The ledger counts at most `L`**: what members hold, what is in quarantine, and the pool, from which it gives.
//! 4. **A member stops before the ledger gives up on it.** Its lease is 0.99 of the ledger's and begins when it sends, the
//!    ledger's when the message arrives. So clocks may be set differently, and may run up to 1 % differently.
//! 5. **A lease that ends without a word puts all that was held into quarantine, for `W`.** What the member reported last is
//!    no help: units that had left its window by then were used again since. `tests/` shows that this shortcut breaks the
//!    limit.
//!
//! So the sum of all `u(i)` is at most `L` at every instant. A ledger that lost writes (it runs under another `run`, or its
//! state is gone) recovers: it forgets all that it knew, and for one lease it confirms claims and gives nothing. By then
//! every member has claimed or stopped; what no member claimed is in quarantine for `W`, for it may have been used until a
//! moment ago. All that is counted from when the ledger was lost: from now, where nothing better is known, and from when the
//! run began, where it says to one member that it has given nothing yet ([`Quiet`]). Only that member shortens the recovery, also
//! one that another member has begun since it asked; all others together are given nothing for a lease from then on, so what it
//! heard is believed for so long. The first members of all wait for nothing where the store has been up for a lease and `W`,
//! however many begin at once.
//!
//! # What one member tells all
//!
//! The ledger has a board: notes that a member posts for all others (the next reply to each has those that it has not heard),
//! and topics that one member alone has for a while. A pause that a server asked one process for is such a note, and the call
//! that tests whether it is over is such a topic. What each has seen of a limit that is learnt is a note too, and so is what the
//! one believes of it that decides for all, which it is by a topic. Notes say how long something lasts, so no clocks are
//! compared; a board that is lost leaves every member with what it has heard.
//!
//! # What is not exact
//!
//! - A window is as long as the clock of its member says; a member whose clock runs 0.5 % fast has a window 0.5 % short.
//! - The spacing of calls is each member's own: the burst of the fleet is that of all its members.
//! - Places in flight of a member that died come back after the longest call that the limit knows of, whatever became of the
//!   calls.
//! - [`OnLoss::Keep`] goes on with the last shares. That is at most `L` while the ledger is away for all, and else `L` and
//!   the shares of those that are cut off.
//! - Where the ledger's clock is set back, it goes on from where it was. One that is set forward is noticed by the next
//!   member that the ledger knows, by the time that has passed for it. While it knows none (it has just lost its state), or
//!   where the first that speaks is new, nothing tells the step from time that has passed: leases end early, and a run seems to
//!   have begun earlier.
//! - Two ledgers at once (a split brain) give twice.
//!
//! # Numbers
//!
//! | | |
//! |---|---|
//! | lease | 30 s ([`LEASE`]); a member syncs after a third of it, or a quarter of a window that it uses, at least 250 ms |
//! | a member that begins | speaks within 50 ms, 200 ms without a limit to share; where it got nothing, every 100 ms for 1 s |
//! | a member that is told to hold less | gives the next unit that comes free at once |
//! | a member without enough for one call of its share | up to 64 others lend it one of theirs each, until it has that |
//! | two requests of a member | at least 50 ms apart, and up to 25 ms more at random; one at a time, given up after 500 ms |
//! | limit | 1 to 2^48 units; weights 1 to 16 |
//! | a word for the board | at once; said again after 500 ms without an answer |
//! | division | where something has changed, at most four times a second; eight times where the window is below 2 s |
//! | turn | what cannot be divided goes round: a member keeps a unit, or what its next call costs, for two windows |
//! | saving up | a member whose next call costs more than goes round has a turn all the same, and rests after it |

mod board;
mod interface;
mod ledger;
mod level;
mod member;
mod message;
mod pot;
mod settled;
mod share;
mod snapshot;
mod talk;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use interface::{LimitView, MemberChange, MemberConfig, MemberInput, MemberState, MemberView, OnLoss};
pub use ledger::Ledger;
pub use member::Member;
pub use message::{
    Announced, BoardReply, BoardRequest, BoardStep, ByeRequest, Draw, Grant, MemberId, MemberRequest, Note, Quiet,
    Stake, SyncReply, SyncRequest,
};
pub use snapshot::{FleetShare, FleetSnapshot};

/// Clocks of a ledger and its members that are further apart than this were set. A ledger keeps leases for so much longer than
/// it says, for what is not noticed.
pub const AHEAD: Duration = Duration::from_secs(1);

/// How long a member may use its allowances without a word from the ledger: 30 s.
pub const LEASE: Duration = Duration::from_secs(30);

/// How long a call may be in flight where nothing else is said: 10 minutes.
pub const LONGEST_CALL: Duration = Duration::from_mins(10);

/// One limit that the members share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FleetLimit {
    /// The units of all members together, 1 to 2^48.
    pub units: u64,
    /// What they are units of.
    pub kind: LimitKind,
}

/// What a limit counts, and so how long units stay with a member that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum LimitKind {
    /// Units in any window of that length: they are in quarantine for a window.
    Window(Duration),
    /// Places in flight: they are in quarantine for the longest call, which is given here.
    Places(Duration),
    /// A rate, in millionths of the whole. Nothing of it outlives its lease.
    Rate,
}

impl FleetLimit {
    /// For how long a unit may count after its member has stopped.
    pub const fn quarantine(self) -> Duration {
        match self.kind {
            LimitKind::Window(window) => window,
            LimitKind::Places(longest) => longest,
            LimitKind::Rate => Duration::ZERO,
        }
    }

    /// How long a member keeps a part that goes round.
    pub fn turn(self) -> Duration {
        match self.kind {
            LimitKind::Window(window) => window * 2,
            LimitKind::Places(_) | LimitKind::Rate => LEASE,
        }
    }

    /// How often it is divided anew at most.
    pub fn divided_every(self) -> Duration {
        const USUAL: Duration = Duration::from_millis(250);
        match self.kind {
            LimitKind::Window(window) => (window / 8).clamp(USUAL / 2, USUAL),
            LimitKind::Places(_) | LimitKind::Rate => USUAL,
        }
    }
}
