//! Why a choice of an answer ended.

use serde_json::Value;

/// Why a choice ended for which DeepSeek had no capacity left.
pub(super) const NO_CAPACITY: &str = "insufficient_system_resource";

/// Why a choice, or a candidate, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// Because of its content.
    Refused,
    /// The service ran out of capacity.
    Starved,
    /// In an error.
    Failed,
    /// Any other way, or not at all.
    Usual,
}

impl Ending {
    pub(super) fn of(choice: &Value) -> Self {
        const OF_GOOGLE: [&str; 5] = ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"];
        match (choice["finish_reason"].as_str(), choice["finishReason"].as_str()) {
            (Some("content_filter"), _) => Self::Refused,
            (_, Some(reason)) if OF_GOOGLE.contains(&reason) => Self::Refused,
            (Some(NO_CAPACITY), _) => Self::Starved,
            (Some("error"), _) => Self::Failed,
            _ => Self::Usual,
        }
    }
}
