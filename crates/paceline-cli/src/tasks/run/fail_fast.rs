//! Ends a run early whose first items all fail with the same failure: then the command or the requests are wrong, not the items.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::Class;
use paceline_providers::SCHEMA_MISMATCH;
use paceline_store::work::{Amend, DecisionRecord, Failure, Filter, SchedulerEvent, WorkError, WorkItem, WorkStore};

/// Watches the first items of a run until one of them ends otherwise. Clones share their state.
#[derive(Clone)]
pub(super) struct FailFast(Arc<Mutex<Watch>>);

struct Watch {
    limit: usize,
    /// A command works on the items, and not a request.
    command: bool,
    watching: bool,
    kind: Option<(Option<u16>, Option<String>)>,
    keys: BTreeSet<String>,
    /// Answers that did not match the schema. Not their items are counted: once the breaker is open, a few items make all the
    /// tries.
    mismatches: usize,
    /// Items of which a try only failed, by their numbers, until that is recorded.
    only_failed: BTreeSet<u64>,
    stopped: Option<SameFailure>,
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameFailure {
    items: usize,
    command: bool,
    message: String,
}

impl fmt::Display for SameFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { items, command, message } = self;
        let what = if *command { "the command" } else { "the requests" };
        write!(
            f,
            "the first {items} items all failed the same way: {message}; correct {what}, or continue anyway with \
             --stop-after-same 0"
        )
    }
}

impl FailFast {
    /// A watch over a run. It only makes sense where there are more items than the number looked at; a `limit` of 0
    /// switches it off.
    pub(super) fn new(limit: usize, more: bool, command: bool) -> Self {
        let watching = limit > 0 && more;
        let (keys, only_failed) = (BTreeSet::new(), BTreeSet::new());
        let watch = Watch { limit, command, watching, kind: None, keys, mismatches: 0, only_failed, stopped: None };
        Self(Arc::new(Mutex::new(watch)))
    }

    /// A command only failed: that alone does not distinguish a bad moment from a bad command.
    pub(super) fn only_failed(&self, item: &WorkItem) {
        let mut watch = self.watch();
        if watch.watching {
            watch.only_failed.insert(item.id);
        }
    }

    /// Takes in an event; returns why the run has to end, once it has to.
    pub(super) fn observe(&self, note: &SchedulerEvent<'_>) -> Option<SameFailure> {
        let mut watch = self.watch();
        if !watch.watching {
            return None;
        }
        match note {
            SchedulerEvent::Succeeded(_) => watch.disarm(),
            SchedulerEvent::Decided { item, decided, .. } if watch.counts(item, decided) => {
                return watch.failed(item, &decided.failure);
            }
            // It ended otherwise; a retry decides nothing yet.
            SchedulerEvent::Decided { decided, .. } if matches!(decided.action, "fail" | "skip") => watch.disarm(),
            _ => {}
        }
        None
    }

    /// Requeues the items whose failures were the reason to stop, as if they had not been tried.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn put_back(&self, store: &dyn WorkStore) -> Result<Option<SameFailure>, WorkError> {
        let (stopped, keys) = {
            let mut watch = self.watch();
            (watch.stopped.clone(), std::mem::take(&mut watch.keys))
        };
        if stopped.is_some() {
            store.amend(Filter::keys(keys), Amend::Retry).await?;
        }
        Ok(stopped)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// A final refusal, a command that only failed, or an answer that does not match the schema.
    fn counts(&mut self, item: &WorkItem, decided: &DecisionRecord) -> bool {
        let refused = matches!(decided.failure.class, Class::Invalid | Class::Filtered) && decided.action == "fail";
        let mismatched = is_mismatch(&decided.failure);
        self.only_failed.remove(&item.id) || refused || mismatched
    }

    fn failed(&mut self, item: &WorkItem, failure: &Failure) -> Option<SameFailure> {
        if self.stopped.is_none() {
            let kind = (failure.status, failure.code.clone());
            if *self.kind.get_or_insert_with(|| kind.clone()) != kind {
                self.disarm();
                return None;
            }
        }
        self.keys.insert(item.key.clone());
        self.mismatches += usize::from(is_mismatch(failure));
        if self.stopped.is_some() || self.keys.len().max(self.mismatches) < self.limit {
            return None;
        }
        let (items, command, message) = (self.keys.len(), self.command, failure.message.clone());
        self.stopped = Some(SameFailure { items, command, message });
        self.stopped.clone()
    }

    fn disarm(&mut self) {
        if self.stopped.is_none() {
            self.watching = false;
            (self.keys, self.only_failed) = Default::default();
        }
    }
}

fn is_mismatch(failure: &Failure) -> bool {
    failure.code.as_deref() == Some(SCHEMA_MISMATCH)
}
