//! Ends a run early whose first items all fail with the same failure: then the command or the requests are wrong, not the items.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::Class;
use paceline_providers::SCHEMA_MISMATCH;
use paceline_store::work::{
    Amend, DEFAULT_GROUP, DecisionRecord, Failure, Filter, SchedulerEvent, WorkError, WorkItem, WorkStore,
};
use paceline_store::{ScopeRow, ScopeStatus};

use crate::run::calls::alike::{Alike, Shows};

/// Watches the first items of a run until one of them ends otherwise. Clones share their state.
#[derive(Clone)]
pub(super) struct FailFast(Arc<Mutex<Watch>>);

struct Watch {
    limit: usize,
    /// A command works on the items, and not a request.
    command: bool,
    alike: Alike,
    /// Those that failed alike so far, and their groups.
    keys: BTreeSet<String>,
    groups: BTreeSet<Arc<str>>,
    /// Items of which a try only failed, by their numbers, until that is recorded.
    only_failed: BTreeSet<u64>,
    /// Groups of which all failed alike, where nothing of another group did.
    stopped_groups: BTreeMap<Arc<str>, SameFailure>,
    /// Scopes within a group, each watched by itself.
    scopes: BTreeMap<Arc<str>, OfScope>,
    /// The scopes of items in flight, by their numbers.
    begun: BTreeMap<u64, Arc<str>>,
    more: bool,
    /// What waits again at the end of the run.
    put_back: BTreeSet<String>,
    stopped: Option<SameFailure>,
}

/// The first items of one scope.
struct OfScope {
    alike: Alike,
    keys: BTreeSet<String>,
}

/// What has to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stops {
    Run(SameFailure),
    Scope(Arc<str>, SameFailure),
}

/// Why a run ended, or nothing of a scope begins any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SameFailure {
    items: usize,
    command: bool,
    message: String,
}

impl SameFailure {
    fn of(items: usize, command: bool, failure: &Failure) -> Self {
        Self { items, command, message: failure.message.clone() }
    }
}

impl fmt::Display for SameFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { items, command, message } = self;
        let what = if *command { "the command" } else { "the requests" };
        write!(
            f,
            "the first {items} items all failed the same way, and wait (none is marked as failed): {message}; correct {what}, or continue anyway with \
             --stop-after-same 0"
        )
    }
}

impl FailFast {
    /// A watch over a run. It only makes sense where there are more items than the number looked at; a `limit` of 0
    /// switches it off.
    pub(super) fn new(limit: usize, more: bool, command: bool) -> Self {
        Self(Arc::new(Mutex::new(Watch {
            limit,
            command,
            alike: Alike::new(limit, more),
            keys: BTreeSet::new(),
            groups: BTreeSet::new(),
            only_failed: BTreeSet::new(),
            stopped_groups: BTreeMap::new(),
            scopes: BTreeMap::new(),
            begun: BTreeMap::new(),
            more,
            put_back: BTreeSet::new(),
            stopped: None,
        })))
    }

    /// A command only failed: that alone does not distinguish a bad moment from a bad command.
    pub(super) fn only_failed(&self, item: &WorkItem) {
        let mut watch = self.watch();
        if watch.alike.is_watching() {
            watch.only_failed.insert(item.id);
        }
    }

    /// An item of a scope that is smaller than its group begins: what all of that scope meet stops that scope alone.
    pub(super) fn begins(&self, item: &WorkItem, scope: &str) {
        let mut watch = self.watch();
        if watch.limit > 0 && watch.more {
            watch.begun.insert(item.id, scope.into());
        }
    }

    /// Takes in an event; returns what has to stop, once something has to.
    pub(super) fn observe(&self, note: &SchedulerEvent<'_>) -> Option<Stops> {
        let mut watch = self.watch();
        match note {
            SchedulerEvent::Succeeded(item) => watch.ended_otherwise(item),
            SchedulerEvent::Decided { item, decided, .. } if watch.counts(item, decided) => {
                return match watch.begun.remove(&item.id) {
                    Some(scope) => watch.failed_in(scope, item, &decided.failure),
                    None => watch.failed(item, &decided.failure).map(Stops::Run),
                };
            }
            // A retry decides nothing yet.
            SchedulerEvent::Decided { item, decided, .. } if matches!(decided.action, "fail" | "skip") => {
                watch.ended_otherwise(item);
            }
            SchedulerEvent::Lost(item) | SchedulerEvent::Cancelled { item, .. } => drop(watch.begun.remove(&item.id)),
            _ => {}
        }
        None
    }

    /// Requeues the items whose failures were the reason to stop, as if they had not been tried. Stopped groups stay so.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn put_back(&self, store: &dyn WorkStore) -> Result<Option<SameFailure>, WorkError> {
        let (stopped, keys, groups) = {
            let mut watch = self.watch();
            (watch.stopped.clone(), std::mem::take(&mut watch.put_back), watch.stopped_groups.clone())
        };
        if !keys.is_empty() {
            store.amend(Filter::keys(keys), Amend::Retry).await?;
            // To retry an item opens its group.
            let row = |(name, same): (_, SameFailure)| ScopeRow {
                name,
                state: ScopeStatus::Stopped { reason: same.to_string() },
            };
            store.record(Vec::new(), groups.into_iter().map(row).collect()).await?;
        }
        Ok(stopped)
    }

    /// Why nothing of a group begins any more: its first items all failed alike, and those of no other group did.
    pub(super) fn stopped_group(&self, group: &str) -> Option<String> {
        self.watch().stopped_groups.get(group).map(ToString::to_string)
    }

    /// Whether groups are stopped, and each because its first items all failed alike.
    pub(super) fn stopped_all<'a>(&self, stopped: impl Iterator<Item = &'a str>) -> bool {
        let mut stopped = stopped.map(|group| self.stopped_group(group).is_some()).peekable();
        stopped.peek().is_some() && stopped.all(|alike| alike)
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

    /// An item succeeded, or failed in a way that shows nothing about the others.
    fn ended_otherwise(&mut self, item: &WorkItem) {
        if let Some(scope) = self.begun.remove(&item.id) {
            let of = self.of_scope(scope);
            of.alike.disarm();
            of.keys = BTreeSet::new();
        }
        if self.alike.is_watching() {
            self.disarm();
        }
    }

    fn of_scope(&mut self, scope: Arc<str>) -> &mut OfScope {
        let watched = || OfScope { alike: Alike::new(self.limit, self.more), keys: BTreeSet::new() };
        self.scopes.entry(scope).or_insert_with(watched)
    }

    /// Takes in a failure of a scope within a group. Scopes that all fail alike before anything succeeded stop the run: each
    /// counts once there, for one of them may be a customer of many.
    fn failed_in(&mut self, scope: Arc<str>, item: &WorkItem, failure: &Failure) -> Option<Stops> {
        if self.stopped.is_some() {
            self.put_back.insert(item.key.clone());
            return None;
        }
        let of = self.of_scope(scope.clone());
        if !of.alike.is_watching() || !of.keys.insert(item.key.clone()) {
            return None;
        }
        let (kind, number) = ((failure.status, failure.code.clone()), of.keys.len());
        match of.alike.failed(kind.clone()) {
            Shows::Nothing => of.keys = BTreeSet::new(),
            Shows::Stopped => drop(self.put_back.insert(item.key.clone())),
            Shows::Stop => {
                let mut keys = std::mem::take(&mut of.keys);
                self.put_back.append(&mut keys);
                return Some(Stops::Scope(scope, SameFailure::of(number, self.command, failure)));
            }
            Shows::TooFew if number == 1 && self.alike.is_watching() => match self.alike.failed(kind) {
                Shows::Nothing => self.disarm(),
                Shows::Stop => {
                    let of_all = self.scopes.values_mut().flat_map(|of| std::mem::take(&mut of.keys));
                    self.put_back.extend(of_all);
                    self.stopped = Some(SameFailure::of(self.put_back.len(), self.command, failure));
                    return self.stopped.clone().map(Stops::Run);
                }
                Shows::TooFew | Shows::Stopped => {}
            },
            Shows::TooFew => {}
        }
        None
    }

    /// Takes in a failure; returns why the run has to end, once it has to. A group may be one customer of many: what all of its
    /// items meet stops no other group.
    fn failed(&mut self, item: &WorkItem, failure: &Failure) -> Option<SameFailure> {
        if !self.alike.is_watching() {
            return None;
        }
        if self.stopped_groups.contains_key(&item.group) {
            self.put_back.insert(item.key.clone());
            return None;
        }
        let is_new = self.keys.insert(item.key.clone());
        self.groups.insert(item.group.clone());
        let kind = (failure.status, failure.code.clone());
        let shows = if is_new { self.alike.failed(kind) } else { Shows::TooFew };
        if shows == Shows::Nothing {
            self.disarm();
        } else if shows == Shows::Stop {
            let same = SameFailure::of(self.keys.len(), self.command, failure);
            self.put_back.append(&mut self.keys);
            if self.groups.len() > 1 || *item.group == *DEFAULT_GROUP {
                self.stopped = Some(same);
                return self.stopped.clone();
            }
            self.stopped_groups.extend(self.groups.pop_first().map(|group| (group, same)));
            self.alike = Alike::new(self.limit, true);
        } else if shows == Shows::Stopped {
            self.put_back.insert(item.key.clone());
        }
        None
    }

    fn disarm(&mut self) {
        self.alike.disarm();
        if !self.alike.is_watching() {
            (self.keys, self.only_failed) = Default::default();
        }
    }
}

fn is_mismatch(failure: &Failure) -> bool {
    failure.code.as_deref() == Some(SCHEMA_MISMATCH)
}
