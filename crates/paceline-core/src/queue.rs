//! Who waits: by priority, then arrival; those that are not due yet wait apart.

use alloc::collections::{BTreeMap, BTreeSet};
use core::cmp::Reverse;

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

    /// Moves what has become due to the others that may leave.
    pub(crate) fn promote(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry()
            && first.key().0 <= now
        {
            self.ready.insert(first.remove());
        }
    }

    /// The first that is due.
    pub(crate) fn head(&self) -> Option<Place> {
        self.ready.first().copied()
    }

    /// How many of those that are due go before one that would come in now.
    pub(crate) fn ahead_of(&self, priority: i32, arrival: u64) -> u64 {
        let place = (Reverse(priority), arrival, Slot::MIN);
        let ahead = match self.ready.last() {
            Some(last) if *last < place => self.ready.len(),
            _ => self.ready.range(..place).count(),
        };
        ahead as u64
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

    /// Everybody, the ready ones first.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.ready.iter().chain(self.delayed.values()).map(|place| place.2)
    }
}
