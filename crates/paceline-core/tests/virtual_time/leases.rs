//! Calls that are promised together: never one too many, whatever comes between.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, Instant, Lease, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, QuotaShape,
    Request, Rng, ScopeId, Ticket,
};
use proptest::prelude::*;

const S: Duration = Duration::from_secs(1);
const US: Duration = Duration::from_micros(1);

/// The limits of the account, and of the scope below it.
fn limits() -> impl Strategy<Value = [Limits; 2]> {
    let quota = (1_u64..40, prop_oneof![Just(S / 50), Just(S), Just(60 * S)], 0..3, 1_u64..20);
    let quota = quota.prop_map(|(limit, window, shape, burst)| {
        let quota = Quota::sliding(Dimension::Requests, limit, window);
        match shape {
            0 => quota.burst(burst),
            1 => Quota { shape: QuotaShape::Fixed, ..quota },
            _ => quota,
        }
    });
    // As large a burst as may be: an even spacing would hide what a window lets through.
    let limits = prop::collection::vec(quota, 0..3).prop_map(|quotas| {
        let limits = Limits { quotas, burst: None };
        let burst = limits.spacing().map(|(quota, _)| quota.limit);
        Limits { burst, ..limits }
    });
    [limits.clone(), limits]
}

#[derive(Clone, Debug)]
enum Step {
    /// So many callers without an outcome.
    Count(u32),
    /// A caller that waits in the queue, and reports an outcome.
    Enqueue,
    Complete(Class),
    Hold(Duration),
    Resume,
    Pass(Duration),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let time = prop_oneof![0..50_u32, 100..3_000_u32, 100_000..4_000_000_u32].prop_map(|micros| US * micros);
    let class = prop_oneof![Just(Class::Success), Just(Class::Transient), Just(Class::Throttled)];
    let step = prop_oneof![
        8 => (1..20_u32).prop_map(Step::Count),
        1 => Just(Step::Enqueue),
        2 => class.prop_map(Step::Complete),
        1 => time.clone().prop_map(Step::Hold),
        1 => Just(Step::Resume),
        5 => time.prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..300)
}

/// A pacer with a driver that counts down by itself.
struct World {
    pacer: Pacer,
    scope: ScopeId,
    now: Instant,
    lease: Option<(Lease, u64)>,
    in_flight: VecDeque<Ticket>,
    /// When each call left.
    calls: Vec<Instant>,
    leased: usize,
}

impl World {
    /// The pacer after the end of the lease, as a driver has it once it has the lock.
    fn locked(&mut self) -> &mut Pacer {
        if let Some((lease, left)) = self.lease.take() {
            self.pacer.end_lease(self.now, &Request::from(&self.scope), &lease, lease.calls - left);
        }
        &mut self.pacer
    }

    fn events(&mut self) {
        while let Some(event) = self.pacer.poll_event() {
            if let Event::Granted { ticket, .. } = event {
                self.calls.push(self.now);
                self.in_flight.push_back(ticket);
            }
        }
    }

    fn count(&mut self) {
        let live = self.lease.as_ref().is_some_and(|(lease, left)| self.now < lease.until && *left > 0);
        if !live {
            let (now, scope) = (self.now, self.scope.clone());
            self.lease = self.locked().lease(now, &Request::from(&scope)).map(|lease| (lease.clone(), lease.calls));
        }
        if let Some((_, left)) = &mut self.lease {
            *left -= 1;
            self.calls.push(self.now);
            self.leased += 1;
        }
    }

    fn step(&mut self, step: Step) {
        let (now, scope) = (self.now, self.scope.clone());
        match step {
            Step::Count(callers) => return (0..callers).for_each(|_| self.count()),
            Step::Enqueue => drop(self.locked().enqueue(now, Request::from(&scope))),
            Step::Complete(class) => {
                let Some(ticket) = self.in_flight.pop_front() else { return };
                let outcome = Outcome::new(class).with_hint(Duration::from_millis(3), true);
                drop(self.locked().complete(now, ticket, outcome));
            }
            Step::Hold(time) => self.locked().hold(now, Some(&scope), now + time),
            Step::Resume => self.locked().resume(now, None),
            Step::Pass(time) => {
                // A timer is set for callers that wait: then there is no lease.
                let end = now + time;
                while let Some(due) = self.pacer.poll_timeout().filter(|due| *due <= end) {
                    self.now = due.max(self.now);
                    let now = self.now;
                    self.locked().handle_timeout(now);
                    self.events();
                }
                self.now = end;
                return;
            }
        }
        self.events();
    }
}

/// The most calls in any window, and in any span of a bucket, against what they may be.
fn check(limits: &Limits, calls: &[Instant]) {
    for Quota { limit, window, shape, .. } in &limits.quotas {
        let mut start = Instant::ZERO;
        let mut in_fixed = 0;
        for (first, from) in calls.iter().enumerate() {
            if first == 0 || *from - start >= *window {
                // It begins with the first call, and goes on in whole windows as long as it is used.
                (start, in_fixed) = (*from, 0);
            }
            in_fixed += 1;
            for (last, to) in calls.iter().enumerate().skip(first) {
                let count = (last - first + 1) as u64;
                let refilled = ((*to - *from).as_nanos() * u128::from(*limit) / window.as_nanos()) as u64;
                match shape {
                    QuotaShape::Sliding if *to - *from >= *window => break,
                    QuotaShape::Sliding => assert!(count <= *limit, "{count} calls of {limit} within {window:?}"),
                    QuotaShape::Bucket { burst } => {
                        assert!(count <= burst + refilled, "{count} calls of {burst} at once")
                    }
                    QuotaShape::Fixed => assert!(in_fixed <= *limit, "{in_fixed} calls in a window of {limit}"),
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn never_one_too_many_in_any_window(account in limits(), auto: bool, steps in steps()) {
        let [account, own] = account;
        let config = PacerConfig {
            limits: account.clone(),
            tiers: vec![("a".into(), own.clone())],
            pace: if auto { Pace::Auto } else { Pace::Fixed },
            ..PacerConfig::default()
        };
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
        let scope = pacer.scope("a");
        pacer.handle_timeout(Instant::ZERO);
        let (in_flight, calls) = (VecDeque::new(), Vec::new());
        let mut world = World { pacer, scope, now: Instant::ZERO, lease: None, in_flight, calls, leased: 0 };
        for step in steps {
            world.step(step);
        }
        check(&account, &world.calls);
        check(&own, &world.calls);
        let now = world.now;
        let sends = world.locked().snapshot(now).account.totals.sends;
        assert_eq!(sends, world.calls.len() as u64);
    }
}

#[test]
fn a_lease_gives_as_many_calls_as_asking_for_each() {
    for (quota, seconds) in [(Quota::per_second(1_000).burst(20), 3), (Quota::per_minute(600), 150)] {
        let limits = Limits { quotas: vec![quota], burst: Some(20) };
        let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
        let counts = [true, false].map(|leases| {
            let mut pacer = Pacer::new(config.clone(), 1, Instant::ZERO).expect("a configuration that can be");
            let scope = pacer.scope("a");
            pacer.handle_timeout(Instant::ZERO);
            let (in_flight, calls) = (VecDeque::new(), Vec::new());
            let mut world = World { pacer, scope, now: Instant::ZERO, lease: None, in_flight, calls, leased: 0 };
            let mut rng = Rng::new(1);
            while world.now < Instant::ZERO + S * seconds {
                if leases {
                    world.step(Step::Count(1));
                } else if world.pacer.admit(world.now, &Request::from(&world.scope)).is_now() {
                    world.step(Step::Enqueue);
                    world.step(Step::Complete(Class::Success));
                }
                world.now += US * (rng.next_u64() % 400) as u32;
            }
            assert_eq!(world.leased > 0, leases);
            world.calls.len() as f64
        });
        assert!((counts[0] / counts[1] - 1.0).abs() < 0.01, "{counts:?}");
    }
}

#[test]
fn each_budget_of_a_call_bounds_a_lease() {
    let budget = |dimension, limit| Quota::per_minute(limit).burst(limit).of(dimension);
    let quotas = vec![budget(Dimension::Requests, 100), budget(Dimension::Tokens, 1_000), budget(Dimension::Bytes, 7)];
    let config = PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("a");
    pacer.handle_timeout(Instant::ZERO);
    let call = Request::new(&scope, Cost::request().with(Dimension::Tokens, 40));
    let lease = pacer.lease(Instant::ZERO, &call).expect("all is left");
    assert_eq!(lease.calls, 25, "of 40 tokens each");
    pacer.end_lease(Instant::ZERO, &call, &lease, 24);
    let left: Vec<_> = pacer.snapshot(Instant::ZERO).account.quotas.iter().map(|quota| quota.remaining).collect();
    assert_eq!(left, [76, 40, 7]);
}

#[test]
fn what_follows_every_call_gives_no_lease() {
    for pace in [Pace::Auto, Pace::Aimd, Pace::Responsive, Pace::Linear, Pace::Exponential] {
        let mut pacer = Pacer::new(PacerConfig { pace, ..PacerConfig::default() }, 1, Instant::ZERO).expect("sensible");
        let scope = pacer.scope("a");
        pacer.handle_timeout(Instant::ZERO);
        assert_eq!(pacer.lease(Instant::ZERO, &Request::from(&scope)), None);
    }
}

#[test]
fn configured_limits_give_leases_until_a_refusal_contradicts_them() {
    let config = PacerConfig::from(Quota::per_minute(6_000).burst(100));
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    pacer.handle_timeout(Instant::ZERO);
    let (call, mut now) = (Request::from(&scope), Instant::ZERO);
    for _ in 0..600 {
        now += S / 10;
        let lease = pacer.lease(now, &call).expect("the limits are believed");
        pacer.end_lease(now, &call, &lease, 5);
    }
    let ticket = pacer.enqueue(now, call.clone()).expect("not too large");
    drop(pacer.complete(now, ticket, Outcome::new(Class::Throttled)));
    assert_eq!(pacer.lease(now + S, &call), None);
    let rate = pacer.snapshot(now).scopes[0].estimate.as_ref().expect("the pace learns").rate;
    assert!((10.0..=50.0).contains(&rate), "fifty a second had been admitted, and {rate} are tried now");
}
