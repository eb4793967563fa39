//! Whether a server is silent: it takes calls and answers none of them, and no call fails of which anything could be told.
//!
//! What counts is the time in which a call waited for its answer: callers that give up after five seconds, one after the other,
//! learn no more than one that waits for long.

use alloc::collections::BTreeSet;
use core::fmt;
use core::time::Duration;

use crate::time::Instant;
use crate::units::format_duration;

/// So many calls without an answer ...
const SEVERAL: u64 = 3;

/// ... that waited so long are a silence, ...
const SOON: Duration = Duration::from_secs(30);

/// ... and any call is one that waited so long; but none before so many times the slowest answer of late.
const SLOW: u32 = 2;
const LONG: Duration = Duration::from_secs(300);

/// Without a call for so long nothing is known any more.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// One part in so many of the slowest answer is forgotten with each that is faster.
const FORGETS: u32 = 16;

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AwaitedCall {
    sent: Instant,
    number: u64,
}

/// The calls of one scope that wait for the beginning of their answers, and whether any is answered.
#[derive(Clone, Debug, Default)]
pub struct Silence {
    awaited: BTreeSet<AwaitedCall>,
    number: u64,
    /// Calls without an answer since the last one that was answered, those that were given up included.
    unanswered: u64,
    /// How long calls waited since then, before the present wait.
    waited: Duration,
    /// When the present wait began, or the last one ended.
    since: Instant,
    slowest: Duration,
    is_told: bool,
    /// One that was told ended with a failure then, after so long: an answer is still to come.
    failed: Option<(Instant, Duration)>,
}

/// A server that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Silent {
    /// Calls without an answer since the last one that was answered.
    pub calls: u64,
    /// For how long calls have waited in vain.
    pub waited: Duration,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, waited } = self;
        // A screen that shows it need not change each second.
        let tens = Duration::from_secs(waited.as_secs() / 10 * 10);
        let s = if *calls == 1 { "" } else { "s" };
        write!(f, "the server is silent: no answer to {calls} call{s} in {}", format_duration(tens))
    }
}

impl Silence {
    /// A call has left.
    pub fn sent(&mut self, now: Instant) -> AwaitedCall {
        if self.awaited.is_empty() {
            if now.saturating_since(self.since) > FORGOTTEN {
                self.ends();
            }
            self.since = now;
        }
        self.number += 1;
        self.unanswered += 1;
        let call = AwaitedCall { sent: now, number: self.number };
        self.awaited.insert(call);
        call
    }

    /// Its answer begins. Returns how long none did, where that was [told](Self::tell).
    pub fn answered(&mut self, now: Instant, call: AwaitedCall) -> Option<Duration> {
        let faded = self.slowest - self.slowest / FORGETS;
        self.slowest = faded.max(now.saturating_since(call.sent));
        self.failed(now, call);
        self.failed.take().map(|(since, waited)| waited + now.saturating_since(since))
    }

    /// It failed in a way that says more than silence does.
    pub fn failed(&mut self, now: Instant, call: AwaitedCall) {
        let told = self.failed.or_else(|| self.is_told.then(|| (now, self.waited_in_vain(now))));
        self.awaited.remove(&call);
        self.ends();
        (self.since, self.failed) = (now, told);
        self.unanswered = self.awaited.len() as u64;
    }

    /// It was given up, by its caller or after its timeout.
    pub fn given_up(&mut self, now: Instant, call: AwaitedCall) {
        let waited = self.waited_in_vain(now);
        self.awaited.remove(&call);
        if self.awaited.is_empty() {
            (self.waited, self.since) = (waited, now);
        }
    }

    /// The age of the oldest call that waits for its answer.
    pub fn oldest(&self, now: Instant) -> Duration {
        self.awaited.first().map_or(Duration::ZERO, |call| now.saturating_since(call.sent))
    }

    /// For how long calls have waited and none was answered: also where each of them was given up.
    pub fn waited_in_vain(&self, now: Instant) -> Duration {
        let passed = now.saturating_since(self.since);
        match self.awaited.is_empty() {
            true if passed > FORGOTTEN => Duration::ZERO,
            true => self.waited,
            false => self.waited + passed,
        }
    }

    /// Whether that is a silence.
    pub fn silent(&self, now: Instant) -> Option<Silent> {
        let (calls, waited) = (self.unanswered, self.waited_in_vain(now));
        let long = if calls >= SEVERAL { SOON } else { LONG };
        (waited >= long.max(self.slowest * SLOW)).then_some(Silent { calls, waited })
    }

    /// A silence that no one was told yet.
    pub fn tell(&mut self, now: Instant) -> Option<Silent> {
        let silent = self.silent(now).filter(|_| !self.is_told)?;
        self.is_told = true;
        Some(silent)
    }

    fn ends(&mut self) {
        (self.unanswered, self.waited, self.is_told, self.failed) = (0, Duration::ZERO, false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn silent(calls: u64, seconds: u64) -> Option<Silent> {
        Some(Silent { calls, waited: Duration::from_secs(seconds) })
    }

    #[test]
    fn several_calls_without_an_answer_are_a_silence_and_an_answer_ends_it() {
        let mut silence = Silence::default();
        let calls = [0, 1, 2].map(|second| silence.sent(at(second)));
        assert_eq!((silence.silent(at(29)), silence.oldest(at(29))), (None, Duration::from_secs(29)));
        assert_eq!([silence.tell(at(30)), silence.tell(at(31))], [silent(3, 30), None], "told once");
        assert_eq!(silence.answered(at(40), calls[1]), Some(Duration::from_secs(40)));
        assert_eq!((silence.silent(at(69)), silence.oldest(at(69))), (None, Duration::from_secs(69)), "it answers");
        assert_eq!(silence.silent(at(340)), silent(2, 300), "and then it does no more");
        assert_eq!(silence.answered(at(341), calls[0]), None, "of which no one was told");
    }

    #[test]
    fn a_scope_whose_server_is_silent_says_so_and_is_in_trouble() {
        let mut pacer = crate::Pacer::new(crate::PacerConfig::default(), 1, at(0)).expect("valid");
        let m = pacer.scope("m");
        pacer.enqueue(at(0), crate::Request::new(m, crate::Cost::default())).expect("it fits");
        let mut snapshot = pacer.snapshot(at(0));
        snapshot.scopes[0].silent = silent(15, 49);
        let scope = snapshot.subject(at(0));
        assert_eq!(scope.explain(at(0)), "the server is silent: no answer to 15 calls in 40s");
        assert_eq!((&*scope.name, scope.trouble(at(0))), ("m", crate::Trouble::Closed));
    }

    #[test]
    fn callers_that_give_up_soon_find_a_silence_together() {
        let mut silence = Silence::default();
        for n in 0..10 {
            assert_eq!(silence.silent(at(n * 60)), if n < 6 { None } else { silent(n, n * 5) });
            let call = silence.sent(at(n * 60));
            silence.given_up(at(n * 60 + 5), call);
        }
        assert_eq!(silence.waited_in_vain(at(600)), Duration::from_secs(50), "no call waits, and none was answered");
        assert_eq!(silence.waited_in_vain(at(1_200)), Duration::ZERO, "that is forgotten");
        silence.sent(at(1_200));
        assert_eq!(silence.silent(at(1_240)), None, "with its calls");
    }

    #[test]
    fn a_call_alone_and_a_slow_server_have_more_time() {
        let mut silence = Silence::default();
        let call = silence.sent(at(0));
        assert_eq!([299, 300].map(|second| silence.silent(at(second))), [None, silent(1, 300)]);
        silence.answered(at(60), call);
        let _ = [60, 60, 60].map(|second| silence.sent(at(second)));
        assert_eq!([179, 180].map(|second| silence.silent(at(second))), [None, silent(3, 120)], "twice the slowest");
        let mut silence = Silence::default();
        let call = silence.sent(at(0));
        silence.answered(at(400), call);
        silence.sent(at(500));
        assert_eq!([1_299, 1_300].map(|second| silence.silent(at(second))), [None, silent(1, 800)], "a long thought");
    }

    #[test]
    fn a_failure_ends_a_silence_and_only_an_answer_says_that_the_server_answers_again() {
        let mut silence = Silence::default();
        let calls = [0, 0, 0, 0].map(|second| silence.sent(at(second)));
        assert_eq!(silence.tell(at(30)), silent(4, 30));
        calls.into_iter().for_each(|call| silence.failed(at(40), call));
        assert_eq!(silence.silent(at(40)), None, "the failure is told in its place");
        let call = silence.sent(at(50));
        silence.failed(at(51), call);
        let call = silence.sent(at(59));
        assert_eq!(silence.answered(at(60), call), Some(Duration::from_secs(60)));
        let call = silence.sent(at(61));
        assert_eq!(silence.answered(at(62), call), None, "once");
    }

    #[test]
    fn what_fails_at_once_is_no_silence() {
        let mut silence = Silence::default();
        for second in 0..400 {
            let call = silence.sent(at(second));
            silence.failed(at(second + 1), call);
            assert_eq!(silence.silent(at(second + 1)), None);
        }
    }
}
