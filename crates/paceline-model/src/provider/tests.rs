use super::*;
use crate::schedule::Step;
use paceline_core::Quota;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn quota(dimension: Dimension, limit: u64, shape: QuotaShape) -> ModelLimit {
    Quota { dimension, limit, window: 60_000 * MS, shape }.into()
}

fn provider(config: ProviderConfig) -> ProviderModel {
    ProviderModel::new(config, 7).expect("a sound configuration")
}

fn cost(tokens: u64) -> Cost {
    Cost::request().with(Dimension::Tokens, tokens)
}

fn shapes() -> impl Strategy<Value = QuotaShape> {
    prop_oneof![
        Just(QuotaShape::Sliding),
        Just(QuotaShape::Fixed),
        (1u64..20).prop_map(|burst| QuotaShape::Bucket { burst })
    ]
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
                Admission::Refused(_) => prop_assert_eq!(before, hit.states(now)),
                admitted => prop_assert_eq!(admitted, spared.arrive(now, &cost(tokens))),
            }
        }
        prop_assert!(hit.in_service() <= cap);
    }
}

#[test]
fn the_limit_with_the_longest_wait_is_named_and_its_wait_is_enough_for_all() {
    let limits = vec![
        quota(Dimension::Requests, 60, QuotaShape::Bucket { burst: 1 }),
        quota(Dimension::Tokens, 600, QuotaShape::Bucket { burst: 100 }),
    ];
    let mut provider = provider(ProviderConfig { limits, ..Default::default() });
    assert!(matches!(provider.arrive(Instant::ZERO, &cost(100)), Admission::Admitted(_)));
    let Admission::Refused(Refusal { cause: Cause::Limit { state, requested }, wait }) =
        provider.arrive(Instant::ZERO, &cost(50))
    else {
        panic!("admitted beyond both limits");
    };
    assert_eq!((state.dimension, state.remaining, requested), (Dimension::Tokens, 0, 50));
    assert_eq!(wait, Some(5_000 * MS));
    let later = Instant::ZERO + 5_000 * MS;
    assert!(matches!(provider.arrive(later, &cost(50)), Admission::Admitted(_)));
    let Admission::Refused(refusal) = provider.arrive(later, &cost(101)) else { panic!("101 never fit") };
    assert!(matches!(refusal, Refusal { cause: Cause::TooLarge { requested: 101, .. }, wait: None }));
}

#[test]
fn places_are_freed_by_the_end_of_calls() {
    let mut capped = provider(ProviderConfig { concurrency: Some(2), ..Default::default() });
    for _ in 0..2 {
        assert!(matches!(capped.arrive(Instant::ZERO, &cost(0)), Admission::Admitted(_)));
    }
    let full = Admission::Refused(Refusal { cause: Cause::Concurrency { cap: 2 }, wait: None });
    assert_eq!(capped.arrive(Instant::ZERO, &cost(0)), full);
    capped.finish(Instant::ZERO);
    assert!(matches!(capped.arrive(Instant::ZERO, &cost(0)), Admission::Admitted(_)));
}

#[test]
fn beyond_its_capacity_a_service_slows_down_and_then_refuses() {
    let latency = Latency::Uniform { low: 100 * MS, high: 100 * MS };
    let mut busy = provider(ProviderConfig { overload: Some(Overload::of(4)), latency, ..Default::default() });
    let mut services = Vec::new();
    let last = loop {
        match busy.arrive(Instant::ZERO, &cost(0)) {
            Admission::Admitted(service) => services.push((busy.due(&service, 1.0), service)),
            Admission::Refused(refusal) => break refusal,
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
    let limits = vec![quota(Dimension::Requests, 3_000, QuotaShape::Bucket { burst: 50 })];
    let mut shared = provider(ProviderConfig { limits, schedule, tenants: Some(tenants), ..Default::default() });
    let mut admitted = [0; 3];
    // 9.9 ms: in step with the refill we would take every unit before a stranger can.
    for tick in 0..30_300u32 {
        let now = Instant::ZERO + Duration::from_micros(9_900) * tick;
        match shared.arrive(now, &cost(0)) {
            Admission::Admitted(_) => admitted[usize::try_from(now.as_nanos() / 100_000_000_000).expect("0 to 2")] += 1,
            Admission::Refused(refusal) => {
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
            Admission::Admitted(service) => {
                assert_eq!(service.work, if service.fault { 50 * MS } else { 100 * MS });
                faults += u32::from(service.fault);
            }
            Admission::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
    assert!((900..1_100).contains(&faults), "{faults}");
}

#[test]
fn nonsense_is_refused() {
    let error = |config| ProviderModel::new(config, 0).err();
    let limits = vec![quota(Dimension::Tokens, 60, QuotaShape::Bucket { burst: 0 })];
    assert_eq!(error(ProviderConfig { limits, ..Default::default() }), Some(ProviderError::Limit(Dimension::Tokens)));
    let overload = Some(Overload { queue: f64::NAN, ..Overload::of(4) });
    assert_eq!(error(ProviderConfig { overload, ..Default::default() }), Some(ProviderError::Capacity));
    let latency = Latency::Uniform { low: 2 * MS, high: MS };
    assert_eq!(error(ProviderConfig { latency, ..Default::default() }), Some(ProviderError::Latency));
    for fault in [-0.1, 1.1, f64::NAN] {
        assert_eq!(error(ProviderConfig { fault, ..Default::default() }), Some(ProviderError::Fault));
    }
}
