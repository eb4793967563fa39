//! Log lines about retries, and about what goes wrong again and again.

use std::fmt;
use std::time::Duration;

use paceline_core::{Class, Instant, Request, Retry, format_duration};

/// `server overloaded (try 1 of at most 8), next try in 1.2s`: one line for each re-send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingOff {
    class: Class,
    attempt: u32,
    /// The most sends that the bounds allow; `None` is no bound.
    of: Option<u32>,
    delay: Duration,
}

impl BackingOff {
    /// From a [`NextAction`](paceline_core::NextAction)'s `next` and its delay. Attempts are counted by kind: deferrals for
    /// throttled answers and used-up quotas, retries for the rest.
    pub fn new(class: Class, next: &Request, retry: &Retry, delay: Duration) -> Self {
        let (attempt, bound) = match class {
            Class::Throttled | Class::QuotaExhausted | Class::Partial => (next.deferrals, retry.max_deferrals),
            _ => (next.attempts.max(1), Some(retry.max_retries)),
        };
        Self { class, attempt, of: bound.map(|bound| bound.saturating_add(1)), delay }
    }
}

impl fmt::Display for BackingOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let description = self.class.description();
        match self.of {
            Some(of) => write!(f, "{description} (try {} of at most {of})", self.attempt)?,
            None => write!(f, "{description} (try {})", self.attempt)?,
        }
        write_next_try(f, self.delay)
    }
}

/// `, next try in 1.2s`: how a line about a re-send ends.
pub(crate) fn write_next_try(f: &mut fmt::Formatter<'_>, delay: Duration) -> fmt::Result {
    match delay {
        Duration::ZERO => f.write_str(", next try as soon as its scope allows"),
        delay => write!(f, ", next try in {}", format_duration(delay)),
    }
}

/// Between two lines about the same trouble.
const EVERY: Duration = Duration::from_secs(10);

/// A trouble that may come again many times a second, such as a full disk: a line at first, and then one each 10 s at most, with
/// how often it came. It is over once it has not come for 10 s.
#[derive(Clone, Debug)]
pub struct Repeats {
    every: Duration,
    /// Since the last line.
    times: u64,
    told: Option<Instant>,
    last: Option<Instant>,
}

impl Default for Repeats {
    fn default() -> Self {
        Self::new()
    }
}

impl Repeats {
    /// None so far.
    pub const fn new() -> Self {
        Self::each(EVERY)
    }

    /// None so far, of a trouble with that time in place of the 10 s.
    pub const fn each(every: Duration) -> Self {
        Self { every, times: 0, told: None, last: None }
    }

    /// It came, at that time. Where a line is due: how often it came since the last one, this time included.
    pub fn came(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        self.last = Some(now);
        if self.told.is_some_and(|told| now < told + self.every) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.times))
    }

    /// Whether it came and is not over as far as is known.
    pub const fn is_known(&self) -> bool {
        self.last.is_some()
    }

    /// What it kept from being done was done, at that time. Returns whether a line is to say that it is over.
    pub fn went_well(&mut self, now: Instant) -> bool {
        let is_over = self.last.is_some_and(|last| now >= last + self.every);
        if is_over {
            *self = Self::each(self.every);
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_that_comes_again_is_a_line_each_ten_seconds() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let mut repeats = Repeats::new();
        assert!(!repeats.went_well(at(0)));
        let told: Vec<_> = (0..50).filter_map(|tick| repeats.came(at(500 * tick))).collect();
        assert_eq!(told, [1, 20, 20], "twice a second for 25 s");
        assert!(!repeats.went_well(at(25_000)), "it goes well in between");
        assert_eq!(repeats.came(at(30_000)), Some(10));
        assert_eq!([39_999, 40_000, 50_000].map(|millis| repeats.went_well(at(millis))), [false, true, false]);
        assert_eq!(repeats.came(at(60_000)), Some(1), "a trouble of its own");
        let mut seldom = Repeats::each(Duration::from_secs(60));
        let told: Vec<_> = (0..150).filter_map(|tick| seldom.came(at(1_000 * tick))).collect();
        assert_eq!(told, [1, 60, 60], "once a second for 150 s");
    }

    use paceline_core::{Cost, Pacer, PacerConfig};

    #[test]
    fn the_log_line_of_a_re_send() {
        let mut pacer = Pacer::new(PacerConfig::default(), 1, paceline_core::Instant::ZERO).expect("the defaults");
        let request = Request::new(pacer.scope("chat"), Cost::request());
        let retry = Retry::default();
        let bounded = Retry { max_deferrals: Some(100), ..Retry::default() };
        let (attempts, deferrals) = (1, 3);
        let next = Request { attempts, deferrals, ..request };
        for (class, retry, millis, line) in [
            (Class::Throttled, &retry, 1_240, "rate limit hit (try 3), next try in 1.2s"),
            (Class::Throttled, &bounded, 60_000, "rate limit hit (try 3 of at most 101), next try in 1m 00s"),
            (Class::Overloaded, &retry, 350, "server overloaded (try 1 of at most 8), next try in 350ms"),
            (
                Class::Transient,
                &retry,
                0,
                "transient failure (try 1 of at most 8), next try as soon as its scope allows",
            ),
        ] {
            let delay = Duration::from_millis(millis);
            assert_eq!(BackingOff::new(class, &next, retry, delay).to_string(), line);
        }
    }
}
