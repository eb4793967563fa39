//! Whether a process works on a store, since when, and what keeps all of its work back.

use paceline_store::Holder;
use paceline_store::work::worker_of;
use serde_json::{Value, json};

use crate::tasks::store::StoreArgs;
use crate::text;

/// The worker of a store.
#[derive(Debug)]
pub(super) enum Worker {
    /// Of a database: only its server knows which processes work on it.
    Unknown,
    /// None is at work.
    Gone,
    /// One is.
    Present(Holder),
}

impl Worker {
    /// That of a command's store.
    pub(super) fn of(store: &StoreArgs) -> Self {
        match store.file() {
            None => Self::Unknown,
            Some(file) => worker_of(file).map_or(Self::Gone, Self::Present),
        }
    }

    /// For people. `is_left`: some items have not ended.
    pub(super) fn line(&self, is_left: bool) -> Option<String> {
        match self {
            Self::Unknown => None,
            Self::Gone => is_left.then(|| "no worker is at work on the store".to_owned()),
            Self::Present(holder) => {
                let who = holder.pid.map_or_else(|| "a worker".to_owned(), |pid| format!("process {pid}"));
                let since = holder.since.map(|at| format!(" since {}", text::moment(at))).unwrap_or_default();
                let waits = holder.waits_for.as_ref().map(|what| format!(", and waits for {}", text::printable(what)));
                Some(format!("{who} is at work on the store{since}{}", waits.unwrap_or_default()))
            }
        }
    }

    /// For scripts; null where it is not known.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Unknown => Value::Null,
            Self::Gone => json!({ "at_work": false }),
            Self::Present(Holder { pid, since, waits_for, .. }) => json!({
                "at_work": true, "process": pid, "since": since.map(|at| at.to_string()), "waits_for": waits_for,
            }),
        }
    }
}
