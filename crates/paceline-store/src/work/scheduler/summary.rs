//! How a run ended.

use crate::state::State;
use crate::work::item::StateCounts;

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// Nothing is left to be done.
    Done,
    /// What is left belongs to groups that a person has to see to.
    GroupsStopped,
    /// What is left can start only after `max_wait`.
    MaxWait,
    /// `max_run_duration` is over.
    MaxDuration,
    /// It was asked to end.
    Interrupted,
}

impl EndReason {
    /// The name used in JSON; none when nothing is left to be done.
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Done => None,
            Self::GroupsStopped => Some("account"),
            Self::MaxWait => Some("max_wait"),
            Self::MaxDuration => Some("max_duration"),
            Self::Interrupted => Some("interrupted"),
        }
    }
}

/// The status of all items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All succeeded. Exit code 0.
    Success,
    /// All have ended, some of them without success, or with the result of a fallback. Exit code 1.
    Partial,
    /// All have ended, none with success. Exit code 1.
    Failed,
    /// Some are left to the next run. Exit code 3.
    Deferred,
}

impl Status {
    /// As it is printed.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Partial => "PARTIAL",
            Self::Failed => "FAILED",
            Self::Deferred => "DEFERRED",
        }
    }

    /// The exit code that goes with it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Partial | Self::Failed => 1,
            Self::Deferred => 3,
        }
    }

    /// The status for those counts.
    pub fn of(counts: &StateCounts) -> Self {
        let (succeeded, fell_back) = (counts.of(State::Succeeded), counts.of(State::FellBack));
        let ended: u64 = State::ALL.into_iter().filter(|state| state.is_final()).map(|state| counts.of(state)).sum();
        match (counts.total() - ended, ended - succeeded) {
            (0, 0) => Self::Success,
            (0, _) if succeeded + fell_back > 0 => Self::Partial,
            (0, _) => Self::Failed,
            _ => Self::Deferred,
        }
    }
}

/// The counts of a run, and of all items of the store by state after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Why it ended.
    pub ended: EndReason,
    /// The counts of items by state.
    pub counts: StateCounts,
    /// Times that this run began to work on an item.
    pub calls: u64,
    /// Of these, those after an item's first.
    pub resends: u64,
    /// Calls given up because the run had to end.
    pub abandoned: u64,
    /// Calls that no item counts: no server took them, or they only tested a failing one.
    pub uncounted: u64,
    /// Outcomes that were not recorded, because the item belonged to another worker.
    pub lost: u64,
    /// Items that this run put back of other workers, which ended without a word or did not reach the store: up to so many of
    /// their calls were cut off.
    pub taken_over: u64,
    /// Outcomes that were not recorded, because a person cancelled the item meanwhile.
    pub cancelled: u64,
}

impl Summary {
    /// The status of the items.
    pub fn status(&self) -> Status {
        Status::of(&self.counts)
    }
}
