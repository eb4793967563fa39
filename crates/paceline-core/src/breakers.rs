//! The breakers of a scope: one for all its callers, and one for each of them whose calls alone fail.
//!
//! A caller may send what its server cannot answer, as often as it likes: a picture, a schema. Where callers are known apart,
//! one or two whose calls alone failed are no proof of a server that is down. A call of another one tests it, at once; where
//! that passes, the breaker closes for all but those, and each of them has one of its own until its calls pass again.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use crate::admit::Admit;
use crate::breaker::{Breaker, Change};
use crate::config::BreakerConfig;
use crate::error::ConfigError;
use crate::places::{KNOWN_FOR, MuteCallers};
use crate::time::Instant;

/// So many callers may have sent what fails; what fails for more is the server's, as for refusals of an account
/// ([`Witnesses`](crate::Witnesses)).
const MOST_AT_FAULT: usize = 2;

/// So many calls of others have passed meanwhile where no test is needed.
const PROOFS: usize = 2;

/// A call that was answered, or is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of {
    pub(crate) item: u64,
    pub(crate) caller: Option<u64>,
    pub(crate) probe: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Breakers {
    all: Breaker,
    /// Made when the first call of a known caller fails.
    callers: Option<Box<Callers>>,
}

/// What is known of callers that are known apart.
#[derive(Clone, Debug, Default)]
struct Callers {
    /// How their last calls ended: from when on that ages, whose it was, whether it failed.
    recent: VecDeque<(Instant, Option<u64>, bool)>,
    /// Those whose calls alone have opened the breaker of all: others may test it. None where they are more than that.
    at_fault: BTreeSet<u64>,
    /// A call of another one tests it.
    other_tests: bool,
    /// The breakers of those whose calls fail while those of others pass.
    own: BTreeMap<u64, Breaker>,
    mute: MuteCallers,
}

impl Breakers {
    pub(crate) fn new(config: BreakerConfig) -> Result<Self, ConfigError> {
        Ok(Self { all: Breaker::new(config)?, callers: None })
    }

    pub(crate) fn reconfigure(&mut self, config: BreakerConfig) -> Result<(), ConfigError> {
        let own = self.callers.iter_mut().flat_map(|callers| callers.own.values_mut());
        [&mut self.all].into_iter().chain(own).try_for_each(|breaker| breaker.reconfigure(config))
    }

    /// The breaker of all callers that do not fail alone.
    pub(crate) const fn all(&self) -> &Breaker {
        &self.all
    }

    pub(crate) const fn all_mut(&mut self) -> &mut Breaker {
        &mut self.all
    }

    /// The callers whose calls alone fail: those with breakers of their own, and those that have opened that of all.
    pub(crate) fn at_fault(&self) -> Vec<u64> {
        let callers = self.callers.iter();
        callers.flat_map(|callers| callers.own.keys().chain(&callers.at_fault)).copied().collect()
    }

    /// Whether it may make a difference whose call is next.
    pub(crate) fn differ(&self) -> bool {
        self.callers.as_ref().is_some_and(|callers| !callers.own.is_empty() || !callers.at_fault.is_empty())
    }

    #[inline(always)]
    pub(crate) fn admit(&self, now: Instant, caller: Option<u64>) -> Admit {
        match &self.callers {
            // Mostly none is known apart.
            None => self.all.admit(now),
            Some(_) if self.may_test(caller) => Admit::Now,
            Some(_) => self.of(caller).admit(now),
        }
    }

    /// From when on the breaker lets calls of a caller pass, by time alone.
    pub(crate) fn open_until(&self, caller: Option<u64>) -> Option<Instant> {
        self.of(caller).open_until().filter(|_| !self.may_test(caller))
    }

    /// A call of a caller failed after so long.
    pub(crate) fn waited(&mut self, now: Instant, caller: Option<u64>, took: Duration) {
        if let Some(caller) = caller {
            self.callers.get_or_insert_default().mute.failed(now, caller, took);
        }
    }

    /// A call that left then is no longer in flight.
    pub(crate) fn ended(&mut self, caller: Option<u64>, sent: Instant) {
        if let (Some(callers), Some(caller)) = (&mut self.callers, caller) {
            callers.mute.ended(caller, sent);
        }
    }

    /// How many places the calls of a caller hold, if its last one waited for its answer in vain.
    pub(crate) fn held_in_vain(&self, caller: Option<u64>) -> Option<u32> {
        self.callers.as_ref()?.mute.held(caller?)
    }

    /// How many places such callers hold together.
    pub(crate) fn all_held_in_vain(&self) -> u32 {
        self.callers.as_ref().map_or(0, |callers| callers.mute.held_by_all())
    }

    /// Whether they are one or two, which proves nothing of the others.
    pub(crate) fn few_wait_in_vain(&self) -> bool {
        self.callers.as_ref().is_some_and(|callers| (1..=MOST_AT_FAULT).contains(&callers.mute.count()))
    }

    /// Ends the pause before the next probe by a call of that caller. Returns whether there was one.
    pub(crate) fn test_now(&mut self, caller: Option<u64>) -> bool {
        self.of_mut(caller).test_now()
    }

    /// A call is sent. Returns whether it is a probe.
    pub(crate) fn sent(&mut self, caller: Option<u64>) -> bool {
        let tests = self.may_test(caller);
        if let Some(callers) = &mut self.callers {
            callers.other_tests |= tests;
            caller.into_iter().for_each(|caller| callers.mute.sent(caller));
        }
        self.of_mut(caller).sent()
    }

    /// A call was answered after `took`; `failed` if the server was overloaded or broken.
    #[inline(always)]
    pub(crate) fn answered(&mut self, now: Instant, took: Duration, of: Of, failed: bool) -> Option<Change> {
        // Mostly none is known apart.
        if self.callers.is_none() && !(failed && of.caller.is_some()) {
            return self.all.answered(now, took, of.item, failed, of.probe);
        }
        self.answered_of(now, took, of, failed)
    }

    fn answered_of(&mut self, now: Instant, took: Duration, of: Of, failed: bool) -> Option<Change> {
        if let (Some(callers), Some(caller), false) = (&mut self.callers, of.caller, failed) {
            callers.mute.answered(caller);
        }
        if let Some(own) = self.own_mut(of.caller) {
            if own.answered(now, took, of.item, failed, of.probe) == Some(Change::Closed) {
                self.passes_again(of.caller);
            }
            return None;
        }
        if failed && of.caller.is_some() {
            self.callers.get_or_insert_default();
        }
        let is_other = self.is_other(of.caller) && of.probe;
        if let Some(callers) = &mut self.callers {
            callers.own.retain(|_, own| own.open_until().is_none_or(|until| now <= until + KNOWN_FOR));
            callers.note(now + took, of.caller, failed);
            callers.other_tests &= !is_other;
            if is_other && failed {
                callers.blame(of.caller);
            }
        }
        if is_other && !failed {
            let change = self.set_apart(now);
            self.all.answered(now, took, of.item, failed, false);
            return Some(change);
        }
        let change = self.all.answered(now, took, of.item, failed, of.probe);
        match change {
            Some(Change::Opened { .. }) if !of.probe => self.opened(now, change),
            Some(Change::Closed) => {
                self.forgive();
                change
            }
            _ => change,
        }
    }

    /// A call failed that a closed gate had admitted alone.
    pub(crate) fn failed_alone(&mut self, now: Instant, caller: Option<u64>) -> Option<Change> {
        if self.own(caller).is_some() {
            return None;
        }
        let change = self.all.failed_alone(now);
        change.is_some().then(|| self.opened(now, change)).flatten()
    }

    /// A call ended without an answer that shows whether the server works.
    pub(crate) fn lost(&mut self, caller: Option<u64>, probe: bool) {
        let is_other = self.is_other(caller) && probe;
        if let Some(callers) = &mut self.callers {
            callers.other_tests &= !is_other;
        }
        self.of_mut(caller).lost(probe);
    }

    /// Whether the item of a caller failed again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64, caller: Option<u64>) -> bool {
        self.of(caller).is_bad(item)
    }

    /// Whether a caller has a breaker of its own, for its calls alone fail.
    pub(crate) fn fails_alone(&self, caller: Option<u64>) -> bool {
        self.own(caller).is_some()
    }

    /// Whether nothing has failed since the last success.
    pub(crate) fn is_clear(&self) -> bool {
        self.all.is_clear() && self.callers.as_ref().is_none_or(|callers| callers.own.is_empty())
    }

    /// The breaker of all has opened.
    fn opened(&mut self, now: Instant, change: Option<Change>) -> Option<Change> {
        let max_age = self.all.max_age();
        let Some(callers) = &mut self.callers else { return change };
        callers.recent.retain(|(ages_from, ..)| now - *ages_from <= max_age);
        let failed = callers.recent.iter().filter(|(.., failed)| *failed).map(|(_, caller, _)| *caller);
        let failed: BTreeSet<_> = failed.collect();
        let is_few = failed.len() <= MOST_AT_FAULT && !failed.contains(&None);
        callers.at_fault = failed.iter().flatten().copied().filter(|_| is_few).collect();
        let passed = callers.recent.iter().filter(|(_, caller, _)| !failed.contains(caller)).count();
        if is_few && !failed.is_empty() && passed >= PROOFS {
            self.set_apart(now);
            return None;
        }
        change
    }

    /// Calls of others pass: those at fault have breakers of their own from now on, which stay open for as long.
    fn set_apart(&mut self, now: Instant) -> Change {
        let own = self.all.split(now);
        let callers = self.callers.get_or_insert_default();
        let at_fault = core::mem::take(&mut callers.at_fault);
        callers.own.extend(at_fault.into_iter().map(|caller| (caller, own.clone())));
        callers.recent.clear();
        Change::Closed
    }

    fn passes_again(&mut self, caller: Option<u64>) {
        if let (Some(callers), Some(caller)) = (&mut self.callers, caller) {
            callers.own.remove(&caller);
        }
    }

    fn forgive(&mut self) {
        if let Some(callers) = &mut self.callers {
            callers.at_fault.clear();
            callers.recent.clear();
        }
    }

    /// Whether a caller is another one than those that have opened the breaker.
    fn is_other(&self, caller: Option<u64>) -> bool {
        let (Some(callers), Some(caller)) = (&self.callers, caller) else { return false };
        !callers.at_fault.is_empty() && !callers.at_fault.contains(&caller)
    }

    /// Whether a call of that caller tests at once whether the server works for others than those that have opened the breaker.
    fn may_test(&self, caller: Option<u64>) -> bool {
        self.own(caller).is_none()
            && self.is_other(caller)
            && self.all.is_testing()
            && self.callers.as_ref().is_some_and(|callers| !callers.other_tests)
    }

    fn own(&self, caller: Option<u64>) -> Option<&Breaker> {
        self.callers.as_ref()?.own.get(&caller?)
    }

    fn own_mut(&mut self, caller: Option<u64>) -> Option<&mut Breaker> {
        self.callers.as_mut()?.own.get_mut(&caller?)
    }

    fn of(&self, caller: Option<u64>) -> &Breaker {
        self.own(caller).unwrap_or(&self.all)
    }

    fn of_mut(&mut self, caller: Option<u64>) -> &mut Breaker {
        let Self { all, callers } = self;
        let own = callers.as_mut().zip(caller).and_then(|(callers, caller)| callers.own.get_mut(&caller));
        own.unwrap_or(all)
    }
}

/// So many ends of calls are kept at most.
const MOST_RECENT: usize = 50;

impl Callers {
    fn note(&mut self, ages_from: Instant, caller: Option<u64>, failed: bool) {
        if self.recent.len() == MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((ages_from, caller, failed));
    }

    /// What failed for one more is perhaps the server's.
    fn blame(&mut self, caller: Option<u64>) {
        self.at_fault.extend(caller);
        if self.at_fault.len() > MOST_AT_FAULT {
            self.at_fault.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// The calls of these callers alone have opened it.
    fn opened(callers: &[u64]) -> Breakers {
        let mut breakers = Breakers::new(BreakerConfig::default()).expect("defaults");
        let calls = (0..20).map(|item| (item, callers[item as usize % callers.len()]));
        let changes: Vec<_> = calls.filter_map(|(item, caller)| ends(&mut breakers, 1, item, caller, true)).collect();
        assert_eq!(changes, [Change::Opened { until: at(2) }]);
        breakers
    }

    fn ends(breakers: &mut Breakers, second: u64, item: u64, caller: u64, failed: bool) -> Option<Change> {
        breakers.answered(at(second), Duration::ZERO, Of { item, caller: Some(caller), probe: false }, failed)
    }

    /// One call of a caller is sent, and answered at once.
    fn tests(breakers: &mut Breakers, second: u64, caller: u64, failed: bool) -> Option<Change> {
        assert!(breakers.admit(at(second), Some(caller)).is_now() && breakers.sent(Some(caller)), "it is a probe");
        let of = Of { item: 100 + second, caller: Some(caller), probe: true };
        breakers.answered(at(second), Duration::ZERO, of, failed)
    }

    #[test]
    fn a_call_of_another_caller_tests_what_one_or_two_have_opened_and_one_at_a_time() {
        let mut breakers = opened(&[1, 2]);
        let passes =
            |breakers: &Breakers| [Some(1), Some(2), Some(3), None].map(|of| breakers.admit(at(1), of).is_now());
        assert_eq!(passes(&breakers), [false, false, true, false]);
        assert_eq!((breakers.open_until(Some(1)), breakers.open_until(Some(3))), (Some(at(2)), None));
        breakers.sent(Some(3));
        assert!(!breakers.admit(at(1), Some(4)).is_now(), "one test is enough");
        breakers.lost(Some(3), true);
        assert_eq!(tests(&mut breakers, 1, 3, true), Some(Change::Opened { until: at(3) }));
        assert!(!breakers.differ() && !breakers.admit(at(1), Some(4)).is_now(), "what fails for three is an outage");
        assert_eq!(opened(&[1, 2, 3]).at_fault(), [], "at once, too");
    }

    #[test]
    fn a_person_has_the_server_tested_at_once_by_one_call_and_in_vain_the_pause_begins_anew() {
        let mut breakers = opened(&[1, 2, 3]);
        assert_eq!(tests(&mut breakers, 2, 1, true), Some(Change::Opened { until: at(4) }));
        assert_eq!(tests(&mut breakers, 4, 1, true), Some(Change::Opened { until: at(8) }));
        for second in [5, 6, 7] {
            assert!(!breakers.admit(at(second), Some(1)).is_now() && breakers.test_now(Some(1)));
            assert!(!breakers.test_now(Some(2)), "it is open for the test by now");
            let until = at(second + 4);
            assert_eq!(tests(&mut breakers, second, 1, true), Some(Change::Opened { until }));
        }
        assert!(!Breakers::new(BreakerConfig::default()).expect("defaults").test_now(None), "nothing fails");
        let mut breakers = opened(&[1]);
        tests(&mut breakers, 1, 2, false);
        assert!(breakers.test_now(Some(1)) && breakers.admit(at(1), Some(1)).is_now(), "its own, too");
    }

    #[test]
    fn who_fails_alone_has_a_breaker_of_its_own_until_its_calls_pass_again() {
        let mut breakers = opened(&[1]);
        assert_eq!(tests(&mut breakers, 1, 2, false), Some(Change::Closed));
        assert!(breakers.fails_alone(Some(1)) && breakers.admit(at(1), Some(2)).is_now());
        assert_eq!((breakers.open_until(Some(1)), breakers.at_fault()), (Some(at(2)), [1].to_vec()));
        for (second, until) in [(2, 4), (4, 8), (8, 16)] {
            assert_eq!(tests(&mut breakers, second, 1, true), None, "it is no news of the server");
            assert_eq!(breakers.open_until(Some(1)), Some(at(until)));
            assert!(breakers.all().is_clear() && !breakers.is_clear());
        }
        assert_eq!([16, 16].map(|second| tests(&mut breakers, second, 1, false)), [None, None]);
        assert!(breakers.is_clear() && !breakers.differ());
    }

    #[test]
    fn who_failed_alone_and_calls_no_more_is_forgotten() {
        let mut breakers = opened(&[1]);
        tests(&mut breakers, 1, 2, false);
        ends(&mut breakers, 900, 500, 2, false);
        assert_eq!(breakers.at_fault(), [1].to_vec(), "its next call may come");
        ends(&mut breakers, 903, 501, 2, false);
        assert!(breakers.is_clear() && !breakers.differ());
    }

    #[test]
    fn where_the_calls_of_others_pass_no_test_is_needed() {
        let mut breakers = Breakers::new(BreakerConfig::default()).expect("defaults");
        for item in 0..20 {
            assert_eq!(ends(&mut breakers, 1, item, 1, true), None);
            if item < 5 {
                assert_eq!(ends(&mut breakers, 1, 50 + item, 2, false), None);
            }
        }
        assert!(breakers.fails_alone(Some(1)) && breakers.admit(at(1), Some(2)).is_now());
        assert!(breakers.all().is_clear());
        // An outage later on is one of those others.
        (0..20).for_each(|item| _ = ends(&mut breakers, 30, 200 + item, 2 + item % 3, true));
        assert_eq!(breakers.open_until(Some(2)), Some(at(30) + S));
    }
}
