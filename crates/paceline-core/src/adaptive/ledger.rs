//! Which calls were admitted, and which refusals are one event.
//!
//! Refusals are fast and answers are not. So a call that has not been refused after twice the time that a refusal
//! takes was admitted, and counts long before its answer is there.

use alloc::collections::VecDeque;
use core::time::Duration;

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

/// Fewer calls do not measure a rate.
const ENOUGH: u64 = 12;

/// The calls of one scope since it began, by number.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    /// Calls that are neither settled nor refused, oldest first.
    pending: VecDeque<(u64, Instant)>,
    admitted: u64,
    /// Of those that left after the present epoch began.
    run: u64,
    /// One of those has succeeded, perhaps before it counts as admitted.
    passed_one: bool,
    /// The newest call that had left when the present epoch began.
    epoch: u64,
    /// Calls in flight then that have not been refused yet; 0: some call was admitted.
    undecided: u64,
    /// Calls up to this one are not counted as passed.
    watched: u64,
    /// Later ones that were admitted, since the last call of [`Ledger::passed`].
    passed: u64,
    /// How long a refusal takes, smoothed.
    time: Duration,
    refused: bool,
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

impl Ledger {
    pub(super) const fn new() -> Self {
        Self {
            pending: VecDeque::new(),
            admitted: 0,
            run: 0,
            passed_one: false,
            epoch: 0,
            undecided: 0,
            watched: 0,
            passed: 0,
            time: FIRST_TIME,
            refused: false,
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

    /// Calls admitted since the present epoch began.
    pub(super) const fn run(&self) -> u64 {
        self.run
    }

    /// Whether calls that left before the epoch are still undecided.
    pub(super) const fn is_undecided(&self) -> bool {
        self.undecided > 0
    }

    /// A call leaves.
    pub(super) fn sent(&mut self, now: Instant, number: u64) {
        self.pending.push_back((number, now));
        self.settle(now);
    }

    /// So many calls left whose outcomes are not reported: they count as admitted.
    pub(super) fn counted(&mut self, calls: u64) {
        self.admitted += calls;
        self.run += calls;
        self.passed += calls;
    }

    /// Counts the calls that were not refused in time.
    pub(super) fn settle(&mut self, now: Instant) {
        let silence = self.silence();
        while self.pending.front().is_some_and(|(_, sent)| *sent + silence <= now) {
            let (number, _) = self.pending.pop_front().expect("the front");
            self.admitted += 1;
            self.run += u64::from(number > self.epoch);
            self.passed += u64::from(number > self.watched);
        }
    }

    /// Calls admitted since the last call, of those that left after the last [`Ledger::watch_from`].
    pub(super) fn passed(&mut self) -> u64 {
        core::mem::take(&mut self.passed)
    }

    /// Whether the call left after the last [`Ledger::watch_from`].
    pub(super) const fn is_watched(&self, number: u64) -> bool {
        number > self.watched
    }

    /// Whether the call left after the present epoch began.
    pub(super) const fn is_new(&self, number: u64) -> bool {
        number > self.epoch
    }

    /// Ignores all calls up to `last`: they count no longer, and their refusals open no epoch.
    pub(super) fn watch_from(&mut self, last: u64) {
        (self.watched, self.epoch, self.passed) = (last, last, 0);
    }

    /// A call succeeded. Before the first refusal, the fastest answer bounds its time.
    pub(super) fn succeeded(&mut self, number: u64, took: Duration) {
        self.passed_one |= number > self.epoch;
        if !self.refused {
            self.time = self.time.min(took.max(LEAST_TIME));
        }
    }

    /// A call that left as `number` was refused; `last` is the newest call that has left.
    pub(super) fn refused(&mut self, now: Instant, number: u64, sent: Instant, last: u64) -> Event {
        self.forget(number);
        self.took((now - sent).max(LEAST_TIME));
        self.settle(now);
        if number <= self.epoch {
            let last_one = self.undecided == 1;
            self.undecided = self.undecided.saturating_sub(1);
            return Event::Belongs { all_refused: last_one };
        }
        let run = core::mem::take(&mut self.run).max(core::mem::take(&mut self.passed_one).into());
        self.epoch = last;
        self.undecided = if last - number + 1 >= ROW { last - number } else { 0 };
        Event::Opens { run }
    }

    /// The refusal of that call and of later ones opens an epoch in any case.
    pub(super) fn expect(&mut self, canary: u64) {
        self.epoch = canary - 1;
    }

    /// The calls in flight when the refusal of a call sent then ends the start; none if they are too few to measure a rate.
    pub(super) fn out(&self, sent: Instant) -> Option<Out> {
        let (_, last) = self.pending.back()?;
        let first = self.pending.front().map_or(sent, |(_, first)| sent.min(*first));
        let (calls, time) = (1 + self.pending.len() as u64, last.saturating_since(first));
        (calls >= ENOUGH && time > Duration::ZERO).then_some(Out { calls, refused: 1, time })
    }

    /// The calls in flight need no decision: the refusal is explained.
    pub(super) fn decide(&mut self) {
        self.undecided = 0;
    }

    /// A call counts as neither admitted nor refused: it was never sent, or its refusal was random.
    pub(super) fn forget(&mut self, number: u64) {
        if let Ok(index) = self.pending.binary_search_by_key(&number, |(number, _)| *number) {
            self.pending.remove(index);
        }
    }

    #[cfg(test)]
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The invariants of a ledger of so many calls.
    #[cfg(test)]
    pub(super) fn check(&self, last: u64) {
        assert!(self.run <= self.admitted && self.admitted <= last && self.epoch <= last);
        assert!(self.time >= LEAST_TIME);
        assert!(self.pending.iter().is_sorted());
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
