//! What a call has to know of the other hosts of its job: which lines they may have sent, which are theirs now, and whether they
//! may take those of this host.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use paceline::{Clock, Instant};
use tokio::sync::watch;

/// The other hosts; a run that shares its job with none has none.
#[derive(Debug)]
pub(crate) struct Others {
    clock: Clock,
    /// Lines of lost hosts: no host has heard how their calls ended.
    lost: RwLock<Ranges>,
    /// Lines that were this host's, and are another's now.
    taken: RwLock<Ranges>,
    /// Until then no other host takes what is this one's.
    lease: watch::Sender<Instant>,
}

impl Default for Others {
    fn default() -> Self {
        let (lost, taken) = Default::default();
        Self { clock: Clock::new(), lost, taken, lease: watch::channel(Instant::MAX).0 }
    }
}

/// Lines by their ordinals: where a range begins, and where it ends.
type Ranges = BTreeMap<u64, u64>;

fn has(ranges: &RwLock<Ranges>, ordinal: u64) -> bool {
    let ranges = ranges.read().unwrap_or_else(PoisonError::into_inner);
    ranges.range(..=ordinal).next_back().is_some_and(|(_, end)| ordinal < *end)
}

fn add(ranges: &RwLock<Ranges>, first: u64, lines: u64) {
    ranges.write().unwrap_or_else(PoisonError::into_inner).insert(first, first + lines);
}

impl Others {
    /// A time of the lease.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// No other host takes lines of this one before then.
    pub(super) fn lease_until(&self, end: Instant) {
        self.lease.send_replace(end);
    }

    /// A host was lost with these lines.
    pub(super) fn lost(&self, first: u64, lines: u64) {
        add(&self.lost, first, lines);
    }

    /// Another host has these lines now.
    pub(super) fn took(&self, first: u64, lines: u64) {
        add(&self.taken, first, lines);
    }

    /// The lines from there on are this host's, and nothing is in doubt about them.
    pub(super) fn gave(&self, first: u64) {
        for ranges in [&self.taken, &self.lost] {
            ranges.write().unwrap_or_else(PoisonError::into_inner).remove(&first);
        }
    }

    /// Whether another host may have sent the line before it was lost.
    pub(crate) fn may_have_sent(&self, ordinal: u64) -> bool {
        has(&self.lost, ordinal)
    }

    /// Whether the line may be sent from here; one that must not be sent `twice`, only while no other host can take it.
    pub(crate) fn leave(&self, ordinal: u64, twice: bool) -> bool {
        !has(&self.taken, ordinal) && (twice || self.now() < *self.lease.borrow())
    }

    /// The same, once the store was heard again where it is away: a line that must not be sent twice waits for it.
    pub(crate) async fn leave_once_heard(&self, ordinal: u64, twice: bool) -> bool {
        let mut heard = self.lease.subscribe();
        while !twice && !has(&self.taken, ordinal) && self.now() >= *heard.borrow_and_update() {
            // It is told for as long as this exists.
            let _ = heard.changed().await;
        }
        self.leave(ordinal, twice)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_lines_of_a_block_are_lost_and_no_others() {
        let others = Others::default();
        others.lost(10, 5);
        others.lost(20, 1);
        let lost: Vec<u64> = (0..30).filter(|line| others.may_have_sent(*line)).collect();
        assert_eq!(lost, [10, 11, 12, 13, 14, 20]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_must_not_be_sent_twice_leaves_only_while_it_is_safe_here() {
        let others = Others::default();
        assert!(others.leave(0, false), "a run alone has all its lines");
        others.lease_until(others.now() + Duration::from_secs(5));
        assert!(others.leave(0, false));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert!(others.leave(0, true) && !others.leave(0, false), "the lease is over");
        let waits = others.leave_once_heard(0, false);
        let hears = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            others.lease_until(others.now() + Duration::from_secs(5));
        };
        assert!(tokio::join!(waits, hears).0);
        others.took(0, 3);
        assert!(!others.leave_once_heard(2, false).await && !others.leave(2, true), "another host has it");
        others.gave(0);
        assert!(others.leave(2, false));
    }
}
