//! The tokens per character of each scope, as answers have shown so far: each model has its own tokenizer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_providers::{Asked, TokenRatio, Usage};

/// So many scopes are known at once. More are named by clients alone, which would fill the memory; all are learnt anew then.
const MOST: usize = 10_000;

/// What is learnt of prompts from the usage that answers report, by scope.
#[derive(Debug, Default)]
pub struct TokenRatios(Mutex<BTreeMap<Arc<str>, TokenRatio>>);

impl TokenRatios {
    /// The ratio of a scope; before its first answer a quarter of a token for each character.
    pub fn of(&self, scope: &str) -> TokenRatio {
        self.lock().get(scope).copied().unwrap_or_default()
    }

    /// Learns from the body of a request and the usage that its answer reports.
    pub fn settle(&self, scope: Arc<str>, body: &[u8], usage: &Usage) {
        self.settle_as_asked(scope, body, &Asked::default(), usage);
    }

    /// The same where the body was read already.
    pub fn settle_as_asked(&self, scope: Arc<str>, body: &[u8], asked: &Asked, usage: &Usage) {
        let mut known = self.lock();
        if known.len() >= MOST && !known.contains_key(&scope) {
            known.clear();
        }
        known.entry(scope).or_default().settle_as_asked(body, asked, usage);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, TokenRatio>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_end_take_no_memory_without_end() {
        let ratios = TokenRatios::default();
        let usage = Usage { input_tokens: 3, ..Usage::default() };
        (0..2 * MOST).for_each(|n| ratios.settle(n.to_string().into(), br#"{"messages":[]}"#, &usage));
        assert!(ratios.lock().len() <= MOST);
    }
}
