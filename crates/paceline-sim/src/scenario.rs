//! Scenarios: a provider and a job for it, as a TOML file. Times are texts such as `"200ms"`, `"5s"` and `"15m"`, or
//! numbers of seconds; all but `name`, `items` and `service` may be left out.
//!
//! ```toml
//! name = "mine"
//! about = "What stands beside it in a list"
//! items = 2_000
//! service = "llm"                       # or "fast", or { p50 = "800ms", p99 = "8s", cap = "1m" }: lognormal
//! cost = { p50 = 800, p99 = 4_000, second_half = 1.0, exact = false }   # tokens
//! fault = 0.005                         # share of the admitted calls that fail
//! concurrency = 40                      # calls in service; one more is throttled
//! overload = { capacity = 48, queue = 2.0, degrade = 0.15 }
//! tenants = { base = 20, burst = 20, on = "30s", period = "90s" }   # strangers: calls per second
//! duty = { on = "20s", off = "20s" }    # when there is anything to do
//! net = "50ms"                          # both ways together; 1 ms when the median service time is below 50 ms
//! refuse = "40ms"                       # mean time to a refusal; likewise
//! workers = [{ at = 0, count = 50 }, { at = "1m", count = 20 }]   # calls under way at once of a client; else 512
//! until = "10m"                         # when all clients stop, whatever is left of the items
//!
//! [[limit]]                             # all of them hold
//! shape = "bucket"                      # "fixed" (with phase = "7s", or weighs = true), "sliding" (with counts_refused = true)
//! counts = "requests"                   # or "tokens"
//! limit = 50
//! per = "1s"
//! burst = 50                            # default: the limit
//!
//! [[chance]]                            # calls that are turned away whatever the limits say
//! status = 503                          # or 429, 529
//! share = 0.02                          # of the calls
//! first = 0                             # so many first calls for certain
//! wait = "3s"                           # what such an answer asks for; else nothing
//! from = "1m"                           # and until = "65s": else always
//!
//! [schedule]                            # multiplies rates, window limits and the concurrency cap
//! steps = [{ at = "4m", factor = 2.0 }] # or sine = { amplitude = 0.5, period = "3m" }
//! brownout = false                      # refusals at factors below 1 say that the service is overloaded
//! ```
//!
//! Instead of steps, a capacity may follow the demand: `scales = { factor = 4, after = "60s", below = 0.5, back = "60s" }`
//! grows to four times the limits once calls were refused for a minute (ten seconds in a row without a refusal begin it
//! anew), and shrinks once for a minute every second used less than half of that. Its oracle meets the capacity that the
//! policy got.

use std::time::Duration;

use paceline_core::{Cost, Dimension, Instant, Quota, QuotaShape, Rng, parse_duration};
use paceline_model::{
    Latency, ModelLimit, Overload, ProviderConfig, ProviderError, Schedule, Step, Tenants, lognormal,
};
use serde::Deserialize;

mod builtin;
mod draw;
mod file;
mod noise;
mod random;

/// A provider and a job for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name in tables.
    pub name: String,
    /// A short description.
    pub about: String,
    /// Calls that have to succeed.
    pub items: u32,
    /// Who answers them.
    pub provider: ProviderConfig,
    /// What calls cost in tokens. Default: nothing.
    pub cost: Option<CostOf>,
    /// When there is anything to do. Default: always.
    pub duty: Option<Duty>,
    /// How many workers a client has, in ascending order of time from 0 on; each has one call under way at once.
    /// Empty: always 512.
    pub workers: Vec<Workers>,
    /// When all clients stop, whatever is left of the items. Default: when all items have ended, or the run is cut off.
    pub until: Option<Duration>,
    /// The mean time of both ways between client and provider.
    pub net: Duration,
    /// The mean time that the provider takes to refuse a call.
    pub refuse: Duration,
}

/// What calls cost: lognormal, at least 1, at most four times the 99th percentile.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostOf {
    /// Half of the calls cost less.
    pub p50: f64,
    /// Ninety-nine of a hundred calls cost less.
    pub p99: f64,
    /// What the second half of the items costs more than the first. Default 1.
    #[serde(default = "one")]
    pub second_half: f64,
    /// Whether the client knows the cost beforehand. Default: it is wrong by 30 %.
    #[serde(default)]
    pub exact: bool,
}

/// Calls are only made in the first `on` of each `on + off`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Duty {
    /// More than zero.
    pub on: Duration,
    /// The pause after it.
    pub off: Duration,
}

/// From `at` on a client has so many workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workers {
    /// Since the origin of time.
    pub at: Duration,
    /// Calls that it can have under way at once.
    pub count: u32,
}

/// A call that has to succeed.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// How long the provider works on it.
    pub service: Duration,
    /// What it costs.
    pub cost: Cost,
    /// What the client believes that it costs.
    pub estimate: Cost,
}

/// Why a scenario is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// No built-in scenario of that name.
    #[error("there is no scenario named {0:?}; `paceline sim list` names them all")]
    Unknown(String),
    /// The file does not have the form of a scenario.
    #[error("{0}")]
    Form(String),
    /// A value that makes no sense.
    #[error("{key} is {value}, expected {expected}")]
    Value {
        /// Where it stands.
        key: String,
        /// What it is.
        value: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// The provider as a whole makes no sense.
    #[error(transparent)]
    Provider(#[from] ProviderError),
}

impl Scenario {
    /// Calls of one client under way at once, where nothing is said about workers.
    const IN_FLIGHT: u32 = 512;

    /// Reads a scenario's file.
    ///
    /// # Errors
    /// Key, value and what was expected.
    pub fn from_toml(text: &str) -> Result<Self, ScenarioError> {
        file::read(text)
    }

    /// A job for a provider that is no way off and refuses at once, whose items cost so many tokens each.
    pub fn exact(items: u32, provider: ProviderConfig, tokens: u64) -> Self {
        let each = tokens as f64;
        let cost = CostOf { p50: each, p99: each, second_half: 1.0, exact: true };
        Self {
            name: "exact".to_owned(),
            about: "the provider that is configured".to_owned(),
            items,
            provider,
            cost: (tokens > 0).then_some(cost),
            duty: None,
            workers: Vec::new(),
            until: None,
            net: Duration::ZERO,
            refuse: Duration::ZERO,
        }
    }

    /// The built-in scenario of that name; `random-17` is one whose provider is drawn from the seed 17.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(name: &str) -> Result<Self, ScenarioError> {
        builtin::named(name)
    }

    /// The names of the long built-in scenarios, by which controllers are judged.
    pub fn development() -> impl Iterator<Item = &'static str> {
        builtin::DEVELOPMENT.iter().map(|(name, _)| *name)
    }

    /// The names of the short built-in jobs, in which the start decides.
    pub fn short_jobs() -> impl Iterator<Item = &'static str> {
        builtin::SHORT.iter().map(|(name, _)| *name)
    }

    /// The names of the built-in scenarios that ask one question each: a large step, a cold start at a small cap.
    pub fn questions() -> impl Iterator<Item = &'static str> {
        builtin::QUESTIONS.iter().map(|(name, _)| *name)
    }

    /// The names of the built-in scenarios that show one thing, such as a table whose capacity scales.
    pub fn shown() -> impl Iterator<Item = &'static str> {
        builtin::SHOWN.iter().map(|(name, _)| *name)
    }

    /// The same provider with so many items at most.
    #[must_use]
    pub fn with_at_most(mut self, items: u32) -> Self {
        self.items = self.items.min(items);
        self
    }

    /// Workers of a client at that time.
    pub fn workers(&self, now: Instant) -> u32 {
        let step = self.workers.iter().rev().find(|step| Instant::ZERO + step.at <= now);
        step.map_or(Self::IN_FLIGHT, |step| step.count)
    }

    /// The most workers that a client ever has.
    pub fn most_workers(&self) -> u32 {
        self.workers.iter().map(|step| step.count).max().unwrap_or(Self::IN_FLIGHT)
    }

    /// Its items, the same for the same seed.
    pub fn draw_items(&self, seed: u64) -> Vec<Item> {
        let mut seeds = Rng::new(seed);
        let mut streams = [(); 3].map(|()| Rng::new(seeds.next_u64()));
        let [latencies, costs, errors] = &mut streams;
        let draw = |index| {
            let service = self.provider.latency.draw(latencies);
            let (cost, estimate) = self.cost.map_or((0, 0), |cost| cost.draw(index >= self.items / 2, costs, errors));
            let with = |tokens| Cost::request().with(Dimension::Tokens, tokens);
            Item { service, cost: with(cost), estimate: with(estimate) }
        };
        (0..self.items).map(draw).collect()
    }

    /// The mean cost of a call in tokens; 1 where calls cost nothing.
    pub fn mean_cost(&self) -> f64 {
        self.cost.map_or(1.0, |cost| {
            let sigma = cost.sigma();
            cost.p50 * libm::exp(sigma * sigma / 2.0) * (1.0 + cost.second_half) / 2.0
        })
    }

    /// The rate that a user would configure who has read the provider's documentation, in calls per second: before
    /// any schedule, without what strangers take.
    pub fn nominal_rate(&self) -> f64 {
        self.rate_at(1.0)
    }

    /// Calls per second that the provider sustains at an instant: the same under its schedule, or under the one that it
    /// made by itself, and no less than none.
    pub fn capacity(&self, schedule: &Schedule, now: Instant) -> f64 {
        self.rate_at(schedule.factor(now)).max(0.0)
    }

    /// The rate when the schedule multiplies limits and places with `factor`.
    fn rate_at(&self, factor: f64) -> f64 {
        let provider = &self.provider;
        let rates = provider.limits.iter().map(|limit| {
            let rate = factor * limit.quota.limit as f64 / limit.quota.window.as_secs_f64();
            if limit.quota.dimension == Dimension::Requests { rate } else { rate / self.mean_cost() }
        });
        let capped = provider.concurrency.map(|cap| factor * f64::from(cap));
        let places = capped.into_iter().chain(provider.overload.map(|overload| f64::from(overload.capacity)));
        let places = places.map(|places| places / provider.latency.mean().as_secs_f64());
        let strangers = provider.tenants.map_or(0.0, |tenants| tenants.mean());
        rates.chain(places).fold(f64::INFINITY, f64::min) - strangers
    }
}

impl CostOf {
    fn sigma(&self) -> f64 {
        lognormal::sigma(self.p50, self.p99)
    }

    /// The cost and its estimate.
    fn draw(&self, second_half: bool, costs: &mut Rng, errors: &mut Rng) -> (u64, u64) {
        let z = lognormal::normal(costs.unit(), costs.unit());
        let drawn = (self.p50 * libm::exp(self.sigma() * z)).min(4.0 * self.p99);
        let cost = libm::round(drawn * if second_half { self.second_half } else { 1.0 }).max(1.0);
        let error = libm::exp(0.3 * lognormal::normal(errors.unit(), errors.unit()) - 0.045);
        let estimate = if self.exact { cost } else { libm::round(cost * error).max(1.0) };
        (cost as u64, estimate as u64)
    }
}

impl Duty {
    /// When calls may be made: now, or at the start of the next cycle.
    pub fn opens(&self, now: Instant) -> Instant {
        let cycle = u64::try_from((self.on + self.off).as_nanos()).unwrap_or(u64::MAX);
        let phase = now.as_nanos() % cycle;
        if u128::from(phase) < self.on.as_nanos() { now } else { Instant::from_nanos(now.as_nanos() - phase + cycle) }
    }
}

const fn one() -> f64 {
    1.0
}

#[cfg(test)]
mod tests;
