use super::*;

const S: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn opened() -> Breaker {
    let mut breaker = Breaker::new(BreakerConfig::default()).expect("defaults");
    for item in 0..20 {
        breaker.answered(at(1), Duration::ZERO, item, true, false);
    }
    breaker
}

/// Of calls that are too slow to open a breaker too.
#[test]
fn a_server_that_was_failing_is_tested_by_one_call_at_a_time() {
    let mut slow = Breaker::new(BreakerConfig::default()).expect("defaults");
    for item in 0..5 {
        slow.answered(at(20 * item), S, item, true, false);
        assert!(!slow.is_failing(), "no call was sent");
    }
    slow.took_a_call(true);
    assert!(slow.is_failing());
    let mut next = Breaker::new(BreakerConfig::default()).expect("defaults");
    next.expect_failures(at(7));
    assert!(next.sent() && next.is_failing());
    assert_eq!(next.admit(at(7)), Admit::OnRelease { cause: WaitCause::Breaker });
    let until = at(9);
    assert_eq!(next.clone().answered(at(7), S, 1, true, true), Some(Change::Opened { until }));
    next.answered(at(7), S, 1, false, true);
    assert!(next.sent());
    assert_eq!(next.answered(at(7), S, 2, false, true), Some(Change::Closed));
    assert!(!next.is_failing());
}

#[test]
fn opens_after_twenty_failures_of_several_items() {
    let breaker = opened();
    assert_eq!(breaker.admit(at(1)), Admit::At { at: at(2), cause: WaitCause::Breaker });
    assert_eq!(breaker.failing_since(), Some(at(1)));
}

#[test]
fn ten_calls_that_hang_for_fifteen_seconds_open_it_the_second_time() {
    let mut breaker = Breaker::new(BreakerConfig::default()).expect("defaults");
    let changes = (0..20).map(|n| breaker.answered(at(15 + n / 10 * 15), 15 * S, n, true, false));
    assert_eq!(changes.last(), Some(Some(Change::Opened { until: at(31) })));
}

#[test]
fn one_bad_item_few_failures_or_old_ones_never_open_it() {
    let new = || Breaker::new(BreakerConfig::default()).expect("defaults");
    let [mut one_item, mut few, mut old] = [new(), new(), new()];
    for n in 0..100 {
        assert_eq!(one_item.answered(at(1), Duration::ZERO, n % 4, true, false), None, "4 items are not 5");
        assert_eq!(few.answered(at(1), Duration::ZERO, n, n % 5 < 2, false), None, "40 % are not half");
        assert_eq!(old.answered(at(n), Duration::ZERO, n, true, false), None, "11 in 10 s are not 20");
    }
}

#[test]
fn probes_one_at_a_time_and_doubles_up_to_its_cap() {
    let mut breaker = opened();
    let mut now = at(2);
    for expected in [2, 4, 8, 16, 30, 30] {
        assert!(breaker.admit(now).is_now());
        assert!(breaker.sent());
        assert_eq!(breaker.admit(now), Admit::OnRelease { cause: WaitCause::Breaker });
        let until = now + expected * S;
        assert_eq!(breaker.answered(now, Duration::ZERO, 1, true, true), Some(Change::Opened { until }));
        now = until;
    }
    for proof in 1..=2 {
        assert!(breaker.sent());
        let change = breaker.answered(now, Duration::ZERO, 1, false, true);
        assert_eq!(change, (proof == 2).then_some(Change::Closed));
    }
    assert!(!breaker.sent());
    assert_eq!(breaker.failing_since(), None);
}

#[test]
fn after_two_probes_that_failed_an_item_tests_it_that_has_failed_before() {
    let mut breaker = opened();
    let mut failed = |fails| {
        breaker.sent();
        breaker.answered(at(2), Duration::ZERO, 1, fails, true);
        breaker.tests_again()
    };
    assert_eq!([true; 6].map(&mut failed), [false, true, false, false, true, false]);
    assert_eq!(
        [true, true, false, false].map(failed),
        [false, true, true, true],
        "while those pass, it stays their turn"
    );
}

#[test]
fn a_server_that_answers_every_second_call_is_probed_each_second() {
    let mut breaker = opened();
    for second in [2, 3, 4, 5, 6, 7] {
        breaker.sent();
        assert_eq!(breaker.answered(at(second), Duration::ZERO, 1, false, true), None);
        breaker.sent();
        let until = at(second + 1);
        assert_eq!(breaker.answered(at(second), Duration::ZERO, 2, true, true), Some(Change::Opened { until }));
    }
}

#[test]
fn an_abandoned_probe_gives_its_place_to_the_next() {
    let mut breaker = opened();
    assert!(breaker.sent());
    breaker.lost(true);
    assert!(breaker.admit(at(1)).is_now());
}

#[test]
fn it_has_failed_since_it_opened_until_something_succeeds() {
    let mut breaker = opened();
    breaker.sent();
    breaker.answered(at(2), Duration::ZERO, 1, true, true);
    assert_eq!(breaker.failing_since(), Some(at(1)), "a probe that fails changes nothing about that");
    breaker.sent();
    breaker.answered(at(9), Duration::ZERO, 1, false, true);
    assert_eq!((breaker.failing_since(), breaker.is_clear()), (None, false), "one proof of two");
    breaker.sent();
    breaker.answered(at(9), Duration::ZERO, 2, false, true);
    assert!(breaker.is_clear());
}

#[test]
fn slow_calls_that_only_fail_count_from_the_first_failure_though_it_never_opens() {
    let mut breaker = Breaker::new(BreakerConfig::default()).expect("defaults");
    for (n, item) in [0, 1, 2, 3, 0].into_iter().enumerate() {
        assert_eq!(breaker.answered(at(n as u64 * 20), S, item, true, false), None);
        assert_eq!(breaker.no_success_since(), None, "4 items are not 5");
    }
    breaker.answered(at(100), S, 4, true, false);
    assert_eq!((breaker.no_success_since(), breaker.failing_since()), (Some(at(0)), None));
    breaker.answered(at(120), S, 5, false, false);
    assert_eq!(breaker.no_success_since(), None);
    breaker.answered(at(140), S, 6, true, false);
    assert_eq!(breaker.no_success_since(), None, "one item, after a success");
}

#[test]
fn a_failure_was_just_seen_until_twenty_successes_later() {
    let mut breaker = Breaker::new(BreakerConfig::default()).expect("defaults");
    assert!(!breaker.has_just_failed());
    breaker.answered(at(1), Duration::ZERO, 1, true, false);
    for item in 0..20 {
        assert!(breaker.has_just_failed(), "after {item} successes");
        breaker.answered(at(1), Duration::ZERO, item, false, false);
    }
    assert!(!breaker.has_just_failed());
}

#[test]
fn another_configuration_acts_at_once_and_what_cannot_be_is_refused_by_name() {
    let good = BreakerConfig::default();
    let mut breaker = Breaker::new(good).expect("defaults");
    let small = BreakerConfig { window_size: 4, min_samples: 2, min_distinct_items: 2, ..good };
    breaker.reconfigure(small).expect("sensible");
    assert_eq!(breaker.answered(at(1), Duration::ZERO, 1, true, false), None);
    assert_eq!(breaker.answered(at(1), Duration::ZERO, 2, true, false), Some(Change::Opened { until: at(2) }));
    for (config, key) in [
        (BreakerConfig { failure_ratio: 0.0, ..good }, "failure_ratio"),
        (BreakerConfig { failure_ratio: 1.01, ..good }, "failure_ratio"),
        (BreakerConfig { failure_ratio: f64::NAN, ..good }, "failure_ratio"),
        (BreakerConfig { window_size: 0, ..good }, "window_size"),
        (BreakerConfig { window_size: LARGEST + 1, ..good }, "window_size"),
        (BreakerConfig { min_samples: 0, ..good }, "min_samples"),
        (BreakerConfig { min_samples: good.window_size + 1, ..good }, "min_samples"),
        (BreakerConfig { min_distinct_items: 0, ..good }, "min_distinct_items"),
        (BreakerConfig { open: Duration::ZERO, ..good }, "open"),
        (BreakerConfig { open: good.open_max + S, ..good }, "open"),
    ] {
        let error = breaker.reconfigure(config).expect_err(key);
        assert_eq!(error.key, format!("breaker.{key}"));
    }
    let most = BreakerConfig { failure_ratio: 1.0, window_size: LARGEST, min_samples: LARGEST, ..good };
    breaker.reconfigure(BreakerConfig { open: good.open_max, ..most }).expect("as much as may be");
}
