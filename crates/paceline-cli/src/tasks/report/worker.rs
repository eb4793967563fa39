//! Whether a process works on a store, since when, and what keeps all of its work back.

use paceline_store::Holder;
use paceline_store::work::{WorkError, WorkStore, worker_of};
use serde_json::{Value, json};

use crate::tasks::store::StoreArgs;
use crate::text;

/// The worker of a store.
#[derive(Debug)]
pub(super) enum Worker {
    /// Of a database: so many are alive; none where the store does not tell.
    Shared(Option<u64>),
    /// None is at work.
    Gone,
    /// One is.
    Present(Holder),
}

impl Worker {
    /// That of a command's store.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn of(args: &StoreArgs, store: &dyn WorkStore) -> Result<Self, WorkError> {
        Ok(match args.file() {
            None => Self::Shared(store.workers().await?),
            Some(file) => worker_of(file).map_or(Self::Gone, Self::Present),
        })
    }

    /// For people. `is_left`: some items have not ended.
    pub(super) fn line(&self, is_left: bool) -> Option<String> {
        match self {
            Self::Shared(None) => None,
            Self::Shared(Some(workers)) if *workers > 0 => {
                let is_are = if *workers == 1 { "is" } else { "are" };
                Some(format!("{} {is_are} at work on the store", text::counted(*workers, "worker")))
            }
            Self::Gone | Self::Shared(_) => is_left.then(|| "no worker is at work on the store".to_owned()),
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
            Self::Shared(None) => Value::Null,
            Self::Shared(Some(workers)) => json!({ "at_work": *workers > 0, "workers": workers }),
            Self::Gone => json!({ "at_work": false }),
            Self::Present(Holder { pid, since, waits_for, .. }) => json!({
                "at_work": true, "process": pid, "since": since.map(|at| at.to_string()), "waits_for": waits_for,
            }),
        }
    }
}
