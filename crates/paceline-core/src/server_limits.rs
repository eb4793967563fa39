//! A limit that the server's headers announce. It only ever holds back: it never sets a rate.
//!
//! Headers are one response old, so the calls sent since the one that carried them are subtracted. Beyond that a small part of
//! the remaining units stays unused, and nothing when less than 50 remain: a caller that has few needs them all. A refusal that
//! contradicts the count reserves a part of the whole limit for a while. Headers that announce too much change nothing; headers
//! that announce too little are obeyed until their reset. A window that has been reset holds its limit again and no more: so
//! many units leave before a header of the new window arrives.

use core::time::Duration;

use crate::admit::{Admit, WaitCause};
use crate::background::Ask;
use crate::cost::Dimension;
use crate::fleet::Announced;
use crate::outcome::{LimitReport, RefillMode};
use crate::state::Announcement;
use crate::time::{Instant, nanos};

/// One part in so many stays unused, 2 %: of the remaining units, in whole units, or of the limit once a refusal has shown that
/// the count is wrong. 5 % costs speed.
const KEEP_ONE_IN: u64 = 50;

/// The count is trusted again once so many times the limit has been admitted without another such refusal.
const TRUSTED_AFTER: u64 = 50;

/// A shorter reset of a fixed window is mostly rounding: obeying it is worse than nothing.
const TICK: Duration = Duration::from_secs(1);

/// An empty limit of unknown kind holds back only if its reset is within this.
const PATIENCE: Duration = Duration::from_secs(60);

/// The call that carried a report: its number, when it was sent, and what the scope had spent by then, this call included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carrier {
    pub(crate) number: u64,
    pub(crate) sent: Instant,
    pub(crate) spent: u64,
}

/// The newest report on one dimension.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) dimension: Dimension,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset: Duration,
    pub(crate) window: Option<Duration>,
    restores: RefillMode,
    carrier: Carrier,
    /// Units that must be admitted before the count is trusted again.
    wary: u64,
}

impl ServerLimits {
    /// None when a number is missing: then earlier reports stay in force.
    pub(crate) fn new(report: &LimitReport, carrier: Carrier) -> Option<Self> {
        Some(Self {
            dimension: report.dimension.clone(),
            limit: report.limit?,
            remaining: report.remaining?,
            reset: report.reset?,
            window: report.window,
            restores: report.restores,
            carrier,
            wary: 0,
        })
    }

    /// The state that another pacer of the same account can restore.
    pub(crate) fn announcement(&self, now: Instant, spent: u64) -> Announcement {
        let report = LimitReport {
            dimension: self.dimension.clone(),
            limit: Some(self.limit),
            remaining: Some(self.remaining),
            reset: Some(self.reset),
            window: self.window,
            restores: self.restores,
        };
        let spent_since = spent.saturating_sub(self.carrier.spent);
        Announcement { report, ago: now.saturating_since(self.carrier.sent), spent_since }
    }

    /// What processes that share this limit need to know of it, and the number of the call that brought it; none where it holds
    /// nothing back.
    pub(crate) fn announces(&self, now: Instant) -> Option<(u64, Announced)> {
        let gradually = match self.restores {
            RefillMode::Unknown => return None,
            RefillMode::Gradually => true,
            RefillMode::AtOnce => false,
        };
        let (ends, window) = (self.carrier.sent + self.reset, self.window.unwrap_or(self.reset));
        let (limit, known) = (self.limit, self.limit.saturating_sub(self.remaining));
        // What comes back bit by bit does so at one rate, whenever that is heard of; a report rounds it.
        let (missing, left) = match (gradually, self.window) {
            (true, Some(window)) => (limit, window),
            (true, None) => (known, self.reset),
            (false, _) => (known, ends - now),
        };
        if left.is_zero() || (!gradually && self.reset <= TICK) {
            return None;
        }
        let back = u128::from(missing) * u128::from(nanos(now - self.carrier.sent)) / u128::from(nanos(left));
        let back = u64::try_from(back).unwrap_or(u64::MAX).min(known);
        let remaining = if gradually { self.remaining + back } else { self.remaining };
        Some((self.carrier.number, Announced { limit, remaining, missing, left, gradually, window }))
    }

    /// Replaces the report by one that a later call carried.
    pub(crate) fn update(&mut self, newer: Self) {
        if newer.carrier.number > self.carrier.number && !self.has_turned_since(&newer) {
            *self = Self { wary: self.wary, ..newer };
        }
    }

    /// A call is sent, after `spent` so far. It is the first of a new window if the last one has been reset: then the whole limit
    /// remains, until an answer announces the real number. Where the window's length is not known, it is at least that reset.
    pub(crate) fn sent(&mut self, now: Instant, spent: u64) {
        if self.restores != RefillMode::AtOnce || !self.is_over(now) {
            return;
        }
        let (turned, window) = (self.carrier.sent + self.reset, self.window.unwrap_or(self.reset));
        // After idling the window that counts began with this call, or a little before.
        let sent = if turned + window > now { turned } else { now };
        self.carrier = Carrier { sent, spent, ..self.carrier };
        (self.remaining, self.reset) = (self.limit, window);
    }

    /// Whether that report is about the window before the current one.
    fn has_turned_since(&self, report: &Self) -> bool {
        let ends = |of: &Self| of.carrier.sent + of.reset;
        report.carrier.sent < self.carrier.sent && ends(report) < self.carrier.sent + self.reset / 2
    }

    /// A call was refused that was sent while this limit had room for it.
    pub(crate) const fn contradicted(&mut self) {
        self.wary = self.limit.saturating_mul(TRUSTED_AFTER);
    }

    /// A call of so many units was admitted.
    pub(crate) const fn confirmed(&mut self, units: u64) {
        self.wary = self.wary.saturating_sub(units);
    }

    /// Whether a call sent now relies on a header that announced room. No header has described a window that has just been reset.
    pub(crate) fn holds_back(&self, now: Instant) -> bool {
        self.remaining < self.limit && self.holds_until() > now
    }

    /// Units that remain after `spent` so far, without any refill since.
    pub(crate) fn remaining_after(&self, spent: u64) -> u64 {
        self.remaining.saturating_sub(spent.saturating_sub(self.carrier.spent))
    }

    /// Whether the call was sent after the one that carried this report.
    pub(crate) const fn is_older_than(&self, number: u64) -> bool {
        number > self.carrier.number
    }

    /// Whether the limit has been reset since.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.carrier.sent + self.reset <= now
    }

    /// Sustained units a second of the limit, if this report allows to derive them.
    pub(crate) fn per_second(&self) -> Option<f64> {
        let reset = self.reset.as_secs_f64();
        let units = match self.restores {
            RefillMode::Gradually => self.limit.saturating_sub(self.remaining),
            RefillMode::AtOnce if self.reset > TICK => self.remaining,
            RefillMode::AtOnce | RefillMode::Unknown => return None,
        };
        (reset > 0.0).then(|| units as f64 / reset)
    }

    /// When `units` more may be sent after `spent` so far.
    pub(crate) fn admit(&self, now: Instant, units: u64, spent: u64) -> Admit {
        let Some(short) = self.short(units, spent) else { return Admit::Now };
        Admit::at(self.reopens(short), now, || WaitCause::ServerLimit {
            dimension: self.dimension.clone(),
            limit: self.limit,
            remaining: self.remaining_after(spent),
        })
    }

    /// The units that must have room for a call: its own, and those that it leaves to the others.
    pub(crate) fn needs(&self, units: u64, ask: &Ask<'_>) -> u64 {
        ask.needs(units, self.limit)
    }

    /// Estimates when the last of so many units can be sent, call by call, if the limit stays as it is.
    pub(crate) fn forecast(&self, now: Instant, units: u64, spent: u64) -> Instant {
        let Some(short) = self.short(units, spent).filter(|_| self.holds_until() > now) else { return now };
        let beyond_one = (short / u128::from(KEEP_ONE_IN)).saturating_sub(1);
        match self.restores {
            RefillMode::AtOnce => {
                let windows = u32::try_from(beyond_one / u128::from(self.limit.max(1))).unwrap_or(u32::MAX);
                self.holds_until() + self.window.unwrap_or(self.reset).saturating_mul(windows)
            }
            RefillMode::Gradually => self.carrier.sent + self.refills(short),
            RefillMode::Unknown => self.holds_until(),
        }
    }

    /// What is missing for `units` more, in fiftieths of a unit; none if there is room.
    fn short(&self, units: u64, spent: u64) -> Option<u128> {
        let since = i128::from(spent.saturating_sub(self.carrier.spent));
        let short = (since + i128::from(units) - i128::from(self.remaining)) * i128::from(KEEP_ONE_IN) + self.margin();
        (short > 0 && units > 0).then_some(short.unsigned_abs())
    }

    /// What stays unused, in fiftieths of a unit, so that the part of a small limit needs no fractions.
    fn margin(&self) -> i128 {
        match self.wary {
            0 => i128::from(self.remaining / KEEP_ONE_IN * KEEP_ONE_IN),
            _ => i128::from(self.limit),
        }
    }

    fn reopens(&self, short: u128) -> Instant {
        match self.restores {
            RefillMode::Gradually => (self.carrier.sent + self.refills(short)).min(self.holds_until()),
            RefillMode::AtOnce | RefillMode::Unknown => self.holds_until(),
        }
    }

    /// How long so many fiftieths take to refill gradually.
    fn refills(&self, short: u128) -> Duration {
        let missing = u128::from(self.limit.saturating_sub(self.remaining).max(1)) * u128::from(KEEP_ONE_IN);
        let wait = short.saturating_mul(u128::from(nanos(self.reset))) / missing;
        Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// When this report stops holding calls back.
    fn holds_until(&self) -> Instant {
        match self.restores {
            RefillMode::AtOnce if self.reset <= TICK => Instant::ZERO,
            RefillMode::Unknown if self.remaining > 0 || self.reset >= PATIENCE => Instant::ZERO,
            RefillMode::AtOnce | RefillMode::Gradually | RefillMode::Unknown => self.carrier.sent + self.reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(limit: u64, remaining: u64, reset_ms: u64, restores: RefillMode) -> ServerLimits {
        let report = LimitReport {
            dimension: Dimension::Requests,
            limit: Some(limit),
            remaining: Some(remaining),
            reset: Some(Duration::from_millis(reset_ms)),
            window: None,
            restores,
        };
        let carrier = Carrier { number: 1, sent: Instant::from_nanos(0), spent: 10 };
        ServerLimits::new(&report, carrier).expect("a whole report")
    }

    fn wait_ms(announced: &ServerLimits, spent: u64) -> u128 {
        match announced.admit(Instant::ZERO, 1, spent) {
            Admit::Now => 0,
            Admit::At { at, .. } => Duration::from_nanos(at.as_nanos()).as_millis(),
            Admit::OnRelease { .. } => panic!("headers never wait for a release"),
        }
    }

    #[test]
    fn holds_back_what_left_since_and_a_fiftieth_once_the_count_was_wrong() {
        // 20 per second, 5 left: 15 are missing and come back in 750 ms, one in 50 ms.
        let mut bucket = announced(20, 5, 750, RefillMode::Gradually);
        assert_eq!(wait_ms(&bucket, 14), 0, "4 left since, the fifth is there for it");
        assert_eq!(wait_ms(&bucket, 15), 50);
        bucket.contradicted();
        assert_eq!(wait_ms(&bucket, 13), 0, "3 left since, the fourth leaves 1 > 0.4");
        assert_eq!(wait_ms(&bucket, 14), 20, "the fifth is 0.4 short");
        assert_eq!(wait_ms(&bucket, 15), 70);
        assert_eq!(wait_ms(&bucket, 10_000), 750, "never longer than the reset");
        bucket.update(ServerLimits {
            carrier: Carrier { number: 2, sent: Instant::ZERO, spent: 10 },
            ..announced(20, 5, 750, RefillMode::Gradually)
        });
        bucket.confirmed(20 * TRUSTED_AFTER - 1);
        assert_eq!(wait_ms(&bucket, 14), 20, "a newer report changes nothing about that");
        bucket.confirmed(1);
        assert_eq!(wait_ms(&bucket, 14), 0, "trusted again");
    }

    #[test]
    fn a_part_of_what_is_left_stays_unused_and_nothing_of_the_last_fifty() {
        let used = |remaining| {
            let window = announced(5_000, remaining, 3_000_000, RefillMode::AtOnce);
            (0..=remaining).find(|sent| wait_ms(&window, 10 + sent) > 0)
        };
        assert_eq!([1, 49, 50, 81, 5_000].map(used), [Some(1), Some(49), Some(49), Some(80), Some(4_900)]);
    }

    #[test]
    fn the_wait_says_what_is_left_and_when_it_comes_back() {
        let window = announced(5_000, 81, 3_000_000, RefillMode::AtOnce);
        let Admit::At { at, cause } = window.admit(Instant::ZERO, 3, 89) else { panic!("2 are left") };
        assert_eq!(at, Instant::ZERO + Duration::from_secs(3_000));
        assert_eq!(alloc::format!("{cause}"), "the server's limit of 5000 requests, 2 left");
    }

    #[test]
    fn a_fixed_window_waits_for_its_reset_unless_that_is_rounding() {
        assert_eq!(wait_ms(&announced(100, 1, 30_000, RefillMode::AtOnce), 10), 0);
        assert_eq!(wait_ms(&announced(100, 1, 30_000, RefillMode::AtOnce), 11), 30_000);
        assert_eq!(wait_ms(&announced(100, 1, 1_000, RefillMode::AtOnce), 11), 0);
    }

    #[test]
    fn an_unknown_kind_is_only_obeyed_when_empty_and_near() {
        assert_eq!(wait_ms(&announced(100, 0, 30_000, RefillMode::Unknown), 10), 30_000);
        assert_eq!(wait_ms(&announced(100, 0, 3_600_000, RefillMode::Unknown), 10), 0);
        assert_eq!(wait_ms(&announced(100, 1, 30_000, RefillMode::Unknown), 11), 0, "it was not empty");
    }

    #[test]
    fn an_older_report_never_replaces_a_newer_one() {
        let mut known = announced(20, 5, 750, RefillMode::Gradually);
        known.update(announced(20, 19, 50, RefillMode::Gradually));
        assert_eq!(known.remaining, 5);
    }

    #[test]
    fn a_call_that_takes_nothing_of_a_limit_does_not_wait_for_it() {
        let empty = announced(100, 0, 30_000, RefillMode::AtOnce);
        assert_eq!(empty.admit(Instant::ZERO, 0, 10), Admit::Now);
    }

    #[test]
    fn of_two_calls_that_left_together_the_second_brings_the_newer_report() {
        let mut known = announced(100, 50, 20_000, RefillMode::AtOnce);
        let carrier = Carrier { number: 2, sent: Instant::ZERO, spent: 11 };
        known.update(ServerLimits { carrier, ..announced(100, 20, 5_000, RefillMode::AtOnce) });
        assert_eq!((known.remaining, known.reset), (20, Duration::from_secs(5)));
    }

    #[test]
    fn what_a_limit_lets_pass_for_good_is_what_comes_back_until_its_reset() {
        assert_eq!(announced(20, 5, 750, RefillMode::Gradually).per_second(), Some(20.0));
        assert_eq!(announced(100, 30, 15_000, RefillMode::AtOnce).per_second(), Some(2.0));
        assert_eq!(announced(100, 30, 1_000, RefillMode::AtOnce).per_second(), None, "mostly rounding");
        assert_eq!(announced(100, 30, 0, RefillMode::Gradually).per_second(), None);
        assert_eq!(announced(100, 30, 15_000, RefillMode::Unknown).per_second(), None);
    }
}
