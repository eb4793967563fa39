//! The configured expectation of a success: JSON, or a schema.

use serde_json::Value;

use super::schema::Schema;

/// The code of an answer that does not match its schema.
pub const SCHEMA_MISMATCH: &str = "schema_mismatch";

/// The code of an answer that is no JSON, where JSON is due.
pub(crate) const NOT_JSON: &str = "not_json";

/// The codes of answers that are not what the user expects.
pub const OF_EXPECTATION: [&str; 3] = [EMPTY_ANSWER, NOT_JSON, SCHEMA_MISMATCH];

/// The code of an answer without a body, where one is due.
pub(crate) const EMPTY_ANSWER: &str = "empty_answer";

/// Whether a failure of that code may be one of what the user expects: then another expectation may take the answer.
pub fn is_of_expectation(code: &str) -> bool {
    OF_EXPECTATION.contains(&code)
}

/// What a success has to be; see [`Dialect::expecting`](super::Dialect::expecting).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Expected {
    /// Any JSON value.
    Json,
    /// JSON that matches a schema; there is none without the feature `schema`.
    Schema(Schema),
}

impl Expected {
    /// Whether the value itself counts.
    pub(super) const fn is_schema(&self) -> bool {
        matches!(self, Self::Schema(_))
    }

    /// Where a value is not what is expected and why; `None` if it is.
    pub(super) fn mismatch(&self, value: &Value) -> Option<String> {
        match self {
            Self::Json => None,
            Self::Schema(schema) => schema.mismatch(value),
        }
    }
}
