//! The circuit breaker of a judge that does not answer, and how often its failures are logged.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::Instant;

use crate::text;

/// For how long the breaker stays open at first, and at most: the time doubles with each failed probe.
pub(super) const OPEN_FOR: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Consecutive failures that open the breaker.
const FAILURE_THRESHOLD: u32 = 3;

/// Opens after consecutive failures; a probe by one question finds out whether the judge is back.
#[derive(Debug, Default)]
pub(super) struct JudgeBreaker {
    consecutive_failures: u32,
    open: Option<OpenState>,
    /// How many, by cause.
    failures: BTreeMap<&'static str, u64>,
    /// Questions that the open breaker rejected.
    rejected: u64,
}

#[derive(Clone, Copy, Debug)]
struct OpenState {
    until: Instant,
    open_for: Duration,
    /// The time is over, and a probe is under way.
    half_open: bool,
}

/// What is to be logged about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailureNotice {
    /// The first of its cause.
    pub(super) is_first: bool,
    /// The breaker opened.
    pub(super) opened: bool,
}

impl JudgeBreaker {
    /// Whether the judge may be asked now. When the time is over one question is the probe; the others do not wait for it.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let Some(open) = &mut self.open else { return true };
        if now < open.until {
            self.rejected += 1;
            return false;
        }
        (open.until, open.half_open) = (now + open.open_for, true);
        true
    }

    /// The judge answered.
    pub(super) fn on_success(&mut self) {
        (self.consecutive_failures, self.open) = (0, None);
    }

    /// The judge did not answer.
    pub(super) fn on_failure(&mut self, cause: &'static str, now: Instant) -> FailureNotice {
        let times = self.failures.entry(cause).or_default();
        *times += 1;
        let is_first = *times == 1;
        self.consecutive_failures = self.consecutive_failures.saturating_add(1);
        // Questions that were under way when the breaker opened do not keep it open for longer.
        let open_for = match self.open {
            None if self.consecutive_failures >= FAILURE_THRESHOLD => OPEN_FOR.0,
            Some(open) if open.half_open => (open.open_for * 2).min(OPEN_FOR.1),
            _ => return FailureNotice { is_first, opened: false },
        };
        let before = self.open.replace(OpenState { until: now + open_for, open_for, half_open: false });
        FailureNotice { is_first, opened: before.is_none() }
    }

    #[cfg(test)]
    pub(super) fn causes(&self) -> Vec<(&'static str, u64)> {
        self.failures.iter().map(|(cause, times)| (*cause, *times)).collect()
    }

    /// The failures that were not logged, if there were any.
    pub(super) fn unreported(&self) -> Option<String> {
        let more = self.failures.iter().filter(|(_, times)| **times > 1);
        let mut parts: Vec<String> =
            more.map(|(cause, times)| format!("{cause} {}", text::counted(times - 1, "more time"))).collect();
        parts.extend((self.rejected > 0).then(|| format!("not asked {}", text::counted(self.rejected, "time"))));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn consecutive_failures_open_the_breaker_for_longer_and_longer() {
        let (mut breaker, mut now, mut begun, mut pauses) = (JudgeBreaker::default(), 0, 0, Vec::new());
        for n in 0..11 {
            assert!(breaker.allow(at(now)), "question {n}");
            let notice = breaker.on_failure("exit status", at(now));
            assert_eq!(notice.is_first, n == 0);
            begun += u32::from(notice.opened);
            if let Some(open) = breaker.open {
                pauses.push(open.open_for.as_secs());
                assert!(!breaker.allow(at(now + open.open_for.as_secs() - 1)));
                now += open.open_for.as_secs();
            }
        }
        assert_eq!((pauses.as_slice(), begun), (&[1, 2, 4, 8, 16, 32, 60, 60, 60][..], 1), "it is said once");
        assert!(
            breaker.unreported().is_some_and(|summary| summary.starts_with("exit status 10 more times, not asked "))
        );
        assert!(breaker.allow(at(now)) && !breaker.allow(at(now)), "one question finds out");
        breaker.on_success();
        assert!(breaker.allow(at(now)) && breaker.allow(at(now)), "it is back");
        breaker.on_failure("exit status", at(now));
        assert!(breaker.allow(at(now)), "and may fail now and then");
    }

    #[test]
    fn questions_that_were_under_way_do_not_keep_the_breaker_open() {
        let mut breaker = JudgeBreaker::default();
        let begun = (0..10).filter(|_| breaker.on_failure("too slow", at(5)).opened).count();
        assert_eq!((begun, breaker.open.map(|open| open.open_for)), (1, Some(OPEN_FOR.0)));
    }
}
