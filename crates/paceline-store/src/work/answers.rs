//! Which scopes have answered: a worker that starts, or another one, gives them places before those of which nothing is known.

use std::sync::Arc;
use std::time::Duration;

use paceline_core::{ScopeAnswers, Timestamp};

use crate::query::millis;

/// Whether the calls of a scope are answered, as a worker last noted it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotedAnswers {
    /// The name of the scope.
    pub scope: Arc<str>,
    /// What is known.
    pub answers: ScopeAnswers,
    /// When it was noted, by the clock of the store, which sets it.
    pub noted: Timestamp,
}

/// So many scopes are kept, those that were noted last.
pub(crate) const MOST: usize = 20_000;

/// A column for each: the slowest answer in milliseconds, or below 0 where the last call was not answered.
pub(crate) fn code(answers: ScopeAnswers) -> i64 {
    match answers {
        ScopeAnswers::Came { slowest } => millis(slowest),
        ScopeAnswers::Missing | ScopeAnswers::Unknown => -1,
    }
}

/// Reads such a column.
pub(crate) fn of_code(code: i64) -> ScopeAnswers {
    u64::try_from(code)
        .map_or(ScopeAnswers::Missing, |slowest| ScopeAnswers::Came { slowest: Duration::from_millis(slowest) })
}
