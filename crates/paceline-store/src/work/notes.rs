//! What workers note about scopes, over restarts and for each other: texts of theirs, which a store keeps and does not read.

use std::sync::Arc;

use paceline_core::Timestamp;

/// A text about a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeNote {
    /// The name of the scope.
    pub scope: Arc<str>,
    /// What is noted.
    pub text: String,
    /// When it was changed last, by the clock of the store.
    pub noted: Timestamp,
}

/// What becomes of the text about a scope: called with its name and the text, which is empty where there is none. It may be
/// called again for the same change, where a connection broke.
pub type NoteChange = Arc<dyn Fn(&str, &str) -> String + Send + Sync>;

/// So many scopes are kept, those that were noted last.
pub(crate) const MOST: usize = 20_000;
