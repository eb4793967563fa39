//! The items at hand: claimed, and started in the order of their due times.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_core::Instant;

use crate::work::item::Claimed;

/// A claimed item, when it was claimed, and its place among those at hand.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    pub(super) since: Instant,
    due: Instant,
    handed_out: u64,
}

impl Held {
    /// An item that never was at hand.
    pub(super) fn passing(now: Instant, claimed: Claimed) -> Self {
        Self { claimed: Arc::new(claimed), since: now, due: now, handed_out: 0 }
    }
}

/// Bounded by what is claimed: everything else stays in the store.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By due time, and as they were handed out.
    held: BTreeMap<(Instant, u64), Held>,
    /// Due, and waiting for something in flight to end.
    parked: Vec<Held>,
    handed_out: u64,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.held.len() + self.parked.len()
    }

    pub(super) fn push(&mut self, now: Instant, claimed: Claimed) {
        let due = now + claimed.due_in;
        self.handed_out += 1;
        self.put_back(Held { due, handed_out: self.handed_out, ..Held::passing(now, claimed) });
    }

    /// Puts one back to where it was.
    pub(super) fn put_back(&mut self, held: Held) {
        self.held.insert((held.due, held.handed_out), held);
    }

    /// Puts one back to start later.
    pub(super) fn put_off(&mut self, held: Held, due: Instant) {
        self.put_back(Held { due, ..held });
    }

    /// Puts one aside until something ends.
    pub(super) fn park(&mut self, held: Held) {
        self.parked.push(held);
    }

    /// Something has ended.
    pub(super) fn unpark(&mut self) {
        for held in std::mem::take(&mut self.parked) {
            self.put_back(held);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.held.first_key_value().map(|(place, _)| place.0)
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Held> {
        let due = self.held.first_entry()?;
        (due.key().0 <= now).then(|| due.remove())
    }

    /// Takes out those of a group, or all.
    pub(super) fn take(&mut self, group: Option<&str>) -> Vec<Held> {
        self.unpark();
        let meant = |held: &Held| group.is_none_or(|group| *held.claimed.item.group == *group);
        self.held.extract_if(.., |_, held| meant(held)).map(|(_, held)| held).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::work::{Clock, MemoryStore, NewItem, WorkStore as _};

    #[tokio::test]
    async fn by_due_time_then_as_handed_out() {
        let store = MemoryStore::new(Clock::system());
        let items = [("low", 0), ("high", 9), ("other", 5)];
        let items = items.map(|(key, priority)| NewItem { priority, ..NewItem::new(key, "") });
        store.insert(items.to_vec()).await.unwrap();
        let worker = store.enlist("w", Duration::from_secs(9)).await.unwrap();
        let ask = crate::work::Ask { limit: 9, ahead: Duration::ZERO };
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
