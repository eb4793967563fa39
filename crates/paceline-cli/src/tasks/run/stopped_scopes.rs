//! Scopes that are smaller than the groups of their items, such as the hosts of one group: one that is stopped leaves its
//! items to the next run, and its group goes on. That run tests it with one call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Limiter;
use paceline_core::{Class, ScopeState, Timestamp};
use paceline_store::work::{Failure, WorkClock, WorkError, WorkItem, WorkStore};

pub(super) use crate::tasks::closed_scopes::Why;
use crate::tasks::closed_scopes::{self, ClosedScope, ClosedScopes};
use crate::text;

/// Stopped scopes that are named.
const NAMED: usize = 3;

/// How often the store is told of them.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// But after a pause of at least so many times as long as that takes: there may be a hundred thousand scopes.
const PAUSE_FACTOR: u32 = 20;

/// A shorter hold is none to tell of.
const SHORT: Duration = Duration::from_secs(1);

/// The scopes that a run has stopped. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct StoppedScopes(Arc<Mutex<Stopped>>);

#[derive(Debug, Default)]
struct Stopped {
    scopes: BTreeMap<Arc<str>, Stop>,
    /// What a former run stopped, until a call of the scope succeeds.
    suspects: BTreeMap<Arc<str>, (Why, String)>,
    /// A refusal of a suspect stops it again.
    restops: bool,
    /// Why items wait for a run with other flags.
    lacks: Option<String>,
    /// The worker stays: its next run is a restart.
    stays: bool,
    /// Scopes are groups, as those of commands are: the store itself knows which of them are held.
    are_groups: bool,
    /// Until when servers hold scopes: what is read of the clocks anew differs by a little.
    held: BTreeMap<Arc<str>, Timestamp>,
    /// What the store knows.
    saved: String,
}

#[derive(Debug)]
struct Stop {
    why: Why,
    reason: String,
    /// The keys of its items that were left to the next run, and of those whose failures stopped it.
    left: BTreeSet<String>,
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
        clock: &WorkClock,
        limiter: &Limiter,
        restops: bool,
    ) -> Result<(), WorkError> {
        let before = ClosedScopes::of(store, clock.wall()).await?;
        let mut stopped = self.lock();
        let Stopped { stays, are_groups, .. } = *stopped;
        *stopped = Stopped { restops, stays, are_groups, saved: before.encode(), ..Stopped::default() };
        for (name, why, reason) in before.into_stopped() {
            let line = format!("{name} was stopped ({reason}); one call tests it");
            tracing::info!(scope = name.as_str(), "{}", text::printable(&line));
            limiter.test_first(Some(&limiter.scope(&name)));
            stopped.suspects.insert(name.into(), (why, reason));
        }
        Ok(())
    }

    /// Nothing of that scope begins any more, which the log is told once. An item of it that has ended in this run comes again
    /// only where a person sends for it.
    pub(super) fn stop(&self, scope: &str, why: Why, reason: &str) {
        let mut stopped = self.lock();
        if !stopped.scopes.contains_key(scope) {
            let (shown, until) = (text::printable(reason), waits(stopped.stays));
            tracing::error!(scope, "the scope is stopped, and its items {until}: {shown}");
            stopped.suspects.remove(scope);
            stopped.scopes.insert(scope.into(), Stop { why, reason: reason.to_owned(), left: BTreeSet::new() });
        }
    }

    /// Groups, and scopes, that all failed alike are tested by one call too, in the next run.
    pub(super) fn note_alike(&self, names: impl IntoIterator<Item = (Arc<str>, String)>) {
        let names = names.into_iter().map(|(name, reason)| (name, (Why::SameFailure, reason)));
        self.lock().suspects.extend(names);
    }

    /// Takes in how a call of a scope ended. True where that is what a former run stopped it for: it is stopped again.
    pub(super) fn heard(&self, scope: &str, class: Class, unexpected: bool) -> bool {
        let mut stopped = self.lock();
        let is_refusal = class.is_final() || unexpected;
        let Some((why, reason)) = stopped.suspects.get(scope) else { return false };
        let (is_same, reason) = (*why == Why::SameFailure && is_refusal && stopped.restops, reason.clone());
        if is_same {
            drop(stopped);
            self.stop(scope, Why::SameFailure, &reason);
        } else if class == Class::Success || is_refusal {
            stopped.suspects.remove(scope);
        }
        is_same
    }

    /// Why an item of that scope does not begin. An item that was left to the next run and comes again in this one was sent for
    /// by a person, who has seen to the cause: its scope is open again, and `reopen` is called. But not where another worker has
    /// begun a run with it: that tests the scope by a call of its own.
    pub(super) fn keeps_back(&self, item: &WorkItem, scope: &str, reopen: impl FnOnce()) -> Option<Failure> {
        let mut stopped = self.lock();
        let stop = stopped.scopes.get_mut(scope)?;
        if stop.left.insert(item.key.clone()) || item.was_left_to_a_run() {
            // Time goes on for items of a host that refuses them or is gone, and stands still until a person has acted.
            let class = if stop.why == Why::Account { Class::Account } else { Class::Invalid };
            return Some(Failure { class, ..left_to_next_run(stop.reason.clone()) });
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

    /// Tells the store of them regularly, for as long as the future is polled: a run that is killed leaves that to the next.
    pub(super) async fn save_regularly(&self, store: &dyn WorkStore, clock: &WorkClock, limiter: &Limiter) {
        let mut pause = SAVE_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let began = clock.now();
            // At the end of the run it is told again, and an error of the store ends that by itself.
            let _ = self.save(store, clock, limiter).await;
            pause = SAVE_EVERY.max(clock.now().saturating_since(began) * PAUSE_FACTOR);
        }
    }

    /// Tells the store of them, if something has changed, and of those that a server holds.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn save(
        &self,
        store: &dyn WorkStore,
        clock: &WorkClock,
        limiter: &Limiter,
    ) -> Result<(), WorkError> {
        let (encoded, is_new) = {
            let mut stopped = self.lock();
            let encoded = closed_scopes::encode(stopped.closed(clock, limiter));
            let is_new = encoded != stopped.saved;
            (encoded, is_new)
        };
        if is_new {
            closed_scopes::save(store, &encoded).await?;
            self.lock().saved = encoded;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Stopped> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stopped {
    /// The scopes that may not send: stopped ones, those that are still to be tested, and those that a server holds.
    fn closed(&mut self, clock: &WorkClock, limiter: &Limiter) -> Vec<ClosedScope> {
        let (now, wall) = (limiter.now(), clock.wall());
        let is_stopped = |name: &str| self.scopes.contains_key(name) || self.suspects.contains_key(name);
        let mut held = BTreeMap::new();
        let mut closed = Vec::new();
        let scopes = if self.are_groups { Vec::new() } else { limiter.snapshot().scopes };
        for scope in scopes {
            let hold = match scope.state {
                ScopeState::Held { until, cause } => Some((until, cause)),
                _ => scope.closed_until.zip(scope.closed_for),
            };
            let Some((until, cause)) = hold.filter(|(until, _)| *until > now + SHORT) else { continue };
            if is_stopped(&scope.name) {
                continue;
            }
            let until = wall + (until - now);
            let known = self.held.get(&scope.name).filter(|known| known.saturating_since(until) < SHORT);
            let until = *known.filter(|known| until.saturating_since(**known) < SHORT).unwrap_or(&until);
            let (name, reason) = (scope.name.to_string(), cause.explanation().to_string());
            closed.push(ClosedScope { name, why: None, until_ms: Some(until.as_millis()), reason });
            held.insert(scope.name, until);
        }
        self.held = held;
        let stopped = self.scopes.iter().map(|(name, stop)| (name, stop.why, &stop.reason));
        let suspects = self.suspects.iter().map(|(name, (why, reason))| (name, *why, reason));
        let stopped = stopped.chain(suspects).map(|(name, why, reason)| ClosedScope {
            name: name.to_string(),
            why: Some(why),
            until_ms: None,
            reason: reason.clone(),
        });
        stopped.chain(closed).collect()
    }
}

/// What the items of a stopped scope do.
pub(super) const fn waits(stays: bool) -> &'static str {
    if stays { "wait for `paceline tasks retry`, or a new start of this worker" } else { "wait for the next run" }
}

/// The decision about an item that waits for a person, and for which its group need not stop.
pub(super) fn left_to_next_run(reason: String) -> Failure {
    Failure { spares_group: true, ..Failure::new(Class::Account, reason) }
}

#[cfg(test)]
mod tests {
    use paceline::PacerConfig;
    use paceline_store::work::{Amend, MemoryStore, NewItem, WorkStore as _};

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

    /// Another worker begins a run, which wakes all that was left to one.
    #[tokio::test]
    async fn what_another_worker_woke_opens_no_scope_of_this_one() {
        let store = MemoryStore::new(WorkClock::system());
        store.insert(vec![NewItem::new("a", "1")]).await.expect("room");
        let item = async || store.list(Default::default(), 0, 1).await.expect("a memory").remove(0);
        let stopped = StoppedScopes::default();
        stopped.stop("one", Why::SameFailure, "no");
        let keeps_back = |item: &WorkItem| stopped.keeps_back(item, "one", || {}).is_some();
        assert!(keeps_back(&item().await), "it is left to the next run");
        let leave = || store.amend(Default::default(), Amend::LeaveToNextRun);
        leave().await.expect("a memory");
        for _ in 0..2 {
            store.register("another", Duration::from_secs(30)).await.expect("a memory");
            assert!(keeps_back(&item().await), "no person has sent for it");
            leave().await.expect("a memory");
        }
        store.amend(Default::default(), Amend::Retry).await.expect("a memory");
        assert!(!keeps_back(&item().await), "a person has");
    }

    /// A run, and the one that comes after it: of what the first stopped, one refusal is enough for the second.
    #[tokio::test]
    async fn what_a_run_stopped_is_tested_by_the_next_and_stopped_again_by_one_refusal() {
        let clock = WorkClock::system();
        let store = MemoryStore::new(clock.clone());
        let limiter = Limiter::new(PacerConfig::default()).expect("sensible");
        let stopped = StoppedScopes::default();
        let next_run = async |restops| stopped.begin_run(&store, &clock, &limiter, restops).await.expect("a memory");
        next_run(true).await;
        assert!(!stopped.heard("gone", Class::Invalid, false), "of that scope nothing is known");
        stopped.stop("gone", Why::SameFailure, "it is gone");
        stopped.stop("unpaid", Why::Account, "no credit");
        for end in [Class::Invalid, Class::Transient] {
            stopped.save(&store, &clock, &limiter).await.expect("a memory");
            next_run(true).await;
            let request = || paceline::Request::new(limiter.scope("gone"), paceline::Cost::request());
            let test = limiter.try_acquire(request()).expect("one call tests it");
            assert!(limiter.try_acquire(request()).is_err(), "and one alone");
            drop(test);
            assert_eq!(stopped.heard("gone", end, false), end == Class::Invalid);
            assert_eq!(stopped.why(), (end == Class::Invalid).then_some(Why::SameFailure));
        }
        assert!(!stopped.heard("unpaid", Class::Invalid, false), "it has credit again");
        stopped.save(&store, &clock, &limiter).await.expect("a memory");
        next_run(false).await;
        assert!(!stopped.heard("gone", Class::Invalid, false), "as the user said");
        stopped.save(&store, &clock, &limiter).await.expect("a memory");
        assert_eq!(ClosedScopes::of(&store, clock.wall()).await.expect("a memory"), ClosedScopes::default());
    }
}
