//! The items at hand: claimed, and started in the order of their due times.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_core::Instant;

use crate::work::item::Claimed;

/// A claimed item and when it was claimed.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) claimed: Arc<Claimed>,
    pub(super) since: Instant,
}

/// Bounded by what is claimed: everything else stays in the store.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// By due time, and as they were handed out.
    held: BTreeMap<(Instant, u64), Held>,
    handed_out: u64,
}

impl Window {
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    pub(super) fn push(&mut self, now: Instant, claimed: Claimed) {
        let due = now + claimed.due_in;
        self.handed_out += 1;
        self.held.insert((due, self.handed_out), Held { claimed: Arc::new(claimed), since: now });
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
