//! Partially accepted batches: the retry sends the rest alone, and the answers are merged.
//!
//! All this is kept in memory: after an interruption the whole batch is sent again, as after a call that was cut off.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use paceline_core::Class;
use paceline_providers::{Reading, joined, remainder};

/// The most bytes kept of all batches together; beyond that a batch is sent whole again.
const MOST: usize = 64 << 20;

/// The rests of batches, by item.
#[derive(Debug, Default)]
pub(crate) struct Partials(Mutex<BTreeMap<u64, Part>>);

/// A partially accepted batch.
#[derive(Clone, Debug)]
struct Part {
    /// The request for the rest.
    rest: Bytes,
    /// The merged answer so far.
    answered: Bytes,
}

impl Partials {
    /// The body to send for an item: the rest of its batch.
    pub(crate) fn rest_of(&self, item: u64) -> Option<Bytes> {
        self.all().get(&item).map(|part| part.rest.clone())
    }

    /// Merges the answer to the last body of an item into the earlier ones, and returns the whole.
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

    /// Keeps no rest of that item any longer.
    #[cfg(feature = "config")]
    pub(crate) fn forget(&self, item: u64) {
        self.all().remove(&item);
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
