//! Which hosts have answered, as the store remembers it: after a new start, and in the other workers of a store, a host that has
//! answered waits for no host of which nothing is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline::Limiter;
use paceline_core::{ScopeAnswers, ScopeId, Timestamp};
use paceline_store::work::{NotedAnswers, WorkClock, WorkError, WorkStore};

use super::regularly;

/// How often the store is told, and asked what other workers know.
const SAVE_EVERY: Duration = Duration::from_secs(1);

/// What another worker notes may become visible so much later than its time says.
const LATE: Duration = Duration::from_secs(10);

/// What is still so is noted again after so long, for the store keeps what was noted last.
const AGAIN_AFTER: Duration = Duration::from_secs(86_400);

/// Answers so many times as slow, or as fast, as was noted are noted again.
const FACTOR: u32 = 4;

/// So many scopes are known at a time; with more it is read anew what the store keeps.
const MOST: usize = 50_000;

/// What is known of the scopes of a store. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownAnswers(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    scopes: HashMap<Arc<str>, OfScope>,
    /// Until where the store's notes were read.
    seen: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct OfScope {
    /// The last word of any worker.
    answers: ScopeAnswers,
    /// What this worker has noted, or found at its start.
    noted: ScopeAnswers,
    at: Timestamp,
}

impl KnownAnswers {
    /// Reads what earlier runs noted.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn begin_run(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        *self.lock() = Known::default();
        self.read(store).await
    }

    /// Tells the limiter what is known of a scope, in which it may know nothing.
    pub(super) fn tell(&self, limiter: &Limiter, scope: &ScopeId) {
        let known = self.lock().scopes.get(scope.name()).map(|known| known.answers);
        if let Some(answers) = known {
            limiter.recall_answers(scope, answers);
        }
    }

    /// Notes what the limiter learns, and reads what other workers note, for as long as the future is polled.
    pub(super) async fn keep(&self, store: &dyn WorkStore, clock: &WorkClock, limiter: &Limiter) {
        let mut pause = SAVE_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let began = clock.now();
            // A store that cannot be written ends the run by itself.
            let _ = self.save(store, limiter).await;
            let _ = self.read(store).await;
            pause = regularly::pause(SAVE_EVERY, clock.now().saturating_since(began));
        }
    }

    /// Notes what the limiter has learnt since the last time.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn save(&self, store: &dyn WorkStore, limiter: &Limiter) -> Result<(), WorkError> {
        let (mut learnt, now) = (Vec::new(), store.now().await?);
        for scope in limiter.snapshot().scopes {
            let known = self.lock().scopes.get(&scope.name).copied();
            if scope.answers != ScopeAnswers::Unknown && known.is_none_or(|known| known.is_outdated(scope.answers, now))
            {
                learnt.push(NotedAnswers { scope: scope.name, answers: scope.answers, noted: now });
            }
        }
        if learnt.is_empty() {
            return Ok(());
        }
        store.note_answers(learnt.clone()).await?;
        let of_scope = |NotedAnswers { scope, answers, noted }| (scope, OfScope { answers, noted: answers, at: noted });
        self.lock().scopes.extend(learnt.into_iter().map(of_scope));
        Ok(())
    }

    async fn read(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let since = {
            let mut known = self.lock();
            if known.scopes.len() > MOST {
                *known = Known::default();
            }
            known.seen
        };
        let long_ago = Timestamp::from_millis(0);
        let from = since.map_or(long_ago, |seen| Timestamp::from_millis(seen.as_millis() - LATE.as_millis() as i64));
        let read = store.answers(from).await?;
        let mut known = self.lock();
        for NotedAnswers { scope, answers, noted } in read {
            known.seen = known.seen.max(Some(noted));
            let of_scope = known.scopes.entry(scope).or_insert(OfScope { answers, noted: answers, at: noted });
            of_scope.answers = answers;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfScope {
    /// Whether what this worker has noted is not so any more, or long ago.
    fn is_outdated(&self, now_known: ScopeAnswers, now: Timestamp) -> bool {
        let differs = match (self.noted, now_known) {
            (ScopeAnswers::Came { slowest: noted }, ScopeAnswers::Came { slowest }) => {
                noted * FACTOR < slowest || slowest * FACTOR < noted
            }
            (noted, known) => noted != known,
        };
        differs || now.saturating_since(self.at) > AGAIN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use paceline::{Class, Outcome, PacerConfig};
    use paceline_core::{Cost, Request};
    use paceline_store::work::MemoryStore;

    use super::*;

    struct Worker {
        known: KnownAnswers,
        limiter: Limiter,
    }

    impl Worker {
        async fn begun(store: &MemoryStore) -> Self {
            let known = KnownAnswers::default();
            known.begin_run(store).await.expect("a memory");
            Self { known, limiter: Limiter::new(PacerConfig::default()).expect("sensible") }
        }

        /// What its limiter knows of a scope once it was told.
        fn knows(&self, name: &str) -> ScopeAnswers {
            let scope = self.limiter.scope(name);
            self.known.tell(&self.limiter, &scope);
            self.limiter.scope_snapshot(&scope).map_or(ScopeAnswers::Unknown, |scope| scope.answers)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_worker_and_the_next_start_know_which_hosts_answer() {
        let clock = WorkClock::starting_at(paceline::clock::wall());
        let store = MemoryStore::new(clock.clone());
        let (one, other) = (Worker::begun(&store).await, Worker::begun(&store).await);
        for (name, class, takes) in [("good", Class::Success, 1), ("hangs", Class::Transient, 10)] {
            let request = Request::new(one.limiter.scope(name), Cost::request());
            let permit = one.limiter.try_acquire(request).expect("room");
            tokio::time::sleep(Duration::from_secs(takes)).await;
            permit.complete(Outcome::new(class));
        }
        assert_eq!(other.knows("good"), ScopeAnswers::Unknown);
        one.known.save(&store, &one.limiter).await.expect("a memory");
        other.known.read(&store).await.expect("a memory");
        for worker in [other, Worker::begun(&store).await] {
            assert!(matches!(worker.knows("good"), ScopeAnswers::Came { .. }), "{:?}", worker.knows("good"));
            assert_eq!(worker.knows("hangs"), ScopeAnswers::Missing);
        }
        assert!(store.answers(clock.wall()).await.expect("a memory").len() == 2);
        tokio::time::sleep(Duration::from_secs(60)).await;
        one.known.save(&store, &one.limiter).await.expect("a memory");
        assert!(store.answers(clock.wall()).await.expect("a memory").is_empty(), "what is noted is not noted again");
    }
}
