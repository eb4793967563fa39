//! The limiter's state in the store, so that a limit holds over restarts.

use std::sync::Arc;
use std::time::Duration;

use paceline::Limiter;
use paceline_store::work::{WorkClock, WorkError, WorkStore};

use super::regularly;
use crate::account::{Account, SharedLimits};
use crate::limiter_state;

/// How often it is saved while a run works.
const SAVE_EVERY: Duration = Duration::from_millis(500);

/// A limiter whose state is saved in the store.
pub(super) struct PersistentLimiter {
    store: Arc<dyn WorkStore>,
    limiter: Limiter,
    /// None where the state is not saved.
    account: Option<Account>,
    clock: WorkClock,
}

impl PersistentLimiter {
    /// Restores the state that earlier runs of the account saved.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn restore(
        store: Arc<dyn WorkStore>,
        limiter: Limiter,
        shared: &SharedLimits,
        account: Option<Account>,
        clock: WorkClock,
    ) -> Result<Self, WorkError> {
        if let Some(account) = &account {
            limiter_state::restore(&limiter, shared, store.load_state(account.name()).await?.as_deref());
        }
        Ok(Self { store, limiter, account, clock })
    }

    /// Saves the state regularly, for as long as the future is polled.
    pub(super) async fn save_regularly(&self) {
        let mut pause = SAVE_EVERY;
        loop {
            tokio::time::sleep(pause).await;
            let began = self.clock.now();
            self.save().await;
            pause = regularly::pause(SAVE_EVERY, self.clock.now().saturating_since(began));
        }
    }

    /// Saves the state, if it changed since the last time. A failure is logged, and the run goes on: its items are what matters.
    pub(super) async fn save(&self) {
        let Some(account) = &self.account else { return };
        if self.limiter.changes().scopes.is_empty() {
            return;
        }
        let state = limiter_state::encode(&self.limiter.export());
        if let Err(error) = self.store.save_state(account.name(), &state).await {
            tracing::warn!("cannot save the counts of calls, so the next run may exceed its limits: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline::{Cost, Limits, PacerConfig, Quota, Request};
    use paceline_store::work::MemoryStore;

    use super::*;

    async fn begun(store: &MemoryStore) -> PersistentLimiter {
        let limits = Limits { quotas: vec![Quota::per_minute(5)], burst: Some(5) };
        let limiter = Limiter::new(PacerConfig { limits, ..PacerConfig::default() }).expect("sensible");
        let clock = WorkClock::starting_at(paceline::clock::wall());
        let account = Account::new("https://it", &http::HeaderMap::new());
        let shared = SharedLimits::of_this_user(None, &PacerConfig::default(), limiter.clone());
        PersistentLimiter::restore(Arc::new(store.clone()), limiter, &shared, Some(account), clock)
            .await
            .expect("readable")
    }

    impl PersistentLimiter {
        fn left(&self) -> u64 {
            self.limiter.snapshot().account.quotas[0].remaining
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_that_is_killed_loses_half_a_second() {
        let store = MemoryStore::new(WorkClock::starting_at(paceline::clock::wall()));
        let killed = begun(&store).await;
        let send = || {
            let request = Request::new(killed.limiter.scope("a"), Cost::request());
            killed
                .limiter
                .try_acquire(request)
                .expect("room")
                .complete(paceline::Outcome::new(paceline::Class::Success));
        };
        let run = async {
            for _ in 0..3 {
                send();
                tokio::time::sleep(Duration::from_millis(600)).await;
            }
            send();
        };
        tokio::select! {
            () = run => {}
            () = killed.save_regularly() => unreachable!("it goes on for as long as it is asked"),
        }
        assert_eq!((killed.left(), begun(&store).await.left()), (1, 2));
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_passed_over() {
        let store = MemoryStore::new(WorkClock::system());
        for text in ["", "{}", r#"{"version":7,"at_ms":0}"#, r#"{"version":7,"at_ms":0,"account":"new"}"#] {
            let account = Account::new("https://it", &http::HeaderMap::new());
            store.save_state(account.name(), text).await.expect("writable");
            assert_eq!(begun(&store).await.left(), 5, "{text}");
        }
    }
}
