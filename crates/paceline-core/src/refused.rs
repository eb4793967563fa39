//! Since when a server refuses all calls: it has banned the caller, another one uses up its limit, or a limit is used up that
//! does not come back.

use core::time::Duration;

use crate::time::Instant;

/// Where each of so many calls was refused, ...
const SEVERAL: u32 = 3;

/// ... over that time, the server refuses everything: limits of a minute let calls through meanwhile; ...
const AT_LEAST: Duration = Duration::from_secs(120);

/// ... but it has so many times as long as it has told a call to wait: what is known to come back is no outage.
const TIMES_TOLD: u32 = 2;

/// The refusals since the last call that was not refused. They may all be of one item, which goes first again and again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refused {
    /// The first after the server named a time the last time, and how many: it does not say when it takes calls.
    untold: Option<(Instant, u32)>,
    first: Option<Instant>,
    calls: u32,
    /// The longest wait that the server named.
    longest: Duration,
    /// They have lasted for longer than a limit would.
    lasts: bool,
}

impl Refused {
    /// A call was refused; `told`: for how long the server takes none.
    pub(crate) fn add(&mut self, now: Instant, told: Option<Duration>) {
        self.untold = match (told, self.untold) {
            (Some(_), _) => None,
            (None, known) => known.map(|(since, calls)| (since, calls.saturating_add(1))).or(Some((now, 1))),
        };
        self.calls = self.calls.saturating_add(1);
        self.longest = self.longest.max(told.unwrap_or_default());
        let passed = now.saturating_since(*self.first.get_or_insert(now));
        self.lasts |= self.calls >= SEVERAL && passed >= AT_LEAST.max(self.longest.saturating_mul(TIMES_TOLD));
    }

    /// Since when the server does not say when it takes calls, if so many were refused: fewer may be bad luck.
    pub(crate) fn since(&self, enough: u32) -> Option<Instant> {
        self.untold.filter(|(_, calls)| *calls >= enough).map(|(since, _)| since)
    }

    /// Since when each call was refused, where that lasts for longer than a limit would. What has passed between refusals counts,
    /// and not what has passed since the last one: a window that is used up lets no call leave that could show it.
    pub(crate) fn all_since(&self) -> Option<Instant> {
        self.first.filter(|_| self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_server_that_refuses_several_calls_and_takes_none_is_known_to() {
        let mut refused = Refused::default();
        for n in 3..7 {
            refused.add(at(n), None);
        }
        assert_eq!(refused.since(5), None, "4 are not 5");
        refused.add(at(50), None);
        assert_eq!(refused.since(5), Some(at(3)));
        refused.add(at(51), Some(Duration::from_secs(9)));
        assert_eq!(refused.since(1), None, "it says when");
    }

    /// The second at which each call is known to be refused, where one is each `every` seconds and told to wait for `told`.
    fn known(every: usize, told: u64) -> Option<u64> {
        let mut refused = Refused::default();
        (0..7_300).step_by(every).find(|second| {
            refused.add(at(*second), Some(Duration::from_secs(told)).filter(|told| !told.is_zero()));
            refused.all_since().is_some_and(|since| since == at(0))
        })
    }

    #[test]
    fn what_refuses_every_call_for_longer_than_a_limit_would_is_known_to() {
        assert_eq!([known(1, 0), known(25, 0)], [Some(120), Some(125)]);
        assert_eq!(known(100, 0), Some(200), "two calls say little");
        assert_eq!([known(20, 20), known(90, 90)], [Some(120), Some(180)], "it does not take calls when it says so");
        assert_eq!(
            known(300, 3_600),
            Some(7_200),
            "what comes back in an hour is no outage, until it has not come back"
        );
        let mut used_up = Refused::default();
        (0..5).for_each(|second| used_up.add(at(second), None));
        assert_eq!(used_up.all_since(), None, "however long no call leaves then");
    }
}
