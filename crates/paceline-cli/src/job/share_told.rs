//! How far a step is that takes so long that a person would ask.

use std::time::Duration;

use paceline::Instant;

/// When it is said next.
pub(crate) struct ShareTold {
    next: Instant,
}

impl ShareTold {
    /// Soon after the beginning, and not too often after that.
    const FIRST: Duration = Duration::from_secs(2);
    const EVERY: Duration = Duration::from_secs(10);

    pub(crate) fn begun(now: Instant) -> Self {
        Self { next: now + Self::FIRST }
    }

    /// The part that is done of all, in percent, when it is time to say it.
    pub(crate) fn percent(&mut self, now: Instant, done: u64, all: u64) -> Option<u64> {
        (now >= self.next).then(|| {
            self.next = now + Self::EVERY;
            done.saturating_mul(100) / all.max(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_step_says_how_far_it_is() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut told = ShareTold::begun(at(0));
        let found = [(1, 50), (2, 80), (11, 90), (12, 200)].map(|(seconds, done)| told.percent(at(seconds), done, 200));
        assert_eq!(found, [None, Some(40), None, Some(100)]);
        assert_eq!(ShareTold::begun(at(0)).percent(at(9), 0, 0), Some(0), "of a length that is not known");
    }
}
