//! The circuit breaker of a scope: when its server fails, one probe at a time tests whether it is back.
//!
//! It is *open* when nothing passes. It evaluates a ring of recent outcomes, and failures must come from several items,
//! so that one bad item never opens it. An item that fails again while most others succeed is bad, and says nothing about the
//! server.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::format;
use alloc::string::String;
use core::time::Duration;

use crate::admit::{Admit, WaitCause};
use crate::config::BreakerConfig;
use crate::error::ConfigError;
use crate::refused::Refused;
use crate::repeats::Repeats;
use crate::time::Instant;

/// Successful probes that close it.
const PROOFS: u32 = 2;

/// After two probes that failed an item tests the server that has failed before: some servers fail what they were never asked
/// for. Where that fails too, items test it that have failed least: some items fail for ever.
const TURNS: u8 = 3;

/// So many outcomes count as recent.
const JUST: u8 = 20;

/// The largest ring.
const LARGEST: u32 = 10_000;

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// It ages from as long after the outcome as the call took: those that hang would else be forgotten before they are enough.
    ages_from: Instant,
    item: u64,
    failed: bool,
}

/// What is known once a call has failed, or was refused.
#[derive(Clone, Debug, Default)]
struct Failures {
    /// The first after the last success.
    first: Option<Instant>,
    /// Since when nothing has succeeded, once the breaker had opened.
    since: Option<Instant>,
    repeats: Repeats,
    refused: Refused,
}

impl Failures {
    fn succeeded(&mut self, item: u64) {
        (self.first, self.since) = (None, None);
        self.repeats.succeeded(item);
    }

    /// Returns whether the item is bad.
    fn failed(&mut self, now: Instant, item: u64) -> bool {
        let is_bad = self.repeats.failed(item);
        if !is_bad {
            self.first.get_or_insert(now);
        }
        is_bad
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Open { until: Instant, lasted: Duration },
    HalfOpen { probing: bool, proofs: u32, lasted: Duration },
}

/// The state change that an outcome caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Opened { until: Instant },
    Closed,
}

#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    samples: VecDeque<Sample>,
    /// Made when the first call fails.
    failures: Option<Box<Failures>>,
    state: State,
    /// Successes until the last failure is no longer recent.
    suspect: u8,
    /// A call that was sent has failed since the last success.
    took: bool,
    /// Probes that failed, up to the next turn.
    turn: u8,
}

impl Breaker {
    pub(crate) fn new(config: BreakerConfig) -> Result<Self, ConfigError> {
        check(&config)?;
        Ok(Self {
            config,
            samples: VecDeque::new(),
            failures: None,
            state: State::Closed,
            suspect: 0,
            took: false,
            turn: 0,
        })
    }

    pub(crate) fn reconfigure(&mut self, config: BreakerConfig) -> Result<(), ConfigError> {
        check(&config).map(|()| self.config = config)
    }

    #[inline(always)]
    pub(crate) fn admit(&self, now: Instant) -> Admit {
        match self.state {
            State::Closed | State::HalfOpen { probing: false, .. } => Admit::Now,
            State::Open { until, .. } => Admit::at(until, now, || WaitCause::Breaker),
            State::HalfOpen { probing: true, .. } => Admit::OnRelease { cause: WaitCause::Breaker },
        }
    }

    /// When the next probe may leave, if it is open: nothing but a person makes it earlier.
    pub(crate) const fn open_until(&self) -> Option<Instant> {
        let State::Open { until, .. } = self.state else { return None };
        Some(until)
    }

    /// Ends the pause before the next probe; where that fails, the pause begins anew. Returns whether there was one.
    pub(crate) fn test_now(&mut self) -> bool {
        let State::Open { lasted, .. } = self.state else { return false };
        self.state = State::HalfOpen { probing: false, proofs: 0, lasted: lasted / 2 };
        true
    }

    /// A call is sent. Returns whether it is a probe.
    pub(crate) fn sent(&mut self) -> bool {
        let (proofs, lasted) = match self.state {
            State::Closed => return false,
            State::Open { lasted, .. } => (0, lasted),
            State::HalfOpen { proofs, lasted, .. } => (proofs, lasted),
        };
        self.state = State::HalfOpen { probing: true, proofs, lasted };
        true
    }

    /// A call of `item` was answered after `took`; `failed` if the server was overloaded or broken.
    pub(crate) fn answered(
        &mut self,
        now: Instant,
        took: Duration,
        item: u64,
        failed: bool,
        probe: bool,
    ) -> Option<Change> {
        if self.shows_a_bad_item(now, item, failed) {
            self.lost(probe);
            return None;
        }
        self.suspect = if failed { JUST } else { self.suspect.saturating_sub(1) };
        self.took &= failed;
        if probe {
            return self.probed(now, failed);
        }
        if self.samples.len() as u32 == self.config.window_size {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { ages_from: now + took, item, failed });
        (failed && self.state == State::Closed && self.is_down(now)).then(|| self.opens(now))
    }

    /// Compares an outcome with those of other items. Returns whether its item is bad.
    fn shows_a_bad_item(&mut self, now: Instant, item: u64, failed: bool) -> bool {
        self.failures.iter_mut().filter(|_| !failed).for_each(|failures| failures.succeeded(item));
        failed && self.failures.get_or_insert_default().failed(now, item)
    }

    /// Whether an item failed again while most others succeeded.
    pub(crate) fn is_bad(&self, item: u64) -> bool {
        self.failures.as_ref().is_some_and(|failures| failures.repeats.is_bad(item))
    }

    /// A call failed that a closed gate had admitted alone, where outcomes are too few for a ratio: items in a row show it.
    pub(crate) fn failed_alone(&mut self, now: Instant) -> Option<Change> {
        let down = self.state == State::Closed && self.several_fail_in_a_row();
        down.then(|| self.opens(now))
    }

    /// A call has failed; where it was sent, there is a server.
    pub(crate) const fn took_a_call(&mut self, sent: bool) {
        self.took |= sent;
    }

    /// Whether the next process should test the server by one call at a time. One that takes no calls is no matter for it: to
    /// look whether it is there costs nothing.
    pub(crate) fn is_failing(&self) -> bool {
        self.took && (self.is_testing() || self.no_success_since().is_some())
    }

    /// The server was failing when an earlier process called it last.
    pub(crate) fn expect_failures(&mut self, now: Instant) {
        self.failures.get_or_insert_default().since = Some(now);
        (self.took, self.state) = (true, State::HalfOpen { probing: false, proofs: 0, lasted: self.config.open });
    }

    /// A call ended without an answer that shows whether the server works.
    pub(crate) fn lost(&mut self, probe: bool) {
        if probe && let State::HalfOpen { probing, .. } = &mut self.state {
            *probing = false;
        }
    }

    /// Whether it is closed, and has not opened since the last success.
    pub(crate) fn is_clear(&self) -> bool {
        self.state == State::Closed && self.failing_since().is_none()
    }

    /// Whether the calls that leave are probes.
    pub(crate) fn is_testing(&self) -> bool {
        self.state != State::Closed
    }

    /// Whether the next probe is one of an item that has failed before.
    pub(crate) const fn tests_again(&self) -> bool {
        self.turn + 1 == TURNS
    }

    /// Whether one of the last calls that were answered failed.
    pub(crate) const fn has_just_failed(&self) -> bool {
        self.suspect > 0
    }

    /// Since when nothing has succeeded, if the breaker opened.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.failures.as_ref()?.since
    }

    /// How old an outcome may be that counts.
    pub(crate) const fn max_age(&self) -> Duration {
        self.config.max_age
    }

    /// Closes it, and returns one that is open in its place, for those whose calls alone fail.
    pub(crate) fn split(&mut self, now: Instant) -> Self {
        let mut own = self.clone();
        let (State::Open { lasted, .. } | State::HalfOpen { lasted, .. }) = self.state else { return own };
        own.open(now, lasted);
        (own.samples, self.samples) = Default::default();
        (self.state, self.failures, self.suspect, self.took) = (State::Closed, None, 0, false);
        own
    }

    /// Since when nothing has succeeded, if several items failed in that time. Slow calls may be too few to open it.
    pub(crate) fn no_success_since(&self) -> Option<Instant> {
        self.failures.as_ref()?.first.filter(|_| self.failing_since().is_some() || self.several_fail_in_a_row())
    }

    /// A call was refused; `told`: for how long the server takes none.
    pub(crate) fn refused(&mut self, now: Instant, told: Option<Duration>) {
        self.failures.get_or_insert_default().refused.add(now, told);
    }

    /// A call was not refused.
    pub(crate) fn takes_calls(&mut self) {
        self.failures.iter_mut().for_each(|failures| failures.refused = Refused::default());
    }

    /// Since when all calls are refused, if they are several, and the server does not say when it takes calls.
    pub(crate) fn refused_since(&self) -> Option<Instant> {
        self.failures.as_ref()?.refused.since(self.config.min_distinct_items)
    }

    /// Since when each call is refused, where that lasts for longer than a limit would.
    pub(crate) fn refuses_all_since(&self) -> Option<Instant> {
        self.failures.as_ref()?.refused.all_since()
    }

    fn several_fail_in_a_row(&self) -> bool {
        let in_a_row = self.samples.iter().rev().take_while(|sample| sample.failed);
        self.items_of(in_a_row) >= self.config.min_distinct_items as usize
    }

    fn probed(&mut self, now: Instant, failed: bool) -> Option<Change> {
        let State::HalfOpen { proofs, lasted, .. } = self.state else { return None };
        if failed {
            self.turn = (self.turn + 1) % TURNS;
            // A server that answered the probe before is there, and only part of its calls fail.
            let lasts = if proofs > 0 { self.config.open } else { lasted.saturating_mul(2).min(self.config.open_max) };
            return Some(self.open(now, lasts));
        }
        if proofs + 1 < PROOFS {
            self.state = State::HalfOpen { probing: false, proofs: proofs + 1, lasted };
            return None;
        }
        self.state = State::Closed;
        self.samples.clear();
        Some(Change::Closed)
    }

    fn opens(&mut self, now: Instant) -> Change {
        self.failures.get_or_insert_default().since = Some(now);
        self.open(now, self.config.open)
    }

    fn open(&mut self, now: Instant, lasts: Duration) -> Change {
        let until = now + lasts;
        self.state = State::Open { until, lasted: lasts };
        Change::Opened { until }
    }

    fn is_down(&self, now: Instant) -> bool {
        let recent = || self.samples.iter().filter(|sample| now - sample.ages_from <= self.config.max_age);
        let all = recent().count();
        let failed = recent().filter(|sample| sample.failed).count();
        all >= self.config.min_samples as usize
            && failed as f64 >= self.config.failure_ratio * all as f64
            && self.items_of(recent().filter(|sample| sample.failed)) >= self.config.min_distinct_items as usize
    }

    fn items_of<'a>(&self, failures: impl Iterator<Item = &'a Sample>) -> usize {
        failures.map(|sample| sample.item).collect::<BTreeSet<_>>().len()
    }
}

fn check(config: &BreakerConfig) -> Result<(), ConfigError> {
    let wrong = |key, value: String, expected| Err(ConfigError { key: format!("breaker.{key}"), value, expected });
    if !(config.failure_ratio > 0.0 && config.failure_ratio <= 1.0) {
        return wrong("failure_ratio", format!("{}", config.failure_ratio), "more than 0 and at most 1");
    }
    if config.window_size == 0 || config.window_size > LARGEST {
        return wrong("window_size", format!("{}", config.window_size), "1 to 10000");
    }
    if config.min_samples == 0 || config.min_samples > config.window_size {
        return wrong("min_samples", format!("{}", config.min_samples), "1 to breaker.window_size");
    }
    if config.min_distinct_items == 0 {
        return wrong("min_distinct_items", format!("{}", config.min_distinct_items), "at least 1");
    }
    if config.open.is_zero() || config.open > config.open_max {
        return wrong("open", format!("{:?}", config.open), "more than 0 and at most breaker.open_max");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
