//! An item that is refused whatever the pace must not look like a limit that lets nothing pass.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::job::{at, run, run_with_journal, seconds};
use paceline_core::{Class, Dimension, Limits, Outcome, Pace, PacerConfig, Quota, Retry, Rng};

#[test]
fn an_item_that_is_always_refused_does_not_stop_the_others() {
    for stuck in [3, 60] {
        let job = run(PacerConfig::default(), 100, at(600.0), |_, item| {
            let class = if item == stuck { Class::Throttled } else { Class::Success };
            (Duration::from_millis(20), Outcome::new(class))
        });
        assert_eq!((job.succeeded.len(), job.waiting), (99, 1), "beside item {stuck}");
        let calls = job.arrivals_of(stuck);
        assert!(calls <= 60, "{calls} calls for item {stuck} in ten minutes");
    }
}

/// Six prompts that the server cannot answer, beside others: they open the breaker again and again, and each test is a call of
/// one of them that is paid for.
#[test]
fn no_item_gets_more_calls_than_its_retries_allow() {
    for pace in [Pace::Auto, Pace::Fixed] {
        for max_retries in [0, 2, 7] {
            let retry = Retry { max_retries, ..Retry::default() };
            let config = PacerConfig { retry, pace, ..PacerConfig::default() }.with_in_flight(8);
            let job = run(config, 40, at(6_000.0), |_, item| {
                let class = if item < 6 { Class::Transient } else { Class::Success };
                (Duration::from_millis(20), Outcome::new(class))
            });
            assert_eq!((job.succeeded.len(), job.failed.len()), (34, 6));
            let calls: Vec<usize> = (0..6).map(|item| job.arrivals_of(item)).collect();
            assert_eq!(calls, [max_retries as usize + 1; 6], "{pace:?}");
        }
    }
}

/// Pages that are broken for good, in a row or here and there: the server is tested with items that have not failed yet, whose
/// success shows that it works, and a page that fails again while others pass says nothing about it.
#[test]
fn items_that_always_fail_keep_the_others_from_nothing() {
    let limits = Limits { quotas: vec![Quota::per_second(10)], burst: None };
    type Broken = fn(u64) -> bool;
    let kinds: [(&str, Broken); 3] = [
        ("sixty in a row", |item| (100..160).contains(&item)),
        ("each fifth", |item| item % 5 == 3),
        ("each fourth up to the last ten", |item| item % 4 == 0 && item < 990),
    ];
    for pace in [Pace::Auto, Pace::Fixed] {
        for (kind, broken) in kinds {
            let config = PacerConfig { pace, limits: limits.clone(), ..PacerConfig::default() }.with_in_flight(64);
            let job = run(config, 1_000, at(3_600.0), |_, item| {
                let class = if broken(item) { Class::Transient } else { Class::Success };
                (Duration::from_millis(50), Outcome::new(class))
            });
            let bad = (0..1_000).filter(|item| broken(*item)).count();
            assert_eq!((job.succeeded.len(), job.failed.len()), (1_000 - bad, bad), "{kind}, {pace:?}");
            let least = job.arrivals.len() as f64 / 10.0;
            let ended = job.failed.iter().map(|(_, at)| seconds(*at)).fold(job.makespan(), f64::max);
            assert!(ended < 1.3 * least, "{kind}, {pace:?}: {ended} s for {least} s of calls");
        }
    }
}

/// A host that answers each page at its second call, be it after a wait that it names: to test it with pages that it was never
/// asked for would show only that it fails. What it calls overload slows the learnt pace down, too.
#[test]
fn a_server_that_fails_each_item_once_is_tested_with_those_that_failed_too() {
    let named = |class| Outcome::new(class).with_hint(Duration::from_secs(2), false);
    for (pace, failure, items) in [
        (Pace::Auto, Outcome::new(Class::Transient), 600),
        (Pace::Auto, named(Class::Transient), 600),
        (Pace::Auto, named(Class::Overloaded), 80),
        (Pace::Fixed, Outcome::new(Class::Transient), 600),
        (Pace::Fixed, named(Class::Overloaded), 600),
    ] {
        for has_journal in [false, true] {
            let mut called = BTreeSet::new();
            let server = |_, item| {
                let is_second = !called.insert(item);
                (Duration::from_millis(5), if is_second { Outcome::new(Class::Success) } else { failure.clone() })
            };
            let config = PacerConfig { pace, ..PacerConfig::default() }.with_in_flight(64);
            let job = match has_journal {
                true => run_with_journal(config, items, at(3_600.0), server),
                false => run(config, items, at(3_600.0), server),
            };
            let case = format!("{pace:?}, {:?}, journal {has_journal}", failure.class);
            assert_eq!((job.succeeded.len(), job.arrivals.len()), (items as usize, 2 * items as usize), "{case}");
            assert!(job.makespan() < 60.0, "{case}: {} s", job.makespan());
        }
    }
}

/// A server of which nine calls in ten fail, whichever they are, is spared all the same.
#[test]
fn a_server_that_fails_nearly_always_is_tested_by_one_call_at_a_time() {
    for pace in [Pace::Auto, Pace::Fixed] {
        let mut chance = Rng::new(7);
        let job = run(PacerConfig { pace, ..PacerConfig::default() }.with_in_flight(64), 1_000, at(120.0), |_, _| {
            let class = if chance.unit() < 0.1 { Class::Success } else { Class::Transient };
            (Duration::from_millis(50), Outcome::new(class))
        });
        assert!(job.failed.is_empty() && job.arrivals.len() < 150, "{pace:?}: {} calls", job.arrivals.len());
    }
}

/// Answers that do not fit what the caller expects come from a server that works.
#[test]
fn answers_that_are_of_no_use_open_no_breaker() {
    for pace in [Pace::Auto, Pace::Fixed] {
        let config = PacerConfig { pace, ..PacerConfig::default() }.with_in_flight(8);
        let job = run(config, 200, at(600.0), |_, _| {
            (Duration::from_millis(20), Outcome { server_works: true, ..Outcome::new(Class::Transient) })
        });
        assert_eq!((job.failed.len(), job.arrivals.len()), (200, 200 * 8));
        assert!(job.failed.iter().all(|(_, end)| *end < at(250.0)), "{pace:?}: no wait but the backoff of each item");
    }
}

/// A try that is due again has the place of its item: it leaves before all that were queued behind that, at the learnt pace too.
#[test]
fn what_is_due_again_leaves_before_what_is_new() {
    let (took, asked) = (Duration::from_millis(20), Duration::from_secs(1));
    for pace in [Pace::Auto, Pace::Fixed] {
        let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 8, asked)], burst: None };
        let mut failed = None;
        let job = run(PacerConfig { pace, limits, ..PacerConfig::default() }, 200, at(1_000.0), |now, item| {
            let fails = item == 3 && failed.is_none();
            let class = if fails { Class::Transient } else { Class::Success };
            failed = failed.or(fails.then_some(now));
            (took, if fails { Outcome::new(class).with_hint(asked, false) } else { Outcome::new(class) })
        });
        let due = failed.expect("it was sent") + took + asked;
        let again = job.arrivals.iter().rfind(|arrival| arrival.item == 3).expect("it was sent again");
        let between = job.arrivals.iter().filter(|arrival| (due..again.at).contains(&arrival.at)).count();
        assert!(again.at >= due && between == 0, "{pace:?}: due at {due:?}, sent at {:?}", again.at);
    }
}

/// The same pages where their answers say that the server is overloaded, as those of a limit do too.
#[test]
fn items_that_are_always_overloaded_keep_the_others_from_nothing() {
    for (each, rate, places) in [(10, 10, 64), (5, 10, 64), (10, 50, 2), (5, 50, 2), (10, 1_000, 64), (5, 1_000, 512)] {
        let limits = Limits { quotas: vec![Quota::per_second(rate)], burst: None };
        let config = PacerConfig { limits, ..PacerConfig::default() }.with_in_flight(places);
        let job = run(config, 1_000, at(3_600.0), |_, item| {
            let class = if item % each == each - 1 { Class::Overloaded } else { Class::Success };
            (Duration::from_millis(5), Outcome::new(class))
        });
        let (case, bad) = (format!("one in {each}, {rate} a second, {places} places"), 1_000 / each as usize);
        // Those that fail for good may be left over for long: at the end nothing else shows whether the server works.
        assert_eq!(job.succeeded.len(), 1_000 - bad, "{case}");
        // The pace begins below the limit of a thousand.
        let least = job.arrivals.len() as f64 / rate as f64;
        assert!(job.makespan() < 1.1 * least + 15.0, "{case}: {} s for {least} s of calls", job.makespan());
    }
}

/// Pages that have a limit of their own, and say for how long: each holds the others for two of its waits at most, and is sent
/// again when its wait is over.
#[test]
fn items_that_are_always_told_to_wait_keep_the_others_from_nothing() {
    for (stuck, asks, rate, places) in
        [(1, 5, 10, 64), (1, 60, 50, 2), (1, 10, 1_000, 64), (3, 60, 50, 2), (3, 5, 10, 64)]
    {
        let limits = Limits { quotas: vec![Quota::per_second(rate)], burst: None };
        let config = PacerConfig { limits, ..PacerConfig::default() }.with_in_flight(places);
        let job = run(config, 300, at(3_600.0), |_, item| {
            let outcome = match (20..20 + stuck).contains(&item) {
                true => Outcome::new(Class::Throttled).with_hint(Duration::from_secs(asks), true),
                false => Outcome::new(Class::Success),
            };
            (Duration::from_millis(5), outcome)
        });
        let case = format!("{stuck} of {asks} s, {rate} a second, {places} places");
        assert_eq!((job.succeeded.len() as u64, job.waiting as u64), (300 - stuck, stuck), "{case}");
        // The pace goes on from what passed between those waits, which is not the limit.
        let most = (2 * stuck * asks) as f64 + 3.5 * 300.0 / rate.min(10) as f64;
        assert!(job.makespan() < most, "{case}: {} s, not {most}", job.makespan());
        let calls = job.arrivals_of(20) as u64;
        assert!((3_600 / asks / 2..=3_600 / asks).contains(&calls), "{case}: {calls} calls");
    }
}

/// Pages that never answer are given up when their time is over, and tried again: they hold half of the places at most.
#[test]
fn items_that_hang_keep_the_others_from_nothing() {
    for (pace, places, most) in
        [(Pace::Auto, 2, 500.0), (Pace::Auto, 3, 260.0), (Pace::Auto, 8, 120.0), (Pace::Fixed, 2, 500.0)]
    {
        let limits = Limits { quotas: vec![Quota::per_second(50)], burst: None };
        let config = PacerConfig { limits, pace, ..PacerConfig::default() }.with_in_flight(places);
        let hangs = |item| item % 20 == 7;
        let job = run(config, 1_000, at(7_200.0), |_, item| match hangs(item) {
            true => (Duration::from_secs(10), Outcome::new(Class::Transient)),
            false => (Duration::from_millis(5), Outcome::new(Class::Success)),
        });
        assert_eq!((job.succeeded.len(), job.failed.len()), (950, 50), "{places} places");
        assert!(job.makespan() < most, "{pace:?}, {places} places: {} s, not {most}", job.makespan());
    }
}

/// Such pages anywhere among the others: each holds them for two of its waits, takes one call in eight, and costs hardly any
/// rate. Where a second one tests the gate, the rate falls as at a limit: few of the runs take several times as long.
#[test]
fn many_items_that_are_told_to_wait_slow_the_others_down_by_little_but_their_waits() {
    let mut rng = Rng::new(3);
    for (stuck, asks, rate, places, most) in [
        (15, 5, 0, 64, 130.0),
        (15, 5, 0, 8, 130.0),
        (15, 5, 0, 512, 130.0),
        (30, 2, 0, 64, 120.0),
        (3, 5, 2, 2, 240.0),
        (3, 5, 50, 2, 50.0),
        (6, 10, 0, 64, 140.0),
        (3, 60, 50, 2, 420.0),
        (1, 5, 2, 2, 170.0),
        // The waits of a second are our own pauses, which grow: what tells such a page from a limit is that it is told often.
        (15, 1, 0, 64, 90.0),
    ] {
        let quotas = if rate > 0 { vec![Quota::per_second(rate)] } else { Vec::new() };
        let limits = Limits { quotas, burst: None };
        let case = format!("{stuck} of {asks} s, {rate} a second, {places} places");
        let runs = (0..40).map(|number| {
            let mut stuck_items = BTreeSet::new();
            while stuck_items.len() < stuck {
                stuck_items.insert((rng.unit() * 300.0) as u64);
            }
            let config = PacerConfig { limits: limits.clone(), ..PacerConfig::default() }.with_in_flight(places);
            let job = run(config, 300, at(1_000.0), |_, item| {
                let outcome = match stuck_items.contains(&item) {
                    true => Outcome::new(Class::Throttled).with_hint(Duration::from_secs(asks), true),
                    false => Outcome::new(Class::Success),
                };
                (Duration::from_millis(5), outcome)
            });
            assert_eq!((job.succeeded.len(), job.waiting), (300 - stuck, stuck), "{case}, run {number}");
            job.makespan()
        });
        let mean = runs.sum::<f64>() / 40.0;
        assert!(mean < most, "{case}: {mean} s, not {most}");
    }
}

/// Such pages of a host, for items that spend pauses in a journal or in the pacer: each holds the others for two of its waits,
/// though it asks first when they are over. A wait of a second is our own pause, which grows where such items test it.
#[test]
fn items_that_are_told_to_wait_test_nothing_while_others_wait_elsewhere() {
    for (items, told, asks, most, usually) in [(64, 4, 2, 26.0, 18.0), (64, 4, 1, 20.0, 6.0), (70, 10, 1, 45.0, 18.0)] {
        for has_journal in [false, true] {
            let jobs = (0..40).map(|seed| {
                let (mut rng, mut stuck) = (Rng::new(seed), BTreeSet::new());
                while stuck.len() < told {
                    stuck.insert((rng.unit() * items as f64) as u64);
                }
                let server = |_, item| {
                    let told = Outcome::new(Class::Throttled).with_hint(Duration::from_secs(asks), false);
                    let outcome = if stuck.contains(&item) { told } else { Outcome::new(Class::Success) };
                    (Duration::from_millis(20), outcome)
                };
                let config = PacerConfig::default().with_in_flight(64);
                let job = match has_journal {
                    true => run_with_journal(config, items, at(200.0), server),
                    false => run(config, items, at(200.0), server),
                };
                let case = format!("{told} of {asks} s, journal {has_journal}, seed {seed}");
                assert_eq!((job.succeeded.len(), job.waiting), (items as usize - told, told), "{case}");
                assert!(job.makespan() < most, "{case}: {} s", job.makespan());
                job.makespan()
            });
            let mean = jobs.sum::<f64>() / 40.0;
            assert!(mean < usually, "{told} of {asks} s, journal {has_journal}: {mean} s");
        }
    }
}
