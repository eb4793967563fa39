//! Notes about scopes.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_core::Timestamp;

use crate::work::notes::{MOST, NoteChange, ScopeNote};

#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<Arc<str>, ScopeNote>);

impl Notes {
    pub(super) fn change(&mut self, scopes: Vec<Arc<str>>, change: &NoteChange, now: Timestamp) {
        for scope in scopes {
            let text = change(&scope, self.0.get(&scope).map_or("", |note| &note.text));
            self.0.insert(Arc::clone(&scope), ScopeNote { scope, text, noted: now });
        }
        while self.0.len() > MOST
            && let Some(oldest) = self.0.values().min_by_key(|note| note.noted).cloned()
        {
            self.0.remove(&oldest.scope);
        }
    }

    pub(super) fn since(&self, since: Timestamp) -> Vec<ScopeNote> {
        let mut notes: Vec<_> = self.0.values().filter(|note| note.noted >= since).cloned().collect();
        notes.sort_by_key(|note| note.noted);
        notes
    }
}
