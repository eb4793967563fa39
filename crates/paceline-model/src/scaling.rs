//! A capacity that grows when it is asked for too much, and shrinks when it is not needed: an autoscaled table.

use std::time::Duration;

use paceline_core::Instant;

use crate::schedule::{Scaling, Step};

/// A capacity at work.
#[derive(Clone, Debug)]
pub(crate) struct Scaler {
    scaling: Scaling,
    grown: bool,
    /// The second that is being metered, since the origin.
    second: u64,
    /// What its admitted calls used, in seconds of the capacity as it was configured.
    used: f64,
    refused: bool,
    /// The first and the last second of the refusals that belong together.
    refusals: Option<(u64, u64)>,
    /// The first of the seconds in a row that used little.
    idle: Option<u64>,
}

impl Scaler {
    pub(crate) const fn new(scaling: Scaling) -> Self {
        Self { scaling, grown: false, second: 0, used: 0.0, refused: false, refusals: None, idle: None }
    }

    /// Notes an admitted call that takes so many seconds of the configured capacity.
    pub(crate) fn admitted(&mut self, seconds: f64) {
        self.used += seconds;
    }

    /// A call was refused.
    pub(crate) fn refused(&mut self) {
        self.refused = true;
    }

    /// Meters the seconds that have ended by now, up to the first that changes the capacity; returns the change. To be
    /// called until it returns none.
    pub(crate) fn advance(&mut self, now: Instant) -> Option<Step> {
        let present = now.as_nanos() / 1_000_000_000;
        while self.second < present {
            let ended = self.second;
            self.second += 1;
            if self.ends(ended) {
                self.grown = !self.grown;
                (self.refusals, self.idle) = (None, None);
                let factor = if self.grown { self.scaling.factor } else { 1.0 };
                return Some(Step { at: Duration::from_secs(self.second), factor });
            }
        }
        None
    }

    /// Whether the capacity changes at the end of that second.
    fn ends(&mut self, second: u64) -> bool {
        let (used, refused) = (std::mem::take(&mut self.used), std::mem::take(&mut self.refused));
        if !self.grown {
            return refused && second + 1 - self.refused_since(second) >= self.scaling.after.as_secs();
        }
        self.idle = (used < self.scaling.below * self.scaling.factor).then(|| self.idle.unwrap_or(second));
        self.idle.is_some_and(|since| second + 1 - since >= self.scaling.back.as_secs())
    }

    /// Since when calls are refused, of which one was in that second.
    fn refused_since(&mut self, second: u64) -> u64 {
        let going_on = self.refusals.filter(|(_, last)| second - last <= self.scaling.pause());
        let since = going_on.map_or(second, |(first, _)| first);
        self.refusals = Some((since, second));
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: Scaling =
        Scaling { factor: 4.0, after: Duration::from_secs(60), below: 0.5, back: Duration::from_secs(60) };

    /// When a capacity with the given seconds changes: what each used, and whether it refused anything.
    fn changes(seconds: u64, of: impl Fn(u64) -> (f64, bool)) -> Vec<(u64, f64)> {
        let mut scaler = Scaler::new(TABLE);
        let mut changes = Vec::new();
        for second in 0..seconds {
            let (used, refused) = of(second);
            scaler.admitted(used);
            if refused {
                scaler.refused();
            }
            let now = Instant::ZERO + Duration::from_secs(second + 1);
            while let Some(step) = scaler.advance(now) {
                changes.push((step.at.as_secs(), step.factor));
            }
        }
        changes
    }

    #[test]
    fn it_grows_after_a_minute_of_refusals_and_shrinks_after_a_minute_of_little_use() {
        let busy = |second| (if second < 100 { 3.0 } else { 1.9 }, second < 100);
        assert_eq!(changes(300, busy), [(60, 4.0), (160, 1.0)]);
        let hardly = |second| (0.9, second % 10 == 0);
        assert_eq!(changes(64, hardly), [(61, 4.0)], "a pause of ten seconds interrupts nothing");
        let seldom = |second| (0.9, second % 11 == 0);
        assert_eq!(changes(500, seldom), [], "a longer one begins anew");
        let needed_once_a_minute = |second| (if second % 59 == 0 { 2.0 } else { 0.0 }, second < 60);
        assert_eq!(changes(500, needed_once_a_minute), [(60, 4.0)]);
    }

    #[test]
    fn it_shrinks_while_no_client_calls() {
        let mut scaler = Scaler::new(TABLE);
        for second in 1..=60 {
            scaler.refused();
            let step = scaler.advance(Instant::ZERO + Duration::from_secs(second));
            assert_eq!(step.is_some(), second == 60);
        }
        let much_later = Instant::ZERO + Duration::from_secs(3_600);
        assert_eq!(scaler.advance(much_later), Some(Step { at: Duration::from_secs(120), factor: 1.0 }));
        assert_eq!(scaler.advance(much_later), None);
    }
}
