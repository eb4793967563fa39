//! The exact sliding window.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use crate::time::{Instant, nanos};

/// A window is divided into so many slots at most: entries of one slot are merged and counted at its end. It bounds
/// the state of a window at any rate to about half a megabyte, and its error to 1 ms a minute.
pub(super) const SLOTS: u64 = 60_000;

/// What a window has counted is told in so many parts: enough to lose at most a sixtieth of the window over a restart.
const PARTS: u64 = 60;

/// Exactly: never more than `limit` in any window. Units are kept in slots, in order, and leave one window after the
/// end of their slot.
#[derive(Clone, Debug)]
pub(crate) struct SlidingWindow {
    pub(super) limit: u64,
    window: u64,
    slot: u64,
    pub(super) entries: VecDeque<Entry>,
    used: u64,
    last: Instant,
}

/// Units taken in one slot. The slot's number is kept modulo 2^32: no entry ever gets that old.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    slot: u32,
    units: u32,
}

impl SlidingWindow {
    pub(super) fn new(limit: u64, window: Duration) -> Self {
        let window = nanos(window);
        let slot = (window / SLOTS).max(1);
        Self { limit, window, slot, entries: VecDeque::new(), used: 0, last: Instant::ZERO }
    }

    pub(super) fn used(&self, now: Instant) -> u64 {
        let gone: u64 = self.expired(now).map(|entry| u64::from(entry.units)).sum();
        self.used - gone
    }

    pub(super) fn fits_at(&self, now: Instant, units: u64) -> Instant {
        let now = now.max(self.last);
        let mut used = self.used;
        for entry in &self.entries {
            if used + units <= self.limit {
                break;
            }
            used -= u64::from(entry.units);
            let leaves = self.leaves(*entry);
            if leaves > now && used + units <= self.limit {
                return leaves;
            }
        }
        now
    }

    pub(super) fn take(&mut self, now: Instant, units: u64) {
        let now = now.max(self.last);
        let expired = self.expired(now).count();
        for entry in self.entries.drain(..expired) {
            self.used -= u64::from(entry.units);
        }
        self.last = now;
        self.used += units;
        let slot = self.slot_of(now);
        let mut left = units;
        if let Some(newest) = self.entries.back_mut()
            && newest.slot == slot
        {
            let merged = left.min(u64::from(u32::MAX - newest.units));
            newest.units += merged as u32;
            left -= merged;
        }
        while left > 0 {
            let units = left.min(u64::from(u32::MAX));
            self.entries.push_back(Entry { slot, units: units as u32 });
            left -= units;
        }
    }

    /// Gives back units of the slot in which they were taken; units that have left the window are gone anyway.
    pub(super) fn refund(&mut self, taken: Instant, units: u64) {
        if self.last - taken > Duration::from_nanos(self.window) {
            return;
        }
        let slot = self.slot_of(taken);
        let newest = self.slot_of(self.last);
        let age = newest.wrapping_sub(slot);
        let first = self.entries.partition_point(|entry| newest.wrapping_sub(entry.slot) > age);
        let mut left = units;
        for entry in self.entries.range_mut(first..).take_while(|entry| entry.slot == slot) {
            let back = left.min(u64::from(entry.units));
            entry.units -= back as u32;
            self.used -= back;
            left -= back;
        }
    }

    /// What still counts: how long ago and how many units, oldest first, in at most about 60 parts that are each told at
    /// their latest time.
    pub(super) fn taken(&self, now: Instant) -> Vec<(Duration, u64)> {
        let now = now.max(self.last);
        let mut parts: Vec<(Duration, u64)> = Vec::new();
        let mut newest_part = None;
        for entry in self.entries.iter().skip(self.expired(now).count()) {
            let ended = self.leaves(*entry).saturating_sub(Duration::from_nanos(self.window));
            let part = ended.as_nanos() / (self.window / PARTS).max(1);
            let (ago, units) = (now - ended, u64::from(entry.units));
            match parts.last_mut() {
                Some(last) if newest_part == Some(part) => *last = (ago, last.1 + units),
                _ => parts.push((ago, units)),
            }
            newest_part = Some(part);
        }
        parts
    }

    pub(super) fn slot_of(&self, at: Instant) -> u32 {
        (at.as_nanos() / self.slot) as u32
    }

    pub(super) fn expired(&self, now: Instant) -> impl Iterator<Item = &Entry> {
        let now = now.max(self.last);
        self.entries.iter().take_while(move |entry| self.leaves(**entry) <= now)
    }

    /// When an entry stops counting. Ages are taken against the newest entry, so that they stay small however long
    /// nothing happened.
    pub(super) fn leaves(&self, entry: Entry) -> Instant {
        let newest = self.last.as_nanos() / self.slot;
        let age = u64::from((newest as u32).wrapping_sub(entry.slot));
        let slot_end = (newest - age + 1).saturating_mul(self.slot);
        Instant::from_nanos(slot_end.saturating_add(self.window))
    }
}
