//! The responsive delay: one wait before each call, longer after a failure, shorter after successes.
//!
//! A failure multiplies the delay by `up`; `threshold` successes in a row multiply it by `down`. That is the classic
//! rule ([`ResponsiveConfig::compat`]), and it keeps failing: every descent ends in refusals, for ever. The default
//! remembers which delays failed (`search`), so that a constant limit is found once and then hardly touched.

mod classic;
mod search;
#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use core::time::Duration;

use crate::error::ConfigError;
use crate::rng::Rng;
use crate::time::nanos;
use crate::units::LONGEST_DURATION;
use classic::Classic;
use search::Search;

/// The configuration of a [`Responsive`] delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ResponsiveConfig {
    /// The delay after the first failure. Default 500 ms; more than 0, at most `max`.
    pub initial: Duration,
    /// No delay is longer; a hint may be. Randomness acts downwards there, so a climb ends between `max` less its
    /// randomization and `max`. Default 15 min, at most 366 days.
    pub max: Duration,
    /// Randomness never moves a delay by more than this. Default 2 min.
    pub max_randomization: Duration,
    /// A failure multiplies the delay by this. Default 1.5; more than 1, at most 1000.
    pub up: f64,
    /// A step down multiplies the delay by this. Default 0.9; more than 0, less than 1.
    pub down: f64,
    /// Randomness moves a step by at most this share. Default 0.3; at least 0, less than 1.
    pub randomization: f64,
    /// Successes in a row before a step down, once a step down has failed. Default 10, at least 1.
    pub threshold: u32,
    /// A delay that shrinks below this becomes 0. Default 1 ms; `initial` where that is less. Nothing under `compat`,
    /// where a delay below `initial` becomes 0.
    pub min_delay: Duration,
    /// The delay halves with each such time that passes without a call. Default: it does not; more than 0.
    pub idle_half_life: Option<Duration>,
    /// The classic rule, to the nanosecond, defects included. Default: no.
    pub compat: bool,
}

impl Default for ResponsiveConfig {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(500),
            max: Duration::from_secs(15 * 60),
            max_randomization: Duration::from_secs(2 * 60),
            up: 1.5,
            down: 0.9,
            randomization: 0.3,
            threshold: 10,
            min_delay: Duration::from_millis(1),
            idle_half_life: None,
            compat: false,
        }
    }
}

/// Counters of a responsive delay, as a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResponsiveCounters {
    /// Failures and successes reported.
    pub invocations: u64,
    /// Steps up: one for each failure, also at the longest delay.
    pub went_up: u64,
    /// Steps down.
    pub went_down: u64,
    /// Waits of more than 0 that were asked for.
    pub slept: u64,
    /// All these waits together.
    pub sleep_time: Duration,
    /// The delay before the next call.
    pub current_delay: Duration,
    /// Successes that count towards the next step down.
    pub successes: u32,
}

/// One delay that all callers of the same service share. It reads no clock and does not sleep: it returns how long to wait.
///
/// ```
/// use core::time::Duration;
/// use paceline_core::{Responsive, ResponsiveConfig, Rng};
///
/// let classic = ResponsiveConfig { initial: Duration::from_millis(1), randomization: 0.0, compat: true, ..Default::default() };
/// let (mut delay, mut rng) = (Responsive::new(classic)?, Rng::new(1));
/// assert_eq!(delay.on_success(&mut rng), Duration::ZERO);
/// assert_eq!(delay.on_failure(None, &mut rng), Duration::from_millis(1));
/// assert_eq!(delay.on_failure(None, &mut rng), Duration::from_micros(1_500));
/// assert_eq!(delay.on_failure(Some(Duration::from_secs(2)), &mut rng), Duration::from_secs(2));
/// assert_eq!(delay.counters().current_delay, Duration::from_micros(2_250));
/// # Ok::<(), paceline_core::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Responsive {
    knobs: Knobs,
    law: Law,
    counters: ResponsiveCounters,
}

#[derive(Clone, Debug)]
enum Law {
    Classic(Classic),
    Search(Search),
}

impl Responsive {
    /// A new delay of 0.
    ///
    /// # Errors
    /// The first invalid setting, with its value and what was expected.
    pub fn new(config: ResponsiveConfig) -> Result<Self, ConfigError> {
        check(&config)?;
        let law = if config.compat { Law::Classic(Classic::default()) } else { Law::Search(Search::default()) };
        Ok(Self { knobs: Knobs::new(&config), law, counters: ResponsiveCounters::default() })
    }

    /// A call failed: goes up, and returns how long to wait before the next call. `hint` is the wait that the server
    /// asked for: the result is no shorter, and the delay itself is not changed by it.
    pub fn on_failure(&mut self, hint: Option<Duration>, rng: &mut Rng) -> Duration {
        match &mut self.law {
            Law::Classic(classic) => classic.fail(&self.knobs, rng),
            Law::Search(search) => search.fail(&self.knobs, rng),
        }
        self.counters.went_up += 1;
        self.wait(hint.unwrap_or_default())
    }

    /// A call succeeded: goes down after enough successes, and returns how long to wait before the next call.
    pub fn on_success(&mut self, rng: &mut Rng) -> Duration {
        let went_down = match &mut self.law {
            Law::Classic(classic) => classic.succeed(&self.knobs, rng),
            Law::Search(search) => search.succeed(&self.knobs, rng),
        };
        self.counters.went_down += u64::from(went_down);
        self.wait(Duration::ZERO)
    }

    /// No call was made for so long, the delay itself not included. Acts only with
    /// [`idle_half_life`](ResponsiveConfig::idle_half_life): the delay is halved for each whole half-life.
    pub fn idle(&mut self, elapsed: Duration) {
        let Some(half_life) = self.knobs.idle_half_life else { return };
        let halvings = nanos(elapsed) / half_life;
        if halvings > 0
            && let Law::Search(search) = &mut self.law
        {
            search.decay(&self.knobs, halvings);
        }
    }

    /// The delay before the next call.
    pub const fn current_delay(&self) -> Duration {
        Duration::from_nanos(match &self.law {
            Law::Classic(classic) => classic.current,
            Law::Search(search) => search.current,
        })
    }

    /// The counters so far.
    pub const fn counters(&self) -> ResponsiveCounters {
        let successes = match &self.law {
            Law::Classic(classic) => classic.successes,
            Law::Search(search) => search.successes,
        };
        ResponsiveCounters { current_delay: self.current_delay(), successes, ..self.counters }
    }

    /// Counts the invocation and its wait.
    fn wait(&mut self, least: Duration) -> Duration {
        let wait = self.current_delay().max(least);
        let counters = &mut self.counters;
        counters.invocations += 1;
        counters.slept += u64::from(!wait.is_zero());
        counters.sleep_time = counters.sleep_time.saturating_add(wait);
        wait
    }
}

/// The next delay of linear growth, `min(current + interval, max)`: 1, 2, 3, 4, 5 s from 0 with an interval of 1 s.
pub fn linear_delay(current: Duration, interval: Duration, max: Duration) -> Duration {
    current.saturating_add(interval).min(max)
}

/// The next delay of exponential growth, `min(current * multiplier, max)`, and `initial` after 0: 1, 2, 4, 8, 16 s from 0
/// with 1 s and 2. The multiplier is a finite number of at least 1. Parts of a nanosecond are dropped.
pub fn exponential_delay(current: Duration, initial: Duration, multiplier: f64, max: Duration) -> Duration {
    let next = match current.is_zero() {
        true => initial,
        false => Duration::from_nanos((nanos(current) as f64 * multiplier) as u64),
    };
    next.min(max)
}

/// The configuration in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Knobs {
    initial: u64,
    max: u64,
    min: u64,
    max_randomization: u64,
    idle_half_life: Option<u64>,
    up: f64,
    down: f64,
    randomization: f64,
    threshold: u32,
}

impl Knobs {
    fn new(config: &ResponsiveConfig) -> Self {
        let initial = nanos(config.initial);
        Self {
            initial,
            max: nanos(config.max),
            min: nanos(config.min_delay).min(initial),
            max_randomization: nanos(config.max_randomization),
            idle_half_life: config.idle_half_life.map(nanos),
            up: config.up,
            down: config.down,
            randomization: config.randomization,
            threshold: config.threshold,
        }
    }

    /// How far randomness may move `x`.
    fn spread(&self, x: u64) -> u64 {
        ((x as f64 * self.randomization) as u64).min(self.max_randomization)
    }

    /// Uniform in [x - d, x + d), or `x` where d is 0.
    fn jitter(&self, x: u64, rng: &mut Rng) -> u64 {
        let spread = self.spread(x);
        x - spread + below(2 * spread, rng)
    }
}

/// Uniform in [0, bound), or 0 where that is empty.
fn below(bound: u64, rng: &mut Rng) -> u64 {
    if bound == 0 { 0 } else { (rng.unit() * bound as f64) as u64 }
}

/// Larger factors are a jump to the longest delay.
const LARGEST_UP: f64 = 1_000.0;

fn check(config: &ResponsiveConfig) -> Result<(), ConfigError> {
    let wrong =
        |key: &str, value: String, expected| Err(ConfigError { key: format!("responsive.{key}"), value, expected });
    let length = |length: Duration| format!("{length:?}");
    if config.initial.is_zero() || config.initial > config.max {
        return wrong("initial", length(config.initial), "more than 0 and at most responsive.max");
    }
    if config.max > LONGEST_DURATION {
        return wrong("max", length(config.max), "at most 366 days");
    }
    if !(config.up > 1.0 && config.up <= LARGEST_UP) {
        return wrong("up", format!("{}", config.up), "a number above 1 and at most 1000");
    }
    if !(config.down > 0.0 && config.down < 1.0) {
        return wrong("down", format!("{}", config.down), "a number above 0 and below 1");
    }
    if !(0.0..1.0).contains(&config.randomization) {
        return wrong("randomization", format!("{}", config.randomization), "a number of at least 0 and below 1");
    }
    if config.threshold < 1 {
        return wrong("threshold", format!("{}", config.threshold), "at least 1");
    }
    match config.idle_half_life {
        Some(half_life) if half_life.is_zero() => wrong("idle_half_life", length(half_life), "more than 0"),
        Some(half_life) if config.compat => {
            wrong("idle_half_life", length(half_life), "nothing: the classic rule has no idle decay")
        }
        _ => Ok(()),
    }
}
