//! What the pace knows of the CA is kept in the store: a limit of a day holds however often the agent is started.

use std::time::Duration;

use paceline::{LevelState, LimiterState};
use paceline_store::work::{WorkError, WorkStore};

use super::Ca;

/// How often it is written while a run works.
const EVERY: Duration = Duration::from_millis(500);

impl Ca {
    /// Gives the pace what earlier runs left. A stop is tried again, for a person may have acted; what cannot be read is passed
    /// over, and the log says so.
    ///
    /// # Errors
    /// What the store says.
    pub(crate) async fn restore(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let Some(text) = store.load_state(self.directory()).await? else { return Ok(()) };
        let restored =
            serde_json::from_str(&text).map_err(|error| error.to_string()).and_then(|mut state: LimiterState| {
                let go = |level: &mut LevelState| level.stopped = None;
                go(&mut state.pacer.account);
                state.pacer.scopes.iter_mut().for_each(go);
                self.0.limiter.restore(&state).map_err(|error| error.to_string())
            });
        if let Err(error) = restored {
            tracing::warn!("the pace begins anew, as if the CA had not been called before: {error}");
        }
        Ok(())
    }

    /// Writes it again and again, for as long as it is asked.
    pub(crate) async fn keep_regularly(&self, store: &dyn WorkStore) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.keep(store).await;
        }
    }

    /// Writes it, if a call has been made or has ended since. What cannot be written stops no renewal.
    pub(crate) async fn keep(&self, store: &dyn WorkStore) {
        if self.0.limiter.changes().scopes.is_empty() {
            return;
        }
        let state = serde_json::to_string(&self.0.limiter.export()).expect("numbers and words");
        if let Err(error) = store.save_state(self.directory(), &state).await {
            tracing::warn!("the calls of this run are not kept for the next, which may exceed the rate: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline::{Class, Dimension, Outcome, Quota};
    use paceline_store::work::{MemoryStore, WorkClock};
    use tokio::time::timeout;

    use super::*;
    use crate::client::CaConfig;

    const DAY: Duration = Duration::from_secs(86_400);

    async fn begun(store: &MemoryStore) -> Ca {
        let ca = Ca::new(CaConfig {
            directory: "https://ca.example/directory".to_owned(),
            limit: Quota::sliding(Dimension::Requests, 5, DAY),
            root: None,
            max_outage: DAY,
        });
        let ca = ca.expect("sensible");
        ca.restore(store).await.expect("readable");
        ca
    }

    /// Takes permits for calls until one is not given within so long.
    async fn call(ca: &Ca, within: Duration) -> usize {
        let mut calls = 0;
        while let Ok(permit) = timeout(within, ca.0.permit(&ca.0.others)).await {
            permit.expect("nothing is held").complete(Outcome::new(Class::Success));
            calls += 1;
        }
        calls
    }

    #[tokio::test(start_paused = true)]
    async fn a_daily_limit_holds_over_a_kill_and_a_restart() {
        let store = MemoryStore::new(WorkClock::system());
        let killed = begun(&store).await;
        let calls = tokio::select! {
            calls = call(&killed, DAY / 24) => calls,
            () = killed.keep_regularly(&store) => unreachable!("it goes on for as long as it is asked"),
        };
        assert_eq!(calls, 5);
        let next = begun(&store).await;
        assert_eq!(call(&next, DAY / 2).await, 0, "the day is not over");
        let permit = timeout(DAY, next.0.permit(&next.0.others)).await.expect("now it is");
        permit.expect("nothing is held").complete(Outcome::new(Class::Success));
    }
}
