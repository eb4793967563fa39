//! The window: claimed items that have not begun, started in the order of their due times.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use paceline_core::Instant;

use super::{StartDelay, Task};
use crate::work::item::{Claimed, Said};

/// A claimed item, when it was claimed, and its place in the window.
#[derive(Clone, Debug)]
pub(super) struct HeldClaim {
    pub(super) claimed: Arc<Claimed>,
    /// What the server says to its try.
    pub(super) answered: Arc<OnceLock<Said>>,
    pub(super) since: Instant,
    due: Instant,
    handed_out: u64,
}

impl HeldClaim {
    /// The item, to be worked on.
    pub(super) fn task(&self) -> Task {
        Task(Arc::clone(&self.claimed), Arc::clone(&self.answered))
    }

    /// An item that never was in the window.
    pub(super) fn unqueued(now: Instant, claimed: Claimed) -> Self {
        Self { claimed: Arc::new(claimed), answered: Arc::default(), since: now, due: now, handed_out: 0 }
    }
}

/// Claimed items that have not begun; all others stay in the store.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By due time, and as they were handed out.
    held: BTreeMap<(Instant, u64), HeldClaim>,
    /// Due, and waiting for a running item to end, with what they wait for.
    parked: Vec<(HeldClaim, StartDelay)>,
    handed_out: u64,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.held.len() + self.parked.len()
    }

    /// Items that were put aside.
    pub(super) const fn parked(&self) -> usize {
        self.parked.len()
    }

    pub(super) fn push(&mut self, now: Instant, claimed: Claimed) {
        let due = now + claimed.due_in;
        self.handed_out += 1;
        self.put_back(HeldClaim { due, handed_out: self.handed_out, ..HeldClaim::unqueued(now, claimed) });
    }

    /// Puts an item back to where it was.
    pub(super) fn put_back(&mut self, held: HeldClaim) {
        self.held.insert((held.due, held.handed_out), held);
    }

    /// Puts an item back to start later.
    pub(super) fn delay(&mut self, held: HeldClaim, due: Instant) {
        self.put_back(HeldClaim { due, ..held });
    }

    /// Puts an item aside until a running one ends.
    pub(super) fn park(&mut self, held: HeldClaim, wait: StartDelay) {
        self.parked.push((held, wait));
    }

    /// Where more than so many items are put aside, takes out the last one of the scope that has the most: no backlog keeps an
    /// item of another scope from being at hand.
    pub(super) fn crowd_out(&mut self, most: usize) -> Option<(HeldClaim, StartDelay)> {
        if self.parked.len() <= most {
            return None;
        }
        let mut of_scope: HashMap<&str, (usize, usize)> = HashMap::new();
        for (n, (_, wait)) in self.parked.iter().enumerate() {
            let (count, last) = of_scope.entry(&wait.scope).or_default();
            (*count, *last) = (*count + 1, n);
        }
        let (_, last) = of_scope.into_values().max()?;
        Some(self.parked.remove(last))
    }

    /// A running item has ended.
    pub(super) fn unpark(&mut self) {
        for (held, _) in std::mem::take(&mut self.parked) {
            self.put_back(held);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|(place, _)| place.0)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<HeldClaim> {
        let due = self.held.first_entry()?;
        (due.key().0 <= now).then(|| due.remove())
    }

    /// Takes out the items of a group, or all.
    pub(super) fn take(&mut self, group: Option<&str>) -> Vec<HeldClaim> {
        self.unpark();
        let meant = |held: &HeldClaim| group.is_none_or(|group| *held.claimed.item.group == *group);
        self.held.extract_if(.., |_, held| meant(held)).map(|(_, held)| held).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{MemoryStore, NewItem, WorkClock, WorkStore as _};

    #[tokio::test]
    async fn by_due_time_then_as_handed_out() {
        let store = MemoryStore::new(WorkClock::system());
        let items = [("low", 0), ("high", 9), ("other", 5)];
        let items = items.map(|(key, priority)| NewItem { priority, ..NewItem::new(key, "") });
        store.insert(items.to_vec()).await.unwrap();
        let worker = store.register("w", Duration::from_secs(9)).await.unwrap();
        let ask = crate::work::ClaimRequest { limit: 9, ahead: Duration::ZERO };
        let mut claimed = store.claim(worker, ask).await.unwrap().items;
        claimed[0].due_in = Duration::from_secs(5);
        let mut window = Window::default();
        let now = Instant::from_nanos(7);
        claimed.into_iter().for_each(|claimed| window.push(now, claimed));
        let mut order = Vec::new();
        for now in [now, now + Duration::from_secs(5)] {
            while let Some(held) = window.pop_due(now) {
                order.push(held.claimed.item.key.clone());
            }
            order.push(format!("then {:?}", window.next_due().map(|due| due - now)));
        }
        assert_eq!(order, ["other", "low", "then Some(5s)", "high", "then None"]);
    }
}
