//! How many calls a gateway is handed together that may hold them back: what only waits there is no call yet, but nothing tells
//! that where its connection ends.

use core::time::Duration;

/// So many are handed over at first: few enough to be lost, and enough that a job whose calls take long is not slow for long.
const AT_FIRST: u64 = 8;

/// So long may a call wait at the gateway: it has always one to send then.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// A call that waited no longer was not held back.
const HARDLY: Duration = Duration::from_millis(100);

/// How many calls of a scope may be handed to a gateway together: as many as the gateway sends at once, and within a second.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::Handed;
/// let (mut handed, second) = (Handed::default(), Duration::from_secs(1));
/// assert_eq!(handed.most(), 8);
/// handed.answered(8, true, second, Duration::ZERO);
/// assert_eq!(handed.most(), 9, "the gateway holds none back");
/// // One a second: of 9 calls the last waits for 8 seconds, and takes one by itself.
/// handed.answered(9, true, second, 8 * second);
/// assert_eq!(handed.most(), 2);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    most: u64,
}

impl Default for Handed {
    fn default() -> Self {
        Self { most: AT_FIRST }
    }
}

impl Handed {
    /// How many may be there together.
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// One was answered that had left as one of so many that were there, after it had `waited` at the gateway, and took so long
    /// without that. `is_full`: as many were there by now as may be.
    pub fn answered(&mut self, beside: u64, is_full: bool, latency: Duration, waited: Duration) {
        if waited <= HARDLY {
            // It speaks for twice as many as were there with it, as each of them does for one more.
            if is_full && self.most < beside.saturating_mul(2) {
                self.most = self.most.saturating_add(1);
            }
            return;
        }
        // All that were there went by in the time that it took.
        let (fitting, all) = ((latency + LONGEST_WAIT).as_millis(), (latency + waited).as_millis());
        let fit = (u128::from(beside) * fitting).div_ceil(all.max(1));
        let fit = u64::try_from(fit).unwrap_or(u64::MAX).max(1);
        self.most = if is_full { fit } else { self.most.min(fit) };
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    /// A gateway that sends one call each `gap` to a server that takes `latency`: the most calls that were there at any time, and
    /// once the first half was answered, and the rate a second.
    fn kept(gap: u64, latency: u64, calls: u64) -> (u64, u64, f64) {
        let (mut handed, mut there, mut now, mut next) = (Handed::default(), VecDeque::new(), 0_u64, 0_u64);
        let (mut most, mut settled, mut since) = (0, 0, 0);
        for answered in 0..calls {
            while (there.len() as u64) < handed.most() {
                let leaves = next.max(now);
                next = leaves + gap;
                there.push_back((there.len() as u64 + 1, now, leaves));
            }
            most = most.max(there.len() as u64);
            if answered == calls / 2 {
                (settled, since) = (0, now);
            }
            settled = settled.max(there.len() as u64);
            let (beside, came, leaves) = there.front().copied().expect("at least one");
            now = leaves + latency;
            let is_full = there.len() as u64 >= handed.most();
            handed.answered(beside, is_full, Duration::from_millis(latency), Duration::from_millis(leaves - came));
            there.pop_front();
        }
        (most, settled, (calls - calls / 2) as f64 * 1_000.0 / (now - since) as f64)
    }

    #[test]
    fn no_more_wait_at_a_gateway_than_it_sends_within_seconds_and_it_always_has_one() {
        for (gap, latency) in [(200, 150), (200, 10_000), (20, 500), (1_000, 100), (5_000, 3_000), (10, 3_000)] {
            let (most, settled, rate) = kept(gap, latency, 40_000);
            // What the server works on, and what leaves within a second.
            let fits = latency.div_ceil(gap) + 1_000_u64.div_ceil(gap);
            assert!(settled <= fits + 1, "{gap} {latency}: {settled} of {fits}");
            assert!(most <= (2 * fits + 1).max(AT_FIRST), "{gap} {latency}: {most} of {fits}");
            assert!(rate > 0.99 * 1_000.0 / gap as f64, "{gap} {latency}: {rate}");
        }
    }

    #[test]
    fn all_leave_where_the_gateway_holds_none_back() {
        let mut handed = Handed::default();
        for round in [8, 16, 32, 64] {
            assert_eq!(handed.most(), round);
            (0..round).for_each(|_| handed.answered(round, true, Duration::from_secs(30), Duration::ZERO));
        }
        let most = handed.most();
        handed.answered(most, false, Duration::from_secs(30), Duration::ZERO);
        assert_eq!(handed.most(), most, "no more are asked for");
    }
}
