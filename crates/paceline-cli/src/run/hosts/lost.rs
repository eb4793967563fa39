//! Lines that another host may have sent before it was lost: no host has heard how their calls ended.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// Ranges of ordinals.
#[derive(Debug, Default)]
pub(crate) struct LostLines(RwLock<BTreeMap<u64, u64>>);

impl LostLines {
    /// Adds those of a block.
    pub(super) fn add(&self, first: u64, lines: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(first, first + lines);
    }

    /// Whether the line is one of them.
    pub(crate) fn has(&self, ordinal: u64) -> bool {
        let ranges = self.0.read().unwrap_or_else(PoisonError::into_inner);
        ranges.range(..=ordinal).next_back().is_some_and(|(_, end)| ordinal < *end)
    }
}

#[cfg(test)]
#[test]
fn the_lines_of_a_block_are_lost_and_no_others() {
    let lost = LostLines::default();
    lost.add(10, 5);
    lost.add(20, 1);
    let has: Vec<u64> = (0..30).filter(|line| lost.has(*line)).collect();
    assert_eq!(has, [10, 11, 12, 13, 14, 20]);
}
