//! Lines of the log that clients can cause as often as they like, by the names that they choose: of each kind some in a minute,
//! and then one that says how many more there were.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline::Instant;

/// So many lines of a kind are told in a minute.
const MOST: u32 = 20;

const MINUTE: Duration = Duration::from_secs(60);

/// What such lines are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// One client is refused, or told to wait.
    OneClient,
    /// Two clients are.
    TwoClients,
    /// What they are told is theirs alone.
    TheirsAlone,
    /// Refusals in a row.
    InARow,
    /// The upstream is down, or a person must act.
    Down,
    /// It answers again.
    Back,
    /// Its fallbacks take its requests, or no longer.
    Fallback,
    /// A success that cannot be read.
    Unreadable,
    /// A request of a batch has failed.
    FailedItem,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::OneClient => "a client is refused, or told to wait",
            Self::TwoClients => "two clients are refused, or told to wait",
            Self::TheirsAlone => "what other clients were refused, or told to wait, is theirs alone",
            Self::InARow => "the provider has refused calls in a row",
            Self::Down => "the upstream is down, or fails, or a person must act",
            Self::Back => "the upstream answers again",
            Self::Fallback => "the fallbacks of the upstream take its requests, or no longer",
            Self::Unreadable => "a success came compressed, and cannot be read",
            Self::FailedItem => "a request of a batch has failed",
        }
    }
}

/// The lines of one upstream.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<BTreeMap<Kind, Minute>>);

/// A minute, from the first line of a kind on.
#[derive(Debug)]
struct Minute {
    began: Instant,
    told: u32,
    left_out: u64,
}

impl Lines {
    /// Whether a line of that kind is to be told now. Before the first of another minute the log says what the last one left out.
    pub(crate) fn may_tell(&self, upstream: &str, kind: Kind, now: Instant) -> bool {
        self.tell_left_out(upstream, now);
        let mut minutes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = minutes.entry(kind).or_insert(Minute { began: now, told: 0, left_out: 0 });
        let is_told = minute.told < MOST;
        if is_told {
            minute.told += 1;
        } else {
            minute.left_out += 1;
        }
        is_told
    }

    /// Logs what was left out in minutes that are over.
    pub(crate) fn tell_left_out(&self, upstream: &str, now: Instant) {
        for (kind, left_out) in self.left_out(now) {
            let kind = kind.as_str();
            tracing::warn!(upstream, times = left_out, "{left_out} more lines were left out in a minute: {kind}");
        }
    }

    fn left_out(&self, now: Instant) -> Vec<(Kind, u64)> {
        let mut minutes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut left_out = Vec::new();
        minutes.retain(|kind, minute| {
            let lasts = now < minute.began + MINUTE;
            left_out.extend((!lasts && minute.left_out > 0).then_some((*kind, minute.left_out)));
            lasts
        });
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_kind_some_lines_are_told_in_a_minute_and_then_how_many_more_there_were() {
        let (lines, at) = (Lines::default(), |seconds| Instant::ZERO + Duration::from_secs(seconds));
        let told = |kind, now| (0..10_000).filter(|_| lines.may_tell("api", kind, now)).count();
        assert_eq!([told(Kind::OneClient, at(0)), told(Kind::OneClient, at(59))], [MOST as usize, 0]);
        assert_eq!(told(Kind::Down, at(59)), MOST as usize, "each kind has lines of its own");
        assert_eq!((lines.left_out(at(59)), lines.left_out(at(60))), (vec![], vec![(Kind::OneClient, 19_980)]));
        assert_eq!((told(Kind::OneClient, at(61)), lines.left_out(at(61))), (MOST as usize, vec![]));
        assert_eq!(lines.left_out(at(200)), [(Kind::OneClient, 9_980), (Kind::Down, 9_980)]);
        assert_eq!(lines.left_out(at(300)), [], "once");
    }
}
