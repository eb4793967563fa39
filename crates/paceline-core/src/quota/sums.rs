//! Sums over the entries of a window, so that nothing walks them.

use alloc::collections::VecDeque;

/// So many parts make one of the next level, as a power of two: 60,000 entries need 1,000 sums, and a search takes 150 steps.
const FAN: u32 = 6;

/// Levels of sums above the entries.
const LEVELS: usize = 2;

/// The sums of 64 and of 4,096 entries each. Entries are counted from the first one that there ever was.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    first: u64,
    next: u64,
    levels: [VecDeque<u64>; LEVELS],
    /// By so much has the newest entry become larger since it was summed up: most calls change that alone.
    rest: u64,
}

impl Sums {
    /// One more entry, at the end.
    pub(super) fn push(&mut self, units: u64) {
        self.sum_up();
        for (level, sums) in (1..).zip(&mut self.levels) {
            match sums.get_mut(place_of(self.first, self.next, level)) {
                Some(sum) => *sum += units,
                None => sums.push_back(units),
            }
        }
        self.next += 1;
    }

    /// Removes the first entry, which had so many units.
    pub(super) fn pop(&mut self, units: u64) {
        self.sum_up();
        for (level, sums) in (1..).zip(&mut self.levels) {
            if behind(self.first, level) == self.first + 1 {
                sums.pop_front();
            } else if let Some(sum) = sums.front_mut() {
                *sum -= units;
            }
        }
        self.first += 1;
    }

    /// The newest entry has become larger.
    pub(super) const fn add_to_newest(&mut self, units: u64) {
        self.rest += units;
    }

    fn sum_up(&mut self) {
        let rest = core::mem::take(&mut self.rest);
        self.levels.iter_mut().filter_map(VecDeque::back_mut).for_each(|sum| *sum += rest);
    }

    /// The entry in that place has become smaller.
    pub(super) fn subtract(&mut self, place: usize, units: u64) {
        self.sum_up();
        self.parts_of(place).for_each(|sum| *sum -= units);
    }

    /// The sum of so many entries from the first on; `entry` returns the units of one by its place.
    pub(super) fn of_first(&self, count: usize, entry: impl Fn(usize) -> u64) -> u64 {
        let (mut at, end) = (self.first, self.first + count as u64);
        let mut sum = 0;
        for (level, sums) in (1..LEVELS as u32 + 1).zip(&self.levels).rev() {
            while behind(at, level) <= end {
                sum += self.sum(sums, at, level).expect("the part of an entry");
                at = behind(at, level);
            }
        }
        sum + (at..end).map(|at| entry((at - self.first) as usize)).sum::<u64>()
    }

    /// The place of the entry with which the sum from the first on reaches `units`, at least 1.
    pub(super) fn reaches(&self, units: u64, entry: impl Fn(usize) -> u64) -> Option<usize> {
        let (mut at, mut left) = (self.first, units);
        for (level, sums) in (1..LEVELS as u32 + 1).zip(&self.levels).rev() {
            while let Some(sum) = self.sum(sums, at, level).filter(|sum| *sum < left) {
                left -= sum;
                at = behind(at, level);
            }
        }
        (at..self.next).map(|at| (at - self.first) as usize).find(|place| {
            let units = entry(*place);
            let reached = units >= left;
            left = left.saturating_sub(units);
            reached
        })
    }

    /// Heap bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.levels.iter().map(|sums| sums.capacity() * size_of::<u64>()).sum()
    }

    /// The sums that the entry in that place is part of.
    fn parts_of(&mut self, place: usize) -> impl Iterator<Item = &mut u64> {
        let (first, at) = (self.first, self.first + place as u64);
        (1..).zip(&mut self.levels).filter_map(move |(level, sums)| sums.get_mut(place_of(first, at, level)))
    }

    /// The sum that an entry is part of, where there is such a part.
    fn sum(&self, sums: &VecDeque<u64>, at: u64, level: u32) -> Option<u64> {
        let place = place_of(self.first, at, level);
        let rest = if place + 1 == sums.len() { self.rest } else { 0 };
        sums.get(place).map(|sum| sum + rest)
    }
}

/// Where the part of an entry is in its level.
const fn place_of(first: u64, at: u64, level: u32) -> usize {
    ((at >> (level * FAN)) - (first >> (level * FAN))) as usize
}

/// The first entry behind the part of an entry.
const fn behind(at: u64, level: u32) -> u64 {
    ((at >> (level * FAN)) + 1) << (level * FAN)
}
