//! Ends a run early whose first items all fail with the same failure: then the command or the requests are wrong, not the items.
//! Stops a scope or a group whose items all fail alike later on: then its server may keep the caller out.

mod kept;
mod share;
mod stops;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_core::{Class, GiveUp};
use paceline_store::work::{
    Amend, DEFAULT_GROUP, DecisionRecord, Failure, Filter, SchedulerEvent, State, WorkError, WorkItem, WorkStore,
};
use paceline_store::{ScopeRow, ScopeStatus};
use tokio::sync::Notify;

use self::kept::KeptRows;
pub(super) use self::stops::Stops;
use super::same_failure::{self, SameFailure, is_redirect, is_shut_to_caller};
use super::stopped_scopes::Refusals;
use crate::stops::alike::{self, Alike, AlikeByScope, Alikeness, Kind, Shows};
use crate::stops::fail_fast::may_be_done;

/// Watches the first items of a run until one of them ends otherwise. Clones share their state.
#[derive(Clone)]
pub(super) struct FailFast {
    watch: Arc<Mutex<Watch>>,
    /// Something has to be left to the next run.
    leaves: Arc<Notify>,
    /// The store is to be told of something.
    news: Arc<Notify>,
}

struct Watch {
    limit: usize,
    /// A command works on the items, and not a request.
    command: bool,
    /// The worker stays: a run begins with its next start.
    stays: bool,
    alike: Alike,
    /// Those that failed alike so far, and their groups.
    keys: BTreeSet<String>,
    groups: BTreeSet<Arc<str>>,
    /// Items of which a try only failed, by their numbers, until that is recorded.
    only_failed: BTreeSet<u64>,
    /// Groups of which all failed alike, where nothing of another group did.
    stopped_groups: BTreeMap<Arc<str>, SameFailure>,
    /// Groups that are one scope, each watched by itself.
    rows: AlikeByScope<String>,
    /// Scopes within a group, each watched by itself; those of which something failed, and those that were stopped for it, or
    /// addresses of them.
    scopes: KeptRows,
    failed_scopes: BTreeSet<Arc<str>>,
    stopped_scopes: BTreeSet<Arc<str>>,
    /// The scopes of items in flight, and where they were sent, by their numbers.
    begun: BTreeMap<u64, (Arc<str>, Arc<str>)>,
    more: bool,
    /// As many scopes as are looked at all failed alike, and nothing has ended otherwise since.
    all_alike: Option<Failure>,
    /// The scopes that are to be tested first in the next run, for all failed alike.
    alike_scopes: BTreeSet<Arc<str>>,
    /// What waits again at the end of the run, but for what may have been done and must not be done twice.
    put_back: BTreeSet<String>,
    /// How many that were, of scopes that are stopped.
    put_back_of_scopes: usize,
    held: BTreeSet<String>,
    /// What waits again already.
    left: BTreeSet<String>,
    /// Items that have ended: those of a stopped scope come again only where a person sends for them.
    ended: BTreeSet<String>,
    stopped: Option<SameFailure>,
}

impl FailFast {
    /// A watch over a run. It only makes sense where there are more items than the number looked at; a `limit` of 0
    /// switches it off.
    pub(super) fn new(limit: usize, more: bool, command: bool, stays: bool) -> Self {
        let watch = Watch {
            limit,
            command,
            stays,
            alike: Alike::new(limit, more),
            keys: BTreeSet::new(),
            groups: BTreeSet::new(),
            only_failed: BTreeSet::new(),
            stopped_groups: BTreeMap::new(),
            // The exit code of a command tells of no server.
            rows: AlikeByScope::new(if more && !command { limit } else { 0 }, false),
            scopes: KeptRows::new(if more && !command { limit } else { 0 }),
            failed_scopes: BTreeSet::new(),
            stopped_scopes: BTreeSet::new(),
            begun: BTreeMap::new(),
            more,
            all_alike: None,
            alike_scopes: BTreeSet::new(),
            put_back: BTreeSet::new(),
            put_back_of_scopes: 0,
            held: BTreeSet::new(),
            left: BTreeSet::new(),
            ended: BTreeSet::new(),
            stopped: None,
        };
        Self { watch: Arc::new(Mutex::new(watch)), leaves: Arc::default(), news: Arc::default() }
    }

    /// A command only failed: that alone does not distinguish a bad moment from a bad command.
    pub(super) fn only_failed(&self, item: &WorkItem) {
        let mut watch = self.watch();
        if watch.alike.is_watching() {
            watch.only_failed.insert(item.id);
        }
    }

    /// An item of a scope that is smaller than its group begins: what all of that scope meet stops that scope alone.
    pub(super) fn begins(&self, item: &WorkItem, scope: &str, address: &str) {
        let mut watch = self.watch();
        if watch.limit > 0 && watch.more {
            watch.begun.insert(item.id, (scope.into(), address.into()));
        }
    }

    /// A person has sent for items of a scope that was stopped: it is watched anew.
    pub(super) fn reopen_scope(&self, scope: &str) {
        let mut watch = self.watch();
        watch.stopped_scopes.remove(scope);
        watch.scopes.forget(scope);
    }

    /// The same of an address of a scope.
    pub(super) fn reopen_address(&self, scope: &str, address: &str) {
        let mut watch = self.watch();
        watch.stopped_scopes.remove(address);
        watch.scopes.take(&scope.into(), Some(&address.into()));
    }

    /// A person has sent for items of a group that was stopped.
    pub(super) fn reopen_group(&self, group: &str) {
        let mut watch = self.watch();
        watch.stopped_groups.remove(group);
        watch.rows.forget(group);
    }

    /// Takes in an event; returns what has to stop, once something has to.
    pub(super) fn observe(&self, note: &SchedulerEvent<'_>) -> Option<Stops> {
        let mut watch = self.watch();
        let stops = watch.observe(note);
        if !watch.failed_ones().is_empty() {
            self.leaves.notify_one();
        }
        if watch.scopes.has_news() {
            self.news.notify_one();
        }
        stops
    }

    /// Leaves the items whose failures were the reason to stop something to the next run, as soon as they have failed, for as
    /// long as the future is polled: a run that is killed must not leave them failed.
    pub(super) async fn leave_as_they_stop(&self, store: &dyn WorkStore) {
        loop {
            self.leaves.notified().await;
            let keys = self.watch().failed_ones();
            let failed = Filter { states: vec![State::Failed], ..Filter::keys(keys.iter().cloned()) };
            // At the end of the run it is done again, and an error of the store ends that by itself.
            if !keys.is_empty() && store.amend(failed, Amend::LeaveToNextRun).await.is_ok() {
                let mut watch = self.watch();
                watch.put_back.retain(|key| !keys.contains(key));
                watch.left.extend(keys);
            }
        }
    }

    /// Whether an item that failed waits all the same, for what all of its host or its group meet; none while that is open.
    pub(super) fn waits(&self, key: &String) -> Option<bool> {
        let watch = self.watch();
        let waits = (watch.put_back.contains(key) || watch.left.contains(key)) && !watch.held.contains(key);
        let is_open = watch.alike.is_watching() && watch.keys.contains(key);
        (waits || !(is_open || watch.rows.has(key) || watch.scopes.has(key))).then_some(waits)
    }

    /// Why an item of a stopped group does not begin. An item that has ended in this run comes again only where a person sends
    /// for it, who has seen to the cause: its group is open again.
    pub(super) fn keeps_back(&self, item: &WorkItem) -> Option<String> {
        let mut watch = self.watch();
        let reason = watch.stopped_groups.get(&item.group)?.to_string();
        if watch.ended.remove(&item.key) {
            watch.stopped_groups.remove(&item.group);
            watch.rows.forget(&item.group);
            return None;
        }
        Some(reason)
    }

    /// The groups of which all that was tried failed alike, and why; and the scopes of a run that is [over](Self::put_back), if
    /// all did.
    pub(super) fn stopped_alike(&self) -> Vec<(Arc<str>, SameFailure)> {
        let watch = self.watch();
        let groups = watch.stopped_groups.iter().map(|(group, same)| (group.clone(), same.clone()));
        let scopes = watch.alike_scopes.iter().zip(std::iter::repeat(&watch.stopped));
        let scopes = scopes.filter_map(|(scope, same)| Some((Arc::clone(scope), same.clone()?)));
        groups.chain(scopes).collect()
    }

    /// Leaves the items whose failures were the reason to stop to the next run, as if they had not been tried, but that their
    /// deadlines go on. Stopped groups stay so.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn put_back(&self, store: &dyn WorkStore) -> Result<Option<SameFailure>, WorkError> {
        let (stopped, keys, groups) = {
            let mut watch = self.watch();
            watch.settle_scopes();
            let (mut keys, held) = (std::mem::take(&mut watch.put_back), std::mem::take(&mut watch.held));
            keys.retain(|key| !held.contains(key));
            watch.left.extend(keys.iter().cloned());
            (watch.stopped.clone(), keys, watch.stopped_groups.clone())
        };
        if !keys.is_empty() {
            store.amend(Filter::keys(keys), Amend::LeaveToNextRun).await?;
        }
        let stop = |(name, same): (Arc<str>, SameFailure)| {
            let state = ScopeStatus::Stopped { reason: same.to_string() };
            ScopeRow { name, state }
        };
        let rows: Vec<ScopeRow> = groups.into_iter().map(stop).collect();
        if !rows.is_empty() {
            store.record(Vec::new(), rows).await?;
        }
        Ok(stopped)
    }

    /// Whether groups are stopped, and each because its first items all failed alike.
    pub(super) fn stopped_all<'a>(&self, stopped: impl Iterator<Item = &'a str>) -> bool {
        let watch = self.watch();
        let mut stopped = stopped.map(|group| watch.stopped_groups.contains_key(group)).peekable();
        stopped.peek().is_some() && stopped.all(|alike| alike)
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Items that have failed, and are left to the next run for that.
    fn failed_ones(&self) -> Vec<String> {
        let failed = self.put_back.intersection(&self.ended);
        failed.filter(|key| !self.held.contains(*key)).cloned().collect()
    }

    fn observe(&mut self, note: &SchedulerEvent<'_>) -> Option<Stops> {
        if let SchedulerEvent::Decided { item, decided, .. } = note {
            if decided.reason.as_deref().is_some_and(may_be_done) {
                self.held.insert(item.key.clone());
            }
            if is_over_deadline(decided) {
                // It waits no more for what all of its scope or its group meet.
                self.left.remove(&item.key);
                self.put_back.remove(&item.key);
            }
        }
        match note {
            SchedulerEvent::Started(item) => {
                self.ended.remove(&item.key);
                self.left.remove(&item.key);
            }
            SchedulerEvent::Succeeded(item) => self.ended_otherwise(item),
            // Its time was over before it was tried again, which says nothing about a server.
            SchedulerEvent::Decided { decided, .. }
                if decided.failure.class.is_final() && is_over_deadline(decided) => {}
            SchedulerEvent::Decided { item, decided, .. } if self.counts(item, decided) => {
                if decided.action == "fail" || is_shut(decided) {
                    self.ended.insert(item.key.clone());
                }
                return match self.begun.remove(&item.id) {
                    Some((scope, address)) => self.failed_in(scope, &address, item, &decided.failure),
                    None => self.failed(item, &decided.failure).map(Stops::Run),
                };
            }
            // A retry decides nothing yet.
            SchedulerEvent::Decided { item, decided, .. } if matches!(decided.action, "fail" | "skip") => {
                self.ended_otherwise(item);
            }
            // Left, because its scope is stopped already.
            SchedulerEvent::Decided { item, decided, .. } if decided.action == "next_run" => {
                self.begun.remove(&item.id);
            }
            SchedulerEvent::Lost(item) | SchedulerEvent::Cancelled { item, .. } => drop(self.begun.remove(&item.id)),
            _ => {}
        }
        None
    }

    /// A final refusal, a command that only failed, or an answer that is not what the user expects.
    fn counts(&mut self, item: &WorkItem, decided: &DecisionRecord) -> bool {
        let ends = decided.action == "fail" || is_shut(decided);
        let refused = matches!(decided.failure.class, Class::Invalid | Class::Filtered) && ends;
        // Not again what a former run stopped, and one call has tested in vain.
        let is_of_stopped = self.command && decided.action == "fail" && self.stopped_groups.contains_key(&item.group);
        self.only_failed.remove(&item.id)
            || refused
            || is_of_stopped
            || (decided.failure.unexpected && decided.action != "next_run")
    }

    /// An item succeeded, or failed in a way that shows nothing about the others.
    fn ended_otherwise(&mut self, item: &WorkItem) {
        match self.begun.remove(&item.id) {
            Some((scope, address)) => self.scopes.ended_otherwise(&scope, &address),
            None => self.rows.ended_otherwise(&item.group, None),
        }
        if self.alike.is_watching() {
            self.disarm();
        }
    }

    /// Takes in a failure of a scope within a group. Scopes that all fail alike stop nothing while others can be tried, for each
    /// may be a customer of many, and gone; where nothing else ever comes, their items wait again at the end of the run.
    fn failed_in(&mut self, scope: Arc<str>, address: &str, item: &WorkItem, failure: &Failure) -> Option<Stops> {
        let stopped = [&*scope, address].into_iter().find(|name| self.stopped_scopes.contains(*name));
        if self.stopped.is_some() || stopped.is_some() {
            self.put_back_of_scopes += usize::from(self.put_back.insert(item.key.clone()));
            let key = Some(item.key.clone()).filter(|key| self.ended.contains(key));
            return key.map(|key| Stops::ScopeAlready(stopped.unwrap_or(&scope).into(), key));
        }
        let kind = alikeness(failure).kind;
        // What may have been done stays failed, in other workers too.
        let is_told = !self.held.contains(&item.key);
        if let Some(stops) = self.scopes.failed(&scope, &item.key, failure, address, is_told) {
            let only: Option<Arc<str>> = (stops == alike::Stops::Address).then(|| address.into());
            let keys = self.scopes.take(&scope, only.as_ref());
            let stops = self.stop_scope(&scope, only.as_ref(), &keys, failure, &item.key);
            self.put_back_of_scopes += keys.len();
            self.put_back.extend(keys);
            return Some(stops);
        }
        if !self.alike.is_watching() || !self.failed_scopes.insert(scope) {
            return None;
        }
        match &self.all_alike {
            Some(first) if alikeness(first).kind != kind => self.disarm(),
            Some(_) => {}
            None => match self.alike.failed(kind) {
                Shows::Nothing => self.disarm(),
                Shows::Stop => self.all_alike = Some(failure.clone()),
                Shows::TooFew | Shows::Stopped => {}
            },
        }
        None
    }

    /// A scope is stopped, or one of its addresses: `last` was refused last.
    fn stop_scope(
        &mut self,
        scope: &Arc<str>,
        only: Option<&Arc<str>>,
        keys: &BTreeSet<String>,
        failure: &Failure,
        last: &str,
    ) -> Stops {
        let same = self.same_failure(keys, failure, only.is_none() && self.scopes.are_first(scope));
        let name = only.unwrap_or(scope).clone();
        let address = match only {
            None => self.scopes.address(scope).map(ToOwned::to_owned),
            Some(_) => None,
        };
        let host = only.map(|_| scope.to_string());
        self.stopped_scopes.insert(name.clone());
        let refusals = Refusals { host, address, last: Some(last.to_owned()), ..Refusals::default() };
        Stops::Scope(name, same, refusals, keys.intersection(&self.ended).cloned().collect())
    }

    /// Items that failed, perhaps in an earlier run or in another worker, wait.
    fn put_back_failed(&mut self, keys: BTreeSet<String>) {
        self.ended.extend(keys.iter().cloned());
        self.put_back.extend(keys);
    }

    /// At the end of a run in which every scope failed alike: their items wait again.
    fn settle_scopes(&mut self) {
        let Some(failure) = self.all_alike.take() else { return };
        let scopes = &mut self.scopes;
        let keys: BTreeSet<String> = self.failed_scopes.iter().flat_map(|scope| scopes.take(scope, None)).collect();
        let items = self.put_back_of_scopes + keys.len();
        self.put_back.extend(keys);
        self.stopped = Some(SameFailure { items, ..self.same_failure(&self.put_back, &failure, true) });
        self.alike_scopes.append(&mut self.failed_scopes);
    }

    /// Takes in a failure; returns why the run has to end, once it has to. A group may be one customer of many: what all of its
    /// items meet stops no other group.
    fn failed(&mut self, item: &WorkItem, failure: &Failure) -> Option<SameFailure> {
        if self.stopped.is_some() || self.stopped_groups.contains_key(&item.group) {
            self.put_back.insert(item.key.clone());
            return None;
        }
        let alike = alikeness(failure);
        let kind = alike.kind.clone();
        let of_row = self.rows.failed(&item.group, item.key.clone(), alike, None);
        if self.alike.is_watching() {
            return self.failed_first(item, kind, failure);
        }
        of_row?;
        let mut keys = self.rows.take(&item.group, None);
        let same = self.same_failure(&keys, failure, self.rows.are_first(&item.group));
        self.put_back.append(&mut keys);
        self.stop_group_or_run(item.group.clone(), same)
    }

    /// A failure before anything ended otherwise.
    fn failed_first(&mut self, item: &WorkItem, kind: Kind, failure: &Failure) -> Option<SameFailure> {
        let is_new = self.keys.insert(item.key.clone());
        self.groups.insert(item.group.clone());
        match if is_new { self.alike.failed(kind) } else { Shows::TooFew } {
            Shows::Nothing => self.disarm(),
            Shows::Stop => {
                let same = self.same_failure(&self.keys, failure, true);
                self.put_back.append(&mut self.keys);
                let groups = std::mem::take(&mut self.groups);
                if groups.len() > 1 {
                    self.stopped = Some(same);
                    return self.stopped.clone();
                }
                let ends = self.stop_group_or_run(item.group.clone(), same);
                if ends.is_none() {
                    self.alike = Alike::new(self.limit, true);
                }
                return ends;
            }
            Shows::TooFew | Shows::Stopped => {}
        }
        None
    }

    /// Items without a group have none that could be stopped.
    fn stop_group_or_run(&mut self, group: Arc<str>, same: SameFailure) -> Option<SameFailure> {
        if *group != *DEFAULT_GROUP {
            self.stopped_groups.insert(group, same);
            return None;
        }
        self.stopped = Some(same);
        self.stopped.clone()
    }

    /// Why all of these stop something.
    fn same_failure(&self, keys: &BTreeSet<String>, failure: &Failure, are_first: bool) -> SameFailure {
        let advice = match self.command {
            true => "correct the command".to_owned(),
            false => same_failure::advice(failure, self.stays, are_first),
        };
        let which = if are_first { "first" } else { "last" };
        let held = keys.intersection(&self.held).count();
        let message = same_failure::describe(failure.status, &failure.message);
        SameFailure { which, items: keys.len(), held, advice, message }
    }

    fn disarm(&mut self) {
        self.alike.disarm();
        if self.all_alike.take().is_some() {
            self.alike = Alike::new(0, false);
        }
        if !self.alike.is_watching() {
            (self.keys, self.only_failed) = Default::default();
        }
    }
}

/// Whether an item waits for that.
fn is_shut(decided: &DecisionRecord) -> bool {
    decided.action == "next_run" && is_shut_to_caller(decided.failure.status)
}

/// Whether an item was given up because its deadline had passed.
fn is_over_deadline(decided: &DecisionRecord) -> bool {
    decided.reason.as_deref() == Some(GiveUp::Deadline.as_str())
}

/// Redirects are alike, whichever they are: an address that has moved answers with one or another.
fn alikeness(failure: &Failure) -> Alikeness {
    let status = if is_redirect(failure.status) { Some(300) } else { failure.status };
    Alikeness { kind: (status, failure.code.clone()), unexpected: failure.unexpected }
}

#[cfg(test)]
mod tests;
