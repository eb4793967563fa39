//! Workers that take items, wait for leave, call, and try again: what all peers have in common.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use paceline_core::{Class, Cost, Instant, Rng};

use super::{CallResult, Fate, Next, Policy, Work};

/// What is special about a peer.
pub(super) trait Rule {
    /// Whether a call may leave now.
    fn admit(&mut self, _now: Instant, _ask: &Ask<'_>) -> Leave {
        Leave::Now
    }

    /// It left.
    fn sent(&mut self, _now: Instant, _ask: &Ask<'_>) {}

    /// It was answered.
    fn answered(&mut self, now: Instant, answer: &CallResult<'_>, call: Made) -> After;

    /// Calls per second, where it has such a number.
    fn rate(&self) -> Option<f64> {
        None
    }

    /// Calls under way at most, where it decides that.
    fn limit(&self) -> Option<u32> {
        None
    }
}

/// A worker that wants to send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    /// Calls for this item before.
    pub(super) attempt: u32,
    /// What it is believed to cost.
    pub(super) estimate: &'a Cost,
    /// Workers that have nothing to wait for but leave, this one included.
    pub(super) idle: f64,
    /// Calls in flight without this one.
    pub(super) in_flight: u32,
}

/// A call that was answered.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Made {
    /// Calls for the same item before.
    pub(super) attempt: u32,
    /// Who made it, counted from 0.
    pub(super) worker: u32,
}

/// Whether a call may leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Leave {
    Now,
    /// Not before so many seconds from the origin.
    At(f64),
    /// Not before a call was answered.
    OnAnswer,
}

/// What follows from an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum After {
    Done,
    /// Done, and the worker rests for so many seconds.
    Rest(f64),
    /// The item is tried again after so many seconds.
    Again(f64),
    Lost,
}

/// Seconds since the origin.
pub(super) fn seconds(at: Instant) -> f64 {
    at.as_nanos() as f64 * 1e-9
}

/// Full jitter: uniform in 0 to `min(60, 0.5 x 2^n)` seconds after attempt `n`, counted from 0.
pub(super) fn full_jitter(attempt: u32, rng: &mut Rng) -> f64 {
    rng.unit() * (0.5 * f64::from(1u32 << attempt.min(16))).min(60.0)
}

/// Workers under one rule.
#[derive(Debug)]
pub(super) struct Crew<R> {
    rule: R,
    /// Whether a worker waits with its item until it is tried again.
    held: bool,
    /// Workers that neither have an item nor rest.
    idle: Vec<u32>,
    in_flight: u32,
    /// Items to be tried again: when, in which order they came, which.
    waiting: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    resting: BinaryHeap<Reverse<(Instant, u32)>>,
    order: u64,
    /// By item, the latest call or the next; grows as items are begun.
    calls: Vec<Made>,
}

impl<R: Rule> Crew<R> {
    /// Workers that wait with their items.
    pub(super) fn held(rule: R, workers: u32) -> Self {
        Self {
            rule,
            held: true,
            idle: (0..workers).rev().collect(),
            in_flight: 0,
            waiting: BinaryHeap::new(),
            resting: BinaryHeap::new(),
            order: 0,
            calls: Vec::new(),
        }
    }

    /// Workers that pass an item that has to wait back, and take the next.
    pub(super) fn passing(rule: R, workers: u32) -> Self {
        Self { held: false, ..Self::held(rule, workers) }
    }

    fn call(&mut self, item: u32) -> &mut Made {
        let index = item as usize;
        if index >= self.calls.len() {
            self.calls.resize(index + 1, Made::default());
        }
        &mut self.calls[index]
    }

    /// The item to send next, if a worker and its time are there; an item that waited goes before a fresh one.
    fn candidate(&self, now: Instant, work: &Work<'_>) -> Option<(u32, bool)> {
        let free = !self.idle.is_empty();
        let due = self.waiting.peek().filter(|Reverse((at, ..))| *at <= now && (self.held || free));
        let due = due.map(|Reverse((.., item))| (*item, true));
        due.or_else(|| work.peek().filter(|_| free).map(|item| (item, false)))
    }

    /// When a worker is back or an item is due.
    fn wakes(&self, now: Instant) -> Option<Instant> {
        let due = self.waiting.peek().map(|Reverse((at, ..))| *at).filter(|at| *at > now);
        let rested = self.resting.peek().map(|Reverse((at, _))| *at);
        due.into_iter().chain(rested).min()
    }

    fn leave(&mut self, item: u32, waited: bool, work: &mut Work<'_>) {
        if waited {
            self.waiting.pop();
        } else {
            work.take();
        }
        if !(waited && self.held) {
            let worker = self.idle.pop().expect("a candidate has a worker");
            self.call(item).worker = worker;
        }
        self.in_flight += 1;
    }
}

impl<R: Rule> Policy for Crew<R> {
    fn next(&mut self, now: Instant, work: &mut Work<'_>) -> Next {
        while let Some(Reverse((at, worker))) = self.resting.peek().copied()
            && at <= now
        {
            self.resting.pop();
            self.idle.push(worker);
        }
        let wakes = self.wakes(now);
        let Some((item, waited)) = self.candidate(now, work) else {
            return wakes.map_or(Next::OnEvent, Next::At);
        };
        let (attempt, in_flight) = (self.call(item).attempt, self.in_flight);
        let idle = self.idle.len() as f64 + if waited && self.held { 1.0 } else { 0.0 };
        let ask = Ask { attempt, estimate: work.estimate(item), idle, in_flight };
        match self.rule.admit(now, &ask) {
            Leave::Now => {
                self.rule.sent(now, &ask);
                self.leave(item, waited, work);
                Next::Send(item)
            }
            Leave::OnAnswer => wakes.map_or(Next::OnEvent, Next::At),
            Leave::At(at) => {
                let wait = Duration::try_from_secs_f64(at - seconds(now)).unwrap_or_default();
                let at = now + wait.max(Duration::from_micros(1));
                Next::At(wakes.map_or(at, |wakes| wakes.min(at)))
            }
        }
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>) -> Fate {
        self.in_flight -= 1;
        let made = *self.call(answer.item);
        match self.rule.answered(now, answer, made) {
            After::Again(wait) => {
                self.call(answer.item).attempt += 1;
                self.order += 1;
                self.waiting.push(Reverse((now + Duration::from_secs_f64(wait), self.order, answer.item)));
                if !self.held {
                    self.idle.push(made.worker);
                }
                return Fate::Again;
            }
            After::Rest(rest) => self.resting.push(Reverse((now + Duration::from_secs_f64(rest), made.worker))),
            After::Done | After::Lost => self.idle.push(made.worker),
        }
        if answer.class == Class::Success { Fate::Done } else { Fate::Lost }
    }

    fn rate(&self, _: Instant) -> Option<f64> {
        self.rule.rate()
    }

    fn limit(&self, _: Instant) -> Option<u32> {
        self.rule.limit()
    }
}
