//! What every engine checks alike, before it changes anything.

use super::error::WorkError;
use super::item::{Amend, Filter, Item, NewItem, State};

/// Keys and groups are words in reports and indexes.
const KEY_BYTES: usize = 512;

/// A payload is read whole by whoever claims its item.
const PAYLOAD_BYTES: usize = 16 << 20;

/// Refuses what is too long to be kept.
pub(crate) fn check(new: &NewItem) -> Result<(), WorkError> {
    let parts =
        [("key", &new.key, KEY_BYTES), ("group", &new.group, KEY_BYTES), ("payload", &new.payload, PAYLOAD_BYTES)];
    match parts.into_iter().find(|(_, text, most)| text.len() > *most) {
        None => Ok(()),
        Some((what, text, most)) => {
            Err(WorkError::TooLong { key: new.key.chars().take(80).collect(), what, bytes: text.len(), most })
        }
    }
}

impl NewItem {
    /// Whether a store would take it, so that many can be checked before the first is added.
    ///
    /// # Errors
    /// [`WorkError::TooLong`].
    pub fn check(&self) -> Result<(), WorkError> {
        check(self)
    }
}

impl Filter {
    /// Items in these states.
    pub fn states(states: impl Into<Vec<State>>) -> Self {
        Self { states: states.into(), ..Self::default() }
    }

    /// The items of these keys.
    pub fn keys<K: Into<String>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    pub(crate) fn takes(&self, item: &Item) -> bool {
        (self.states.is_empty() || self.states.contains(&item.state))
            && self.group.as_ref().is_none_or(|group| **group == *item.group)
            && (self.keys.is_empty() || self.keys.contains(&item.key))
    }
}

impl Amend {
    /// The states in which it does something.
    pub(crate) const fn states(self) -> &'static [State] {
        match self {
            Self::Retry => &[State::Waiting, State::Failed, State::Skipped, State::Cancelled, State::Deferred],
            Self::Cancel => &[State::Waiting, State::InFlight, State::Deferred],
        }
    }

    pub(crate) fn applies(self, state: State) -> bool {
        self.states().contains(&state)
    }
}
