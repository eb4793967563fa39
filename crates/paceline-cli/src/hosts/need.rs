//! How many lines a host keeps at hand: enough never to run dry, also where the store is far away, and few enough that a newcomer
//! finds work at once.

use std::collections::VecDeque;
use std::time::Duration;

use paceline::Instant;

/// Lines that have not been begun, on a host of which nothing is known yet, or whose calls take long.
pub(super) const FEW: u64 = 32;

/// What ends within that time, as fast as it went lately, is kept at hand.
const AHEAD: Duration = Duration::from_secs(10);

/// How far back that is looked at.
const LATELY: Duration = Duration::from_secs(5);

/// Blocks in one claim.
const MOST: u64 = 16;

/// A claim that takes so long takes twice as much.
const NEAR: Duration = Duration::from_millis(250);

/// So many times as long as a claim takes is kept at hand on top.
const CLAIMS: u32 = 10;

/// Lines that wait for a hold to end, or for a person: a host that has so many takes no more beside them. It looks through what
/// it has again and again, and others may be able to send those lines sooner.
const MOST_KEPT: u64 = 4_000;

/// How fast lines end here.
#[derive(Debug, Default)]
pub(super) struct Need {
    /// When so many had ended.
    ended: VecDeque<(Instant, u64)>,
    /// How long the last claim took.
    claim: Duration,
}

impl Need {
    /// So many lines have ended in all.
    pub(super) fn note(&mut self, now: Instant, ended: u64) {
        self.ended.push_back((now, ended));
        while self.ended.len() > 2 && self.ended.get(1).is_some_and(|(at, _)| *at + LATELY < now) {
            self.ended.pop_front();
        }
    }

    /// A claim has taken so long.
    pub(super) const fn claimed_in(&mut self, took: Duration) {
        self.claim = took;
    }

    /// What is so much for a store that is near, for this one.
    fn here(&self, near: u64) -> u64 {
        near + u64::try_from(u128::from(near) * self.claim.as_millis() / NEAR.as_millis()).unwrap_or(u64::MAX)
    }

    /// The blocks to claim where so many lines wait that were not begun, of which so many are `kept` back, and blocks have so
    /// many lines.
    pub(super) fn blocks(&self, waiting: u64, kept: u64, of_a_block: u64) -> u32 {
        let missing = if kept < MOST_KEPT { self.lines().saturating_sub(waiting.saturating_sub(kept)) } else { 0 };
        u32::try_from(missing.div_ceil(of_a_block.max(1)).min(self.here(MOST))).unwrap_or(u32::MAX)
    }

    fn lines(&self) -> u64 {
        let (Some((from, before)), Some((to, now))) = (self.ended.front(), self.ended.back()) else {
            return self.here(FEW);
        };
        let (ended, took) = (now - before, (*to - *from).as_millis());
        if took == 0 {
            return self.here(FEW);
        }
        let ahead = (AHEAD + CLAIMS * self.claim).as_millis();
        self.here(FEW).max(u64::try_from(u128::from(ended) * ahead / took).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_host_keeps_what_some_seconds_need() {
        let mut need = Need::default();
        assert_eq!(need.blocks(0, 0, 200), 1, "at first a few");
        assert_eq!(need.blocks(0, 0, 1), 16, "in small blocks");
        assert_eq!(need.blocks(32, 0, 1), 0);
        for step in 0..100 {
            need.note(at(step * 100), step * 10);
        }
        assert_eq!(need.blocks(0, 0, 200), 5, "100 a second");
        assert_eq!(need.blocks(900, 0, 200), 1);
        assert_eq!(need.blocks(1_000, 0, 200), 0);
    }

    #[test]
    fn a_host_that_got_slower_keeps_less() {
        let mut need = Need::default();
        (0..50).for_each(|step| need.note(at(step * 100), step * 10));
        (0..100).for_each(|step| need.note(at(5_000 + step * 100), 500));
        assert_eq!(need.blocks(0, 0, 1), 16);
        assert_eq!(need.blocks(40, 0, 1), 0, "what was fast is forgotten");
    }

    #[test]
    fn a_host_far_from_the_store_keeps_more() {
        let mut need = Need::default();
        need.claimed_in(Duration::from_secs(1));
        assert_eq!((need.blocks(0, 0, 10), need.blocks(0, 0, 1)), (16, 80), "160 lines in place of 32");
        for step in 0..100 {
            need.note(at(step * 100), step * 10);
        }
        assert_eq!(need.blocks(0, 0, 200), 10, "twenty seconds of 100 each");
    }

    #[test]
    fn what_is_kept_back_gives_a_host_nothing_to_do_and_so_much_of_it_is_enough() {
        let need = Need::default();
        assert_eq!(need.blocks(40, 0, 10), 0);
        assert_eq!((need.blocks(40, 30, 10), need.blocks(3_999, 3_999, 10)), (3, 4));
        assert_eq!(need.blocks(4_000, 4_000, 10), 0);
    }

    #[test]
    fn no_claim_takes_much_at_once() {
        let mut need = Need::default();
        need.note(at(0), 0);
        need.note(at(1), 1_000_000);
        assert_eq!(need.blocks(0, 0, 200), 16);
    }
}
