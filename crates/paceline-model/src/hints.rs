//! Hints: the waits and headers that a provider sends about its limits, and how true they are.

use std::time::Duration;

use paceline_core::Rng;

use crate::limiter::LimitState;

/// Which hints a provider sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hints {
    /// Exact waits on refusals and true headers on every answer.
    #[default]
    Honest,
    /// The truth rounded up to whole seconds, waits at least one.
    Coarse,
    /// None at all.
    None,
    /// Headers announce twice the limit, a whole limit more than remains and half the reset; waits are 60 s or 1 s.
    Wrong,
    /// Exact waits, no headers.
    Waits,
    /// Waits in whole seconds, at least one; no headers.
    CoarseWaits,
    /// Waits of always so many seconds; no headers.
    FalseWaits(u32),
    /// True headers, no waits.
    Headers,
    /// Headers that announce too much, as under `Wrong`; no waits.
    FalseHeaders,
}

/// The wait that a refusal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ToldWait {
    /// How long to wait.
    pub wait: Duration,
    /// Whether it may be sent finer than in whole seconds.
    pub exact: bool,
}

impl Hints {
    /// Every mode under the name that scenarios and flags give it.
    pub const NAMED: [(&str, Self); 9] = [
        ("none", Self::None),
        ("ra", Self::Waits),
        ("ra-ceil", Self::CoarseWaits),
        ("ra-lie-60", Self::FalseWaits(60)),
        ("ra-lie-1", Self::FalseWaits(1)),
        ("hdr", Self::Headers),
        ("hdr-coarse", Self::Coarse),
        ("hdr-lie", Self::FalseHeaders),
        ("llm", Self::Coarse),
    ];

    /// Whether headers announce limits.
    pub const fn has_headers(self) -> bool {
        matches!(self, Self::Honest | Self::Coarse | Self::Wrong | Self::Headers | Self::FalseHeaders)
    }

    /// What headers announce about a limit; none without them.
    pub fn state(self, truth: &LimitState) -> Option<LimitState> {
        let mut report = truth.clone();
        match self {
            Self::Honest | Self::Headers => {}
            Self::Coarse => report.reset = whole_seconds(report.reset),
            Self::None | Self::Waits | Self::CoarseWaits | Self::FalseWaits(_) => return None,
            Self::Wrong | Self::FalseHeaders => {
                report.remaining = report.remaining.saturating_add(report.limit);
                report.limit = report.limit.saturating_mul(2);
                report.per_window = report.per_window.saturating_mul(2);
                report.reset /= 2;
            }
        }
        Some(report)
    }

    /// The wait that a refusal asks for. `truth` is none where the provider itself does not know it, as when too many calls are
    /// in flight.
    pub fn wait(self, truth: Option<Duration>, rng: &mut Rng) -> Option<ToldWait> {
        const SECOND: Duration = Duration::from_secs(1);
        let rounded = |wait| Some(ToldWait { wait, exact: false });
        match self {
            Self::Honest | Self::Waits => truth.map(|wait| ToldWait { wait, exact: true }),
            Self::Coarse | Self::CoarseWaits => rounded(whole_seconds(truth.unwrap_or_default()).max(SECOND)),
            Self::None | Self::Headers | Self::FalseHeaders => None,
            Self::Wrong => rounded(if rng.unit() < 0.5 { 60 * SECOND } else { SECOND }),
            Self::FalseWaits(seconds) => rounded(seconds * SECOND),
        }
    }
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs() + u64::from(duration.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::Dimension;

    const MS: Duration = Duration::from_millis(1);

    fn report(hints: Hints) -> Option<(u64, u64, Duration)> {
        let truth = LimitState {
            dimension: Dimension::Requests,
            limit: 20,
            remaining: 3,
            reset: 850 * MS,
            per_window: 1_200,
            window: Duration::from_secs(60),
        };
        hints.state(&truth).map(|report| (report.limit, report.remaining, report.reset))
    }

    #[test]
    fn headers_tell_the_truth_round_it_keep_silent_or_lie() {
        assert_eq!(report(Hints::Honest), Some((20, 3, 850 * MS)));
        assert_eq!(report(Hints::Coarse), Some((20, 3, 1_000 * MS)));
        assert_eq!(report(Hints::None), None);
        assert_eq!(report(Hints::Wrong), Some((40, 23, 425 * MS)));
    }

    #[test]
    fn waits_likewise() {
        let mut rng = Rng::new(1);
        let mut wait = |hints: Hints, truth| hints.wait(truth, &mut rng).map(|report| (report.wait, report.exact));
        assert_eq!(wait(Hints::Honest, Some(50 * MS)), Some((50 * MS, true)));
        assert_eq!(wait(Hints::Honest, None), None);
        assert_eq!(wait(Hints::Coarse, Some(1_001 * MS)), Some((2_000 * MS, false)));
        assert_eq!(wait(Hints::Coarse, None), Some((1_000 * MS, false)));
        assert_eq!(wait(Hints::None, Some(50 * MS)), None);
        assert_eq!(wait(Hints::FalseWaits(60), Some(50 * MS)), Some((60_000 * MS, false)));
        let lies: Vec<u64> =
            (0..50).filter_map(|_| wait(Hints::Wrong, Some(50 * MS))).map(|(w, _)| w.as_secs()).collect();
        assert!(lies.iter().all(|lie| [1, 60].contains(lie)) && lies.contains(&1) && lies.contains(&60));
    }
}
