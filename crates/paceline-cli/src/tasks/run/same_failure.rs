//! That all items of a run, a group or a scope failed alike, for people.

use std::fmt;

/// Why a run ended, or nothing of a scope begins any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameFailure {
    pub(super) which: &'static str,
    pub(super) items: usize,
    /// How many of them may have been done, so that they do not wait again.
    pub(super) held: usize,
    pub(super) advice: &'static str,
    pub(super) message: String,
}

impl fmt::Display for SameFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { which, items, held, advice, message } = self;
        let (wait, stay) = match *held {
            0 => (", and wait (none is marked as failed)", ""),
            held if held == *items => ("", " (they may have been done, so they stay failed)"),
            _ => ("", " (those that may have been done stay failed, and the others wait)"),
        };
        write!(
            f,
            "the {which} {items} items all failed the same way{wait}{stay}: {message}; {advice}, or let them fail with \
             --stop-after-same 0"
        )
    }
}
