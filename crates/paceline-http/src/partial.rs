//! Batches that a server accepted in part: their rest is sent instead of them, and their answers are put together.
//!
//! All this is kept in memory: after an interruption the whole batch is sent again, as after a call that was cut off.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use paceline_core::Class;
use paceline_providers::{Reading, joined, remainder};

/// So much is kept of all batches together; what would be more is sent whole again.
const MOST: usize = 64 << 20;

/// What is left of batches, by their items.
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
    pub(crate) fn rest_of(&self, item: u64) -> Option<Bytes> {
        self.all().get(&item).map(|part| part.rest.clone())
    }

    /// Takes in the answer to the body that was sent last for an item, and returns the answer to all of its bodies.
    pub(crate) fn answered(&self, item: u64, sent: &[u8], answer: Bytes, reading: &Reading) -> Bytes {
        if !matches!(reading.class, Class::Success | Class::Partial) {
            return answer;
        }
        let mut all = self.all();
        let earlier = all.remove(&item);
        let whole = earlier.and_then(|earlier| joined(&earlier.answered, &answer)).map(Bytes::from);
        let answer = whole.unwrap_or(answer);
        if reading.class == Class::Partial
            && let Some(rest) = remainder(sent, &answer)
        {
            let part = Part { rest: rest.into(), answered: answer.clone() };
            if all.values().map(Part::size).sum::<usize>() + part.size() <= MOST {
                all.insert(item, part);
            }
        }
        answer
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
