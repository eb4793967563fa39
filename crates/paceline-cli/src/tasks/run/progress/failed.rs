//! An item that has failed, until it is told.

use paceline_core::{Class, Instant};
use paceline_store::work::{DecisionRecord, WorkItem};

use super::LONGEST_CAUSE;
use crate::text;

/// An item that has failed, unless all of its host or its group do.
#[derive(Debug)]
pub(super) struct FailedItem {
    pub(super) key: String,
    pub(super) at: Instant,
    class: Class,
    status: Option<u16>,
    code: Option<String>,
    cause: String,
    reason: String,
}

impl FailedItem {
    pub(super) fn of(item: &WorkItem, decided: &DecisionRecord, at: Instant) -> Self {
        let DecisionRecord { failure, reason, .. } = decided;
        let cause = text::cut(&text::printable(&failure.message), LONGEST_CAUSE);
        Self {
            key: item.key.clone(),
            at,
            class: failure.class,
            status: failure.status.filter(|status| !cause.contains(&status.to_string())),
            code: failure.code.clone(),
            cause,
            reason: text::printable(reason.as_deref().unwrap_or(failure.class.as_str())).into_owned(),
        }
    }

    /// Tells of it, if it is known whether it waits after all.
    pub(super) fn is_told(&self, waits: Option<bool>) -> bool {
        let Self { key, class, status, code, cause, reason, .. } = self;
        match waits {
            None => return false,
            Some(true) => tracing::debug!(item = key, cause, "failed as all others of its host or group, and waits"),
            Some(false) => {
                tracing::error!(item = key, class = class.as_str(), status, code, cause, "failed: {reason}");
            }
        }
        true
    }
}
