//! Scopes that are smaller than the groups of their items, such as the hosts of one group: one that is stopped leaves its
//! items to the next run, and its group goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::Class;
use paceline_store::work::{Failure, WorkItem};

use crate::text;

/// Stopped scopes that are named.
const NAMED: usize = 3;

/// The scopes that a run has stopped. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StoppedScopes(Arc<Mutex<Stopped>>);

#[derive(Debug, Default)]
struct Stopped {
    scopes: BTreeMap<Arc<str>, Stop>,
    /// Why items wait for a run with other flags.
    lacks: Option<String>,
}

#[derive(Debug)]
struct Stop {
    why: Why,
    reason: String,
    /// The keys of its items that were left to the next run, and of those whose failures stopped it.
    left: BTreeSet<String>,
}

/// What kind of thing stopped a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// A refused key, a certificate that is not trusted: a person must act.
    Account,
    /// Its first items all failed the same way.
    SameFailure,
    /// No server is there.
    Unreachable,
}

impl Why {
    /// The name used in JSON.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Account => "account",
            Self::SameFailure => "same_failure",
            Self::Unreachable => "unreachable",
        }
    }
}

impl StoppedScopes {
    /// What the run before stopped is tried again.
    pub(super) fn begin_run(&self) {
        *self.lock() = Stopped::default();
    }

    /// Nothing of that scope begins any more, which the log is told once. An item of it that has ended in this run comes again
    /// only where a person sends for it.
    pub(super) fn stop(&self, scope: &str, why: Why, reason: &str) {
        let mut stopped = self.lock();
        if !stopped.scopes.contains_key(scope) {
            let shown = text::printable(reason);
            tracing::error!(scope, "the scope is stopped, and its items wait for the next run: {shown}");
            stopped.scopes.insert(scope.into(), Stop { why, reason: reason.to_owned(), left: BTreeSet::new() });
        }
    }

    /// Why an item of that scope does not begin. An item that was left to the next run and comes again in this one was sent for
    /// by a person, who has seen to the cause: its scope is open again, and `reopen` is called.
    pub(super) fn keeps_back(&self, item: &WorkItem, scope: &str, reopen: impl FnOnce()) -> Option<Failure> {
        let mut stopped = self.lock();
        let stop = stopped.scopes.get_mut(scope)?;
        if stop.left.insert(item.key.clone()) {
            return Some(left_to_next_run(stop.reason.clone()));
        }
        stopped.scopes.remove(scope);
        reopen();
        tracing::info!(scope, "the scope is open again");
        None
    }

    /// An item can go only in a run with other flags.
    pub(super) fn lacks(&self, why: String) -> Failure {
        self.lock().lacks.get_or_insert_with(|| why.clone());
        left_to_next_run(why)
    }

    /// The item of a call that stopped its scope is left to the next run with the others.
    pub(super) fn leaves(&self, key: &str, scope: &str) {
        if let Some(stop) = self.lock().scopes.get_mut(scope) {
            stop.left.insert(key.to_owned());
        }
    }

    /// What stopped them, where any are stopped.
    pub(super) fn why(&self) -> Option<Why> {
        let stopped = self.lock();
        let mut kinds = stopped.scopes.values().map(|stop| stop.why);
        let first = kinds.next()?;
        Some(if kinds.all(|why| why == first) { first } else { Why::Account })
    }

    /// What stopped them, for people, else which flag is missing: `a.example is stopped: ...`.
    pub(super) fn words(&self) -> Option<String> {
        let stopped = self.lock();
        let Some(first) = stopped.scopes.values().next() else { return stopped.lacks.clone() };
        let named: Vec<&str> = stopped.scopes.keys().take(NAMED).map(|scope| &**scope).collect();
        let (named, number) = (named.join(", "), stopped.scopes.len());
        Some(match number {
            1 => format!("{named} is stopped: {}", first.reason),
            _ => {
                let more = if number > NAMED { ", ..." } else { "" };
                format!("{number} scopes are stopped ({named}{more}), the first because {}", first.reason)
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Stopped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decision about an item that waits for a person, and for which its group need not stop.
pub(super) fn left_to_next_run(reason: String) -> Failure {
    Failure { spares_group: true, ..Failure::new(Class::Account, reason) }
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{MemoryStore, NewItem, WorkClock, WorkStore as _};

    use super::*;

    #[tokio::test]
    async fn a_person_opens_the_scope_of_the_item_that_is_sent_for_and_no_other() {
        let store = MemoryStore::new(WorkClock::system());
        store.insert(["a", "b"].map(|key| NewItem::new(key, "1")).into()).await.expect("room");
        let items = store.list(Default::default(), 0, 2).await.expect("a memory");
        let stopped = StoppedScopes::default();
        let keeps_back = |item: usize, scope: &str| stopped.keeps_back(&items[item], scope, || {}).is_some();
        ["one", "two"].into_iter().for_each(|scope| stopped.stop(scope, Why::Account, "no"));
        assert!(keeps_back(0, "one") && keeps_back(1, "two"));
        assert!(!keeps_back(0, "one") && !keeps_back(1, "one"), "open for all of it");
        assert!(stopped.words().is_some_and(|words| words == "two is stopped: no"));
        assert!(!keeps_back(1, "two"), "sent for, too");
        assert_eq!((stopped.words(), stopped.why()), (None, None));
        stopped.stop("one", Why::SameFailure, "no");
        stopped.leaves("a", "one");
        assert!(!keeps_back(0, "one"), "its failure was one of those that stopped the scope");
    }
}
