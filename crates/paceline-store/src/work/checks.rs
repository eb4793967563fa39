//! Checks that every engine makes before it changes anything.

use super::error::WorkError;
use super::item::{Amend, ClaimOutcome, DecisionRecord, Filter, NewItem, WorkItem};
use crate::scope::{ScopeRow, ScopeStatus};
use crate::state::State;

/// Keys and groups appear in reports and indexes.
const KEY_BYTES: usize = 512;

/// A payload is read whole by the worker that claims its item.
const PAYLOAD_BYTES: usize = 16 << 20;

/// Refuses what is too long to be kept, and what not every engine can hold.
pub(crate) fn check(new: &NewItem) -> Result<(), WorkError> {
    let parts =
        [("key", &new.key, KEY_BYTES), ("group", &new.group, KEY_BYTES), ("payload", &new.payload, PAYLOAD_BYTES)];
    let key = || new.key.chars().take(80).collect();
    for (what, text, most) in parts {
        if text.len() > most {
            return Err(WorkError::TooLong { key: key(), what, bytes: text.len(), most });
        }
        if text.contains('\0') {
            return Err(WorkError::Nul { key: key(), what });
        }
    }
    Ok(())
}

/// Replaces NUL, which not every engine can store, in messages of servers: an outcome is recorded whatever its message is.
pub(crate) fn keepable(outcomes: &mut [ClaimOutcome], scopes: &mut [ScopeRow]) {
    for DecisionRecord { failure, reason, by, .. } in outcomes.iter_mut().filter_map(|outcome| outcome.decided.as_mut())
    {
        [&mut failure.message, by].into_iter().chain(&mut failure.code).chain(reason).for_each(without_nul);
    }
    outcomes.iter_mut().filter_map(|outcome| outcome.answered.as_mut()).for_each(|said| without_nul(&mut said.message));
    for scope in scopes {
        match &mut scope.state {
            ScopeStatus::Held { reason, .. } | ScopeStatus::Stopped { reason } => without_nul(reason),
            ScopeStatus::Open => {}
        }
    }
}

fn without_nul(message: &mut String) {
    if message.contains('\0') {
        *message = message.replace('\0', "\u{fffd}");
    }
}

impl NewItem {
    /// Whether a store would take it, so that many can be checked before the first is added.
    ///
    /// # Errors
    /// [`WorkError::TooLong`], [`WorkError::Nul`].
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

    pub(crate) fn takes(&self, item: &WorkItem) -> bool {
        (self.states.is_empty() || self.states.contains(&item.state))
            && self.group.as_ref().is_none_or(|group| **group == *item.group)
            && (self.keys.is_empty() || self.keys.contains(&item.key))
    }
}

impl Amend {
    /// The states in which it does something.
    pub(crate) const fn states(self) -> &'static [State] {
        match self {
            Self::Retry => {
                &[State::Waiting, State::Failed, State::Skipped, State::Cancelled, State::Deferred, State::FellBack]
            }
            Self::Again { .. } => &[
                State::Waiting,
                State::Succeeded,
                State::Failed,
                State::Skipped,
                State::Cancelled,
                State::Deferred,
                State::FellBack,
            ],
            Self::Cancel => &[State::Waiting, State::InFlight, State::Deferred],
            Self::LeaveToNextRun => &[State::Waiting, State::Failed],
            Self::TakeUp => &[State::Deferred],
            Self::Due => &[State::Waiting],
        }
    }

    /// Whether a person lets items wait again, and has resolved the stops of their groups.
    pub(crate) const fn retries(self) -> bool {
        matches!(self, Self::Retry | Self::Again { .. })
    }

    pub(crate) fn applies(self, state: State) -> bool {
        self.states().contains(&state)
    }
}
