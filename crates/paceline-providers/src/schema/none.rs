//! Without the feature `schema` there is no schema.

use serde_json::Value;

/// A schema that a success has to match: this build has none.
#[derive(Clone, Debug, PartialEq)]
pub enum NoSchema {}

impl NoSchema {
    pub(crate) fn mismatch(&self, _: &Value) -> Option<String> {
        match *self {}
    }
}
