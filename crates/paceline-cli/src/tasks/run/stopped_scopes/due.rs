//! What waits for a pause that has ended before its time, or for a scope that throttled all calls and takes them again.

use std::time::Duration;

use paceline_core::{Class, PauseCause, Timestamp};
use paceline_store::work::{Amend, Filter, State, WorkError, WorkItem, WorkStore};

use super::{Stopped, StoppedScopes};
use crate::tasks::add::host_and_address_of;
use crate::tasks::pages::Pages;

/// A scope that took no call for less time has its items called again within as long.
const LONG: Duration = Duration::from_secs(30);

/// Which items of a scope are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueItems {
    /// All that waited for its pause.
    AfterPause,
    /// Those that were throttled without a time, and first called then or later: of the scope no call has succeeded since. What
    /// is refused while others succeed keeps its own wait.
    FirstCalledFrom(Timestamp),
}

impl StoppedScopes {
    /// A call that was claimed then was throttled, and told no time to wait.
    pub(in crate::tasks::run) fn throttled(&self, scope: &str, claimed: Timestamp) {
        let mut stopped = self.lock();
        let since = stopped.throttling.get(scope).map_or(claimed, |since| claimed.min(*since));
        stopped.throttling.insert(scope.into(), since);
    }

    /// Makes due what waits for the pauses of scopes that take calls again.
    pub(super) async fn make_due(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let scopes = self.lock().due.clone();
        for (scope, which) in scopes {
            due(store, &scope, which).await?;
            self.lock().due.remove(&scope);
        }
        Ok(())
    }
}

impl Stopped {
    /// A call of the scope has succeeded.
    pub(super) fn took_a_call(&mut self, scope: &str) {
        let throttled = self.throttling.remove_entry(scope);
        let throttled = throttled.filter(|(_, since)| self.latest.saturating_since(*since) >= LONG);
        let throttled = throttled.map(|(scope, since)| (scope, DueItems::FirstCalledFrom(since)));
        let opened = self.opened_early.take(scope).map(|scope| (scope, DueItems::AfterPause));
        if let Some((scope, which)) = opened.or(throttled) {
            self.due.insert(scope, which);
            self.news.notify_one();
        }
    }
}

/// These items of a host, or of a group that is a scope, are due.
async fn due(store: &dyn WorkStore, scope: &str, which: DueItems) -> Result<(), WorkError> {
    let now = store.now().await?;
    let mut pages = Pages::of(store, Filter::states([State::Waiting]), None);
    while let Some(items) = pages.next().await? {
        let mut keys = Vec::new();
        for item in items.into_iter().filter(|item| which.has(item, now)) {
            if *item.group == *scope || goes_to(store, &item, scope).await? {
                keys.push(item.key);
            }
        }
        if !keys.is_empty() {
            store.amend(Filter::keys(keys), Amend::Due).await?;
        }
    }
    Ok(())
}

/// Whether the payload of an item names that host.
async fn goes_to(store: &dyn WorkStore, item: &WorkItem, host: &str) -> Result<bool, WorkError> {
    let payload = store.show(&item.key).await?.map(|(_, payload, _)| payload);
    let known = payload.and_then(|payload| host_and_address_of(&payload, &item.key));
    Ok(known.is_some_and(|(of, _)| of == host))
}

impl DueItems {
    fn has(self, item: &WorkItem, now: Timestamp) -> bool {
        match self {
            Self::AfterPause => waits_for_a_pause(item, now),
            Self::FirstCalledFrom(since) => {
                let is_throttled = item.last.as_ref().is_some_and(|last| last.class == Class::Throttled);
                let waits = item.not_before.is_some_and(|at| at > now);
                waits && is_throttled && item.reason.is_none() && item.first.is_some_and(|first| first >= since)
            }
        }
    }
}

/// Whether an item was put off by a pause that its host asked for, or asked for that itself.
fn waits_for_a_pause(item: &WorkItem, now: Timestamp) -> bool {
    let is_asked = |reason: &str| PauseCause::from_text(reason).is_some_and(PauseCause::is_asked);
    let refused = || item.last.as_ref().is_some_and(|last| matches!(last.class, Class::Throttled | Class::Overloaded));
    item.not_before.is_some_and(|at| at > now) && item.reason.as_deref().map_or_else(refused, is_asked)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_core::retry::Counted;
    use paceline_store::work::{
        ClaimOutcome, ClaimRequest, DecisionRecord, Failure, MemoryStore, NewItem, Transition, WorkClock,
    };

    use super::*;

    const HOST: &str = "hooks.example";

    /// A worker of one host, whose items wait for an hour after each 429.
    struct Worker {
        stopped: StoppedScopes,
        store: Arc<MemoryStore>,
    }

    impl Worker {
        fn new() -> Self {
            let clock = WorkClock::starting_at(Timestamp::from_millis(1_700_000_000_000));
            let store = Arc::new(MemoryStore::new(clock));
            Self { stopped: StoppedScopes::new(true), store }
        }

        /// Calls what is due, of which the host takes all but these; what waited and is due then.
        async fn calls(&self, refused: &[&str]) -> Vec<String> {
            let worker = self.store.register("w", Duration::from_secs(30)).await.expect("a memory");
            let ask = ClaimRequest { limit: 9, ahead: Duration::ZERO };
            for claimed in self.store.claim(worker, ask).await.expect("a memory").items {
                self.stopped.keeps_back(&claimed.item, claimed.at, HOST, || {});
                let outcome = if refused.contains(&&*claimed.item.key) {
                    self.stopped.throttled(HOST, claimed.at);
                    let (action, by) = ("defer", "rules".to_owned());
                    let failure = Failure::new(Class::Throttled, "429");
                    let decided = Some(DecisionRecord { failure, action, reason: None, by, stayed_down: false });
                    let next = Transition::Retry(Duration::from_secs(3_600));
                    ClaimOutcome { counted: Counted::Deferral, next, decided, ..ClaimOutcome::back(&claimed) }
                } else {
                    self.stopped.heard(HOST, Class::Success, false);
                    ClaimOutcome::success(&claimed)
                };
                self.store.record(vec![outcome], Vec::new()).await.expect("a memory");
            }
            self.stopped.make_due(&*self.store).await.expect("a memory");
            let waiting = self.store.list(Filter::states([State::Waiting]), 0, 9).await.expect("a memory");
            waiting.into_iter().filter(|item| item.not_before.is_none()).map(|item| item.key).collect()
        }

        async fn add(&self, keys: &[&str]) {
            let payload = format!(r#"{{"url":"https://{HOST}/in","body":1}}"#);
            let items = keys.iter().map(|key| NewItem::new(*key, payload.clone())).collect();
            self.store.insert(items).await.expect("room");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_host_throttled_is_due_once_it_takes_a_call_after_half_a_minute_of_refusals() {
        for (pause, due) in [(LONG / 2, vec![]), (LONG, vec!["a", "b"])] {
            let worker = Worker::new();
            worker.add(&["a", "b"]).await;
            assert_eq!(worker.calls(&["a", "b"]).await, [""; 0]);
            tokio::time::sleep(pause).await;
            worker.add(&["c"]).await;
            assert_eq!(worker.calls(&[]).await, due, "{pause:?}");
        }
    }

    /// Otherwise it would be sent as often as others are, for ever.
    #[tokio::test(start_paused = true)]
    async fn what_is_throttled_while_others_pass_keeps_its_own_wait() {
        let worker = Worker::new();
        worker.add(&["poison", "well"]).await;
        assert_eq!(worker.calls(&["poison", "well"]).await, [""; 0]);
        tokio::time::sleep(LONG).await;
        worker.add(&["first"]).await;
        assert_eq!(worker.calls(&[]).await, ["poison", "well"], "what met only refusals so far");
        for n in 0..3 {
            assert_eq!(worker.calls(&["poison"]).await, [""; 0]);
            tokio::time::sleep(2 * LONG).await;
            worker.add(&[&format!("next-{n}")]).await;
            assert_eq!(worker.calls(&["poison"]).await, [""; 0], "{n}");
        }
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        worker.calls(&["poison"]).await;
        let poison = worker.store.show("poison").await.expect("a memory").expect("it is there").0;
        assert_eq!(poison.deferrals, 3, "at first, once the host took calls, and after its own wait");
    }
}
