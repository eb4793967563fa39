//! The exact sliding window.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use super::LARGEST_LIMIT;
use super::sums::Sums;
use crate::state::TakenState;
use crate::time::{Instant, nanos};

/// A window is divided into so many slots at most: entries of one slot are merged and counted at its end. It bounds
/// the state of a window at any rate to about half a megabyte, and its error to 1 ms a minute.
pub(super) const SLOTS: u64 = 60_000;

/// The counts of a window are exported in so many parts, so that a restart shifts them by at most a sixtieth of the window.
const PARTS: u64 = 60;

/// Exactly: never more than `limit` in any window. Units are kept in slots, in order, and leave one window after the
/// end of their slot.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    pub(super) limit: u64,
    window: u64,
    pub(super) entries: VecDeque<Entry>,
    pub(super) sums: Sums,
    used: u64,
    last: Instant,
    /// The number of the slot of `last`.
    newest: u64,
    /// When that slot ends, if the newest entry is in it.
    open_until: Instant,
}

/// Units taken in one slot. The slot's number is kept modulo 2^32: no entry ever gets that old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    slot: u32,
    units: u32,
}

#[cfg(test)]
impl Entry {
    pub(super) fn units(&self) -> u64 {
        u64::from(self.units)
    }
}

impl SlidingWindow {
    pub(super) fn new(limit: u64, window: Duration) -> Self {
        let (window, entries, sums) = (nanos(window), VecDeque::new(), Sums::default());
        let (last, open_until) = (Instant::ZERO, Instant::ZERO);
        Self { limit, window, entries, sums, used: 0, last, newest: 0, open_until }
    }

    /// How long a slot is.
    const fn slot(&self) -> u64 {
        let slot = self.window / SLOTS;
        if slot == 0 { 1 } else { slot }
    }

    pub(super) fn used(&self, now: Instant) -> u64 {
        self.used - self.units_of_first(self.expired(now))
    }

    #[inline(always)]
    pub(super) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        self.fits_under(self.limit, now, units)
    }

    #[inline(always)]
    pub(super) fn fits_under(&self, limit: u64, now: Instant, units: u64) -> Instant {
        let now = now.max(self.last);
        let excess = self.used.saturating_add(units).saturating_sub(limit);
        if excess == 0 { now } else { self.frees_at(now, excess) }
    }

    /// When so many of the units that were taken have left.
    #[cold]
    fn frees_at(&self, now: Instant, excess: u64) -> Instant {
        let frees = self.sums.reaches(excess, |place| self.units(place));
        // More than the limit never fits; an allowance may be that small.
        frees.map_or(Instant::MAX, |place| self.leaves(self.entries[place]).max(now))
    }

    #[inline(always)]
    pub(super) fn take(&mut self, now: Instant, units: u64) {
        let now = now.max(self.last);
        self.last = now;
        // Most calls are in the slot of the last one: they need no division, and what is over can stay until the next slot.
        if now < self.open_until
            && let Some(newest) = self.entries.back_mut()
            && units <= u64::from(u32::MAX - newest.units)
            && self.used + units <= LARGEST_LIMIT
        {
            newest.units += units as u32;
            self.sums.add_to_newest(units);
            self.used += units;
        } else {
            self.take_more(now, units);
        }
    }

    /// What is not added to the newest entry: a slot begins, or that entry is full.
    #[inline(never)]
    fn take_more(&mut self, now: Instant, units: u64) {
        let slot = self.slot();
        if now.as_nanos() - self.newest * slot >= slot {
            self.newest = now.as_nanos() / slot;
            self.forget(now);
        }
        let mut left = units.min(LARGEST_LIMIT.saturating_sub(self.used));
        self.used += left;
        if let Some(newest) = self.entries.back_mut().filter(|entry| entry.slot == self.newest as u32) {
            let merged = left.min(u64::from(u32::MAX - newest.units));
            newest.units += merged as u32;
            self.sums.add_to_newest(merged);
            left -= merged;
        }
        while left > 0 {
            let units = left.min(u64::from(u32::MAX));
            self.entries.push_back(Entry { slot: self.newest as u32, units: units as u32 });
            self.sums.push(units);
            left -= units;
        }
        if self.entries.back().is_some_and(|entry| entry.slot == self.newest as u32) {
            self.open_until = Instant::from_nanos((self.newest + 1).saturating_mul(slot));
        }
    }

    /// Removes the entries that count no longer.
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.entries.front().filter(|entry| self.leaves(**entry) <= now) {
            let units = u64::from(oldest.units);
            self.entries.pop_front();
            self.sums.pop(units);
            self.used -= units;
        }
    }

    /// Gives back units of the slot in which they were taken; units that have left the window are gone anyway.
    pub(super) fn refund(&mut self, taken: Instant, units: u64) {
        if !self.counts(taken, self.last) {
            return;
        }
        let (slot, newest) = (self.slot_of(taken), self.newest as u32);
        let age = newest.wrapping_sub(slot);
        let first = self.entries.partition_point(|entry| newest.wrapping_sub(entry.slot) > age);
        let mut left = units;
        for (place, entry) in
            self.entries.iter_mut().enumerate().skip(first).take_while(|(_, entry)| entry.slot == slot)
        {
            let back = left.min(u64::from(entry.units));
            entry.units -= back as u32;
            self.sums.subtract(place, back);
            self.used -= back;
            left -= back;
        }
    }

    /// The units that still count with their ages, oldest first, in at most about 60 parts; each part has the time of its latest
    /// unit.
    pub(super) fn taken(&self, now: Instant) -> Vec<TakenState> {
        let now = now.max(self.last);
        let window = Duration::from_nanos(self.window);
        let ended = |entry: &Entry| self.leaves(*entry).saturating_sub(window);
        let part = |entry: &Entry| ended(entry).as_nanos() / (self.window / PARTS).max(1);
        let mut parts = Vec::new();
        let mut from = self.expired(now);
        while let Some(first) = self.entries.get(from) {
            let number = part(first);
            let to = self.entries.partition_point(|entry| part(entry) <= number);
            let units = self.units_of_first(to) - self.units_of_first(from);
            parts.push(TakenState { ago: now - ended(&self.entries[to - 1]), units });
            from = to;
        }
        parts
    }

    /// Whether what was taken then still counts.
    pub(super) fn counts(&self, taken: Instant, now: Instant) -> bool {
        self.slot_end_of(taken) + Duration::from_nanos(self.window) > now.max(self.last)
    }

    /// What was taken then, and still counts, counts as of now. Returns whether that changes anything.
    pub(super) fn postpone(&mut self, taken: Instant, now: Instant, units: u64) -> bool {
        let changes = self.slot_end(now) > self.slot_end_of(taken);
        if changes {
            self.refund(taken, units);
            self.take(now, units);
        }
        changes
    }

    pub(super) fn slot_end(&self, now: Instant) -> Instant {
        self.slot_end_of(now.max(self.last))
    }

    const fn slot_end_of(&self, at: Instant) -> Instant {
        Instant::from_nanos((at.as_nanos() / self.slot() + 1).saturating_mul(self.slot()))
    }

    pub(super) fn slot_of(&self, at: Instant) -> u32 {
        (at.as_nanos() / self.slot()) as u32
    }

    /// Entries that count no longer; they are the first.
    fn expired(&self, now: Instant) -> usize {
        let now = now.max(self.last);
        let is_gone = |entry: &Entry| self.leaves(*entry) <= now;
        if self.entries.front().is_some_and(is_gone) { self.entries.partition_point(is_gone) } else { 0 }
    }

    fn units(&self, place: usize) -> u64 {
        u64::from(self.entries[place].units)
    }

    fn units_of_first(&self, count: usize) -> u64 {
        self.sums.of_first(count, |place| self.units(place))
    }

    /// When an entry stops counting. Ages are taken against the newest entry, so that they stay small however long
    /// nothing happened.
    pub(super) fn leaves(&self, entry: Entry) -> Instant {
        let age = u64::from((self.newest as u32).wrapping_sub(entry.slot));
        let slot_end = (self.newest - age + 1).saturating_mul(self.slot());
        Instant::from_nanos(slot_end.saturating_add(self.window))
    }

    /// Counts what another window remembers.
    pub(super) fn inherit(&mut self, now: Instant, known: &Self) {
        if self.window == known.window {
            *self = Self { limit: self.limit, ..known.clone() };
            return;
        }
        known.remembered(now).for_each(|(at, units)| self.take(at, units));
    }

    /// Adds the units of another window of the same length. Units stay in their slots, so that they can be refunded.
    pub(super) fn join(&mut self, now: Instant, other: &Self) {
        let mut entries: Vec<_> = self.remembered(now).chain(other.remembered(now)).collect();
        entries.sort_by_key(|(at, _)| *at);
        *self = Self::new(self.limit, Duration::from_nanos(self.window));
        entries.into_iter().for_each(|(at, units)| self.take(at, units));
    }

    /// The units that still count, each at the latest time at which it can have been taken.
    fn remembered(&self, now: Instant) -> impl Iterator<Item = (Instant, u64)> {
        let window = Duration::from_nanos(self.window);
        self.entries.iter().skip(self.expired(now)).map(move |entry| {
            let slot_end = self.leaves(*entry).saturating_sub(window);
            (slot_end.saturating_sub(Duration::from_nanos(1)).min(now), u64::from(entry.units))
        })
    }
}
