//! A provider: several limiters, a place for so many calls, and a service that takes its time and sometimes fails.

use std::time::Duration;

use paceline_core::{Cost, Dimension, Instant, Quota, QuotaShape, Rng};

use crate::chance::{Chance, Dice};
use crate::latency::Latency;
use crate::limiter::{LimitState, Limiter, ModelLimit};
use crate::scaling::Scaler;
use crate::schedule::Schedule;
use crate::sharing::{Overload, Service, Sharing};
use crate::tenants::{Strangers, Tenants};

/// The configuration of a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderConfig {
    /// All must admit a call; one that any of them refuses consumes in none. Default: none.
    pub limits: Vec<ModelLimit>,
    /// The most calls in service; one more is throttled. Default: no such cap.
    pub concurrency: Option<u32>,
    /// A capacity beyond which the service slows down and then refuses. Default: endless capacity.
    pub overload: Option<Overload>,
    /// How long calls take. Default: uniform from 50 to 500 ms.
    pub latency: Latency,
    /// The probability that an admitted call fails after half of its service time, 0 to 1. Default 0.
    pub fault: f64,
    /// Random refusals, decided before anything else. The first that strikes answers. Default: none.
    pub chances: Vec<Chance>,
    /// How limits and the concurrency cap change with time. Default: never.
    pub schedule: Schedule,
    /// Strangers on the same limits; each admitted call of theirs takes one request. Default: none.
    pub tenants: Option<Tenants>,
}

impl Default for ProviderConfig {
    fn default() -> Self {
        let latency = Latency::Uniform { low: Duration::from_millis(50), high: Duration::from_millis(500) };
        Self {
            limits: Vec::new(),
            concurrency: None,
            overload: None,
            latency,
            fault: 0.0,
            chances: Vec::new(),
            schedule: Schedule::Constant,
            tenants: None,
        }
    }
}

/// A provider with that one limit.
impl From<Quota> for ProviderConfig {
    fn from(limit: Quota) -> Self {
        Self { limits: vec![limit.into()], ..Self::default() }
    }
}

/// The answer to a call that arrives.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// It is in service until [`ProviderModel::finish`]; [`ProviderModel::due`] says when that is.
    Admitted(Service),
    /// It was refused and used nothing.
    Refused(Refusal),
}

/// Why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The cause.
    pub cause: Cause,
    /// Time until every limiter would admit this call if no other came and the rates stayed. None where only other calls'
    /// ends, or nothing at all, can make room.
    pub wait: Option<Duration>,
}

/// The cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A limiter, the one with the longest wait; the call may come again.
    Limit {
        /// The capacity of the limiter.
        state: LimitState,
        /// What the call needed of it.
        requested: u64,
    },
    /// The call needs more than the capacity of a limiter.
    TooLarge {
        /// The capacity of the limiter.
        state: LimitState,
        /// What the call needed of it.
        requested: u64,
    },
    /// Too many calls in service.
    Concurrency {
        /// The cap.
        cap: u32,
    },
    /// The service is out of capacity; in a brownout a limiter stands behind it and knows the wait.
    Overloaded,
    /// A random refusal, independent of any limit. Its wait, if any, is sent whatever the provider's hints are.
    Chance {
        /// 429, 503 or 529.
        status: u16,
    },
}

/// Why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// A limit, window or burst of zero.
    #[error("a limit on {0}: limit, window and burst must be more than 0")]
    Limit(Dimension),
    /// A concurrency cap or capacity of zero, a queue below 1 or a negative degradation.
    #[error(
        "concurrency and overload capacity must be at least 1, the queue at least 1 and the degradation at least 0"
    )]
    Capacity,
    /// Bounds or quantiles in the wrong order, or a lognormal median of zero.
    #[error("latency: the bounds or quantiles must be in ascending order, and a lognormal median more than 0")]
    Latency,
    /// A probability outside [0, 1].
    #[error("fault: a probability from 0 to 1")]
    Fault,
    /// Another status, a probability outside [0, 1], or one of 1 without an end.
    #[error("chance: status 429, 503 or 529, a share from 0 to 1 (below 1 without `until`), and `from` before `until`")]
    Chance,
    /// Steps out of order, factors below 0, an amplitude beyond 1, a period of zero, or what scales without a limit.
    #[error(
        "schedule: steps in ascending order with factors from 0 to 1,000,000; or an amplitude from 0 to 1 and a period; or \
         scales beside a limit, with a factor above 1, after at least 6 s, below a share above 0 and at most 1, back \
         after at least 1 s"
    )]
    Schedule,
    /// Rates below 0, a period of zero or a busy time longer than it.
    #[error("tenants: rates of at least 0, and a busy time of at most the period")]
    Tenants,
    /// A call that would never be admitted: it costs more than a limit ever allows, or a limit becomes 0 for good.
    #[error(
        "the provider would admit nothing more for a week: does a call cost more than a limit, or a schedule end at 0?"
    )]
    Never,
}

/// A provider and its present state. The same calls at the same times get the same answers from the same seed.
#[derive(Clone, Debug)]
pub struct ProviderModel {
    limiters: Vec<Limiter>,
    concurrency: Option<u32>,
    sharing: Sharing,
    latency: Latency,
    fault: f64,
    dice: Dice,
    schedule: Schedule,
    scaler: Option<Scaler>,
    strangers: Option<Strangers>,
    now: Instant,
    latencies: Rng,
    faults: Rng,
}

impl ProviderModel {
    /// A provider that has seen no call.
    ///
    /// # Errors
    /// The part of the configuration that is invalid.
    pub fn new(config: ProviderConfig, seed: u64) -> Result<Self, ProviderError> {
        config.check()?;
        // Streams of their own: another fault rate must not change the latencies.
        let mut seeds = Rng::new(seed);
        let (latencies, faults) = (Rng::new(seeds.next_u64()), Rng::new(seeds.next_u64()));
        let (schedule, scaler) = match config.schedule {
            Schedule::Scales(scaling) => {
                (Schedule::Steps { steps: Vec::new(), brownout: false }, Some(Scaler::new(scaling)))
            }
            schedule => (schedule, None),
        };
        let strangers = config.tenants.map(|tenants| Strangers::new(tenants, seeds.next_u64()));
        Ok(Self {
            limiters: config.limits.into_iter().map(Limiter::new).collect(),
            concurrency: config.concurrency,
            sharing: Sharing::new(config.overload),
            latency: config.latency,
            fault: config.fault,
            dice: Dice::new(config.chances, seeds.next_u64()),
            schedule,
            scaler,
            strangers,
            now: Instant::ZERO,
            latencies,
            faults,
        })
    }

    /// Decides on a call whose service time is drawn if it is admitted; then it is in service until
    /// [`ProviderModel::finish`] is called for it.
    pub fn arrive(&mut self, now: Instant, cost: &Cost) -> Admission {
        self.decide(now, cost, None)
    }

    /// Decides on a call with a given service time.
    pub fn arrive_with(&mut self, now: Instant, cost: &Cost, service: Duration) -> Admission {
        self.decide(now, cost, Some(service))
    }

    fn decide(&mut self, now: Instant, cost: &Cost, service: Option<Duration>) -> Admission {
        let now = self.advance(now);
        if let Some(Chance { status, wait, .. }) = self.dice.roll(now) {
            return Admission::Refused(Refusal { cause: Cause::Chance { status }, wait });
        }
        if let Some(cause) = self.obstacle(now, cost) {
            for limiter in &mut self.limiters {
                limiter.refuse(now, cost.get(limiter.dimension()));
            }
            if let Some(scaler) = &mut self.scaler {
                scaler.refused();
            }
            return Admission::Refused(self.refusal(now, cost, cause));
        }
        for limiter in &mut self.limiters {
            limiter.take(now, cost.get(limiter.dimension()));
        }
        if let Some(scaler) = &mut self.scaler {
            let seconds = self.limiters.iter().map(|limiter| limiter.seconds(cost.get(limiter.dimension())));
            scaler.admitted(seconds.fold(0.0, f64::max));
        }
        let work = service.unwrap_or_else(|| self.latency.draw(&mut self.latencies));
        let fault = self.faults.unit() < self.fault;
        Admission::Admitted(self.sharing.begin(if fault { work / 2 } else { work }, fault))
    }

    fn refusal(&self, now: Instant, cost: &Cost, cause: Cause) -> Refusal {
        match cause {
            Cause::Limit { .. } => {
                let wait = self.longest_wait(now, cost).map(|(wait, _)| wait);
                let cause = if self.schedule.browns_out(now) { Cause::Overloaded } else { cause };
                Refusal { cause, wait }
            }
            Cause::TooLarge { .. } | Cause::Concurrency { .. } | Cause::Overloaded | Cause::Chance { .. } => {
                Refusal { cause, wait: None }
            }
        }
    }

    /// When that share of an admitted call's work, 0 to 1, is done, as far as can be known now: calls that come or go
    /// change it where they slow each other down.
    pub fn due(&self, service: &Service, share: f64) -> Instant {
        self.sharing.due(service, share)
    }

    /// Whether calls slow each other down, so that [`ProviderModel::due`] changes when one comes or goes.
    pub const fn is_shared(&self) -> bool {
        self.sharing.is_shared()
    }

    /// Ends the service of an admitted call, whether it was answered, failed or was given up.
    pub fn finish(&mut self, now: Instant) {
        self.advance(now);
        self.sharing.finish();
    }

    /// What headers could announce now, one entry a limit in the order of the configuration.
    pub fn states(&mut self, now: Instant) -> Vec<LimitState> {
        let now = self.advance(now);
        self.limiters.iter().map(|limiter| limiter.state(now)).collect()
    }

    /// How its limits change: as configured, or where they scale, as they did so far.
    pub const fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Calls in service.
    pub const fn in_service(&self) -> u32 {
        self.sharing.calls()
    }

    /// Calls that it serves at full speed at present.
    pub fn places(&self, now: Instant) -> u32 {
        self.cap(now).unwrap_or(u32::MAX).min(self.sharing.capacity())
    }

    /// Time until a call would be admitted that leaves strangers room: a quarter of a bucket, a fiftieth of a window.
    pub fn polite_wait(&mut self, now: Instant, cost: &Cost) -> Duration {
        let now = self.advance(now);
        let shared = self.strangers.is_some();
        let waits = self.limiters.iter().map(|limiter| {
            let units = cost.get(limiter.dimension());
            let reserve = if shared { limiter.reserve() } else { 0 };
            limiter.wait(now, (units + reserve).min(limiter.largest().max(units))).unwrap_or(Duration::MAX)
        });
        waits.max().unwrap_or_default()
    }

    /// A clock that goes backwards stands still.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        if let (Some(scaler), Schedule::Steps { steps, .. }) = (&mut self.scaler, &mut self.schedule) {
            steps.extend(std::iter::from_fn(|| scaler.advance(self.now)));
        }
        while let Some(at) = self.strangers.as_mut().and_then(|strangers| strangers.until(self.now)) {
            self.stranger(at);
        }
        for limiter in &mut self.limiters {
            limiter.advance(self.now, &self.schedule);
        }
        self.sharing.advance(self.now);
        self.now
    }

    /// A stranger's call uses one request where all limiters admit it, and takes no place in service.
    fn stranger(&mut self, at: Instant) {
        let units = |limiter: &Limiter| u64::from(*limiter.dimension() == Dimension::Requests);
        for limiter in &mut self.limiters {
            limiter.advance(at, &self.schedule);
        }
        if self.limiters.iter().all(|limiter| limiter.wait(at, units(limiter)) == Some(Duration::ZERO)) {
            for limiter in &mut self.limiters {
                limiter.take(at, units(limiter));
            }
        }
    }

    /// Why a call is refused, if it is. Rate limits are checked first, as by a gateway in front of the service.
    fn obstacle(&self, now: Instant, cost: &Cost) -> Option<Cause> {
        let requested = |limiter: &Limiter| cost.get(limiter.dimension());
        if let Some(limiter) = self.limiters.iter().find(|limiter| requested(limiter) > limiter.largest()) {
            return Some(Cause::TooLarge { state: limiter.state(now), requested: requested(limiter) });
        }
        if let Some((wait, limiter)) = self.longest_wait(now, cost)
            && !wait.is_zero()
        {
            return Some(Cause::Limit { state: limiter.state(now), requested: requested(limiter) });
        }
        if let Some(cap) = self.cap(now)
            && self.in_service() >= cap
        {
            return Some(Cause::Concurrency { cap });
        }
        self.sharing.is_full().then_some(Cause::Overloaded)
    }

    /// The most calls in service at present.
    fn cap(&self, now: Instant) -> Option<u32> {
        let cap = u64::from(self.concurrency?);
        Some(u32::try_from(self.schedule.scale(now, cap)).unwrap_or(u32::MAX))
    }

    fn longest_wait(&self, now: Instant, cost: &Cost) -> Option<(Duration, &Limiter)> {
        let waits = self.limiters.iter().filter_map(|limiter| {
            let wait = limiter.wait(now, cost.get(limiter.dimension()))?;
            Some((wait, limiter))
        });
        waits.max_by_key(|(wait, _)| *wait)
    }
}

impl ProviderConfig {
    /// Whether limits change with time, or strangers use them: then the wait for a call is not known beforehand.
    pub fn changes(&self) -> bool {
        self.schedule != Schedule::Constant || self.tenants.is_some()
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// The first figure that is invalid.
    pub fn check(&self) -> Result<(), ProviderError> {
        for ModelLimit { quota, .. } in &self.limits {
            if quota.limit == 0 || quota.window.is_zero() || quota.shape == (QuotaShape::Bucket { burst: 0 }) {
                return Err(ProviderError::Limit(quota.dimension.clone()));
            }
        }
        if self.concurrency == Some(0) || !self.overload.is_none_or(|overload| overload.is_sound()) {
            return Err(ProviderError::Capacity);
        }
        if !self.latency.is_sound() {
            return Err(ProviderError::Latency);
        }
        if !(0.0..=1.0).contains(&self.fault) {
            return Err(ProviderError::Fault);
        }
        if !self.chances.iter().all(Chance::is_sound) {
            return Err(ProviderError::Chance);
        }
        let scales = matches!(self.schedule, Schedule::Scales(_));
        if !self.schedule.is_sound() || scales && self.limits.is_empty() {
            return Err(ProviderError::Schedule);
        }
        if !self.tenants.is_none_or(|tenants| tenants.is_sound()) {
            return Err(ProviderError::Tenants);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
