//! Items that are given up without a call.

use std::time::Duration;

use paceline_core::{GiveUp, TooLarge};

use crate::text;

/// Why an item can never be sent.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Impossible {
    /// Its cost exceeds a limit.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// An earlier run ended before it had recorded the end of the item's call. Whether the call was executed is unknown, and it
    /// must not be executed twice.
    #[error("an earlier run ended without recording the end of this item's call, which may have been executed")]
    Unknown(GiveUp),
    /// Its deadline passed while it waited, or certainly comes first.
    #[error("{}", too_late(*.waited, *.needed))]
    Deadline {
        /// Since its first call; of one without a call in this run.
        waited: Duration,
        /// How much longer it would have had to wait at least, where that is known.
        needed: Option<Duration>,
    },
}

impl Impossible {
    /// The same of an item whose first call was so long ago, if it has made one.
    pub(crate) fn after(&self, first: Option<Duration>) -> Self {
        match (self, first) {
            (Self::Deadline { needed, .. }, Some(waited)) => Self::Deadline { waited, needed: *needed },
            _ => self.clone(),
        }
    }
}

fn too_late(waited: Duration, needed: Option<Duration>) -> String {
    match needed {
        Some(needed) => {
            format!("its deadline comes before its earliest start, which is {} away", text::duration(needed))
        }
        None => format!("its deadline passed after {} of waiting", text::duration(waited)),
    }
}
