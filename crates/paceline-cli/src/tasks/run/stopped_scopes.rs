//! Scopes that are smaller than the groups of their items, such as the hosts of one group: one that is stopped leaves its items
//! to the next run, and its group goes on. That run tests it with one call. What one worker of a store has stopped, the others do
//! not call either, until one of them finds it open.

mod closed;
mod due;
mod late;
mod others;
mod test_call;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Limiter;
use paceline_core::{Class, Timestamp};
use paceline_store::work::{Amend, Failure, Filter, StartDecision, WorkClock, WorkError, WorkItem, WorkStore};
use tokio::sync::Notify;

use self::closed::Failing;
pub(super) use self::closed::number_of;
use self::due::DueItems;
use self::late::end_late;
pub(super) use self::test_call::TestCall;
use super::regularly;
use super::same_failure::SameFailure;
use crate::tasks::closed_scopes::{self, ClosedScope, ClosedScopes, Read};
pub(super) use crate::tasks::closed_scopes::{Refusals, Why};
use crate::tasks::hosts::UNFINISHED;
use crate::tasks::opened;
use crate::text;

/// Stopped scopes that are named.
const NAMED: usize = 3;

/// How often the store is told of them.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// A stop and a hold are told sooner: another worker may begin.
const SAVE_AFTER: Duration = Duration::from_millis(100);

/// How often what was left and is over its deadline is looked for.
const END_LATE_EVERY: Duration = Duration::from_secs(60);

/// The scopes that a run has stopped. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StoppedScopes(Arc<Mutex<Stopped>>);

#[derive(Debug, Default)]
struct Stopped {
    scopes: BTreeMap<Arc<str>, Stop>,
    /// What a former run stopped, until a call of the scope succeeds.
    suspects: BTreeMap<Arc<str>, Stop>,
    /// Those of them of which the call that tests them is under way.
    in_test: BTreeSet<Arc<str>>,
    /// Items of scopes that are open again, which wait for that alone.
    take_up: BTreeSet<String>,
    /// A refusal of a suspect stops it again.
    restops: bool,
    /// Why items wait for a run with other flags.
    lacks: Option<String>,
    /// The worker stays: its next run is a restart.
    stays: bool,
    /// Scopes are groups, as those of commands are: the store itself knows which of them are held.
    are_groups: bool,
    /// Until when servers hold scopes, and when that was noted: what is read of the clocks anew differs by a little.
    held: BTreeMap<Arc<str>, (Timestamp, Timestamp)>,
    /// Those that a former run knew of, until a call of theirs succeeds.
    held_before: BTreeMap<String, ClosedScope>,
    /// Until where it is known what a person has opened, and the scopes that were opened so in this run.
    opened_seen: u64,
    opened: BTreeSet<String>,
    /// Scopes whose holds ended early, those that throttle calls, and those of them of which a call has succeeded since: what
    /// waited for that is due.
    opened_early: BTreeSet<Arc<str>>,
    throttling: BTreeMap<Arc<str>, Timestamp>,
    due: BTreeMap<Arc<str>, DueItems>,
    /// Scopes of which the last call to some address failed.
    failing: BTreeMap<Arc<str>, Failing>,
    /// What this worker told the store.
    told: ClosedScopes,
    /// What other workers told it, and those of them of which a call has succeeded here since.
    of_others: BTreeSet<Arc<str>>,
    open: BTreeSet<Arc<str>>,
    /// Those that were stopped here, and another worker has found open: the next item is told so.
    found_open: BTreeSet<Arc<str>>,
    /// When the store handed out the last item that came to begin, by its clock.
    latest: Timestamp,
    /// The store is to be told of something before long.
    news: Arc<Notify>,
}

#[derive(Clone, Debug)]
struct Stop {
    why: Why,
    reason: String,
    advice: Option<String>,
    /// The keys of its items that were left to the next run, and of those whose failures stopped it.
    left: BTreeSet<String>,
    /// What was refused.
    refusals: Refusals,
    /// Items that have let others test it first.
    sat_out: BTreeSet<String>,
    /// An item that a person sends for later tests it; one that was sent for before does not, for a call has tested it since. By
    /// the clock of the store.
    since: Timestamp,
    /// Another worker has stopped it.
    is_of_another: bool,
}

impl Stop {
    fn new(why: Why, reason: String, advice: Option<String>, since: Timestamp) -> Self {
        let (left, sat_out, refusals) = Default::default();
        Self { why, reason, advice, left, refusals, sat_out, since, is_of_another: false }
    }
}

impl StoppedScopes {
    /// Those of a worker that `stays`, or of one that ends when nothing is left.
    pub(super) fn new(stays: bool) -> Self {
        Self(Arc::new(Mutex::new(Stopped { stays, ..Stopped::default() })))
    }

    /// The groups of commands, likewise.
    pub(super) fn of_groups(stays: bool) -> Self {
        Self(Arc::new(Mutex::new(Stopped { stays, are_groups: true, ..Stopped::default() })))
    }

    /// What the run before stopped is tried again, by one call of each scope: the cause may not be mended. `restops`: another
    /// refusal stops it again.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn begin_run(
        &self,
        store: &dyn WorkStore,
        limiter: &Limiter,
        restops: bool,
    ) -> Result<(), WorkError> {
        let Read { scopes: before, now, .. } = ClosedScopes::read(store).await?;
        let (_, opened_seen) = opened::after(store, 0).await?;
        let mut with_items = before.clone();
        with_items.retain_of(store, Filter::states(UNFINISHED)).await?;
        let mut stopped = self.lock();
        let Stopped { stays, are_groups, .. } = *stopped;
        let held_before = before.holds().map(|scope| (scope.name.clone(), scope.clone())).collect();
        *stopped = Stopped {
            restops,
            stays,
            are_groups,
            held_before,
            opened_seen,
            told: before.clone(),
            ..Stopped::default()
        };
        // What a server asked for holds for this run too.
        for (scope, cause) in
            before.holds().filter_map(|scope| Some((scope, scope.cause().filter(|cause| cause.is_asked())?)))
        {
            let until = Timestamp::from_millis(scope.until_ms.unwrap_or_default()).saturating_since(now);
            limiter.hold_for(Some(&limiter.scope(&scope.name)), limiter.now() + until, cause);
        }
        for (why, ClosedScope { name, reason, advice, refusals, .. }) in before.into_stopped() {
            // No call comes where no item is left.
            if with_items.names().any(|left| *left == name) {
                let line = format!("{name} was stopped ({reason}); one call tests it");
                tracing::info!(scope = name.as_str(), "{}", text::printable(&line));
            }
            if refusals.host.is_none() {
                limiter.test_first(Some(&limiter.scope(&name)));
            }
            let stop = Stop::new(why, reason, advice, Timestamp::from_millis(0));
            stopped.suspects.insert(name.into(), Stop { refusals, ..stop });
        }
        Ok(())
    }

    /// Nothing of that scope begins any more, which the log is told once. An item of it that has ended in this run comes again
    /// only where a person sends for it.
    pub(super) fn stop(&self, scope: &str, why: Why, reason: &str) {
        self.stop_for(scope, why, reason, None, Refusals::default());
    }

    /// The same of a scope or of an address of one, with what a person can do, and what was refused.
    pub(super) fn stop_for(&self, scope: &str, why: Why, reason: &str, advice: Option<&str>, refusals: Refusals) {
        let mut stopped = self.lock();
        if !stopped.scopes.contains_key(scope) {
            let told = refusals.told_with(reason);
            let line = format!("{scope} is stopped: {told}; its items are tried again {}", tried_again(stopped.stays));
            tracing::error!(scope, "{}", text::printable(&line));
            // Once for all scopes.
            let is_known = |stop: &Stop| stop.advice.as_deref() == advice;
            if let Some(advice) =
                advice.filter(|_| !stopped.scopes.values().chain(stopped.suspects.values()).any(is_known))
            {
                tracing::error!("{}", text::printable(advice));
            }
            let left = stopped.suspects.remove(scope).map(|suspect| suspect.left).unwrap_or_default();
            let stop = Stop::new(why, reason.to_owned(), advice.map(ToOwned::to_owned), stopped.latest);
            let refusals = Refusals { since_ms: refusals.since_ms.or(Some(stop.since.as_millis())), ..refusals };
            stopped.scopes.insert(scope.into(), Stop { left, refusals, ..stop });
            stopped.news.notify_one();
        }
    }

    /// Groups, and scopes, that all failed alike are tested by one call too, in the next run. Those that are stopped keep their
    /// reasons.
    pub(super) fn note_alike(&self, names: impl IntoIterator<Item = (Arc<str>, SameFailure)>) {
        let mut stopped = self.lock();
        let since = stopped.latest;
        for (name, same) in names {
            if !stopped.scopes.contains_key(&name) {
                let (reason, advice) = (same.cause(), Some(same.advice()));
                let suspect = || Stop::new(Why::SameFailure, reason, advice, since);
                stopped.suspects.entry(name).or_insert_with(suspect);
            }
        }
    }

    /// Takes in how a call of a scope ended. True where that is what the scope is stopped for, or what a former run stopped it
    /// for, which stops it again: the item is left with the others. Where it is open again all that were left are taken up.
    pub(super) fn heard(&self, scope: &str, class: Class, unexpected: bool) -> bool {
        let mut stopped = self.lock();
        let is_refusal = class.is_final() || unexpected;
        if matches!(class, Class::Throttled | Class::QuotaExhausted) {
            stopped.news.notify_one();
        }
        if class == Class::Success {
            stopped.is_open(scope);
            stopped.took_a_call(scope);
        }
        if stopped.scopes.get(scope).is_some_and(|stop| stop.why == Why::SameFailure) {
            return is_refusal;
        }
        let Some(Stop { why, reason, advice, refusals, .. }) = stopped.suspects.get(scope) else { return false };
        let is_same = *why == Why::SameFailure && is_refusal && stopped.restops;
        let (reason, advice, refusals) = (reason.clone(), advice.clone(), refusals.clone());
        if is_same {
            drop(stopped);
            self.stop_for(scope, Why::SameFailure, &reason, advice.as_deref(), refusals);
        } else if (class == Class::Success || is_refusal)
            && let Some(mut suspect) = stopped.suspects.remove(scope)
        {
            stopped.open.insert(scope.into());
            if !suspect.left.is_empty() {
                tracing::info!(scope, "the scope is open again, and all of its items go on");
            }
            stopped.take_up.append(&mut suspect.left);
        }
        is_same
    }

    /// What keeps an item of that scope from beginning, which the store handed out then. One that a person has sent for since the
    /// scope was stopped, or was last tested in vain, tests it by its call: the person has seen to the cause. `reopen` is called
    /// then, and where another worker has found the scope open.
    pub(super) fn keeps_back(
        &self,
        item: &WorkItem,
        handed_out: Timestamp,
        scope: &str,
        reopen: impl FnOnce(),
    ) -> Option<Why> {
        let mut stopped = self.lock();
        stopped.latest = stopped.latest.max(handed_out);
        if stopped.found_open.remove(scope) {
            reopen();
            return None;
        }
        let stop = stopped.scopes.get_mut(scope)?;
        stop.left.insert(item.key.clone());
        if item.sent_for.is_none_or(|at| at <= stop.since) {
            return Some(stop.why);
        }
        if let Some((name, stop)) = stopped.scopes.remove_entry(scope) {
            stopped.suspects.insert(name, stop);
        }
        reopen();
        tracing::info!(scope, "{ASKED_FOR}");
        None
    }

    /// Those that are stopped because their items failed alike; of an address its host too.
    pub(super) fn that_failed_alike(&self) -> Vec<(Arc<str>, Option<Arc<str>>)> {
        let stopped = self.lock();
        let alike = stopped.scopes.iter().filter(|(_, stop)| stop.why == Why::SameFailure);
        alike.map(|(name, stop)| (Arc::clone(name), stop.refusals.host.as_deref().map(Arc::from))).collect()
    }

    /// Whether what fails alike stops something.
    pub(super) fn restops(&self) -> bool {
        self.lock().restops
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
    pub(super) fn describe(&self) -> Option<String> {
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

    /// Tells the store of them regularly, for as long as the future is polled: a run that is killed leaves that to the next.
    /// Takes up what waits for nothing any more, and in a worker that stays what was left and is over its deadline, which is
    /// `deadline` where it has none of its own.
    pub(super) async fn save_regularly(
        &self,
        store: &dyn WorkStore,
        clock: &WorkClock,
        limiter: &Limiter,
        deadline: Duration,
    ) {
        let (mut pause, mut took) = (SAVE_EVERY, Duration::ZERO);
        let mut ends_late_at = clock.now() + END_LATE_EVERY;
        loop {
            let news = Arc::clone(&self.lock().news);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = news.notified() => tokio::time::sleep(took.clamp(SAVE_AFTER, SAVE_EVERY)).await,
            }
            let began = clock.now();
            let _ = self.take_up(store).await;
            let _ = self.make_due(store).await;
            let _ = self.open_as_told(store, limiter).await;
            if self.lock().stays && ends_late_at <= began {
                let _ = end_late(store, deadline).await;
                ends_late_at = began + END_LATE_EVERY;
            }
            // At the end of the run it is told again, and an error of the store ends that by itself.
            let _ = self.save(store, limiter).await;
            took = clock.now().saturating_since(began);
            pause = regularly::pause(SAVE_EVERY, took);
        }
    }

    /// Opens what a person has opened though it is held, and lets the items go that were meant.
    async fn open_as_told(&self, store: &dyn WorkStore, limiter: &Limiter) -> Result<(), WorkError> {
        let seen = self.lock().opened_seen;
        let (opened, seen) = opened::after(store, seen).await?;
        for opened in opened {
            let scope = opened.scope.as_str();
            limiter.resume(Some(&limiter.scope(scope)));
            limiter.test_first(Some(&limiter.scope(scope)));
            self.person_opened(scope);
            tracing::info!(scope, "a person has opened the scope, which was held");
            // Until now they were put back.
            store.amend(opened.items(), Amend::Retry).await?;
        }
        self.lock().opened_seen = seen;
        Ok(())
    }

    fn person_opened(&self, scope: &str) {
        let mut stopped = self.lock();
        stopped.is_open(scope);
        stopped.opened.insert(scope.to_owned());
        stopped.opened_early.insert(scope.into());
    }

    /// Lets the items of scopes that are open again wait in this run.
    async fn take_up(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let keys = self.lock().take_up.clone();
        if keys.is_empty() {
            return Ok(());
        }
        store.amend(Filter::keys(keys.iter().cloned()), Amend::TakeUp).await?;
        self.lock().take_up.retain(|key| !keys.contains(key));
        Ok(())
    }

    /// Tells the store of them, and of those that a server holds, if it does not know. What other workers told it stays, and
    /// holds here too.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn save(&self, store: &dyn WorkStore, limiter: &Limiter) -> Result<(), WorkError> {
        let (own, all, now) = loop {
            let Read { scopes: kept, text: before, now } = ClosedScopes::read(store).await?;
            let (own, open, all) = {
                let mut stopped = self.lock();
                stopped.take_up_found_open(&kept);
                let (own, open) = (ClosedScopes(stopped.closed(now, limiter)), std::mem::take(&mut stopped.open));
                let all = kept.with(&stopped.told, &own, &open);
                (own, open, all)
            };
            if all.by_name() == kept.by_name() {
                break (own, all, now);
            }
            let replaced = closed_scopes::replace(store, before.as_deref(), &all.encode()).await;
            if let Ok(true) = replaced {
                break (own, all, now);
            }
            // Another worker has told its own meanwhile, or the store failed.
            self.lock().open.extend(open);
            replaced?;
        };
        let mut stopped = self.lock();
        let of_this: BTreeSet<&str> = own.names().collect();
        stopped.of_others = all.names().filter(|name| !of_this.contains(name)).map(Arc::from).collect();
        stopped.follow(&all, now, limiter);
        stopped.told = own;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Stopped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stopped {
    /// A call of a scope has succeeded, or a person has opened it.
    fn is_open(&mut self, scope: &str) {
        if self.held_before.remove(scope).is_some() {
            self.opened_early.insert(scope.into());
        }
        if let Some(scope) = self.of_others.take(scope) {
            self.opened_early.insert(Arc::clone(&scope));
            self.open.insert(scope);
        }
        if self.scopes.get(scope).is_some_and(|stop| stop.is_of_another)
            && let Some(mut stop) = self.scopes.remove(scope)
        {
            self.take_up.append(&mut stop.left);
        }
    }
}

impl Why {
    /// The decision about an item of a scope that is stopped for that. Time goes on for items of a host that refuses them or is
    /// gone, and stands still until a person has acted.
    pub(super) fn left<F>(self) -> StartDecision<F> {
        StartDecision::Left { why: self.as_str().into(), time_stands_still: self == Self::Account }
    }
}

/// When items are tried again that are left to a run.
pub(super) const fn tried_again(stays: bool) -> &'static str {
    if stays { "at the next start of this worker, or by `paceline tasks retry`" } else { "by the next run" }
}

/// What is told where a person sends for an item of what is stopped, or fails.
pub(super) const ASKED_FOR: &str =
    "asked for by a person (`paceline tasks retry`, or items that were moved): one call tests whether it is back";

/// The decision about an item that waits for a person, and for which its group need not stop.
fn left_to_next_run(reason: String) -> Failure {
    Failure { spares_group: true, ..Failure::new(Class::Account, reason) }
}

#[cfg(test)]
mod tests;
