//! The evidence: which calls were admitted, and which refusals are one event.
//!
//! Refusals are fast and answers are not. So a call that has not been refused after twice the time that a refusal
//! takes was admitted, and counts long before its answer is there.
//!
//! Calls carry the *era* in which they left. The decision begins a new one whenever it reacts, so that what is heard of
//! calls of an earlier era says nothing about the pace of now.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::time::Duration;

use super::Refusal;
use crate::hold::RunningClock;
use crate::time::Instant;

/// A call that was not refused after so many times the time of a refusal was admitted.
const SETTLE: u32 = 2;

/// The assumed time of a refusal before any answer.
const FIRST_TIME: Duration = Duration::from_millis(150);

/// The assumed least time of a refusal.
const LEAST_TIME: Duration = Duration::from_millis(1);

/// One part in so many of a new measurement is taken over.
const SMOOTHING: i64 = 10;

/// So many undecided calls, all refused, mean "closed" rather than "too fast".
const ROW: u64 = 6;

/// What is heard of calls of other processes is so old at most.
pub(super) const HEARD_AFTER: Duration = Duration::from_millis(100);

/// How many calls are in flight at other processes is not known exactly: where so many of a hundred were refused, all were.
const HEARD_OF: u64 = 80;

/// Fewer calls do not measure a rate.
const ENOUGH: u64 = 12;

/// The calls of one scope since it began.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    /// Calls that are neither settled nor refused, oldest first.
    pending: VecDeque<Pending>,
    admitted: u64,
    /// Of those whose items had not failed before, since the last look: as many as can be told apart.
    first_tries: u16,
    /// Of those that left in the present era.
    run: u64,
    /// One of those has succeeded, perhaps before it counts as admitted.
    passed_one: bool,
    /// The present era: it begins with a congestion epoch, a canary or a trial.
    era: u64,
    /// Calls in flight when it began that have not been refused yet; 0: some call was admitted.
    undecided: u32,
    /// Calls of earlier eras are not counted as passed.
    watched: u64,
    /// Those that were admitted of the others, since the last call of [`Evidence::passed`].
    passed: u64,
    /// How long a refusal takes, smoothed.
    time: Duration,
    refused: bool,
    /// Of the calls of this process alone, where others report theirs.
    own: Option<Box<Own>>,
    /// Stands still while no caller wants to send a call.
    busy: RunningClock,
}

/// What became of the calls of one process, where others share its limit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Own {
    pub(super) admitted: u64,
    /// Of those that left in the present era.
    pub(super) run: u64,
    pub(super) refused: u64,
    /// Of those that left in the present era, because of too many calls, and because the server lacked capacity.
    pub(super) throttled: u64,
    pub(super) overloaded: u64,
}

/// A call that may still be refused.
#[derive(Clone, Copy, Debug)]
struct Pending {
    number: u64,
    era: u64,
    sent: Instant,
    /// Its item has not failed before.
    first: bool,
}

/// A call that was refused, as far as the decision looks at it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// The era in which it left.
    pub(super) era: u64,
    pub(super) sent: Instant,
    /// How many calls have left after it.
    pub(super) later: u64,
    /// How many may still be refused, whenever they left.
    pub(super) pending: u64,
    /// Calls in flight when it left, itself included.
    pub(super) in_flight: u32,
    pub(super) tokens: u64,
    pub(super) why: Refusal,
}

/// The calls that were in flight when the start ended, until they are decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Out {
    calls: u64,
    refused: u64,
    /// The time in which they were sent.
    time: Duration,
}

impl Out {
    /// One more of them was refused.
    pub(super) const fn refused(&mut self) {
        self.refused += 1;
    }

    /// How many calls a second of them were admitted.
    pub(super) fn admitted(&self) -> f64 {
        (self.calls + 1).saturating_sub(self.refused).max(1) as f64 / self.time.as_secs_f64()
    }
}

/// What a refusal is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A new congestion epoch, after so many admitted calls.
    Opens { run: u64 },
    /// The present one. `all_refused`: with this, every call that was in flight when it began has been refused.
    Belongs { all_refused: bool },
}

impl Evidence {
    pub(super) fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            admitted: 0,
            first_tries: 0,
            run: 0,
            passed_one: false,
            era: 0,
            undecided: 0,
            watched: 0,
            passed: 0,
            time: FIRST_TIME,
            refused: false,
            own: None,
            busy: RunningClock::default(),
        }
    }

    /// How long a call must go unrefused to count as admitted.
    pub(super) const fn silence(&self) -> Duration {
        self.time.saturating_mul(SETTLE)
    }

    /// How long a refusal takes.
    pub(super) const fn time(&self) -> Duration {
        self.time
    }

    /// Calls that count as admitted.
    pub(super) const fn admitted(&self) -> u64 {
        self.admitted
    }

    /// Calls admitted of those that left in the present era.
    pub(super) const fn run(&self) -> u64 {
        self.run
    }

    /// Whether calls that left before the era are still undecided.
    pub(super) const fn is_undecided(&self) -> bool {
        self.undecided > 0
    }

    /// The era in which a call leaves now.
    pub(super) const fn era(&self) -> u64 {
        self.era
    }

    /// Notes whether any caller wants to send a call from now on.
    #[inline]
    pub(super) fn demand(&mut self, now: Instant, any: bool) {
        self.busy.set_standing(now, !any);
    }

    /// The time without that in which no caller wanted to send a call.
    pub(super) fn busy_time(&self, now: Instant) -> Instant {
        self.busy.read(now, now)
    }

    /// A call leaves.
    pub(super) fn sent(&mut self, now: Instant, number: u64, first: bool) {
        self.pending.push_back(Pending { number, era: self.era, sent: now, first });
        self.settle(now);
    }

    /// So many calls left whose outcomes are not reported: they count as admitted.
    pub(super) fn counted(&mut self, calls: u64) {
        if let Some(own) = &mut self.own {
            own.admitted += calls;
            own.run += calls;
        }
        self.hears(calls, calls);
    }

    /// So many calls were admitted elsewhere, and so many of them had left in the present era.
    pub(super) const fn hears(&mut self, admitted: u64, run: u64) {
        self.admitted += admitted;
        self.run += run;
        self.passed += run;
    }

    /// What became of the calls of this process.
    pub(super) fn own(&self) -> Own {
        self.own.as_deref().copied().unwrap_or_default()
    }

    /// From now on other processes report their calls too.
    pub(super) fn is_shared(&mut self) {
        self.own.get_or_insert_default();
    }

    /// Its calls that may still be refused.
    pub(super) fn pending(&self) -> u64 {
        self.pending.len() as u64
    }

    /// A refusal that another process judges.
    pub(super) fn note_refused(&mut self, era: u64, overloaded: bool) {
        let Some(own) = &mut self.own else { return };
        own.refused += 1;
        if era == self.era {
            *(if overloaded { &mut own.overloaded } else { &mut own.throttled }) += 1;
        }
    }

    /// Another process decides, and this is the era now. Returns whether it is another one.
    pub(super) fn follows(&mut self, era: u64) -> bool {
        self.is_shared();
        let is_new = era != self.era;
        if is_new {
            self.begins(era);
            (self.run, self.passed, self.passed_one, self.undecided) = (0, 0, false, 0);
        }
        is_new
    }

    /// This process decides for all from now on: what has left so far, in the era of that number at most, is of the past.
    pub(super) fn takes_over(&mut self, era: u64) {
        let next = era.max(self.era) + 1;
        self.follows(next);
        self.watched = next;
    }

    fn begins(&mut self, era: u64) {
        self.era = era;
        if let Some(own) = &mut self.own {
            (own.run, own.throttled, own.overloaded) = (0, 0, 0);
        }
    }

    /// Counts the calls that were not refused in time.
    pub(super) fn settle(&mut self, now: Instant) {
        let silence = self.silence();
        while let Some(Pending { era, first, .. }) = self.pending.pop_front_if(|call| call.sent + silence <= now) {
            self.admitted += 1;
            self.first_tries = self.first_tries.saturating_add(first.into());
            self.run += u64::from(era == self.era);
            if let Some(own) = &mut self.own {
                own.admitted += 1;
                own.run += u64::from(era == self.era);
            }
            self.passed += u64::from(era >= self.watched);
        }
    }

    /// Calls admitted since the last call, of those that left after the last [`Evidence::watch`].
    pub(super) fn passed(&mut self) -> u64 {
        core::mem::take(&mut self.passed)
    }

    /// Admitted calls of items that had not failed before, since the last call.
    pub(super) fn first_tries(&mut self) -> u64 {
        core::mem::take(&mut self.first_tries).into()
    }

    /// Ignores all calls that have left: they count no longer, and their refusals open no epoch.
    pub(super) fn watch(&mut self) {
        self.begins(self.era + 1);
        (self.watched, self.passed) = (self.era, 0);
    }

    /// A call of that era succeeded. Before the first refusal, the fastest answer bounds its time.
    pub(super) fn succeeded(&mut self, era: u64, took: Duration) {
        self.passed_one |= era == self.era;
        if !self.refused {
            self.time = self.time.min(took.max(LEAST_TIME));
        }
    }

    /// That call, which left then, was refused: it was not admitted.
    pub(super) fn was_refused(&mut self, now: Instant, number: u64, sent: Instant) {
        self.forget(number);
        self.took((now - sent).max(LEAST_TIME));
        self.settle(now);
    }

    /// What the refusal of a call of that era is part of; so many calls have left after that one.
    pub(super) fn refused(&mut self, era: u64, later: u64) -> Event {
        if era != self.era {
            let last_one = self.undecided == 1;
            self.undecided = self.undecided.saturating_sub(1);
            return Event::Belongs { all_refused: last_one };
        }
        let run = core::mem::take(&mut self.run).max(core::mem::take(&mut self.passed_one).into());
        self.begins(self.era + 1);
        let undecided = if self.own.is_some() { later * HEARD_OF / 100 } else { later };
        self.undecided = if later + 1 >= ROW { u32::try_from(undecided).unwrap_or(u32::MAX).max(1) } else { 0 };
        Event::Opens { run }
    }

    /// The call that left last is a canary: its refusal and those of later ones open an epoch in any case.
    pub(super) fn expect(&mut self) {
        self.begins(self.era + 1);
        if let Some(canary) = self.pending.back_mut() {
            canary.era = self.era;
        }
    }

    /// The calls in flight when the refusal of a call sent then ends the start; none if they are too few to measure a rate.
    /// `pending`: of all processes. Of those of others it is not known when they left: they did so at that rate.
    pub(super) fn out(&self, sent: Instant, pending: u64, rate: f64) -> Option<Out> {
        if self.own.is_some() {
            let calls = 1 + pending;
            return (calls >= ENOUGH).then(|| Out {
                calls,
                refused: 1,
                time: Duration::from_secs_f64(calls as f64 / rate),
            });
        }
        let last = self.pending.back()?.sent;
        let first = self.pending.front().map_or(sent, |first| sent.min(first.sent));
        let (calls, time) = (1 + self.pending.len() as u64, last.saturating_since(first));
        (calls >= ENOUGH && time > Duration::ZERO).then_some(Out { calls, refused: 1, time })
    }

    /// For how long what happens to calls in flight is not known after a refusal: that of others is heard later.
    pub(super) fn known_after(&self) -> Duration {
        self.silence() + if self.own.is_some() { HEARD_AFTER } else { Duration::ZERO }
    }

    /// The calls in flight need no decision: the refusal is explained.
    pub(super) fn decide(&mut self) {
        self.undecided = 0;
    }

    /// A call counts as neither admitted nor refused: it was never sent, or its refusal was random.
    pub(super) fn forget(&mut self, number: u64) {
        if let Ok(index) = self.pending.binary_search_by_key(&number, |call| call.number) {
            self.pending.remove(index);
        }
    }

    /// The invariants of the evidence of so many calls.
    #[cfg(test)]
    pub(super) fn check(&self, last: u64) {
        assert!(self.run <= self.admitted && self.admitted <= last && self.watched <= self.era);
        assert!(self.time >= LEAST_TIME);
        assert!(self.pending.iter().is_sorted_by_key(|call| (call.number, call.era, call.sent)));
    }

    fn took(&mut self, took: Duration) {
        if !core::mem::replace(&mut self.refused, true) {
            self.time = took;
            return;
        }
        let (old, new) = (nanos(self.time), nanos(took));
        self.time = Duration::from_nanos((old + (new - old) / SMOOTHING).unsigned_abs());
    }
}

fn nanos(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX / 2)
}
