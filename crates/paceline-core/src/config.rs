//! The configuration of a pacer: plain structs with defaults and `with_*` setters, checked once at construction.

mod setters;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::backoff::Backoff;
use crate::cost::Dimension;
use crate::error::ConfigError;
use crate::responsive::ResponsiveConfig;

/// How the units of a quota come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum QuotaShape {
    /// Never more than the limit in any window: what "per minute" means here.
    #[default]
    Sliding,
    /// A counter that starts with the first call and is reset a window later.
    Fixed,
    /// Refilled continuously; up to `burst` units are stored. Lets almost twice the limit through in its worst window.
    Bucket {
        /// Units that may leave at once after idling, at least 1.
        burst: u64,
    },
}

/// At most `limit` units of `dimension` per `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Quota {
    /// What is counted.
    pub dimension: Dimension,
    /// Units per window, at least 1.
    pub limit: u64,
    /// The period, more than zero.
    #[cfg_attr(feature = "serde", serde(rename = "window_ms", with = "crate::millis"))]
    pub window: Duration,
    /// How units come back. Default: exact sliding window.
    pub shape: QuotaShape,
}

impl Quota {
    /// `limit` units of `dimension` in any `window`, exactly: a limit from 1 to 2^48, a window of more than 0 and at most 366
    /// days.
    ///
    /// The numbers are plain, so that a literal stays one. What is out of bounds is refused where the limiter is made, as is
    /// every wrong value of a configuration: a [`ConfigError`] has its name, its value and what was expected. That is no panic,
    /// and holds for all constructors below.
    ///
    /// ```
    /// use paceline_core::{Instant, Pacer, PacerConfig, Quota};
    ///
    /// let refused = |quota: Quota| Pacer::new(quota.into(), 1, Instant::ZERO).expect_err("out of bounds").to_string();
    /// assert_eq!(refused(Quota::per_minute(0)), "limit on requests is 0, expected a whole number from 1 to 2^48");
    /// let burst = Quota::per_minute(60).burst(0);
    /// assert_eq!(refused(burst), "limit on requests is a burst of 0, expected a burst from 1 to 2^48");
    /// ```
    ///
    /// Requests under a window of up to a minute are spaced evenly: no more leave at once than it allows in a second, one of
    /// `per_minute(60)`, 50 of `per_second(50)`, which leave none for the rest of that second; then one leaves each 20 ms.
    /// [`burst`](Self::burst) lets more leave at once, from a bucket, and so does [`Limits::burst`], under an exact window.
    pub const fn sliding(dimension: Dimension, limit: u64, window: Duration) -> Self {
        Self { dimension, limit, window, shape: QuotaShape::Sliding }
    }

    /// `limit` requests, 1 to 2^48, in any second. What is out of bounds is refused [where the limiter is made](Self::sliding).
    pub const fn per_second(limit: u64) -> Self {
        Self::sliding(Dimension::Requests, limit, Duration::from_secs(1))
    }

    /// `limit` requests, 1 to 2^48, in any minute, spaced evenly. What is out of bounds is refused
    /// [where the limiter is made](Self::sliding).
    pub const fn per_minute(limit: u64) -> Self {
        Self::sliding(Dimension::Requests, limit, Duration::from_secs(60))
    }

    /// `limit` requests, 1 to 2^48, in any hour, not spaced. What is out of bounds is refused
    /// [where the limiter is made](Self::sliding).
    pub const fn per_hour(limit: u64) -> Self {
        Self::sliding(Dimension::Requests, limit, Duration::from_secs(3_600))
    }

    /// `limit` requests, 1 to 2^48, in any 24 hours, not spaced. What is out of bounds is refused
    /// [where the limiter is made](Self::sliding).
    pub const fn per_day(limit: u64) -> Self {
        Self::sliding(Dimension::Requests, limit, Duration::from_secs(86_400))
    }

    /// The same limit on another dimension: tokens, money in billionths of its currency, units of your own. It counts what
    /// requests say of that dimension in their [`Cost`](crate::Cost); one that says nothing costs none of it. So a limit on
    /// tokens alone lets every call pass that names no cost, and those of a keyed limiter name one in its `run` alone.
    ///
    /// ```
    /// use paceline_core::{Dimension, Quota};
    ///
    /// let tokens = Quota::per_minute(90_000).of(Dimension::Tokens);
    /// ```
    #[must_use]
    pub fn of(self, dimension: Dimension) -> Self {
        Self { dimension, ..self }
    }

    /// The same rate as a token bucket, of which `burst` units, 1 to 2^48, may leave at once after idling; a request of more can
    /// never start. It lets up to `limit + burst` units through in its worst window. What is out of bounds is refused
    /// [where the limiter is made](Self::sliding).
    #[must_use]
    pub fn burst(self, burst: u64) -> Self {
        Self { shape: QuotaShape::Bucket { burst }, ..self }
    }
}

/// How many calls may be under way at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concurrency {
    /// Always `max`.
    Fixed {
        /// At least 1.
        max: u32,
    },
    /// Additive increase by one per round trip, multiplicative decrease by half once per congestion epoch.
    Aimd {
        /// Never less than this, at least 1.
        floor: u32,
        /// The first limit, `floor <= start <= max`.
        start: u32,
        /// Never more than this.
        max: u32,
    },
}

impl Concurrency {
    /// AIMD from 5 to 50, starting at 10.
    pub const AIMD: Self = Self::Aimd { floor: 5, start: 10, max: 50 };

    /// The upper bound on calls in flight.
    pub const fn max(self) -> u32 {
        match self {
            Self::Fixed { max } | Self::Aimd { max, .. } => max,
        }
    }

    /// The same with no more than `most`, at least 1, at once.
    ///
    /// ```
    /// use paceline_core::Concurrency;
    ///
    /// assert_eq!(Concurrency::AIMD.at_most(8), Concurrency::Aimd { floor: 5, start: 8, max: 8 });
    /// assert_eq!(Concurrency::AIMD.at_most(0), Concurrency::Aimd { floor: 1, start: 1, max: 1 });
    /// assert_eq!(Concurrency::AIMD.at_most(90), Concurrency::AIMD);
    /// ```
    #[must_use]
    pub fn at_most(self, most: u32) -> Self {
        let most = most.max(1);
        let max = self.max().min(most);
        match self {
            Self::Fixed { .. } => Self::Fixed { max },
            Self::Aimd { floor, start, .. } => Self::Aimd { floor: floor.min(most), start: start.min(most), max },
        }
    }
}

impl Default for Concurrency {
    /// Always 512: a ceiling that the learnt rate rarely meets.
    fn default() -> Self {
        Self::Fixed { max: 512 }
    }
}

/// Limits that the user configured, for an account or for a tier inside it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Limits {
    /// All of them hold at once.
    pub quotas: Vec<Quota>,
    /// Requests that may leave at once after idling, at least 1. It applies to the shortest sliding request quota whose window is
    /// at most 60 s. Default: that limit divided by its window in seconds, rounded up. More than that limit is an error: no
    /// window would hold it. [`QuotaShape::Bucket`] stores more. Requests that had to wait, for a timer too, may also take what
    /// the last 5 ms refilled; the quota itself is never exceeded.
    pub burst: Option<u64>,
}

impl Limits {
    /// Requests are spaced over windows of at most a minute; longer ones only count.
    const LONGEST_SPACED: Duration = Duration::from_secs(60);

    /// The quota whose requests leave evenly spaced, and how many of them may leave at once: the configured burst, or
    /// its default, which is at most the limit. None without a sliding request quota over at most 60 s.
    pub fn spacing(&self) -> Option<(&Quota, u64)> {
        let requests = |quota: &&Quota| quota.dimension == Dimension::Requests && quota.shape == QuotaShape::Sliding;
        let quota = self
            .quotas
            .iter()
            .filter(requests)
            .filter(|quota| quota.window <= Self::LONGEST_SPACED)
            .min_by_key(|quota| (quota.window, quota.limit))?;
        let a_second = (u128::from(quota.limit) * 1_000_000_000).div_ceil(quota.window.as_nanos().max(1));
        let usual = u64::try_from(a_second).unwrap_or(u64::MAX).min(quota.limit);
        Some((quota, self.burst.unwrap_or(usual)))
    }
}

/// When the breaker of a scope opens, and for how long. A failure is an overloaded or a transient outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerConfig {
    /// Opens when at least this share of the outcomes in its window failed. Default 0.5; more than 0, at most 1.
    pub failure_ratio: f64,
    /// The size of its window, in outcomes. Default 50, 1 to 10,000.
    pub window_size: u32,
    /// It does not open with fewer outcomes than this. Default 20, 1 to `window_size`.
    pub min_samples: u32,
    /// Older outcomes are ignored; each counts longer by the time that its call took. Default 10 s.
    pub max_age: Duration,
    /// Failures must come from so many items: one bad item never opens it. Default 5, at least 1.
    pub min_distinct_items: u32,
    /// How long it stays open at first; doubles at each failed probe. Default 1 s.
    pub open: Duration,
    /// The longest it stays open. Default 30 s, at least `open`.
    pub open_max: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self {
            failure_ratio: 0.5,
            window_size: 50,
            min_samples: 20,
            max_age: Duration::from_secs(10),
            min_distinct_items: 5,
            open: Duration::from_secs(1),
            open_max: Duration::from_secs(30),
        }
    }
}

/// How often and how late an item is sent again.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// Re-sends after transient and overloaded outcomes; calls are 1 + this. Default 7.
    pub max_retries: u32,
    /// Deferrals after throttled and quota outcomes before the item fails. Default: no bound.
    pub max_deferrals: Option<u32>,
    /// The delay where the server gave none. Default: 500 ms doubling to 60 s, full jitter.
    pub backoff: Backoff,
    /// How long after an item's first send the last one may leave, more than zero; time in a held or stopped scope does not
    /// count. It is the deadline of the next try of a [`Request`](crate::Request) that has none. Default: no bound.
    pub deadline: Option<Duration>,
}

impl Retry {
    /// The bound on the retries of an item that may have one of its own.
    pub(crate) fn most(&self, own: Option<u32>) -> u32 {
        own.map_or(self.max_retries, |own| own.min(self.max_retries))
    }

    /// Checks the settings together.
    ///
    /// # Errors
    /// Those of [`Backoff::check`], and a deadline of zero.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.backoff.check()?;
        if self.deadline.is_some_and(|bound| bound.is_zero()) {
            let (value, expected) = ("0s".into(), "a duration of more than 0");
            return Err(ConfigError { key: "deadline".into(), value, expected });
        }
        Ok(())
    }

    /// The retries that are left to an item before a call, after so many that counted as attempts; `own`: its own bound.
    pub fn left(&self, own: Option<u32>, attempts: u32) -> u32 {
        self.most(own).saturating_sub(attempts)
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_retries: 7, max_deferrals: None, backoff: Backoff::default(), deadline: None }
    }
}

/// What decides how fast the calls leave: the configured limits and, under most of these, something stricter that follows from
/// the answers; under [`None`](Self::None) not even those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pace {
    /// The limit is learnt from what happens to calls: a rate, and calls in flight where refusals follow their number. What
    /// is configured is a ceiling, headers hold back, and of [`PacerConfig::concurrency`] only the maximum counts. Each scope
    /// begins at [`PacerConfig::start`], or where [`Pacer::restore`](crate::Pacer::restore) puts it, and shows its
    /// estimate as [`ScopeSnapshot::estimate`](crate::ScopeSnapshot::estimate).
    #[default]
    Auto,
    /// The configured limits and nothing else.
    Fixed,
    /// The calls in flight adapt, if [`PacerConfig::concurrency`] says so: [`Concurrency::AIMD`].
    Aimd,
    /// One delay between the calls of a scope, as [`PacerConfig::responsive`] says: longer after a throttled or overloaded
    /// answer, shorter after successes.
    Responsive,
    /// One delay between the calls of a scope, which grows by the first delay of [`Retry::backoff`] with each throttled or
    /// overloaded answer, up to its cap. A success ends it.
    Linear,
    /// As [`Linear`](Self::Linear), but the delay is multiplied, by 2 where the backoff does not grow exponentially.
    Exponential,
    /// Nothing, the configured limits neither: every call leaves at once, within the calls in flight
    /// ([`PacerConfig::concurrency`]) and after the waits that the server asks for.
    None,
}

/// How requests of a priority below 0, which go behind all others, share an account with them. The default is the priority
/// alone: they may take every place and every window, and wait for as long as others come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Background {
    /// The share of the places in flight, and of each window, that they leave free: at least one place where there are two.
    /// Default 0; at least 0, less than 1.
    pub reserve: f64,
    /// The share of the calls that are theirs while others make them wait. Default 0; at least 0, at most 0.5.
    pub share: f64,
}

impl Background {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let wrong = |key: &str, value: f64, expected| {
            Err(ConfigError { key: key.into(), value: alloc::format!("{value}"), expected })
        };
        if !(0.0..1.0).contains(&self.reserve) {
            return wrong("background.reserve", self.reserve, "at least 0 and less than 1");
        }
        if !(0.0..=0.5).contains(&self.share) {
            return wrong("background.share", self.share, "at least 0 and at most 0.5");
        }
        Ok(())
    }
}

/// The configuration of a pacer: everything about one account.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct PacerConfig {
    /// The ceiling over the whole account.
    pub limits: Limits,
    /// Calls in flight: `max` bounds the account, the adaptation happens in each scope.
    pub concurrency: Concurrency,
    /// The first rate of each scope under [`Pace::Auto`], in calls a second: more than 0, at most 1,000,000. Until the first
    /// refusal it doubles in 0.7 s, in less where answers come fast, and one call leaves in that time at least. Default: none,
    /// which is 2, or what the configured limits allow.
    pub start: Option<f64>,
    /// Calls in flight that the server bears for the whole account, as it says: at least 1. It bounds this pacer as the `max` of
    /// `concurrency` does, and all processes of a [`fleet`](crate::fleet) together. Default: none.
    pub places: Option<u32>,
    /// How long a call may be in flight at most, more than 0: a fleet keeps the places of a process that died for so long.
    /// Default: 10 minutes.
    pub longest_call: Option<Duration>,
    /// Scopes with limits of their own, by scope name. A scope that is [a part](part_of_tier) of a tier has all limits of the
    /// tier for itself.
    pub tiers: Vec<(Arc<str>, Limits)>,
    /// The most calls in flight, at least 1, of a scope with limits of its own, by the name of its tier; a part of a tier has
    /// them for itself, and all processes of a fleet have them together. Default: none, as many as the account has.
    pub tier_places: Vec<(Arc<str>, u32)>,
    /// Makes each scope an account of its own, for one limit for each tenant, host or key: a scope without a tier has these
    /// limits, which are believed until a refusal contradicts them, and `concurrency` for itself; and what an answer says about
    /// the account reaches its scope alone. Default: none, all scopes are of one account.
    pub per_scope: Option<Limits>,
    /// How often and how late items are sent again.
    pub retry: Retry,
    /// When a scope counts as down.
    pub breaker: BreakerConfig,
    /// The policy that decides how fast the calls leave.
    pub pace: Pace,
    /// The delay of [`Pace::Responsive`].
    pub responsive: ResponsiveConfig,
    /// How requests of a priority below 0 share the account with the others.
    pub background: Background,
    /// Callers may ask for longer answers than they have shown: of calls without a bound on theirs, those beside as many as the
    /// smallest limit on tokens holds answers of 4,096 tokens (and beside four) reserve so many each. Default: false, all reserve
    /// what answers have shown.
    pub doubts_answers: bool,
}

/// What separates a tier from its part in the name of a scope.
const AT: &str = " at ";

/// The name of a scope that has the limits of a tier for itself, such as one host of many. Default: none, a tier is one scope.
/// `part` must not contain blanks.
pub fn part_of_tier(tier: &str, part: &str) -> String {
    format!("{tier}{AT}{part}")
}

/// The tier of which a scope of that name is a part, and the part, if the name is [such a one](part_of_tier).
pub fn tier_and_part(scope: &str) -> Option<(&str, &str)> {
    scope.rsplit_once(AT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_calls_at_once_than_that_whatever_their_number_adapts_to() {
        assert_eq!(Concurrency::AIMD.at_most(3), Concurrency::Aimd { floor: 3, start: 3, max: 3 });
        assert_eq!(Concurrency::AIMD.at_most(8), Concurrency::Aimd { floor: 5, start: 8, max: 8 });
        assert_eq!(Concurrency::Fixed { max: 50 }.at_most(0), Concurrency::Fixed { max: 1 });
    }
}
