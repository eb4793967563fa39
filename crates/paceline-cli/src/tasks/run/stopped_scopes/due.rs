//! What waits for a pause that has ended before its time.

use std::sync::Arc;

use paceline_core::{Class, PauseCause, Timestamp};
use paceline_store::work::{Amend, Filter, State, WorkClock, WorkError, WorkItem, WorkStore};

use super::StoppedScopes;
use crate::tasks::add::host_and_address_of;
use crate::tasks::pages::Pages;

impl StoppedScopes {
    /// Makes due what waits for the pauses of scopes that take calls again.
    pub(super) async fn make_due(&self, store: &dyn WorkStore, clock: &WorkClock) -> Result<(), WorkError> {
        let scopes: Vec<Arc<str>> = self.lock().due.iter().cloned().collect();
        for scope in scopes {
            due(store, &scope, clock.wall()).await?;
            self.lock().due.remove(&scope);
        }
        Ok(())
    }
}

/// Items of a host that wait for a pause it asked for are due.
async fn due(store: &dyn WorkStore, host: &str, now: Timestamp) -> Result<(), WorkError> {
    let mut pages = Pages::of(store, Filter::states([State::Waiting]), None);
    while let Some(items) = pages.next().await? {
        let mut keys = Vec::new();
        for item in items.into_iter().filter(|item| waits_for_a_pause(item, now)) {
            let payload = store.show(&item.key).await?.map(|(_, payload, _)| payload);
            let known = payload.and_then(|payload| host_and_address_of(&payload, &item.key));
            if known.is_some_and(|(of, _)| of == host) {
                keys.push(item.key);
            }
        }
        if !keys.is_empty() {
            store.amend(Filter::keys(keys), Amend::Due).await?;
        }
    }
    Ok(())
}

/// Whether an item was put off by a pause that its host asked for, or asked for that itself.
fn waits_for_a_pause(item: &WorkItem, now: Timestamp) -> bool {
    let is_asked = |reason: &str| PauseCause::from_text(reason).is_some_and(PauseCause::is_asked);
    let refused = || item.last.as_ref().is_some_and(|last| matches!(last.class, Class::Throttled | Class::Overloaded));
    item.not_before.is_some_and(|at| at > now) && item.reason.as_deref().map_or_else(refused, is_asked)
}
