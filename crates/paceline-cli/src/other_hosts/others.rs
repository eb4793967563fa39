//! What a call has to know of the other hosts of its job: which lines they may have sent, which are theirs now, and whether they
//! may take those of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use paceline::{Clock, Instant};
use paceline_store::TakenBlock;
use paceline_store::blocks::{Departures, Held};
use tokio::sync::{Notify, oneshot, watch};

/// The other hosts; a run that shares its job with none has none.
#[derive(Debug)]
pub(crate) struct Others {
    clock: Clock,
    /// The blocks that this host took, by their first lines.
    blocks: RwLock<BTreeMap<u64, Claimed>>,
    /// Lines that a lost host was about to send, and must not be sent twice.
    in_doubt: RwLock<BTreeSet<u64>>,
    store: watch::Sender<Heard>,
    words: Mutex<Words>,
    /// The job has lines that are not at this host, as far as it has heard.
    have_lines: AtomicBool,
    /// There are words.
    spoken: Notify,
}

/// What the store said last.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// Until then no other host takes what is this one's.
    lease: Instant,
    /// It answered the last word.
    answers: bool,
    /// It has to be asked which blocks are this host's.
    is_in_question: bool,
}

#[derive(Clone, Copy, Debug)]
struct Claimed {
    block: TakenBlock,
    /// Another host has it now.
    taken: bool,
}

/// What the store is to be told next.
#[derive(Debug, Default)]
struct Words {
    /// There is a store to tell.
    is_shared: bool,
    leave: BTreeMap<u64, (Held, oneshot::Sender<bool>)>,
    stay: BTreeMap<u64, Held>,
    /// Lines that were sent though a lost host may have sent them: those that the store knows, and those that it does not.
    again: BTreeSet<u64>,
    new_again: Vec<u64>,
}

/// Words for the store that are on their way.
pub(crate) struct Spoken {
    pub(crate) departures: Departures,
    waiting: BTreeMap<u64, oneshot::Sender<bool>>,
}

impl Spoken {
    /// Those lines may leave, and no others of these.
    pub(crate) fn answered(self, may_leave: &[u64]) -> bool {
        let mut all = true;
        for (line, waiting) in self.waiting {
            let may = may_leave.contains(&line);
            all &= may;
            // One that waits no longer is told to the store as one that stays, when this host leaves the job.
            let _ = waiting.send(may);
        }
        all
    }
}

impl Default for Others {
    fn default() -> Self {
        let (blocks, in_doubt, words, have_lines, spoken) = Default::default();
        let store = watch::channel(Heard { lease: Instant::MAX, answers: true, is_in_question: false }).0;
        Self { clock: Clock::new(), blocks, in_doubt, store, words, have_lines, spoken }
    }
}

impl Others {
    /// Those of a host that shares its job.
    pub(crate) fn of_a_host() -> Self {
        let others = Self::default();
        others.words().is_shared = true;
        others
    }

    /// Whether the job has lines that are not at this host.
    pub(crate) fn have_lines(&self) -> bool {
        self.have_lines.load(Ordering::Relaxed)
    }

    /// The job has such lines, or none.
    pub(crate) fn have_some(&self, lines: bool) {
        self.have_lines.store(lines, Ordering::Relaxed);
    }

    /// A time of the lease; a suspension of the machine counts.
    pub(crate) fn now(&self) -> Instant {
        self.clock.notice_suspension();
        self.clock.now()
    }

    /// The store has answered, and no other host takes lines of this one before then.
    pub(crate) fn lease_until(&self, lease: Instant) {
        self.store.send_replace(Heard { lease, answers: true, is_in_question: false });
    }

    /// The store has answered a word, unless it has to be asked which blocks are this host's.
    pub(crate) fn renewed_until(&self, lease: Instant) {
        self.store.send_modify(|heard| {
            heard.answers = true;
            heard.lease = if heard.is_in_question { heard.lease } else { lease };
        });
    }

    /// The store has not answered a word.
    pub(crate) fn unheard(&self) {
        self.store.send_modify(|heard| heard.answers = false);
    }

    /// Some blocks are not this host's any more: nothing leaves before it is known which.
    pub(crate) fn question(&self) {
        self.store.send_replace(Heard { lease: Instant::ZERO, answers: true, is_in_question: true });
    }

    /// Whether the store has to be asked which blocks are this host's.
    pub(crate) fn is_in_question(&self) -> bool {
        self.store.borrow().is_in_question
    }

    /// This block is this host's, and none of its lines is in doubt yet.
    pub(crate) fn gave(&self, block: TakenBlock) {
        let lines = block.first..block.first + block.lines;
        self.in_doubt.write().unwrap_or_else(PoisonError::into_inner).retain(|line| !lines.contains(line));
        let claimed = Claimed { block, taken: false };
        self.blocks.write().unwrap_or_else(PoisonError::into_inner).insert(block.first, claimed);
    }

    /// Another host has the block that begins there.
    pub(crate) fn took(&self, first: u64) {
        if let Some(claimed) = self.blocks.write().unwrap_or_else(PoisonError::into_inner).get_mut(&first) {
            claimed.taken = true;
        }
    }

    /// A lost host was about to send these lines.
    pub(crate) fn doubt(&self, lines: &[u64]) {
        self.in_doubt.write().unwrap_or_else(PoisonError::into_inner).extend(lines);
    }

    fn block_of(&self, ordinal: u64) -> Option<Claimed> {
        let blocks = self.blocks.read().unwrap_or_else(PoisonError::into_inner);
        let (_, claimed) = blocks.range(..=ordinal).next_back()?;
        Some(*claimed).filter(|claimed| ordinal < claimed.block.first + claimed.block.lines)
    }

    fn words(&self) -> MutexGuard<'_, Words> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another host was about to send the line, which must not be sent twice, before it was lost.
    pub(crate) fn may_have_sent(&self, ordinal: u64) -> bool {
        self.in_doubt.read().unwrap_or_else(PoisonError::into_inner).contains(&ordinal)
    }

    /// Whether another host has the line now.
    pub(crate) fn have(&self, ordinal: u64) -> bool {
        self.block_of(ordinal).is_some_and(|claimed| claimed.taken)
    }

    fn is_ours(&self) -> bool {
        let lease = self.store.borrow().lease;
        lease == Instant::MAX || self.now() < lease
    }

    /// Waits until no other host can take lines of this one, and for a line that must not be sent `twice` until the store can be
    /// told of it. Returns whether the line may be sent from here.
    pub(crate) async fn leave_once_heard(&self, ordinal: u64, twice: bool) -> bool {
        let mut store = self.store.subscribe();
        while !self.have(ordinal) && !(self.is_ours() && (twice || store.borrow_and_update().answers)) {
            // It is told for as long as this exists.
            let _ = store.changed().await;
        }
        !self.have(ordinal)
    }

    /// A call leaves now, if it may, and again where its line had `begun` before this run: no other host can take its line, and
    /// where it must not be made `twice` the store knows of it.
    pub(crate) async fn leaves(&self, ordinal: u64, twice: bool, begun: bool) -> bool {
        if self.have(ordinal) || !self.is_ours() {
            return false;
        }
        let Some(Claimed { block, .. }) = self.block_of(ordinal) else { return true };
        if twice {
            let mut words = self.words();
            if (block.lost || begun) && words.is_shared && words.again.insert(ordinal) {
                words.new_again.push(ordinal);
            }
            return true;
        }
        let (waiting, told) = oneshot::channel();
        {
            let mut words = self.words();
            if !words.is_shared {
                return true;
            }
            words.stay.remove(&ordinal);
            words.leave.insert(ordinal, (Held { first: block.first, fence: block.fence }, waiting));
        }
        self.spoken.notify_one();
        told.await.unwrap_or(false) && self.is_ours()
    }

    /// No call of the line was executed, though the store was told that one leaves.
    pub(crate) fn stays(&self, ordinal: u64) {
        let Some(Claimed { block, .. }) = self.block_of(ordinal) else { return };
        let mut words = self.words();
        if words.is_shared {
            words.stay.insert(ordinal, Held { first: block.first, fence: block.fence });
        }
    }

    /// Waits for calls that are about to leave.
    pub(crate) async fn spoken(&self) {
        self.spoken.notified().await;
    }

    /// What the store is to be told of calls, if anything.
    pub(crate) fn speak(&self) -> Option<Spoken> {
        let mut words = self.words();
        if words.leave.is_empty() && words.stay.is_empty() {
            return None;
        }
        let (leave, stay) = (std::mem::take(&mut words.leave), std::mem::take(&mut words.stay));
        let departures = Departures {
            leave: leave.iter().map(|(line, (held, _))| (*line, *held)).collect(),
            stay: stay.into_iter().collect(),
        };
        let waiting = leave.into_iter().map(|(line, (_, waiting))| (line, waiting)).collect();
        Some(Spoken { departures, waiting })
    }

    /// Lines that were sent though a lost host may have sent them, and that the store does not know as that.
    pub(crate) fn sent_again(&self) -> Vec<u64> {
        self.words().new_again.clone()
    }

    /// The store knows of those now.
    pub(crate) fn told_again(&self, lines: &[u64]) {
        self.words().new_again.drain(..lines.len());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LEASE: Duration = Duration::from_secs(5);

    fn block(first: u64, lines: u64, lost: bool) -> TakenBlock {
        TakenBlock { first, lines, fence: 7, lost }
    }

    fn of_a_host() -> Others {
        let others = Others::of_a_host();
        others.gave(block(0, 10, false));
        others.gave(block(10, 10, true));
        others.lease_until(others.now() + LEASE);
        others
    }

    #[tokio::test]
    async fn a_run_alone_has_all_its_lines() {
        let others = Others::default();
        assert!(
            others.leave_once_heard(3, false).await
                && others.leaves(3, false, false).await
                && others.leaves(4, true, false).await
        );
        assert!(!others.have(3) && !others.may_have_sent(3) && others.speak().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn no_line_leaves_after_the_lease_before_the_store_was_heard() {
        for twice in [true, false] {
            let others = of_a_host();
            assert!(others.leave_once_heard(0, twice).await);
            tokio::time::advance(LEASE).await;
            assert!(!others.leaves(0, twice, false).await, "another host may have it");
            let hears = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                others.took(0);
                others.lease_until(others.now() + LEASE);
            };
            let (mine, theirs, ()) =
                tokio::join!(others.leave_once_heard(10, twice), others.leave_once_heard(9, twice), hears);
            assert!(mine && !theirs && others.have(9) && !others.have(10));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_that_must_not_be_sent_twice_leaves_once_the_store_knows_of_it() {
        let others = of_a_host();
        let tells = async {
            others.spoken().await;
            let spoken = others.speak().unwrap();
            let held = |first| Held { first, fence: 7 };
            assert_eq!(spoken.departures.leave, [(3, held(0)), (12, held(10))]);
            assert!(!spoken.answered(&[3]), "the other one is not this host's");
        };
        assert_eq!(
            tokio::join!(others.leaves(3, false, false), others.leaves(12, false, false), tells),
            (true, false, ())
        );
        others.stays(3);
        assert_eq!(others.speak().unwrap().departures.stay, [(3, Held { first: 0, fence: 7 })]);
        // Prompts go on while the store does not answer.
        others.unheard();
        assert!(others.leave_once_heard(4, true).await);
        let waits = tokio::time::timeout(Duration::from_secs(2), others.leave_once_heard(4, false)).await;
        assert!(waits.is_err(), "the store could not be told of it");
        others.renewed_until(others.now() + LEASE);
        assert!(others.leave_once_heard(4, false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_leaves_while_it_is_asked_which_blocks_are_this_hosts() {
        let others = of_a_host();
        others.question();
        others.renewed_until(others.now() + LEASE);
        assert!(others.is_in_question() && !others.leaves(4, true, false).await);
        others.lease_until(others.now() + LEASE);
        assert!(!others.is_in_question() && others.leaves(4, true, false).await);
    }

    #[tokio::test(start_paused = true)]
    async fn lines_of_lost_hosts_and_of_an_earlier_run_are_told_once_where_they_are_sent_again() {
        let others = of_a_host();
        assert!(others.leaves(4, true, false).await);
        for line in [3, 12, 12, 15] {
            assert!(others.leaves(line, true, line == 3).await);
        }
        let told = others.sent_again();
        assert_eq!((&told, others.sent_again()), (&vec![3, 12, 15], vec![3, 12, 15]), "until the store knows of them");
        assert!(others.leaves(13, true, false).await && others.leaves(12, true, false).await);
        others.told_again(&told);
        assert_eq!(others.sent_again(), [13]);
        others.doubt(&[11, 3]);
        assert!(others.may_have_sent(11) && others.may_have_sent(3) && !others.may_have_sent(12));
        others.gave(block(10, 10, false));
        assert!(!others.may_have_sent(11) && others.may_have_sent(3));
    }
}
