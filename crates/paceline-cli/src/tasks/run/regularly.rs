//! How often the store is told of what a worker learns.

use std::time::Duration;

/// The pause is at least so many times as long as the telling takes: there may be a hundred thousand scopes.
const FACTOR: u32 = 20;

/// But no longer.
const LONGEST: Duration = Duration::from_secs(30);

/// A telling that took longer has waited for the store, which was away: it is told at once what it missed.
const AWAY: Duration = Duration::from_secs(5);

/// The pause before the store is told again, which is to be `every` so long, where it took so long the last time.
pub(super) fn pause(every: Duration, took: Duration) -> Duration {
    if took > AWAY { every } else { every.max((took * FACTOR).min(LONGEST)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_was_away_is_told_soon_after_it_is_back() {
        let after = |millis| pause(Duration::from_secs(1), Duration::from_millis(millis)).as_millis();
        assert_eq!([0, 50, 100, 4_000, 10_000, 3_600_000].map(after), [1_000, 1_000, 2_000, 30_000, 1_000, 1_000]);
    }
}
