//! When the calls of one process leave: one after the other, at the distance that the rate asks for.

use core::time::Duration;

use crate::time::{Instant, LATE};

/// Where the rate waits for answers, so many calls in a row leave without one: a program that sends before it reads would be
/// refused many times before it knows.
const UNANSWERED: u32 = 8;

/// How far apart calls leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gaps {
    /// Between two usual calls.
    pub(super) usual: Duration,
    /// No two calls need to be further apart.
    pub(super) longest: Duration,
    /// Where the rate waits for answers: between two calls, after several without an answer to any.
    pub(super) unanswered: Option<Duration>,
    /// Whether the rate holds calls back.
    pub(super) act: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// When the last call left, or was due to; none: there was none.
    last: Option<Instant>,
    /// So many usual calls that one counts for.
    weight: f64,
    /// The next call may leave from then on, whatever the rate says.
    free: Option<Instant>,
    /// Calls in a row that left without an answer to any.
    unanswered: u32,
}

impl Schedule {
    pub(super) const fn new() -> Self {
        Self { last: None, weight: 1.0, free: None, unanswered: 0 }
    }

    /// When the next call may leave.
    pub(super) fn due(&self, gaps: Gaps) -> Instant {
        let due = self.last.filter(|_| gaps.act).map(|last| last + self.pause(gaps));
        self.free.or(due).unwrap_or(Instant::ZERO)
    }

    /// The time between the call that left last and the next.
    pub(super) fn pause(&self, gaps: Gaps) -> Duration {
        let waits = gaps.unanswered.filter(|_| self.unanswered >= UNANSWERED);
        waits.unwrap_or(gaps.usual).mul_f64(self.weight).min(gaps.longest)
    }

    /// A call leaves. `until`: the end of the last closure. Returns whether only the rate held it back.
    pub(super) fn sent(&mut self, now: Instant, until: Instant, gaps: Gaps) -> bool {
        let due = self.due(gaps);
        let first = self.last.is_none();
        self.last = Some(if first { now } else { due.max(until).max(now.saturating_sub(LATE)) });
        self.free = None;
        self.unanswered = self.unanswered.saturating_add(1);
        gaps.act && !first && now.saturating_since(due) < gaps.usual
    }

    /// A call was answered, whatever the answer is.
    pub(super) const fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Sets the weight of the last call.
    pub(super) const fn weighs(&mut self, weight: f64) {
        self.weight = weight;
    }

    /// The next call may leave now.
    pub(super) const fn free(&mut self, now: Instant) {
        self.free = Some(now);
    }
}
