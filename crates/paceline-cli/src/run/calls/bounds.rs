//! What one run may take of a job: so many items, so many tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline_core::Timestamp;
use tokio::sync::Notify;

/// The items that this run has begun: those that were sent. Once there are as many as it may begin, it only goes on with
/// those.
#[derive(Debug)]
pub(crate) struct Begun {
    limit: Option<u64>,
    count: u64,
    /// Items that are tried for the first time: whether they will be sent is not known yet.
    candidates: BTreeSet<u64>,
    /// Items that were sent and have not ended, with the time at which they are due; none while they are tried.
    open: BTreeMap<u64, Option<Timestamp>>,
    /// The times among those, in order.
    due: BTreeSet<(Timestamp, u64)>,
}

impl Begun {
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

    /// When the next of them is due; none when none waits.
    pub(crate) fn next_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// At most `limit` of those that are due, the earliest first.
    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<u64> {
        self.due.iter().take_while(|(due, _)| *due <= now).take(limit).map(|(_, ordinal)| *ordinal).collect()
    }
}

/// The tokens that this run may use. A call reserves what it is expected to use before it waits for its turn, and its
/// answer says what it really was.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    limit: Option<u64>,
    spent: Mutex<Spent>,
    settled: Notify,
}

#[derive(Debug, Default)]
struct Spent {
    used: u64,
    reserved: u64,
    calls: u64,
}

impl Budget {
    /// A budget of `limit` tokens, or one without an end.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether it has an end, for which calls may wait before they wait for a permit.
    pub(crate) const fn is_bounded(&self) -> bool {
        self.limit.is_some()
    }

    /// Takes `expected` tokens, waiting while calls under way hold so many that these might not fit. None when they do
    /// not fit any more: what has been used stays used.
    pub(crate) async fn reserve(&self, expected: u64) -> Option<Reserved<'_>> {
        let Some(limit) = self.limit else { return Some(Reserved { budget: self, tokens: 0 }) };
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            {
                let mut spent = self.spent();
                let tokens = expected.max(spent.mean());
                let free = limit.saturating_sub(spent.used);
                if tokens > free || free == 0 {
                    return None;
                }
                if spent.reserved.saturating_add(tokens) <= free {
                    spent.reserved += tokens;
                    return Some(Reserved { budget: self, tokens });
                }
            }
            settled.await;
        }
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Spent {
    /// What a call has used so far on average: the guess for one whose answer has no bound of its own.
    fn mean(&self) -> u64 {
        self.used.checked_div(self.calls).unwrap_or(0)
    }
}

/// Tokens taken from a budget, given back when dropped.
#[derive(Debug)]
pub(crate) struct Reserved<'a> {
    budget: &'a Budget,
    tokens: u64,
}

impl Reserved<'_> {
    /// The call is over and used so many; `None`: as many as expected.
    pub(crate) fn settle(self, used: Option<u64>) {
        if self.budget.limit.is_some() {
            let used = used.unwrap_or(self.tokens);
            let mut spent = self.budget.spent();
            spent.used = spent.used.saturating_add(used);
            spent.calls += u64::from(used > 0);
        }
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.budget.limit.is_some() {
            self.budget.spent().reserved -= self.tokens;
            self.budget.settled.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn a_run_goes_on_with_what_it_has_begun_and_with_nothing_else() {
        let at = Timestamp::from_millis;
        let mut begun = Begun::new(Some(2));
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
    fn an_item_that_comes_back_unsent_has_not_begun() {
        let mut begun = Begun::new(Some(2));
        begun.tried(1);
        begun.tried(2);
        assert!(begun.full());
        begun.settled(1, false, Some(Timestamp::from_millis(9)));
        assert_eq!((begun.left(), begun.next_due()), (1, None));
    }

    #[test]
    fn without_a_bound_nothing_is_remembered() {
        let mut begun = Begun::new(None);
        (0..100).for_each(|ordinal| begun.tried(ordinal));
        begun.settled(1, true, Some(Timestamp::from_millis(1)));
        assert!(!begun.full() && !begun.used_up() && begun.next_due().is_none() && begun.candidates.is_empty());
        let budget = Budget::new(None);
        let reserved = budget.reserve(u64::MAX).now_or_never().expect("at once").expect("no end");
        reserved.settle(None);
    }

    #[test]
    fn tokens_are_reserved_until_they_are_known_and_never_exceed_the_budget() {
        let budget = Budget::new(Some(100));
        let reserve = |tokens| budget.reserve(tokens).now_or_never();
        let first = reserve(60).expect("at once").expect("fits");
        assert!(reserve(60).is_none(), "the first may still turn out to be cheap");
        assert!(reserve(101).is_some_and(|refused| refused.is_none()), "never fits");
        let mut waits = Box::pin(budget.reserve(60));
        assert!(waits.as_mut().now_or_never().is_none());
        first.settle(Some(40));
        let second = waits.as_mut().now_or_never().expect("woken").expect("fits now");
        drop(second);
        let third = reserve(10).expect("at once").expect("fits");
        third.settle(None);
        assert_eq!(budget.spent().used, 80, "as much as calls use here was reserved and taken");
        assert!(reserve(30).is_some_and(|refused| refused.is_none()));
        assert!(reserve(1).is_some_and(|refused| refused.is_none()), "calls use 40 here");
    }
}
