//! A provider: several limiters, a place for so many calls, and a service that takes its time and sometimes fails.

use std::time::Duration;

use paceline_core::{Cost, Dimension, Instant, Rng, Shape};

use crate::latency::Latency;
use crate::limiter::{Limit, LimitState, Limiter};
use crate::schedule::Schedule;
use crate::sharing::{Overload, Service, Sharing};
use crate::tenants::{Strangers, Tenants};

/// What a provider is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct ProviderConfig {
    /// All must admit a call; one that any of them refuses consumes in none. Default: none.
    pub limits: Vec<Limit>,
    /// The most calls in service; one more is throttled. Default: no such cap.
    pub concurrency: Option<u32>,
    /// A capacity beyond which the service slows down and then refuses. Default: endless capacity.
    pub overload: Option<Overload>,
    /// How long calls take. Default: uniform from 50 to 500 ms.
    pub latency: Latency,
    /// The probability that an admitted call fails after half of its service time, 0 to 1. Default 0.
    pub fault: f64,
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
            schedule: Schedule::Constant,
            tenants: None,
        }
    }
}

/// The answer to a call that arrives.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// It is in service until [`Provider::finish`]; [`Provider::due`] says when that is.
    Admitted(Service),
    /// It was turned away and used nothing.
    Refused(Refusal),
}

/// Why a call was turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What stood in its way.
    pub cause: Cause,
    /// Time until every limiter would admit this call if no other came and the rates stayed. None where only other calls'
    /// ends, or nothing at all, can make room.
    pub wait: Option<Duration>,
}

/// What stands in a call's way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A limiter, the one with the longest wait; the call may come again.
    Limit {
        /// What the limiter holds.
        state: LimitState,
        /// What the call wanted of it.
        requested: u64,
    },
    /// The call wants more than a limiter ever holds.
    TooLarge {
        /// What the limiter holds.
        state: LimitState,
        /// What the call wanted of it.
        requested: u64,
    },
    /// Too many calls in service.
    Concurrency {
        /// The cap.
        cap: u32,
    },
    /// The service is out of capacity; in a brownout a limiter stands behind it and knows the wait.
    Overloaded,
}

/// Why a provider cannot be made.
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
    /// Steps out of order, factors below 0, an amplitude beyond 1 or a period of zero.
    #[error("schedule: steps in ascending order with factors of at least 0, or an amplitude from 0 to 1 and a period")]
    Schedule,
    /// Rates below 0, a period of zero or a busy time longer than it.
    #[error("tenants: rates of at least 0, and a busy time of at most the period")]
    Tenants,
}

/// A provider and its present state. The same calls at the same times get the same answers from the same seed.
#[derive(Clone, Debug)]
pub struct Provider {
    limiters: Vec<Limiter>,
    concurrency: Option<u32>,
    sharing: Sharing,
    latency: Latency,
    fault: f64,
    schedule: Schedule,
    strangers: Option<Strangers>,
    now: Instant,
    latencies: Rng,
    faults: Rng,
}

impl Provider {
    /// A provider that has seen no call.
    ///
    /// # Errors
    /// Names the part of the configuration that makes no sense.
    pub fn new(config: ProviderConfig, seed: u64) -> Result<Self, ProviderError> {
        config.check()?;
        // Streams of their own: another fault rate must not change the latencies.
        let mut seeds = Rng::new(seed);
        let (latencies, faults) = (Rng::new(seeds.next_u64()), Rng::new(seeds.next_u64()));
        Ok(Self {
            limiters: config.limits.into_iter().map(Limiter::new).collect(),
            concurrency: config.concurrency,
            sharing: Sharing::new(config.overload),
            latency: config.latency,
            fault: config.fault,
            schedule: config.schedule,
            strangers: config.tenants.map(|tenants| Strangers::new(tenants, seeds.next_u64())),
            now: Instant::ZERO,
            latencies,
            faults,
        })
    }

    /// Decides on a call whose service time is drawn if it is admitted; then it is in service until
    /// [`Provider::finish`] is called for it.
    pub fn arrive(&mut self, now: Instant, cost: &Cost) -> Decision {
        self.decide(now, cost, None)
    }

    /// The same for a call that brings its service time along.
    pub fn arrive_with(&mut self, now: Instant, cost: &Cost, service: Duration) -> Decision {
        self.decide(now, cost, Some(service))
    }

    fn decide(&mut self, now: Instant, cost: &Cost, service: Option<Duration>) -> Decision {
        let now = self.advance(now);
        if let Some(cause) = self.obstacle(now, cost) {
            for limiter in &mut self.limiters {
                limiter.refuse(now, cost.get(limiter.dimension()));
            }
            return Decision::Refused(self.refusal(now, cost, cause));
        }
        for limiter in &mut self.limiters {
            limiter.take(now, cost.get(limiter.dimension()));
        }
        let work = service.unwrap_or_else(|| self.latency.draw(&mut self.latencies));
        let fault = self.faults.unit() < self.fault;
        Decision::Admitted(self.sharing.begin(if fault { work / 2 } else { work }, fault))
    }

    fn refusal(&self, now: Instant, cost: &Cost, cause: Cause) -> Refusal {
        match cause {
            Cause::Limit { .. } => {
                let wait = self.longest_wait(now, cost).map(|(wait, _)| wait);
                let cause = if self.schedule.browns_out(now) { Cause::Overloaded } else { cause };
                Refusal { cause, wait }
            }
            Cause::TooLarge { .. } | Cause::Concurrency { .. } | Cause::Overloaded => Refusal { cause, wait: None },
        }
    }

    /// When that share of an admitted call's work, 0 to 1, is done, as far as can be known now: calls that come or go
    /// change it where they slow each other down.
    pub fn due(&self, service: &Service, share: f64) -> Instant {
        self.sharing.due(service, share)
    }

    /// Whether calls slow each other down, so that [`Provider::due`] changes when one comes or goes.
    pub const fn is_shared(&self) -> bool {
        self.sharing.is_shared()
    }

    /// Ends the service of an admitted call, whether it was answered, failed or was given up.
    pub fn finish(&mut self, now: Instant) {
        self.advance(now);
        self.sharing.finish();
    }

    /// What headers could say now, one entry a limit in the order of the configuration.
    pub fn states(&mut self, now: Instant) -> Vec<LimitState> {
        let now = self.advance(now);
        self.limiters.iter().map(|limiter| limiter.state(now)).collect()
    }

    /// Calls in service.
    pub const fn in_service(&self) -> u32 {
        self.sharing.calls()
    }

    /// A clock that goes backwards stands still.
    fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
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

    /// What stands in the way of a call. Rate limits are looked at first, as by a gateway in front of the service.
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
    pub(crate) fn check(&self) -> Result<(), ProviderError> {
        for Limit { quota, .. } in &self.limits {
            if quota.limit == 0 || quota.window.is_zero() || quota.shape == (Shape::Bucket { burst: 0 }) {
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
        if !self.schedule.is_sound() {
            return Err(ProviderError::Schedule);
        }
        if !self.tenants.is_none_or(|tenants| tenants.is_sound()) {
            return Err(ProviderError::Tenants);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Step;
    use paceline_core::Quota;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn quota(dimension: Dimension, limit: u64, shape: Shape) -> Limit {
        Quota { dimension, limit, window: 60_000 * MS, shape }.into()
    }

    fn provider(config: ProviderConfig) -> Provider {
        Provider::new(config, 7).expect("a sound configuration")
    }

    fn cost(tokens: u64) -> Cost {
        Cost::request().with(Dimension::Tokens, tokens)
    }

    fn shapes() -> impl Strategy<Value = Shape> {
        prop_oneof![Just(Shape::Sliding), Just(Shape::Fixed), (1u64..20).prop_map(|burst| Shape::Bucket { burst })]
    }

    proptest! {
        /// A provider that never saw the calls which another one refused goes on exactly like it.
        #[test]
        fn a_refusal_consumes_nothing(
            requests in shapes(), tokens in shapes(), cap in 1u32..4, fault in 0.0f64..1.0,
            calls in prop::collection::vec((0u32..8_000, 0u64..15, any::<bool>()), 1..150),
        ) {
            let limits =
                vec![quota(Dimension::Requests, 12, requests), quota(Dimension::Tokens, 60, tokens)];
            let mut hit = provider(ProviderConfig { limits, concurrency: Some(cap), fault, ..Default::default() });
            let mut spared = hit.clone();
            let mut now = Instant::ZERO;
            for (gap, tokens, finish) in calls {
                now += MS * gap;
                if finish && hit.in_service() > 0 {
                    hit.finish(now);
                    spared.finish(now);
                }
                let before = hit.states(now);
                match hit.arrive(now, &cost(tokens)) {
                    Decision::Refused(_) => prop_assert_eq!(before, hit.states(now)),
                    admitted => prop_assert_eq!(admitted, spared.arrive(now, &cost(tokens))),
                }
            }
            prop_assert!(hit.in_service() <= cap);
        }
    }

    #[test]
    fn the_limit_with_the_longest_wait_is_named_and_its_wait_is_enough_for_all() {
        let limits = vec![
            quota(Dimension::Requests, 60, Shape::Bucket { burst: 1 }),
            quota(Dimension::Tokens, 600, Shape::Bucket { burst: 100 }),
        ];
        let mut provider = provider(ProviderConfig { limits, ..Default::default() });
        assert!(matches!(provider.arrive(Instant::ZERO, &cost(100)), Decision::Admitted(_)));
        let Decision::Refused(Refusal { cause: Cause::Limit { state, requested }, wait }) =
            provider.arrive(Instant::ZERO, &cost(50))
        else {
            panic!("admitted beyond both limits");
        };
        assert_eq!((state.dimension, state.remaining, requested), (Dimension::Tokens, 0, 50));
        assert_eq!(wait, Some(5_000 * MS));
        let later = Instant::ZERO + 5_000 * MS;
        assert!(matches!(provider.arrive(later, &cost(50)), Decision::Admitted(_)));
        let Decision::Refused(refusal) = provider.arrive(later, &cost(101)) else { panic!("101 never fit") };
        assert!(matches!(refusal, Refusal { cause: Cause::TooLarge { requested: 101, .. }, wait: None }));
    }

    #[test]
    fn places_are_freed_by_the_end_of_calls() {
        let mut capped = provider(ProviderConfig { concurrency: Some(2), ..Default::default() });
        for _ in 0..2 {
            assert!(matches!(capped.arrive(Instant::ZERO, &cost(0)), Decision::Admitted(_)));
        }
        let full = Decision::Refused(Refusal { cause: Cause::Concurrency { cap: 2 }, wait: None });
        assert_eq!(capped.arrive(Instant::ZERO, &cost(0)), full);
        capped.finish(Instant::ZERO);
        assert!(matches!(capped.arrive(Instant::ZERO, &cost(0)), Decision::Admitted(_)));
    }

    #[test]
    fn beyond_its_capacity_a_service_slows_down_and_then_refuses() {
        let latency = Latency::Uniform { low: 100 * MS, high: 100 * MS };
        let mut busy = provider(ProviderConfig { overload: Some(Overload::of(4)), latency, ..Default::default() });
        let mut services = Vec::new();
        let last = loop {
            match busy.arrive(Instant::ZERO, &cost(0)) {
                Decision::Admitted(service) => services.push((busy.due(&service, 1.0), service)),
                Decision::Refused(refusal) => break refusal,
            }
        };
        assert_eq!(last, Refusal { cause: Cause::Overloaded, wait: None });
        assert_eq!(services.len(), 8);
        let alone = Instant::ZERO + 101 * MS;
        assert!(services[..4].iter().all(|(due, _)| *due < alone) && services[4].0 > alone);
        // Twice the capacity at 85 % of the throughput: all of them, the first included, take 2 / 0.85 times as long.
        assert!(services.iter().all(|(_, service)| busy.due(service, 1.0) > Instant::ZERO + 235 * MS));
    }

    #[test]
    fn strangers_use_up_what_the_schedule_leaves() {
        let step = |seconds: u64, factor| Step { at: Duration::from_secs(seconds), factor };
        let schedule = Schedule::Steps { steps: vec![step(100, 0.1), step(200, 1.0)], brownout: true };
        let tenants = Tenants { base: 30.0, burst: 0.0, on: MS, period: MS };
        let limits = vec![quota(Dimension::Requests, 3_000, Shape::Bucket { burst: 50 })];
        let mut shared = provider(ProviderConfig { limits, schedule, tenants: Some(tenants), ..Default::default() });
        let mut admitted = [0; 3];
        // 9.9 ms: in step with the refill we would take every unit before a stranger can.
        for tick in 0..30_300u32 {
            let now = Instant::ZERO + Duration::from_micros(9_900) * tick;
            match shared.arrive(now, &cost(0)) {
                Decision::Admitted(_) => {
                    admitted[usize::try_from(now.as_nanos() / 100_000_000_000).expect("0 to 2")] += 1
                }
                Decision::Refused(refusal) => {
                    let expected = (100..200).contains(&(now.as_nanos() / 1_000_000_000));
                    assert_eq!(refusal.cause == Cause::Overloaded, expected, "at {now}");
                    assert!(refusal.wait.is_some());
                }
            }
        }
        // 50 a second, five in the brownout, which strangers and we share by who comes first.
        assert!((4_000..4_700).contains(&admitted[0]) && (4_000..4_700).contains(&admitted[2]), "{admitted:?}");
        assert!((380..480).contains(&admitted[1]), "{admitted:?}");
    }

    #[test]
    fn faults_come_as_often_as_told_after_half_the_time() {
        let latency = Latency::Uniform { low: 100 * MS, high: 100 * MS };
        let mut faulty = provider(ProviderConfig { fault: 0.1, latency, ..Default::default() });
        let mut faults = 0;
        for _ in 0..10_000 {
            match faulty.arrive(Instant::ZERO, &cost(0)) {
                Decision::Admitted(service) => {
                    assert_eq!(service.work, if service.fault { 50 * MS } else { 100 * MS });
                    faults += u32::from(service.fault);
                }
                Decision::Refused(refusal) => panic!("{refusal:?}"),
            }
        }
        assert!((900..1_100).contains(&faults), "{faults}");
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |config| Provider::new(config, 0).err();
        let limits = vec![quota(Dimension::Tokens, 60, Shape::Bucket { burst: 0 })];
        assert_eq!(
            error(ProviderConfig { limits, ..Default::default() }),
            Some(ProviderError::Limit(Dimension::Tokens))
        );
        let overload = Some(Overload { queue: f64::NAN, ..Overload::of(4) });
        assert_eq!(error(ProviderConfig { overload, ..Default::default() }), Some(ProviderError::Capacity));
        let latency = Latency::Uniform { low: 2 * MS, high: MS };
        assert_eq!(error(ProviderConfig { latency, ..Default::default() }), Some(ProviderError::Latency));
        for fault in [-0.1, 1.1, f64::NAN] {
            assert_eq!(error(ProviderConfig { fault, ..Default::default() }), Some(ProviderError::Fault));
        }
    }
}
