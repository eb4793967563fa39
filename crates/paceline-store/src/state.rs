//! Where items stand, in a journal and in a work store.

/// Where an item stands. The number is the one in the `state` column of the journal and of every
/// work store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Not started, or waiting for another try.
    Waiting = 0,
    /// Claimed by a run or a worker that has not reported its outcome yet.
    InFlight = 1,
    /// Done; of a job, a usable answer stands in the results, or that of its fallback.
    Succeeded = 2,
    /// Given up; of a job, its line stands in the errors.
    Failed = 3,
    /// Left out: never sent, or as a judge decided.
    Skipped = 4,
    /// Ended by a person.
    Cancelled = 5,
    /// Over its bound, and left to the next run, which begins with it. No item of a journal is stored so.
    Deferred = 6,
    /// Given up, and the result of a fallback stands in. No item of a journal is stored so: there it succeeded, with a reason.
    FellBack = 7,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Waiting,
        Self::InFlight,
        Self::Succeeded,
        Self::Failed,
        Self::Skipped,
        Self::Cancelled,
        Self::Deferred,
        Self::FellBack,
    ];

    /// The name used in files and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::InFlight => "in_flight",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Cancelled => "cancelled",
            Self::Deferred => "deferred",
            Self::FellBack => "fallback",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// Whether nothing more will be done about an item: neither in this run nor in the next.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Skipped | Self::Cancelled | Self::FellBack)
    }

    pub(crate) const fn code(self) -> i64 {
        self as i64
    }

    pub(crate) fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// The part of an item's sends that counts against no bound any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgiven {
    /// Of its attempts.
    pub attempts: u32,
    /// Of its deferrals.
    pub deferrals: u32,
}
