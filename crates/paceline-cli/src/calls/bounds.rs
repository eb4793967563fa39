//! What one run may take of a job: so many items.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::Timestamp;

/// The items that this run has begun: those that were sent. Once there are as many as it may begin, it only goes on with
/// those.
#[derive(Debug)]
pub(crate) struct StartedItems {
    limit: Option<u64>,
    count: u64,
    /// Items that are tried for the first time: whether they will be sent is not known yet.
    candidates: BTreeSet<u64>,
    /// Items that were sent and have not ended, with the time at which they are due; none while they are tried.
    open: BTreeMap<u64, Option<Timestamp>>,
    /// The times among those, in order.
    due: BTreeSet<(Timestamp, u64)>,
}

impl StartedItems {
    /// Nothing has begun; without a limit nothing is remembered either.
    pub(crate) const fn new(limit: Option<u64>) -> Self {
        Self { limit, count: 0, candidates: BTreeSet::new(), open: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// How many items may be tried for the first time.
    pub(crate) fn left(&self) -> usize {
        let taken = self.count + self.candidates.len() as u64;
        self.limit.map_or(usize::MAX, |limit| usize::try_from(limit - taken.min(limit)).unwrap_or(usize::MAX))
    }

    /// For now no further item may be tried.
    pub(crate) fn full(&self) -> bool {
        self.left() == 0
    }

    /// As many items have begun as may.
    pub(crate) fn used_up(&self) -> bool {
        self.limit.is_some_and(|limit| self.count >= limit)
    }

    /// An item is tried: for the first time in this run, or again.
    pub(crate) fn tried(&mut self, ordinal: u64) {
        if self.limit.is_none() {
            return;
        }
        match self.open.get_mut(&ordinal) {
            Some(due) => drop(due.take().map(|due| self.due.remove(&(due, ordinal)))),
            None => drop(self.candidates.insert(ordinal)),
        }
    }

    /// The try is over: whether the item was sent, and when it is due again, if it is.
    pub(crate) fn settled(&mut self, ordinal: u64, sent: bool, due: Option<Timestamp>) {
        let first = self.candidates.remove(&ordinal);
        if self.limit.is_none() || (first && !sent) {
            return;
        }
        self.count += u64::from(first);
        match due {
            Some(due) => {
                self.open.insert(ordinal, Some(due));
                self.due.insert((due, ordinal));
            }
            None => drop(self.open.remove(&ordinal)),
        }
    }

    /// Some of those that wait may be another host's now: none of them is waited for any more, and the next run has the others.
    pub(crate) fn forget_waiting(&mut self) {
        self.open.retain(|_, due| due.is_none());
        self.due.clear();
    }

    /// When the next of them is due; none when none waits.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// At most `limit` of those that are due, the earliest first.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<u64> {
        self.due.iter().take_while(|(due, _)| *due <= now).take(limit).map(|(_, ordinal)| *ordinal).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_with_what_it_has_begun_and_with_nothing_else() {
        let at = Timestamp::from_millis;
        let mut begun = StartedItems::new(Some(2));
        begun.tried(4);
        assert_eq!(begun.left(), 1);
        begun.settled(4, true, Some(at(30)));
        begun.tried(4);
        assert_eq!(begun.left(), 1, "a second try begins nothing");
        begun.tried(5);
        assert!(begun.full() && !begun.used_up(), "it may come back unsent");
        begun.settled(5, true, Some(at(20)));
        assert!(begun.used_up());
        begun.settled(4, false, Some(at(10)));
        assert_eq!((begun.next_due(), begun.due(at(20), 9)), (Some(at(10)), vec![4, 5]), "unsent this time, but begun");
        assert_eq!((begun.due(at(19), 9), begun.due(at(20), 1)), (vec![4], vec![4]));
        begun.tried(4);
        begun.tried(5);
        assert_eq!(begun.next_due(), None);
        begun.settled(4, true, None);
        assert!(begun.used_up());
    }

    #[test]
    fn what_may_be_of_another_host_is_not_waited_for() {
        let at = Timestamp::from_millis;
        let mut begun = StartedItems::new(Some(2));
        [1, 2].iter().for_each(|ordinal| begun.tried(*ordinal));
        begun.settled(1, true, Some(at(10)));
        begun.forget_waiting();
        assert_eq!((begun.next_due(), begun.due(at(10), 9)), (None, Vec::new()));
        begun.settled(2, true, Some(at(20)));
        assert_eq!((begun.next_due(), begun.used_up()), (Some(at(20)), true), "it was under way");
    }

    #[test]
    fn an_item_that_comes_back_unsent_has_not_begun() {
        let mut begun = StartedItems::new(Some(2));
        begun.tried(1);
        begun.tried(2);
        assert!(begun.full());
        begun.settled(1, false, Some(Timestamp::from_millis(9)));
        assert_eq!((begun.left(), begun.next_due()), (1, None));
    }

    #[test]
    fn without_a_bound_nothing_is_remembered() {
        let mut begun = StartedItems::new(None);
        (0..100).for_each(|ordinal| begun.tried(ordinal));
        begun.settled(1, true, Some(Timestamp::from_millis(1)));
        assert!(!begun.full() && !begun.used_up() && begun.next_due().is_none() && begun.candidates.is_empty());
    }
}
