use alloc::vec::Vec;

use proptest::{prop_assert, proptest};

use super::*;

const MS: Duration = Duration::from_millis(1);

/// The classic configuration of the published graph.
fn classic() -> ResponsiveConfig {
    ResponsiveConfig { initial: MS, down: 0.6, randomization: 0.0, threshold: 5, compat: true, ..Default::default() }
}

/// One worker against a server that refuses a call that comes sooner than `required` allows, which gets whether any
/// call has succeeded yet. Returns how many succeeded, and the waits before each request.
fn work(
    delay: &mut Responsive,
    rng: &mut Rng,
    requests: usize,
    required: impl Fn(bool) -> Duration,
) -> (usize, Vec<Duration>) {
    let (mut succeeded, mut waits, mut wait) = (0, Vec::new(), Duration::ZERO);
    for _ in 0..requests {
        waits.push(wait);
        if wait >= required(succeeded > 0) {
            succeeded += 1;
            wait = delay.on_success(rng);
        } else {
            wait = delay.on_failure(None, rng);
        }
    }
    (succeeded, waits)
}

#[test]
fn the_classic_climb_to_the_nanosecond() {
    let (mut delay, mut rng) = (Responsive::new(classic()).expect("sensible"), Rng::new(0));
    let climb: Vec<u128> = (0..15).map(|_| delay.on_failure(None, &mut rng).as_nanos()).collect();
    let expected = [
        1_000_000,
        1_500_000,
        2_250_000,
        3_375_000,
        5_062_500,
        7_593_750,
        11_390_625,
        17_085_937,
        25_628_905,
        38_443_357,
        57_665_035,
        86_497_552,
        129_746_328,
        194_619_492,
        291_929_238,
    ];
    assert_eq!(climb, expected);
}

#[test]
fn the_classic_graph() {
    let (mut delay, mut rng) = (Responsive::new(classic()).expect("sensible"), Rng::new(0));
    let required = |succeeded| if succeeded { 60 * MS } else { 200 * MS };
    let (succeeded, waits) = work(&mut delay, &mut rng, 90, required);
    let counters = delay.counters();
    assert_eq!((succeeded, counters.invocations, counters.went_up, counters.went_down), (63, 90, 27, 12));
    let micros = |time: Duration| (time.as_nanos() + 500) / 1_000;
    assert_eq!(micros(counters.sleep_time), 7_546_067);
    assert_eq!(micros(waits.iter().sum()), 7_463_618, "all but the wait after the last");
    assert_eq!(counters.slept, 90);
}

#[test]
fn the_classic_rule_against_a_static_limit() {
    let (mut delay, mut rng) = (Responsive::new(classic()).expect("sensible"), Rng::new(0));
    assert_eq!(work(&mut delay, &mut rng, 1_000, |_| 60 * MS).0, 790);
}

/// The mean spacing of 1,000 requests in required gaps, and how many of them failed.
fn against(gap: Duration, config: ResponsiveConfig, seed: u64) -> (f64, usize) {
    let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(seed));
    let (succeeded, waits) = work(&mut delay, &mut rng, 1_000, |_| gap);
    (waits.iter().sum::<Duration>().as_secs_f64() / succeeded as f64 / gap.as_secs_f64(), 1_000 - succeeded)
}

#[test]
fn the_default_finds_a_static_limit_from_below_and_from_above() {
    let usual = ResponsiveConfig::default();
    let bold = ResponsiveConfig { down: 0.6, randomization: 0.0, threshold: 5, ..usual };
    let gaps = [10 * MS, 60 * MS, 777 * MS, 10_000 * MS];
    for (config, gap) in [usual, bold].into_iter().flat_map(|config| gaps.map(|gap| (config, gap))) {
        for (start, seed) in
            [0.01, 0.1, 0.9, 1.0, 1.1, 3.0, 10.0].into_iter().flat_map(|start| (0..50).map(move |k| (start, k)))
        {
            let (spacing, failed) = against(gap, ResponsiveConfig { initial: gap.mul_f64(start), ..config }, seed);
            assert!(failed <= 50 && spacing <= 1.1, "{gap:?} {start} {seed}: {spacing:.3}, {failed} failed");
        }
    }
}

#[test]
fn a_limit_that_moves_is_found_again() {
    let (mut delay, mut rng) = (Responsive::new(ResponsiveConfig::default()).expect("sensible"), Rng::new(3));
    for gap in [100 * MS, 400 * MS, 25 * MS, 100 * MS] {
        work(&mut delay, &mut rng, 1_500, |_| gap);
        let (succeeded, waits) = work(&mut delay, &mut rng, 500, |_| gap);
        let mean = waits.iter().sum::<Duration>().as_secs_f64() / 500.0 / gap.as_secs_f64();
        assert!(succeeded >= 490 && mean <= 1.1, "{gap:?}: {succeeded} of 500 at a spacing of {mean:.3}");
    }
}

#[test]
fn steps_down_never_rise_and_steps_up_never_fall() {
    for randomization in [0.0, 0.3, 0.99] {
        let config = ResponsiveConfig { up: 1.01, down: 0.99, randomization, threshold: 1, ..Default::default() };
        let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(5));
        let (mut ups, mut downs) = (0, 0);
        while ups < 100_000 || downs < 100_000 {
            let before = delay.current_delay();
            // Mostly up for a while, then mostly down, so that both ends are met.
            let mostly = if (ups + downs) / 5_000 % 2 == 0 { 0.9 } else { 0.1 };
            if rng.unit() < mostly {
                ups += 1;
                assert!(delay.on_failure(None, &mut rng) >= before);
            } else {
                let went_down = delay.counters().went_down;
                assert!(delay.on_success(&mut rng) <= before);
                downs += delay.counters().went_down - went_down;
            }
            assert!(delay.current_delay() <= config.max);
        }
    }
}

#[test]
fn a_thousand_that_fail_together_do_not_return_together() {
    let spread_out = |config: ResponsiveConfig, failures: u32| {
        let mut bins = alloc::collections::BTreeMap::<u128, u32>::new();
        for seed in 0..1_000 {
            let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(seed));
            let last = (0..failures).map(|_| delay.on_failure(None, &mut rng)).last().expect("at least one");
            *bins.entry(last.as_millis()).or_default() += 1;
        }
        bins.into_values().max().expect("a thousand delays")
    };
    let first = ResponsiveConfig::default();
    let capped = ResponsiveConfig { initial: 100 * MS, max: 500 * MS, ..first };
    for (config, failures) in [(first, 1), (first, 2), (capped, 10), (capped, 1_000)] {
        let fullest = spread_out(config, failures);
        assert!(fullest <= 20, "{fullest} of a thousand in one millisecond after {failures} failures");
    }
}

#[test]
fn it_shrinks_to_the_least_delay_and_then_to_nothing() {
    let (mut delay, mut rng) = (Responsive::new(ResponsiveConfig::default()).expect("sensible"), Rng::new(1));
    delay.on_failure(None, &mut rng);
    let delays: Vec<Duration> = (0..200).map(|_| delay.on_success(&mut rng)).collect();
    assert!(delays.iter().any(|delay| (MS..10 * MS).contains(delay)), "no dead zone below the initial delay");
    assert_eq!(delays.last(), Some(&Duration::ZERO));
    assert!(delays.iter().all(|delay| delay.is_zero() || *delay >= MS));
}

#[test]
fn a_step_down_that_fails_goes_back_to_the_delay_that_held() {
    let config = ResponsiveConfig { initial: 100 * MS, randomization: 0.0, ..Default::default() };
    let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(1));
    assert_eq!(delay.on_failure(None, &mut rng), 100 * MS);
    assert!(delay.on_success(&mut rng) < 100 * MS, "the first success is a step down");
    assert_eq!(delay.on_failure(None, &mut rng), 100 * MS);
}

#[test]
fn a_hint_is_a_lower_bound_and_does_not_last() {
    let (mut delay, mut rng) = (Responsive::new(classic()).expect("sensible"), Rng::new(1));
    assert_eq!(delay.on_failure(Some(5_000 * MS), &mut rng), 5_000 * MS);
    assert_eq!(delay.on_failure(Some(Duration::ZERO), &mut rng), Duration::from_micros(1_500));
    assert_eq!(delay.counters().sleep_time, Duration::from_micros(5_001_500));
}

#[test]
fn idle_time_halves_the_delay_where_that_is_wanted() {
    let lasting = ResponsiveConfig { randomization: 0.0, ..ResponsiveConfig::default() };
    let fading = ResponsiveConfig { idle_half_life: Some(60_000 * MS), ..lasting };
    for (config, minutes, left) in
        [(lasting, 10, 500 * MS), (fading, 0, 500 * MS), (fading, 2, 125 * MS), (fading, 9, Duration::ZERO)]
    {
        let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(1));
        delay.on_failure(None, &mut rng);
        delay.idle(minutes * 60_000 * MS + MS);
        assert_eq!(delay.current_delay(), left, "{minutes} min");
    }
}

#[test]
fn a_step_down_after_idling_takes_no_more_than_half() {
    let config = ResponsiveConfig {
        initial: 800 * MS,
        min_delay: 100 * MS,
        down: 0.3,
        randomization: 0.0,
        ..Default::default()
    };
    let config = ResponsiveConfig { idle_half_life: Some(1_000 * MS), ..config };
    let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(1));
    delay.on_failure(None, &mut rng);
    delay.idle(1_000 * MS);
    assert_eq!(delay.current_delay(), 400 * MS);
    delay.on_success(&mut rng);
    assert_eq!(delay.current_delay(), 200 * MS, "nothing is known to have failed");
    delay.idle(1_000 * MS);
    assert_eq!(delay.current_delay(), 100 * MS, "the least delay is one");
    delay.on_success(&mut rng);
    assert_eq!(delay.current_delay(), Duration::ZERO);
    assert_eq!(delay.on_failure(None, &mut rng), 800 * MS, "the first failure after that is a first one");
}

#[test]
fn zero_waits_are_not_counted_as_slept() {
    let (mut delay, mut rng) = (Responsive::new(classic()).expect("sensible"), Rng::new(1));
    assert!((0..7).all(|_| delay.on_success(&mut rng).is_zero()));
    let counters = delay.counters();
    assert_eq!((counters.invocations, counters.slept, counters.successes), (7, 0, 0));
}

#[test]
fn the_two_simple_growths() {
    let s = |seconds: u64| Duration::from_secs(seconds);
    let grow = |next: &dyn Fn(Duration) -> Duration| -> Vec<u64> {
        core::iter::successors(Some(next(s(0))), |delay| Some(next(*delay))).take(7).map(|d| d.as_secs()).collect()
    };
    assert_eq!(grow(&|delay| linear_delay(delay, s(1), s(6))), [1, 2, 3, 4, 5, 6, 6]);
    assert_eq!(grow(&|delay| exponential_delay(delay, s(1), 2.0, s(30))), [1, 2, 4, 8, 16, 30, 30]);
}

#[test]
fn nonsense_is_refused_by_name() {
    let d = ResponsiveConfig::default();
    for (config, message) in [
        (
            ResponsiveConfig { initial: Duration::ZERO, ..d },
            "initial is 0ns, expected more than 0 and at most responsive.max",
        ),
        (
            ResponsiveConfig { initial: 2 * d.max, ..d },
            "initial is 1800s, expected more than 0 and at most responsive.max",
        ),
        (ResponsiveConfig { max: 2 * LONGEST_DURATION, ..d }, "max is 63244800s, expected at most 366 days"),
        (ResponsiveConfig { up: 1.0, ..d }, "up is 1, expected a number above 1 and at most 1000"),
        (ResponsiveConfig { up: f64::NAN, ..d }, "up is NaN, expected a number above 1 and at most 1000"),
        (ResponsiveConfig { up: f64::INFINITY, ..d }, "up is inf, expected a number above 1 and at most 1000"),
        (ResponsiveConfig { down: 0.0, ..d }, "down is 0, expected a number above 0 and below 1"),
        (ResponsiveConfig { down: 1.0, ..d }, "down is 1, expected a number above 0 and below 1"),
        (ResponsiveConfig { down: f64::NAN, ..d }, "down is NaN, expected a number above 0 and below 1"),
        (
            ResponsiveConfig { randomization: 1.0, ..d },
            "randomization is 1, expected a number of at least 0 and below 1",
        ),
        (
            ResponsiveConfig { randomization: -0.1, ..d },
            "randomization is -0.1, expected a number of at least 0 and below 1",
        ),
        (ResponsiveConfig { threshold: 0, ..d }, "threshold is 0, expected at least 1"),
        (ResponsiveConfig { idle_half_life: Some(Duration::ZERO), ..d }, "idle_half_life is 0ns, expected more than 0"),
    ] {
        let error = Responsive::new(config).map(drop).expect_err(message);
        assert_eq!(alloc::string::ToString::to_string(&error), format!("responsive.{message}"));
    }
    let extreme =
        ResponsiveConfig { initial: LONGEST_DURATION, max: LONGEST_DURATION, up: LARGEST_UP, randomization: 0.0, ..d };
    assert!(Responsive::new(extreme).is_ok(), "as much as may be");
}

proptest! {
    #[test]
    fn never_above_the_longest_never_turned_around_and_counted_exactly(
        initial in 1u64..10_000_000_000, extra in 0u64..10_000_000_000, up in 1.001f64..100.0, down in 0.001f64..0.999,
        randomization in 0.0f64..0.999, threshold in 1u32..20, min in 0u64..100_000_000, seed: u64,
        outcomes in proptest::collection::vec(proptest::bool::weighted(0.8), 0..400),
    ) {
        let nanos = Duration::from_nanos;
        let (initial, max, min_delay) = (nanos(initial), nanos(initial + extra), nanos(min));
        let config = ResponsiveConfig { initial, max, up, down, randomization, threshold, min_delay, ..Default::default() };
        let (mut delay, mut rng) = (Responsive::new(config).expect("sensible"), Rng::new(seed));
        let mut slept = Duration::ZERO;
        for success in &outcomes {
            let before = delay.current_delay();
            let wait = if *success { delay.on_success(&mut rng) } else { delay.on_failure(None, &mut rng) };
            prop_assert!(wait <= max && wait == delay.current_delay());
            let right_way = if *success { wait <= before } else { wait >= before && !wait.is_zero() };
            prop_assert!(right_way, "{before:?} became {wait:?}");
            slept += wait;
        }
        let counters = delay.counters();
        prop_assert!(counters.invocations == outcomes.len() as u64 && counters.sleep_time == slept);
        prop_assert!(counters.went_up == outcomes.iter().filter(|success| !**success).count() as u64);
    }
}
