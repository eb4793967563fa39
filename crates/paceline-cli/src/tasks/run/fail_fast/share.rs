//! The guard against what all of a host meet counts over restarts, and in all workers of a store together.

use std::time::Duration;

use paceline_store::work::{WorkError, WorkStore};

use super::FailFast;
use crate::tasks::run::stopped_scopes::StoppedScopes;

/// The store is told so long after something has happened, ...
const TELL_AFTER: Duration = Duration::from_millis(50);

/// ... and asked for what other workers told so often.
const READ_EVERY: Duration = Duration::from_secs(1);

impl FailFast {
    /// Reads how the last items of each scope failed in earlier runs, and since the last time in other workers.
    ///
    /// # Errors
    /// An error of the store.
    pub(in crate::tasks::run) async fn read(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let from = {
            let watch = self.watch();
            if !watch.scopes.are_watched() {
                return Ok(());
            }
            watch.scopes.unread()
        };
        let notes = store.notes(from).await?;
        self.watch().scopes.read(notes);
        Ok(())
    }

    /// Keeps in the store how items of scopes failed, for as long as the future is polled, and stops the scopes of which as many
    /// have in all workers together.
    pub(in crate::tasks::run) async fn share_regularly(&self, store: &dyn WorkStore, stopped: &StoppedScopes) {
        loop {
            tokio::select! {
                () = self.news.notified() => tokio::time::sleep(TELL_AFTER).await,
                () = tokio::time::sleep(READ_EVERY) => {}
            }
            // A store that cannot be written ends the run by itself.
            let _ = self.share(store, stopped).await;
            let _ = self.read(store).await;
        }
    }

    /// Tells the store how items of scopes failed, and what has to wait for what all workers found.
    ///
    /// # Errors
    /// An error of the store.
    pub(in crate::tasks::run) async fn share(
        &self,
        store: &dyn WorkStore,
        stopped: &StoppedScopes,
    ) -> Result<(), WorkError> {
        for (name, of) in stopped.that_failed_alike() {
            let keys = match of {
                Some(host) => self.watch().scopes.take(&host, Some(&name)),
                None => self.watch().scopes.take(&name, None),
            };
            keys.iter().for_each(|key| stopped.leaves(key, &name));
            self.watch().put_back_failed(keys);
        }
        let telling = self.watch().scopes.begin_telling();
        if let Some(telling) = telling {
            let told = telling.tell(store).await;
            let found = self.watch().scopes.told(&telling, told.is_ok());
            for (scope, found) in found {
                let name = found.address.as_ref().unwrap_or(&scope);
                let stops = {
                    let mut watch = self.watch();
                    let failure = found.stops.filter(|_| !watch.stopped_scopes.contains(name));
                    failure.map(|(failure, last)| {
                        watch.stop_scope(&scope, found.address.as_ref(), &found.keys, &failure, &last)
                    })
                };
                stops.and_then(|stops| stops.stop(stopped));
                found.keys.iter().for_each(|key| stopped.leaves(key, name));
                self.watch().put_back_failed(found.keys);
            }
            told?;
        }
        if !self.watch().failed_ones().is_empty() {
            self.leaves.notify_one();
        }
        Ok(())
    }
}
