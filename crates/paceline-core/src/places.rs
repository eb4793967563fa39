//! Places among the calls in flight: a scope whose calls are not answered leaves some to the others.
//!
//! A host that accepts calls and never answers would else take each place that becomes free, and keep it until the timeout.
//! Scopes whose last call waited in vain for its answer share what one silent scope may take: each alone would take a first
//! place, and many of them together all places again and again. Where scopes may come of which nothing is known yet, those
//! that have answered have a part of the places to themselves.
//!
//! It is the dynamic threshold of buffers that several queues share (Choudhury and Hahne, 1998), for the scopes that are
//! silent and for no other: what answers is bounded by nothing.

use alloc::collections::BTreeMap;
use core::time::Duration;

use crate::snapshot::ScopeAnswers;
use crate::time::{Instant, nanos};

/// A silent scope takes its first place, and one more only where so many times its calls are fewer than the free places. Of
/// those that no other scope uses, one leaves four fifths, and k at the same time leave 4 of 4 + k parts.
const FREE_FOR_EACH: u32 = 4;

/// A scope is silent after so many times its slowest answer of late ...
const SLOW: u32 = 2;

/// ... and never sooner than that.
const SOON: Duration = Duration::from_millis(100);

/// A call that failed sooner has kept no place from others.
const IN_VAIN: Duration = Duration::from_secs(1);

/// One part in so many of the slowest answer is forgotten with each that is faster.
const FORGETS: u64 = 16;

/// Whether a silent scope that holds so many places may take one of the free ones.
pub(crate) const fn may_take(held: u32, free: u32) -> bool {
    held == 0 || held.saturating_mul(FREE_FOR_EACH) < free
}

/// How many of all places are shared by scopes that have not answered, or whose last call waited in vain: half, and one at least.
pub(crate) const fn shared(limit: u32) -> u32 {
    if limit < 2 { 1 } else { limit / 2 }
}

/// Places that a scope holds whose calls may not be answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its last call waited for its answer in vain.
    pub(crate) mute: u32,
    /// That, or none of its calls has been answered yet.
    pub(crate) unproven: u32,
}

/// So many callers are known whose calls waited in vain.
const MOST_MUTE: usize = 50;

/// A caller that made trouble alone is known for so long after its last call, or after its next one might have come: it may call
/// no more.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(15 * 60);

/// Callers of a scope whose last call waited for its answer in vain, where they are known apart: each is as a scope of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct MuteCallers(BTreeMap<u64, Mute>);

#[derive(Clone, Copy, Debug)]
struct Mute {
    since: Instant,
    /// When its last call failed.
    last: Instant,
    /// Calls that left since the first one that waited in vain.
    in_flight: u32,
}

impl MuteCallers {
    /// A call of a caller failed after so long.
    pub(crate) fn failed(&mut self, now: Instant, caller: u64, took: Duration) {
        if took < IN_VAIN {
            return;
        }
        self.0.retain(|_, mute| mute.in_flight > 0 || now - mute.last <= KNOWN_FOR);
        if self.0.len() < MOST_MUTE || self.0.contains_key(&caller) {
            self.0.entry(caller).or_insert(Mute { since: now, last: now, in_flight: 0 }).last = now;
        }
    }

    /// A call of a caller was answered.
    pub(crate) fn answered(&mut self, caller: u64) {
        self.0.remove(&caller);
    }

    /// A call of a caller leaves.
    pub(crate) fn sent(&mut self, caller: u64) {
        self.0.entry(caller).and_modify(|mute| mute.in_flight += 1);
    }

    /// A call of a caller that left then is no longer in flight.
    pub(crate) fn ended(&mut self, caller: u64, sent: Instant) {
        if let Some(mute) = self.0.get_mut(&caller).filter(|mute| sent >= mute.since) {
            mute.in_flight = mute.in_flight.saturating_sub(1);
        }
    }

    /// How many places the calls of a caller hold, if its last one waited in vain.
    pub(crate) fn held(&self, caller: u64) -> Option<u32> {
        Some(self.0.get(&caller)?.in_flight)
    }

    /// How many all of them hold.
    pub(crate) fn held_by_all(&self) -> u32 {
        self.0.values().map(|mute| mute.in_flight).sum()
    }

    /// How many they are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// The answers of a scope: whether they come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answers {
    /// In nanoseconds; none before the first.
    slowest: Option<u64>,
    /// When the last one came, or a call left that was in flight alone.
    since: Instant,
    /// A call ended in vain after a long wait, and none has been answered since.
    mute: bool,
}

impl Answers {
    /// A call leaves, as one of so many in flight.
    pub(crate) fn sent(&mut self, now: Instant, in_flight: u32) {
        if in_flight == 1 {
            self.since = now;
        }
    }

    /// A call was answered by a server that works.
    pub(crate) fn answered(&mut self, now: Instant, took: Duration) {
        let faded = self.slowest.map_or(0, |slowest| slowest - slowest / FORGETS);
        (self.slowest, self.since, self.mute) = (Some(nanos(took).max(faded)), now, false);
    }

    /// A call failed, as it does where its answer never came.
    pub(crate) fn failed(&mut self, now: Instant, took: Duration) {
        self.mute |= took >= IN_VAIN && self.are_missing(now);
    }

    /// What is known, for one who keeps it.
    pub(crate) fn known(&self) -> ScopeAnswers {
        match self.slowest {
            _ if self.mute => ScopeAnswers::Missing,
            Some(slowest) => ScopeAnswers::Came { slowest: Duration::from_nanos(slowest) },
            None => ScopeAnswers::Unknown,
        }
    }

    /// Takes what was known before, where nothing is yet.
    pub(crate) fn recall(&mut self, known: ScopeAnswers) {
        if self.known() == ScopeAnswers::Unknown {
            match known {
                ScopeAnswers::Came { slowest } => self.slowest = Some(nanos(slowest)),
                ScopeAnswers::Missing => self.mute = true,
                ScopeAnswers::Unknown => {}
            }
        }
    }

    /// Whether the last call waited for its answer in vain.
    pub(crate) const fn is_mute(&self) -> bool {
        self.mute
    }

    /// Whether an answer has come, and the last call did not wait for one in vain.
    pub(crate) const fn are_proven(&self) -> bool {
        self.slowest.is_some() && !self.mute
    }

    /// Whether no answer has come yet, or none for long. To be asked while calls are in flight.
    pub(crate) fn are_missing(&self, now: Instant) -> bool {
        let slow = |slowest| Duration::from_nanos(slowest).saturating_mul(SLOW);
        self.slowest.is_none_or(|slowest| now - self.since > SOON.max(slow(slowest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_scopes_take_their_first_place_and_then_few() {
        let held = |scopes: usize, places: u32| {
            let (mut held, mut free) = (alloc::vec![0; scopes], places);
            while let Some(scope) = held.iter_mut().min().filter(|held| free > 0 && may_take(**held, free)) {
                (*scope, free) = (*scope + 1, free - 1);
            }
            places - free
        };
        assert_eq!([1, 2, 3].map(|scopes| held(scopes, 8)), [2, 4, 4]);
        assert_eq!([1, 4, 16].map(|scopes| held(scopes, 500)), [100, 252, 400]);
    }

    #[test]
    fn a_caller_that_waited_in_vain_and_calls_no_more_is_forgotten() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut mute = MuteCallers::default();
        let fails = |mute: &mut MuteCallers, second, caller| mute.failed(at(second), caller, IN_VAIN);
        (0..60).for_each(|caller| fails(&mut mute, caller, caller));
        assert_eq!((mute.count(), mute.held(49), mute.held(50)), (MOST_MUTE, Some(0), None));
        mute.sent(0);
        fails(&mut mute, 949, 60);
        assert_eq!((mute.count(), mute.held(0), mute.held(60)), (3, Some(1), Some(0)), "one has a call in flight");
    }

    #[test]
    fn a_scope_is_silent_before_its_first_answer_and_after_twice_its_slowest() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut answers = Answers::default();
        answers.sent(at(0), 1);
        assert!(answers.are_missing(at(0)));
        answers.answered(at(60_000), Duration::from_secs(60));
        answers.sent(at(60_000), 2);
        assert!(!answers.are_missing(at(180_000)) && answers.are_missing(at(180_001)));
        answers.sent(at(500_000), 1);
        assert!(!answers.are_missing(at(620_000)), "it was idle");
        answers.failed(at(640_000), Duration::from_millis(999));
        assert!(!answers.is_mute(), "it failed at once");
        answers.failed(at(640_000), Duration::from_secs(140));
        assert!(answers.is_mute());
        (0..500).for_each(|_| answers.answered(at(500_000), Duration::from_millis(1)));
        assert!(!answers.is_mute());
        answers.failed(at(500_000), Duration::from_secs(10));
        assert!(!answers.is_mute(), "others were answered meanwhile");
        assert!(!answers.are_missing(at(500_100)) && answers.are_missing(at(500_101)));
    }
}
