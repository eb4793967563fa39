//! The lanes in which something waits, in order: those that may send are found without reading the others.
//!
//! An entry is never later than the first item of its lane, so no item is missed. It may be earlier: then the lane is
//! read without a result, and the entry is corrected.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound;

use paceline_core::Timestamp;

use super::fair_share::{FairShare, Lane};
use super::item::HORIZON;
use crate::schema::ACCOUNT;

/// An index of a store's lanes.
#[derive(Debug)]
pub(crate) struct Lanes {
    known: HashMap<i64, Known>,
    /// Lanes whose first item is due, by falling priority.
    due: BTreeSet<(Reverse<i16>, i64)>,
    /// Lanes whose first item is not, by its time.
    later: BTreeSet<(Timestamp, i64)>,
    /// All lanes by their priority.
    levels: BTreeMap<i16, Level>,
    /// Lanes whose odd place is for a new item next.
    new_next: BTreeSet<i64>,
    /// What is due now.
    now: Timestamp,
    /// Lanes that were read.
    #[cfg(test)]
    looked_at: std::cell::Cell<usize>,
}

/// The lanes of one priority.
#[derive(Debug, Default)]
struct Level {
    /// In order.
    ids: Vec<i64>,
    /// Which of them begins, modulo their number.
    turn: usize,
}

#[derive(Debug)]
struct Known {
    lane: Lane,
    /// No item of the lane waits for an earlier time; none where no item waits.
    first: Option<Timestamp>,
}

/// A claim that is under way: which lane is asked next, step by step, so that a store may wait for each answer.
#[derive(Debug)]
pub(crate) struct Taking {
    now: Timestamp,
    /// What is due now is taken first, then, where there are places left, what is due soon.
    rounds: VecDeque<Timestamp>,
    left: usize,
    sharing: Option<FairShare>,
    /// Other workers may be taking what is due in these lanes: they are asked for it once.
    in_vain: BTreeSet<i64>,
}

impl Taking {
    /// At most `limit` items that are due at `now` and, where there are fewer, such as are due by `until`.
    pub(crate) fn new(now: Timestamp, until: Timestamp, limit: usize) -> Self {
        let rounds = [Some(now), Some(until).filter(|until| *until > now)].into_iter().flatten().collect();
        Self { now, rounds, left: limit, sharing: None, in_vain: BTreeSet::new() }
    }
}

/// What a lane is asked for: at most so many of its items that are due by that time.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) lane: Lane,
    pub(crate) until: Timestamp,
    pub(crate) limit: usize,
    /// So many of them are new items at least, if there are: tries that come again and again must not keep those from theirs.
    pub(crate) new: usize,
}

/// What it has given: how many, how many of them are new, and when the first of the rest is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Given {
    pub(crate) taken: usize,
    pub(crate) new: usize,
    pub(crate) first: Option<Timestamp>,
}

/// Before every due time: what an open group waits for.
pub(crate) const EARLIEST: Timestamp = Timestamp::from_millis(i64::MIN);

impl Default for Lanes {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            due: BTreeSet::new(),
            later: BTreeSet::new(),
            levels: BTreeMap::new(),
            new_next: BTreeSet::new(),
            now: EARLIEST,
            #[cfg(test)]
            looked_at: std::cell::Cell::new(0),
        }
    }
}

impl Lanes {
    /// Forgets all lanes, but not whose turn it is.
    pub(crate) fn clear(&mut self) {
        let mut levels = std::mem::take(&mut self.levels);
        levels.values_mut().for_each(|level| level.ids.clear());
        let new_next = std::mem::take(&mut self.new_next);
        *self = Self { levels, new_next, ..Self::default() };
    }

    /// A lane that is not known, and when its first item is due; none where no item waits.
    pub(crate) fn add(&mut self, lane: Lane, first: Option<Timestamp>) {
        let id = lane.id;
        let ids = &mut self.levels.entry(lane.priority).or_default().ids;
        ids.insert(ids.partition_point(|known| *known < id), id);
        self.known.insert(id, Known { lane, first: None });
        self.set(id, first);
    }

    pub(crate) fn knows(&self, id: i64) -> bool {
        self.known.contains_key(&id)
    }

    /// When the first item of a lane is due; none where no item waits.
    pub(crate) fn set(&mut self, id: i64, first: Option<Timestamp>) {
        let Some(known) = self.known.get_mut(&id) else { return };
        let place = (Reverse(known.lane.priority), id);
        if let Some(before) = std::mem::replace(&mut known.first, first) {
            self.later.remove(&(before, id));
            self.due.remove(&place);
        }
        match first {
            Some(first) if first <= self.now => drop(self.due.insert(place)),
            Some(first) => drop(self.later.insert((first, id))),
            None => {}
        }
    }

    /// An item of a lane waits for that time.
    pub(crate) fn waits(&mut self, id: i64, until: Timestamp) {
        if self.known.get(&id).is_some_and(|known| known.first.is_none_or(|first| until < first)) {
            self.set(id, Some(until));
        }
    }

    /// Takes items of one claim after the other, where a store need not wait for them.
    ///
    /// `opens` returns when a group may send; none = not by itself.
    pub(crate) fn share<E>(
        &mut self,
        mut taking: Taking,
        opens: impl Fn(&str) -> Option<Timestamp>,
        mut take: impl FnMut(&Asked) -> Result<Given, E>,
    ) -> Result<(), E> {
        while let Some(asked) = self.ask(&mut taking, &opens) {
            let given = take(&asked)?;
            self.took(&mut taking, &asked, given);
        }
        Ok(())
    }

    /// The lane that a claim asks next; none when it has all it can have.
    pub(crate) fn ask(&mut self, taking: &mut Taking, opens: impl Fn(&str) -> Option<Timestamp>) -> Option<Asked> {
        loop {
            let until = *taking.rounds.front()?;
            while let Some((lane, limit)) = taking.sharing.as_mut().and_then(FairShare::next) {
                if self.known.get(&lane.id).and_then(|known| known.first).is_some_and(|first| first <= until) {
                    let one_more = !limit.is_multiple_of(2) && self.new_next.contains(&lane.id);
                    let new = limit / 2 + usize::from(one_more);
                    return Some(Asked { lane, until, limit, new });
                }
                // It has given its last item: to ask it again would be in vain.
                taking.sharing.iter_mut().for_each(|sharing| sharing.took(0));
            }
            let lanes = self.next(taking.now, until, taking.left, &opens, &taking.in_vain);
            taking.sharing = Some(FairShare::new(&lanes, taking.left, 0));
            if lanes.is_empty() {
                taking.rounds.pop_front();
                taking.in_vain.clear();
            }
        }
    }

    /// The lane that was asked has given that. An odd place that a try took is for a new item the next time.
    pub(crate) fn took(&mut self, taking: &mut Taking, Asked { lane, limit, .. }: &Asked, given: Given) {
        let Given { taken, new, first } = given;
        self.set(lane.id, first);
        if taken == 0 {
            taking.in_vain.insert(lane.id);
        } else if !limit.is_multiple_of(2) {
            if new <= taken / 2 {
                self.new_next.insert(lane.id)
            } else {
                self.new_next.remove(&lane.id)
            };
        }
        taking.left = taking.left.saturating_sub(taken);
        taking.sharing.iter_mut().for_each(|sharing| sharing.took(taken));
    }

    /// The lanes to take `left` items from that are due by `until`, but for those that were asked in vain.
    fn next(
        &mut self,
        now: Timestamp,
        until: Timestamp,
        left: usize,
        opens: impl Fn(&str) -> Option<Timestamp>,
        in_vain: &BTreeSet<i64>,
    ) -> Vec<Lane> {
        self.advance(now);
        let may_send = |group: &str| opens(group).is_some_and(|at| at <= now);
        if left == 0 || !may_send(ACCOUNT) {
            return Vec::new();
        }
        let is_open = |lane: &Lane| may_send(&lane.group) && !in_vain.contains(&lane.id);
        if until == now { self.in_turn(left, is_open) } else { self.soon(until, left, is_open) }
    }

    /// The first time for which an item waits that is due before the year 10,000, its group permitting.
    pub(crate) fn next_due(&self, opens: impl Fn(&str) -> Option<Timestamp>) -> Option<Timestamp> {
        let account = opens(ACCOUNT)?;
        let mut next: Option<Timestamp> = None;
        for id in self.due.iter().map(|(_, id)| id).chain(self.later.iter().map(|(_, id)| id)) {
            let Known { lane, first: Some(first) } = &self.known[id] else { continue };
            // Those behind wait for no less, or are due as well.
            if *first > HORIZON || next.is_some_and(|next| next <= account.max(*first).max(self.now)) {
                break;
            }
            self.look();
            let at = opens(&lane.group).map(|opens| opens.max(*first));
            next = next.into_iter().chain(at).min();
        }
        next
    }

    /// Moves on what has come due; a clock that was set back makes it wait again.
    fn advance(&mut self, now: Timestamp) {
        let back = now < self.now;
        self.now = now;
        if back {
            let due: Vec<i64> = self.due.iter().map(|(_, id)| *id).collect();
            due.into_iter().for_each(|id| self.set(id, self.known[&id].first));
        }
        while let Some(&(first, id)) = self.later.first().filter(|(first, _)| *first <= now) {
            self.set(id, Some(first));
        }
    }

    /// At most `limit` lanes that are due, by falling priority; those of one priority take turns. Where there are more of
    /// them the next claim goes on behind, else another one begins.
    fn in_turn(&mut self, limit: usize, is_open: impl Fn(&Lane) -> bool) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = Vec::new();
        let mut next = self.due.first().copied();
        while let Some((Reverse(priority), _)) = next.filter(|_| lanes.len() < limit) {
            let place = |id| (Reverse(priority), id);
            let Level { ids, turn } = self.levels.entry(priority).or_default();
            let begins = *turn % ids.len().max(1);
            let first = place(ids.get(begins).copied().unwrap_or_default());
            let behind = self.due.range(first..=place(i64::MAX));
            let ring = behind.chain(self.due.range(place(i64::MIN)..first)).map(|(_, id)| &self.known[id].lane);
            #[cfg(test)]
            let ring = ring.inspect(|_| self.looked_at.set(self.looked_at.get() + 1));
            let mut open = ring.filter(|lane| is_open(lane)).cloned();
            let before = lanes.len();
            lanes.extend(open.by_ref().take(limit - before));
            if lanes.len() > before {
                let last = lanes.last().filter(|_| open.next().is_some());
                *turn = last.map_or(begins, |last| ids.partition_point(|id| *id < last.id)) + 1;
            }
            next = self.due.range((Bound::Excluded(place(i64::MAX)), Bound::Unbounded)).next().copied();
        }
        lanes
    }

    /// At most `limit` of the lanes that come due first, by falling priority.
    fn soon(&self, until: Timestamp, limit: usize, is_open: impl Fn(&Lane) -> bool) -> Vec<Lane> {
        let soon = self.later.range(..=(until, i64::MAX)).map(|(_, id)| &self.known[id].lane);
        let open = soon.inspect(|_| self.look()).filter(|lane| is_open(lane));
        let mut lanes: Vec<Lane> = open.take(limit).cloned().collect();
        lanes.sort_unstable_by_key(|lane| (Reverse(lane.priority), lane.id));
        lanes
    }

    fn look(&self) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Lanes with so many items that are due.
    struct Stock(Lanes, Vec<usize>);

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    fn open(_: &str) -> Option<Timestamp> {
        Some(EARLIEST)
    }

    impl Stock {
        fn of(stock: &[(i16, usize)]) -> Self {
            let mut lanes = Lanes::default();
            for (id, (priority, items)) in stock.iter().enumerate() {
                let lane = Lane { id: id as i64, group: id.to_string().into(), priority: *priority };
                lanes.add(lane, (*items > 0).then_some(NOW));
            }
            Self(lanes, stock.iter().map(|(_, items)| *items).collect())
        }

        /// From which lanes the items of a claim came, in order.
        fn claim(&mut self, limit: usize, opens: impl Fn(&str) -> Option<Timestamp>) -> Vec<i64> {
            let mut from = Vec::new();
            let Ok(()) = self.0.share(Taking::new(NOW, NOW, limit), opens, |Asked { lane, limit, .. }| {
                let items = &mut self.1[lane.id as usize];
                let taken = (*limit).min(*items);
                *items -= taken;
                from.extend(std::iter::repeat_n(lane.id, taken));
                Ok::<_, Infallible>(Given { taken, new: taken, first: (*items > 0).then_some(NOW) })
            });
            from
        }
    }

    #[test]
    fn higher_priorities_first_and_those_of_one_take_turns() {
        let mut stock = Stock::of(&[(9, 1), (0, 2), (0, 2), (0, 2), (-1, 2)]);
        let order: Vec<i64> = (0..9).flat_map(|_| stock.claim(1, open)).collect();
        assert_eq!(order, [0, 1, 2, 3, 1, 2, 3, 4, 4]);
        let mut stock = Stock::of(&[(0, 3), (0, 0), (0, 30), (5, 1)]);
        assert_eq!(stock.claim(9, open), [3, 0, 0, 0, 2, 2, 2, 2, 2]);
    }

    #[test]
    fn where_there_are_more_lanes_than_are_asked_for_the_next_claim_goes_on_behind() {
        let mut stock = Stock::of(&[(0, 9); 5]);
        let order: Vec<i64> = (0..5).flat_map(|_| stock.claim(2, open)).collect();
        assert_eq!(order, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_claim_looks_at_what_it_takes_however_many_lanes_there_are() {
        for lanes in [50, 5_000] {
            let mut stock = Stock::of(&vec![(0, 9); lanes]);
            for _ in 0..20 {
                assert_eq!(stock.claim(10, open).len(), 10);
                assert_eq!(stock.0.next_due(open), Some(NOW));
            }
            assert!(stock.0.looked_at.get() <= 20 * (10 + 1 + 1), "{} of {lanes} lanes", stock.0.looked_at.get());
        }
    }

    #[test]
    fn an_account_that_is_held_is_one_question() {
        let opens = |at: i64| move |_: &str| Some(Timestamp::from_millis(at));
        let mut stock = Stock::of(&[(0, 2); 5_000]);
        assert!(stock.claim(10, opens(7_000)).is_empty());
        assert_eq!(stock.0.next_due(opens(7_000)), Some(Timestamp::from_millis(7_000)));
        assert!(stock.claim(10, |_| None).is_empty());
        assert_eq!(stock.0.next_due(|_| None), None);
        assert!(stock.0.looked_at.get() <= 2, "{}", stock.0.looked_at.get());
    }

    #[test]
    fn a_closed_group_is_passed_over_and_tells_when_it_opens() {
        let opens = |group: &str| match group {
            "0" => None,
            "1" => Some(Timestamp::from_millis(5_000)),
            _ => Some(EARLIEST),
        };
        let mut stock = Stock::of(&[(0, 1), (0, 1), (0, 1)]);
        assert_eq!(stock.claim(9, opens), [2]);
        assert_eq!(stock.0.next_due(opens), Some(Timestamp::from_millis(5_000)));
        stock.0.add(Lane { id: 3, group: "3".into(), priority: 0 }, Some(Timestamp::from_millis(4_000)));
        assert_eq!(stock.0.next_due(opens), Some(Timestamp::from_millis(4_000)));
        stock.0.set(3, Some(HORIZON + std::time::Duration::from_millis(1)));
        assert_eq!(stock.0.next_due(opens), Some(Timestamp::from_millis(5_000)));
    }

    #[test]
    fn a_lane_whose_items_another_worker_is_taking_is_asked_once() {
        let mut lanes = Lanes::default();
        lanes.add(Lane { id: 7, group: "g".into(), priority: 0 }, Some(NOW));
        let mut asked = 0;
        let Ok(()) = lanes.share(Taking::new(NOW, NOW + std::time::Duration::from_secs(1), 9), open, |_| {
            asked += 1;
            Ok::<_, Infallible>(Given { first: Some(NOW), ..Given::default() })
        });
        assert_eq!((asked, lanes.next_due(open)), (1, Some(NOW)));
    }

    /// A store that is asked in vain takes what it knows of the lanes for outdated, and gives the next group's turn away.
    #[test]
    fn a_lane_that_gave_its_last_item_is_not_asked_again() {
        let mut lanes = Lanes::default();
        for (id, priority) in [(7, 1), (8, 1), (9, 0)] {
            lanes.add(Lane { id, group: id.to_string().into(), priority }, Some(NOW));
        }
        let (mut stock, mut asked) = ([2, 1, 9], Vec::new());
        let Ok(()) = lanes.share(Taking::new(NOW, NOW, 4), open, |Asked { lane, limit, .. }| {
            let items = &mut stock[lane.id as usize - 7];
            let taken = (*limit).min(*items);
            *items -= taken;
            asked.push((lane.id, taken));
            Ok::<_, Infallible>(Given { taken, new: taken, first: (*items > 0).then_some(NOW) })
        });
        assert_eq!(asked, [(7, 2), (8, 1), (9, 1)]);
    }

    #[test]
    fn what_comes_due_is_found_and_a_clock_that_was_set_back_makes_it_wait_again() {
        let at = Timestamp::from_millis;
        let mut lanes = Lanes::default();
        for (id, due) in [(1, 3_000), (2, 2_000), (3, 9_000)] {
            lanes.add(Lane { id, group: id.to_string().into(), priority: 0 }, Some(at(due)));
        }
        let mut found = Vec::new();
        for (now, until) in [(1_000, 1_999), (1_000, 2_500), (3_000, 3_000), (1_000, 2_500)] {
            let Ok(()) = lanes.share(Taking::new(at(now), at(until), 9), open, |Asked { lane, until, .. }| {
                found.push((lane.id, until.as_millis()));
                let first = Some(at([0, 3_000, 2_000, 9_000][lane.id as usize]));
                Ok::<_, Infallible>(Given { first, ..Given::default() })
            });
        }
        assert_eq!(found, [(2, 2_500), (1, 3_000), (2, 3_000), (2, 2_500)]);
        lanes.waits(3, at(1_500));
        lanes.waits(3, at(1_700));
        assert_eq!(lanes.next_due(open), Some(at(1_500)));
    }
}
