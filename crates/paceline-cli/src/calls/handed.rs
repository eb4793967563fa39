//! Under a budget a run hands a gateway no more calls than that soon sends: a kill leaves unknown whether a call was sent that
//! only waited there, and it counts with all that it reserved.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::Handed;
use paceline_http::Sender;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::budget::Budget;

/// The places of each scope.
#[derive(Debug, Default)]
pub(crate) struct Gateway {
    scopes: Mutex<BTreeMap<Arc<str>, Arc<Places>>>,
}

#[derive(Debug)]
struct Places {
    free: Arc<Semaphore>,
    all: Mutex<All>,
}

#[derive(Debug)]
struct All {
    handed: Handed,
    /// So many there are, free or taken.
    places: usize,
}

impl Default for Places {
    fn default() -> Self {
        let handed = Handed::default();
        let places = in_all(&handed);
        Self { free: Arc::new(Semaphore::new(places)), all: Mutex::new(All { handed, places }) }
    }
}

fn in_all(handed: &Handed) -> usize {
    usize::try_from(handed.most()).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS)
}

impl Gateway {
    /// Where calls go through one, and a budget counts them.
    pub(crate) fn of(sender: &Sender, budget: &Budget) -> Option<Self> {
        (sender.config().gateway.is_some() && budget.has_an_end()).then(Self::default)
    }

    /// A place of that scope, in the order in which they were asked for.
    pub(crate) async fn place(&self, scope: &Arc<str>) -> Place {
        let places = {
            let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(scopes.entry(Arc::clone(scope)).or_default())
        };
        let permit = Arc::clone(&places.free).acquire_owned().await.expect("it is never closed");
        let all = places.all.lock().unwrap_or_else(PoisonError::into_inner).places;
        let beside = all.saturating_sub(places.free.available_permits());
        Place { permit: Some(permit), beside: beside as u64, places }
    }
}

/// What a call holds until it is answered.
#[derive(Debug)]
pub(crate) struct Place {
    permit: Option<OwnedSemaphorePermit>,
    /// So many were there as it left, with itself.
    beside: u64,
    places: Arc<Places>,
}

impl Place {
    /// The call was answered, after it had `waited` at the gateway, and took so long without that.
    pub(crate) fn answered(&self, latency: Duration, waited: Duration) {
        let Places { free, all } = &*self.places;
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.handed.answered(self.beside, free.available_permits() == 0, latency, waited);
        let most = in_all(&all.handed);
        if let Some(more) = most.checked_sub(all.places) {
            free.add_permits(more);
            all.places = most;
        } else {
            all.places -= free.forget_permits(all.places - most);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.places > in_all(&all.handed)
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
            all.places -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn places_become_more_and_fewer_and_none_is_lost() {
        let (gateway, scope, second) = (Gateway::default(), Arc::from("m"), Duration::from_secs(1));
        let place = || gateway.place(&scope).now_or_never();
        let mut taken: Vec<_> = std::iter::from_fn(place).collect();
        assert_eq!(taken.len(), 8);
        assert!(gateway.place(&Arc::from("other")).now_or_never().is_some(), "each scope has its own");
        taken[7].answered(second, Duration::ZERO);
        taken.extend(std::iter::from_fn(place));
        assert_eq!(taken.len(), 9);
        // Nine go by in 9 s, so two in two.
        taken[8].answered(second, 8 * second);
        drop(taken.split_off(1));
        assert!(place().is_some(), "one of two is taken");
        assert_eq!(std::iter::from_fn(place).collect::<Vec<_>>().len(), 1);
        drop(taken);
        let two: Vec<_> = std::iter::from_fn(place).collect();
        assert_eq!(two.len(), 2);
    }
}
