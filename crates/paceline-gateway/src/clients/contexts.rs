//! How long the things are that a client's requests name and their servers add to the prompt, such as earlier answers and files:
//! a call that ends before it told its usage counts with them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// So many are known of one client, the last ones.
const MOST: usize = 4_096;

/// One of which nothing is known counts with so many tokens, ...
const UNKNOWN: u64 = 32_768;

/// ... and all of one call together with so many: no model reads more.
const LONGEST: u64 = 1 << 20;

/// What is known of one client's.
#[derive(Debug, Default)]
pub(crate) struct Contexts(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Tokens, by their prints.
    tokens: BTreeMap<u64, u64>,
    /// In the order in which they became known.
    order: VecDeque<u64>,
}

impl Contexts {
    /// The tokens of all that a request names.
    pub(crate) fn of(&self, named: &[u64]) -> u64 {
        let known = self.known();
        let all = named.iter().map(|print| known.tokens.get(print).copied().unwrap_or(UNKNOWN));
        all.fold(0, u64::saturating_add).min(LONGEST)
    }

    /// A call that named these told that its prompt had so many tokens, or counts so.
    pub(crate) fn were_read(&self, named: &[u64], prompt: u64) {
        let mut known = self.known();
        named.iter().for_each(|print| known.note(*print, |before| before.max(prompt)));
    }

    /// An answer has that name, and it has so many tokens together with its prompt, or counts so.
    pub(crate) fn was_made(&self, answer: u64, tokens: u64) {
        self.known().note(answer, |_| tokens);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn note(&mut self, print: u64, tokens: impl FnOnce(u64) -> u64) {
        if let Some(known) = self.tokens.get_mut(&print) {
            *known = tokens(*known);
            return;
        }
        if self.order.len() == MOST {
            self.order.pop_front().and_then(|first| self.tokens.remove(&first));
        }
        self.tokens.insert(print, tokens(0));
        self.order.push_back(print);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_counts_and_what_is_not_counts_as_long_ones_do() {
        let contexts = Contexts::default();
        assert_eq!([contexts.of(&[]), contexts.of(&[1]), contexts.of(&[1, 2])], [0, UNKNOWN, 2 * UNKNOWN]);
        contexts.was_made(1, 900);
        contexts.were_read(&[1, 2], 700);
        assert_eq!((contexts.of(&[1]), contexts.of(&[2, 3])), (900, 700 + UNKNOWN));
        contexts.were_read(&[2], 50);
        assert_eq!(contexts.of(&[2]), 700, "it was longer once");
        assert_eq!(contexts.of(&(100..200).collect::<Vec<_>>()), LONGEST);
        (1_000..1_000 + MOST as u64).for_each(|print| contexts.was_made(print, 1));
        assert_eq!((contexts.of(&[1]), contexts.of(&[1_000])), (UNKNOWN, 1));
        let known = contexts.known();
        assert_eq!((known.tokens.len(), known.order.len()), (MOST, MOST));
    }
}
