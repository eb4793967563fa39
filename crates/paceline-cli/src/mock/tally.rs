//! The counters of a mock: the numbers that a client's own counters are compared with.

use std::collections::HashMap;

use serde::Serialize;

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Answered with a 2xx, to the last byte that was to come.
    Ok,
    /// Answered with the server error that the model drew.
    Fault,
    /// The client went away before the answer.
    Abandoned,
}

/// Counters, with the names of `GET /stats`. Every call is in exactly one of `ok`, `throttled`, `overloaded`, `faults`,
/// `invalid`, `abandoned` and `in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Stats {
    /// POST requests that arrived whole.
    pub(crate) calls: u64,
    /// Answered with a 2xx.
    pub(crate) ok: u64,
    /// Refused by a limit.
    pub(crate) throttled: u64,
    /// Refused for lack of capacity.
    pub(crate) overloaded: u64,
    /// Answered with a 500.
    pub(crate) faults: u64,
    /// Refused for good: no JSON object, or more than a limit ever holds.
    pub(crate) invalid: u64,
    /// Given up by the client before the answer.
    pub(crate) abandoned: u64,
    /// In service now.
    pub(crate) in_flight: u64,
    /// The most that were in service at once.
    pub(crate) in_flight_peak: u64,
    /// The calls by what they are about.
    pub(crate) items: Items,
}

/// Calls of the same `Idempotency-Key`, or without one of the same path and body, are one item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Items {
    /// Different items that arrived, refused ones included.
    pub(crate) seen: u64,
    /// Items that were answered with a 2xx more than once: work that a client paid for again.
    pub(crate) repeated: u64,
}

/// The counters and the items behind them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    stats: Stats,
    /// Successes by item, 64 bits of hash each: among a million items two share a hash once in 30 million runs.
    successes: HashMap<u64, u32>,
}

impl Tally {
    pub(crate) const fn stats(&self) -> Stats {
        self.stats
    }

    /// A call arrived; returns its number, counted from 1.
    pub(crate) fn arrived(&mut self, item: u64) -> u64 {
        self.stats.calls += 1;
        self.successes.entry(item).or_default();
        self.stats.items.seen = self.successes.len() as u64;
        self.stats.calls
    }

    pub(crate) const fn throttled(&mut self) {
        self.stats.throttled += 1;
    }

    pub(crate) const fn overloaded(&mut self) {
        self.stats.overloaded += 1;
    }

    pub(crate) const fn invalid(&mut self) {
        self.stats.invalid += 1;
    }

    /// A call was admitted; [`Tally::ended`] follows.
    pub(crate) fn admitted(&mut self) {
        self.stats.in_flight += 1;
        self.stats.in_flight_peak = self.stats.in_flight_peak.max(self.stats.in_flight);
    }

    pub(crate) fn ended(&mut self, item: u64, end: End) {
        self.stats.in_flight -= 1;
        match end {
            End::Ok => {
                self.stats.ok += 1;
                let successes = self.successes.entry(item).or_default();
                *successes += 1;
                self.stats.items.repeated += u64::from(*successes == 2);
            }
            End::Fault => self.stats.faults += 1,
            End::Abandoned => self.stats.abandoned += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_counts_as_repeated_once_however_often_it_succeeds_again() {
        let mut tally = Tally::default();
        let ends = [(1, End::Ok), (2, End::Fault), (2, End::Ok), (1, End::Ok), (1, End::Ok), (3, End::Abandoned)];
        for (item, end) in ends {
            tally.arrived(item);
            tally.admitted();
            tally.ended(item, end);
        }
        assert_eq!(tally.stats().items, Items { seen: 3, repeated: 1 });
        let Stats { calls, ok, faults, abandoned, in_flight, in_flight_peak, .. } = tally.stats();
        assert_eq!((calls, ok, faults, abandoned, in_flight, in_flight_peak), (6, 4, 1, 1, 0, 1));
    }
}
