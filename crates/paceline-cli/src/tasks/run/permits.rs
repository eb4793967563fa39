//! A permit for every start, and what an item waits for that gets none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::{Error, Limiter, NotNow, Permit};
use paceline_config::Upstream;
use paceline_core::{Class, Cost, Level, NextAction, Request, ScopeAnswers, ScopeId, Timestamp, WaitCause};
use paceline_http::HasAnswered;
use paceline_store::work::{Failure, StartDecision, StartDelay, Task, WorkItem};

use super::groups_of_commands::{self, GroupsOfCommands};
use super::pauses::Pauses;
use super::stopped_scopes::{ASKED_FOR, Why, number_of};
use crate::exit;
use crate::lines::address::Addresses;

/// The limiter of a run.
#[derive(Clone, Debug)]
pub(super) struct Permits {
    limiter: Limiter,
    /// Groups that a person opened: what is stopped on their way is to be tried once more.
    reopened: Arc<Mutex<BTreeSet<String>>>,
    /// When the item was claimed that tested a failing scope because a person had sent for it.
    tested_for_person: Arc<Mutex<BTreeMap<Arc<str>, Timestamp>>>,
    groups: Arc<GroupsOfCommands>,
    /// The longest that an item of a host sits out which only tested that; none where a host is no scope.
    longest_test: Option<Duration>,
    /// The longest that nothing begins before the run ends; none where it waits for whatever may come.
    max_wait: Option<Duration>,
    /// Items are requests, and no commands.
    are_requests: bool,
    /// What scopes kept back that a user could divide.
    pauses: Option<Arc<Pauses>>,
}

/// A host of many that fails for days is tested no more often than so, ...
const BETWEEN_TESTS: Duration = Duration::from_secs(15 * 60);

/// ... and by one item no sooner again than after half of the time for which it has failed: others test it, too.
fn half_of(outage: Duration, longest: Duration) -> Duration {
    (outage / 2).min(longest)
}

/// How long an item sits out whose try only tested a failing server, if that still fails.
pub(super) fn sits_out(action: &NextAction, is_probe: bool) -> Option<Duration> {
    match action {
        NextAction::Retry { delay, .. } if is_probe => Some(*delay),
        _ => None,
    }
}

impl Permits {
    /// `cap`: the longest wait of an item after failures.
    ///
    /// # Errors
    /// Names a knob that cannot be.
    pub(super) fn new(upstream: &Upstream, cap: Duration, max_wait: Option<Duration>) -> Result<Self, exit::Failure> {
        let (mut pacer, longest_test) = (upstream.pacer.clone(), Addresses::of(upstream).hosts.then_some(cap));
        if longest_test.is_some() {
            pacer.breaker.open_max = pacer.breaker.open_max.max(cap.min(BETWEEN_TESTS));
        }
        let limiter = Limiter::new(pacer).map_err(exit::Failure::refused)?;
        let (reopened, tested_for_person, groups) = Default::default();
        let (are_requests, pauses) = (false, None);
        Ok(Self { limiter, reopened, tested_for_person, groups, longest_test, max_wait, are_requests, pauses })
    }

    /// The same for requests, of which is told what a scope held up that a user could divide.
    pub(super) fn of_requests(self, upstream: &Upstream) -> Self {
        Self { are_requests: true, pauses: Pauses::of(upstream, self.limiter.now()), ..self }
    }

    /// Describes what one scope held up. `waiting`: items that the run leaves.
    pub(super) fn held_up(&self, waiting: u64) -> Option<String> {
        self.pauses.as_ref()?.describe(self.limiter.now(), waiting)
    }

    /// How long an item sits out whose try only tested a failing server, if that still fails.
    pub(super) fn sits_out(&self, scope: &str, action: &NextAction, is_probe: bool) -> Option<Duration> {
        let delay = sits_out(action, is_probe)?;
        let outage = || {
            let since = self.limiter.scope_snapshot(&self.limiter.scope(scope))?.failing_since?;
            Some(self.limiter.now().saturating_since(since))
        };
        let half = self.longest_test.and_then(|longest| Some(half_of(outage()?, longest)));
        Some(delay.max(half.unwrap_or_default()))
    }

    /// Whether the server of a scope is known to have answered.
    pub(super) fn server_of(&self, scope: &str) -> HasAnswered {
        let server = HasAnswered::default();
        let known = self.limiter.scope_snapshot(&self.limiter.scope(scope));
        if known.is_some_and(|known| matches!(known.answers, ScopeAnswers::Came { .. })) {
            server.came();
        }
        server
    }

    pub(super) fn scope(&self, name: &str) -> ScopeId {
        self.limiter.scope(name)
    }

    pub(super) const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// What is known of groups whose commands may hang.
    pub(super) const fn groups(&self) -> &Arc<GroupsOfCommands> {
        &self.groups
    }

    /// A person may have acted since the run before.
    pub(super) fn begin_run(&self) {
        self.limiter.resume(None);
    }

    /// A scope that was stopped is tested by one call: a person sent for it.
    pub(super) fn test_again(&self, scope: &ScopeId) {
        self.limiter.resume(Some(scope));
        self.limiter.test_first(Some(scope));
    }

    /// A person has seen to what stopped a group.
    pub(super) fn reopen(&self, group: &str) {
        self.reopened().insert(group.to_owned());
    }

    /// A permit for an item, or what it waits for. `address`: where it goes, of a scope that several receivers may share.
    /// `spares_group`: a stop of the scope leaves the item to the next run, and its group goes on.
    pub(super) fn take<F>(
        &self,
        task: &Task,
        scope: ScopeId,
        cost: Cost,
        address: Option<&str>,
        spares_group: bool,
    ) -> Result<Permit, StartDecision<F>> {
        let item = task.item();
        let name = Arc::clone(scope.name());
        let request = request_of(item, scope, cost, address);
        self.test_for_person(task, &request);
        let taken = match self.limiter.try_acquire(request.clone()) {
            // A stop may be of the account, and all that is held of it then.
            Err(NotNow::Never(Error::Stopped { .. })) if self.reopened().remove(&*item.group) => {
                self.limiter.resume(None);
                self.limiter.try_acquire(request)
            }
            taken => taken,
        };
        taken.map_err(|not_now| match not_now {
            NotNow::Wait { after, reason } => {
                let for_all = reason.level == Level::Account;
                if let (Some(pauses), Some(wait)) = (&self.pauses, after) {
                    pauses.note(&name, item.id, &reason, self.limiter.now(), wait);
                }
                // Hosts that do not answer have few places, and those that may have come before them.
                let at_hand = reason.cause != WaitCause::Place { in_vain: true };
                let after = self.share_comes_too_late(&reason.cause).or(after);
                let why = self.words_for(&reason.cause).into();
                StartDecision::Later(StartDelay { after, why, scope: name, for_all, at_hand, in_this_run: false })
            }
            NotNow::Never(Error::TooLarge(too_large)) => {
                let code = Some("too_large".to_owned());
                StartDecision::Never(Failure { code, ..Failure::new(Class::Invalid, too_large.to_string()) })
            }
            NotNow::Never(Error::Stopped { scope, .. }) if spares_group && scope == name => Why::Account.left(),
            NotNow::Never(Error::Stopped { reason, .. }) => StartDecision::Stopped(reason.to_string()),
            // There is no deadline, and a run never closes its limiter.
            other => StartDecision::Stopped(other.to_string()),
        })
    }

    fn words_for(&self, cause: &WaitCause) -> String {
        if self.are_requests { cause.to_string() } else { groups_of_commands::words_for(cause) }
    }

    /// A person who sends for an item of a failing scope has it tested at once, and by one call: not by items that were sent for
    /// before that left.
    fn test_for_person(&self, task: &Task, request: &Request) {
        let Some(sent_for) = task.item().sent_for.filter(|_| waits_for_its_first_call(task.item())) else { return };
        let scope = request.scope.name();
        let mut tested = self.tested_for_person.lock().unwrap_or_else(PoisonError::into_inner);
        if tested.get(scope).is_none_or(|at| sent_for > *at) && self.limiter.test_now(&request.scope, request.caller) {
            tested.insert(Arc::clone(scope), task.claimed_at());
            tracing::info!(scope = &**scope, "{ASKED_FOR}");
        }
    }

    /// How long an item waits for the share of a fleet at most, where the run ends rather than wait so long. One that comes
    /// in time may come sooner, so it is asked for again and again.
    fn share_comes_too_late(&self, cause: &WaitCause) -> Option<Duration> {
        let longest = self.max_wait.filter(|_| matches!(cause, WaitCause::Share { .. }))?;
        let until = self.limiter.fleet()?.without_share()?.until?;
        Some(until.saturating_since(self.limiter.now())).filter(|wait| *wait >= longest)
    }

    fn reopened(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.reopened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bounds on its tries are those of the store. But whether it was told to wait says whether others test its scope before it,
/// and whether it waits alone.
fn request_of(item: &WorkItem, scope: ScopeId, cost: Cost, address: Option<&str>) -> Request {
    let deferrals = item.deferrals.saturating_sub(item.forgiven.deferrals);
    let (item, priority, caller) = (Some(item.id), item.priority.into(), address.map(number_of));
    Request { item, priority, caller, deferrals, ..Request::new(scope, cost) }
}

/// Whether no call of an item has counted since a person sent for it.
fn waits_for_its_first_call(item: &WorkItem) -> bool {
    (item.attempts, item.deferrals) == (item.forgiven.attempts, item.forgiven.deferrals)
}

#[cfg(test)]
mod tests {
    use paceline_store::work::{Forgiven, MemoryStore, NewItem, WorkClock, WorkStore as _};

    use super::*;

    #[tokio::test]
    async fn an_item_that_was_told_to_wait_in_this_run_says_so() {
        let store = MemoryStore::new(WorkClock::system());
        store.insert(vec![NewItem::new("a", "1")]).await.expect("room");
        let new = store.list(Default::default(), 0, 1).await.expect("a memory").remove(0);
        let forgiven = Forgiven { deferrals: 2, ..Forgiven::default() };
        let told = WorkItem { deferrals: 3, forgiven, ..new.clone() };
        let scope = Limiter::new(paceline::PacerConfig::default()).expect("sensible").scope("a");
        let deferrals = [&new, &told].map(|item| request_of(item, scope.clone(), Cost::request(), None).deferrals);
        assert_eq!(deferrals, [0, 1]);
    }

    /// An event of a host that is down for two days, whose waits are of four hours at most.
    #[test]
    fn an_item_tests_a_host_less_often_the_longer_that_fails() {
        let (cap, mut now, mut tests) = (Duration::from_secs(4 * 3_600), Duration::from_secs(30), 0);
        while now < Duration::from_secs(2 * 86_400) {
            now += half_of(now, cap);
            tests += 1;
        }
        assert_eq!(tests, 27);
        assert_eq!(half_of(Duration::from_secs(10), cap), Duration::from_secs(5));
    }
}
