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
    /// A call that leaves no later than this after it was due was held back by the rate alone.
    pub(super) late: Duration,
    /// No two calls need to be further apart.
    pub(super) longest: Duration,
    /// Where the rate waits for answers: between two calls, after several without an answer to any.
    pub(super) unanswered: Option<Duration>,
    /// Whether the rate holds calls back.
    pub(super) act: bool,
    /// Where several processes take turns.
    pub(super) beat: Option<Beat>,
}

/// A beat that all processes of a fleet hear, one for each call of all: each takes beats of its own, so that together they leave
/// as evenly as those of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Beat {
    /// When this process first heard it.
    pub(super) heard: Instant,
    /// From then on it goes on, ...
    pub(super) from: Instant,
    /// ... at this number, ...
    pub(super) number: f64,
    /// ... so many times a second.
    pub(super) rate: f64,
    /// From one beat of this process to its next, ...
    pub(super) period: f64,
    /// ... and which these are.
    pub(super) place: f64,
}

impl Beat {
    /// Its number then.
    pub(super) fn at(&self, now: Instant) -> f64 {
        self.number + now.saturating_since(self.from).as_secs_f64() * self.rate
    }

    /// The first of this process from then on.
    fn next(&self, from: Instant) -> Instant {
        let ahead = (self.place - self.at(from)) % self.period;
        let ahead = if ahead < 0.0 { ahead + self.period } else { ahead };
        from.max(self.from) + Duration::from_secs_f64(ahead / self.rate)
    }
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

    /// When the next call may leave. `until`: the end of the last closure.
    pub(super) fn due(&self, gaps: Gaps, until: Instant) -> Instant {
        let due = self.last.filter(|_| gaps.act).map(|last| last + self.pause(gaps));
        let from = due.map(|due| due.saturating_sub(gaps.usual / 2));
        let beat = gaps.beat.map(|beat| beat.next(from.unwrap_or(beat.heard).max(until)));
        self.free.or(beat).or(due).unwrap_or(Instant::ZERO)
    }

    /// The time between the call that left last and the next.
    pub(super) fn pause(&self, gaps: Gaps) -> Duration {
        let waits = gaps.unanswered.filter(|_| self.unanswered >= UNANSWERED);
        waits.unwrap_or(gaps.usual).mul_f64(self.weight).min(gaps.longest)
    }

    /// A call leaves. `until`: the end of the last closure. Returns whether only the rate held it back.
    pub(super) fn sent(&mut self, now: Instant, until: Instant, gaps: Gaps) -> bool {
        let due = self.due(gaps, until);
        let first = self.last.is_none();
        self.last = Some(if first { now } else { due.max(until).max(now.saturating_sub(LATE)) });
        self.free = None;
        self.unanswered = self.unanswered.saturating_add(1);
        gaps.act && (!first || gaps.beat.is_some()) && now.saturating_since(due) < gaps.late
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_takes_every_beat_that_is_its_own() {
        let at = |ms: u64| Instant::from_nanos(1_000_000_000 + ms * 1_000_000);
        let beat = Beat { heard: at(0), from: at(500), number: 10.0, rate: 4.0, period: 4.0, place: 1.0 };
        assert_eq!([0, 500, 750, 2_500].map(|ms| beat.at(at(ms))), [10.0, 10.0, 11.0, 18.0]);
        // Its own are 13, 17, 21 ...: one a second.
        assert_eq!(
            [0, 500, 1_249, 1_250, 1_251].map(|ms| beat.next(at(ms))),
            [1_250, 1_250, 1_250, 1_250, 2_250].map(at)
        );
    }
}
