//! How a job is opened, and what bounds a run of it: for `paceline run` its flags say so.

use std::time::Duration;

use crate::budget::Limits;

/// What bounds a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) budgets: Limits,
    /// The longest wait for a call, a server or space on the disk; none for any.
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_items: Option<u64>,
    pub(crate) max_duration: Option<Duration>,
    /// The first items that may all fail alike; 0 for any number.
    pub(crate) stop_after_same: usize,
}

/// How lines that cannot be sent are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BadLines {
    /// Nothing is sent.
    #[default]
    Refuse,
    /// They fail, and the first of them are listed.
    List,
    /// They fail, and of a new job only the first lines are checked before it runs.
    Later,
}

impl BadLines {
    /// For an input that is read to its end before anything is sent.
    pub(crate) const fn of_whole_input(self) -> Self {
        if matches!(self, Self::Refuse) { Self::Refuse } else { Self::List }
    }
}

/// How a job is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// What is there is deleted, and the job begins anew.
    pub(crate) overwrite: bool,
    pub(crate) accept_changed: bool,
    /// Failed items wait again, and their lines may have been corrected.
    pub(crate) retry_failed: bool,
    /// Those of the job are kept in its journal, which notes a call before it leaves, because they must not lose it.
    pub(crate) budgets: Limits,
    pub(crate) bad_lines: BadLines,
    /// What `--extract` says, kept in the journal like the budgets.
    pub(crate) extract: Option<String>,
    /// A step of this run needs every item, so the input is read to its end first.
    pub(crate) needs_all: bool,
    /// An input of more lines is refused.
    pub(crate) most_lines: Option<usize>,
}
