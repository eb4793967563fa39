//! Waiting requests: by priority, then arrival; those that are not due yet are kept apart.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::rng::Rng;
use crate::time::Instant;

/// The place of a request in its queue: the most urgent first, then the oldest.
pub(crate) type Place = (Reverse<i32>, u64, Slot);

/// Where the pacer keeps a request.
pub(crate) type Slot = u32;

#[derive(Clone, Debug, Default)]
pub(crate) struct Queue {
    ready: BTreeSet<Place>,
    /// By due time.
    delayed: BTreeMap<(Instant, Slot), Place>,
    /// By deadline, on the clock that stands still while the scope is held.
    deadlines: BTreeSet<(Instant, Slot)>,
}

impl Queue {
    pub(crate) fn push(&mut self, now: Instant, place: Place, not_before: Option<Instant>, deadline: Option<Instant>) {
        match not_before {
            Some(due) if due > now => drop(self.delayed.insert((due, place.2), place)),
            _ => drop(self.ready.insert(place)),
        }
        if let Some(deadline) = deadline {
            self.deadlines.insert((deadline, place.2));
        }
    }

    pub(crate) fn remove(&mut self, place: Place, not_before: Option<Instant>, deadline: Option<Instant>) {
        if !self.ready.remove(&place)
            && let Some(due) = not_before
        {
            self.delayed.remove(&(due, place.2));
        }
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, place.2));
        }
    }

    /// Gives a due request another place.
    pub(crate) fn replace(&mut self, from: Place, to: Place) {
        self.ready.remove(&from);
        self.ready.insert(to);
    }

    /// Moves requests that have become due to the ready ones, and returns them. More than are ready already are merged in one go:
    /// of ten thousand that become due together the first would wait for all the others.
    pub(crate) fn promote(&mut self, now: Instant) -> Vec<Place> {
        let mut due = Vec::new();
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        if due.len() > self.ready.len() {
            self.ready.append(&mut due.iter().copied().collect());
        } else {
            self.ready.extend(&due);
        }
        due
    }

    /// The first that is due.
    /// Whether a request waits that is due.
    #[inline(always)]
    pub(crate) fn is_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn head(&self) -> Option<Place> {
        self.ready.first().copied()
    }

    /// The first that is due and not `such`, among the first `n` of the same priority; else the first.
    pub(crate) fn first_but(&self, n: usize, such: impl Fn(Slot) -> bool) -> Option<Place> {
        let first = self.head()?;
        let mut as_urgent = self.ready.iter().take(n).take_while(|place| place.0 == first.0);
        Some(as_urgent.find(|place| !such(place.2)).copied().unwrap_or(first))
    }

    /// One that is due, of those with the least `of` among the first `n` of the same priority: another for each `turn`, and
    /// neighbours seldom after each other.
    pub(crate) fn one_with_least<T: Ord>(&self, n: usize, turn: u64, of: impl Fn(Slot) -> T) -> Option<Place> {
        let urgency = self.head()?.0;
        let candidates = || self.ready.iter().take(n).take_while(|place| place.0 == urgency);
        let least = candidates().map(|place| of(place.2)).min()?;
        let best = || candidates().filter(|place| of(place.2) == least);
        best().nth((Rng::new(turn).next_u64() % best().count() as u64) as usize).copied()
    }

    /// The first of those with the least `of`, among the first `n` whatever their priority.
    pub(crate) fn first_with_least<T: Ord>(&self, n: usize, of: impl Fn(Slot) -> T) -> Option<Place> {
        self.ready.iter().take(n).min_by_key(|place| of(place.2)).copied()
    }

    /// How many of them, `n` at most, go before one of that priority and arrival that would be queued now.
    pub(crate) fn such_ahead_of(&self, n: usize, priority: i32, arrival: u64, such: impl Fn(Slot) -> bool) -> u64 {
        let ahead = self.ready.range(..(Reverse(priority), arrival, Slot::MIN));
        ahead.take(n).filter(|place| such(place.2)).count() as u64
    }

    /// How many ready requests go before one that would be queued now. Counted from the nearer end: a new request goes behind all
    /// of its priority, a retry before most.
    pub(crate) fn ahead_of(&self, priority: i32, arrival: u64) -> u64 {
        let place = (Reverse(priority), arrival, Slot::MIN);
        let (mut ahead, mut behind) = (self.ready.range(..place), self.ready.range(place..));
        let mut steps = 0;
        loop {
            if ahead.next().is_none() {
                return steps;
            }
            if behind.next().is_none() {
                return self.ready.len() as u64 - steps;
            }
            steps += 1;
        }
    }

    /// When the next one becomes due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((due, _), _)| *due)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<(Instant, Slot)> {
        self.deadlines.first().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.ready.len() + self.delayed.len()
    }

    /// How many requests there are of each priority, the most urgent first.
    pub(crate) fn by_priority(&self) -> Vec<(i32, u64)> {
        let mut counts = BTreeMap::<_, u64>::new();
        for place in self.ready.iter().chain(self.delayed.values()) {
            *counts.entry(place.0).or_default() += 1;
        }
        counts.into_iter().map(|(Reverse(priority), count)| (priority, count)).collect()
    }

    /// The requests that are due.
    pub(crate) fn ready(&self) -> impl Iterator<Item = Place> {
        self.ready.iter().copied()
    }

    /// All requests, the ready ones first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.ready.iter().chain(self.delayed.values()).map(|place| place.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(priority: i32, arrival: u64) -> Place {
        (Reverse(priority), arrival, u32::try_from(arrival).expect("few"))
    }

    #[test]
    fn those_ahead_are_counted_from_either_end() {
        let mut queue = Queue::default();
        let places: Vec<Place> = (0..40).map(|n| place(i32::try_from(n % 3).expect("few"), 2 * n)).collect();
        places.iter().for_each(|place| queue.push(Instant::ZERO, *place, None, None));
        for priority in -1..4 {
            for arrival in 0..90 {
                let own = (Reverse(priority), arrival, Slot::MIN);
                let ahead = places.iter().filter(|place| **place < own).count() as u64;
                assert_eq!(queue.ahead_of(priority, arrival), ahead, "priority {priority}, arrival {arrival}");
            }
        }
        assert_eq!(Queue::default().ahead_of(0, 0), 0);
    }

    #[test]
    fn requests_are_counted_by_priority_whether_due_or_not() {
        let mut queue = Queue::default();
        assert!(queue.by_priority().is_empty());
        for (n, priority) in [0, -1, 0, 7, -1, 0].into_iter().enumerate() {
            let due = (n % 2 == 1).then(|| Instant::from_nanos(5));
            queue.push(Instant::ZERO, place(priority, n as u64), due, None);
        }
        assert_eq!(queue.by_priority(), [(7, 1), (0, 3), (-1, 2)]);
    }

    #[test]
    fn what_becomes_due_is_in_order_whether_much_or_little_waits_there_already() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut queue = Queue::default();
        for n in 0..200 {
            let due = (n % 2 == 0).then(|| at(if n < 190 { 10 } else { 20 + n }));
            queue.push(at(0), place(0, 199 - n), due, None);
        }
        for (now, ready) in [(9, 100), (10, 195), (209, 195), (210, 196), (900, 200)] {
            queue.promote(at(now));
            assert_eq!(queue.ready.len(), ready, "at {now} ms");
            assert!(queue.delayed.len() == 200 - ready && queue.head().is_some_and(|head| head.1 <= 9));
        }
        assert!(queue.ready.iter().map(|place| place.1).eq(0..200));
    }
}
