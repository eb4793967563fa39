//! Batches that a server accepted in part: their rest is sent instead of them, and their answers are put together.
//!
//! All this is kept in memory: after an interruption the whole batch is sent again, as after a call that was cut off.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use paceline_core::Class;
use paceline_providers::Reading;

use super::send::{Answer, Call};

/// So much is kept of all batches together; what would be more is sent whole again.
const MOST: usize = 64 << 20;

/// What is left of batches, by the ordinal of their items.
#[derive(Debug, Default)]
pub(crate) struct Partials(Mutex<BTreeMap<u64, Part>>);

/// A batch of which something was accepted.
#[derive(Clone, Debug)]
struct Part {
    /// The request for the rest.
    rest: Bytes,
    /// What was answered so far.
    answered: Bytes,
}

impl Partials {
    /// The body to send for an item: what is left of it.
    pub(crate) fn body_of(&self, ordinal: u64) -> Option<Bytes> {
        self.all().get(&ordinal).map(|part| part.rest.clone())
    }

    /// Takes in an answer to the item's last body, and makes it the answer to all of its bodies.
    pub(crate) fn answered(&self, call: &Call, answer: &mut Answer, reading: &Reading) {
        if !matches!(reading.class, Class::Success | Class::Partial) {
            return;
        }
        let mut all = self.all();
        if let Some(earlier) = all.remove(&call.ordinal)
            && let Some(whole) = paceline_providers::joined(&earlier.answered, &answer.body)
        {
            answer.body = whole.into();
        }
        if reading.class == Class::Partial
            && let Some(rest) = paceline_providers::remainder(&call.body, &answer.body)
        {
            let part = Part { rest: rest.into(), answered: answer.body.clone() };
            if all.values().map(Part::size).sum::<usize>() + part.size() <= MOST {
                all.insert(call.ordinal, part);
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, Part>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Part {
    fn size(&self) -> usize {
        self.rest.len() + self.answered.len()
    }
}
