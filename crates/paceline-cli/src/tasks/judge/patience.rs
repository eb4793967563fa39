//! How often a judge that does not answer is asked, and how often that is said.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::Instant;

use crate::text;

/// How long it is left in peace at first, and at most.
pub(super) const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Silent answers in a row after which a judge is left in peace.
const IN_A_ROW: u32 = 3;

/// What is remembered of a judge's silence.
#[derive(Debug, Default)]
pub(super) struct Patience {
    in_a_row: u32,
    rest: Option<Rest>,
    /// How often, by cause.
    silences: BTreeMap<&'static str, u64>,
    /// Questions that were not asked.
    unasked: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    length: Duration,
    /// It is over, and a question is under way.
    is_over: bool,
}

/// What is to be said about a silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    /// The first of its cause.
    pub(super) is_first: bool,
    /// The judge is left in peace from now on, until it answers again.
    pub(super) begins_rest: bool,
}

impl Patience {
    /// Whether to ask now. After a rest one question finds out whether the judge is back; the others do not wait for it.
    pub(super) fn may_ask(&mut self, now: Instant) -> bool {
        let Some(rest) = &mut self.rest else { return true };
        if now < rest.until {
            self.unasked += 1;
            return false;
        }
        (rest.until, rest.is_over) = (now + rest.length, true);
        true
    }

    /// It answered.
    pub(super) fn answered(&mut self) {
        (self.in_a_row, self.rest) = (0, None);
    }

    /// It did not.
    pub(super) fn silent(&mut self, cause: &'static str, now: Instant) -> Silent {
        let times = self.silences.entry(cause).or_default();
        *times += 1;
        let is_first = *times == 1;
        self.in_a_row = self.in_a_row.saturating_add(1);
        // Several were asked at once: those that were under way when the rest began do not prolong it.
        let length = match self.rest {
            None if self.in_a_row >= IN_A_ROW => REST.0,
            Some(rest) if rest.is_over => (rest.length * 2).min(REST.1),
            _ => return Silent { is_first, begins_rest: false },
        };
        let before = self.rest.replace(Rest { until: now + length, length, is_over: false });
        Silent { is_first, begins_rest: before.is_none() }
    }

    #[cfg(test)]
    pub(super) fn causes(&self) -> Vec<(&'static str, u64)> {
        self.silences.iter().map(|(cause, times)| (*cause, *times)).collect()
    }

    /// The silences that the user was not told of, if there were any.
    pub(super) fn untold(&self) -> Option<String> {
        let more = self.silences.iter().filter(|(_, times)| **times > 1);
        let mut told: Vec<String> =
            more.map(|(cause, times)| format!("{cause} {}", text::counted(times - 1, "more time"))).collect();
        told.extend((self.unasked > 0).then(|| format!("not asked {}", text::counted(self.unasked, "time"))));
        (!told.is_empty()).then(|| told.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_judge_that_fails_in_a_row_is_left_in_peace_for_longer_and_longer() {
        let (mut patience, mut now, mut begun, mut rests) = (Patience::default(), 0, 0, Vec::new());
        for n in 0..11 {
            assert!(patience.may_ask(at(now)), "question {n}");
            let silent = patience.silent("exit status", at(now));
            assert_eq!(silent.is_first, n == 0);
            begun += u32::from(silent.begins_rest);
            if let Some(rest) = patience.rest {
                rests.push(rest.length.as_secs());
                assert!(!patience.may_ask(at(now + rest.length.as_secs() - 1)));
                now += rest.length.as_secs();
            }
        }
        assert_eq!((rests.as_slice(), begun), (&[1, 2, 4, 8, 16, 32, 60, 60, 60][..], 1), "it is said once");
        assert!(patience.untold().is_some_and(|words| words.starts_with("exit status 10 more times, not asked ")));
        assert!(patience.may_ask(at(now)) && !patience.may_ask(at(now)), "one question finds out");
        patience.answered();
        assert!(patience.may_ask(at(now)) && patience.may_ask(at(now)), "it is back");
        patience.silent("exit status", at(now));
        assert!(patience.may_ask(at(now)), "and may fail now and then");
    }

    #[test]
    fn questions_that_were_under_way_do_not_prolong_a_rest() {
        let mut patience = Patience::default();
        let begun = (0..10).filter(|_| patience.silent("too slow", at(5)).begins_rest).count();
        assert_eq!((begun, patience.rest.map(|rest| rest.length)), (1, Some(REST.0)));
    }
}
