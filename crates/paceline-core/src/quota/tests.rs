//! Each counter against a naive one.

use super::fixed::FixedWindow;
use super::sliding::SlidingWindow;
use super::sliding::{Entry, SLOTS};
use super::sums::Sums;
use super::*;
use crate::time::{LATE, nanos};
use proptest::{prop_assert, prop_assert_eq, proptest};

const S: Duration = Duration::from_secs(1);

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

fn counter(shape: QuotaShape, limit: u64, window: Duration) -> Counter {
    Counter::new(&Quota { dimension: Dimension::Tokens, limit, window, shape })
}

#[test]
fn a_million_requests_a_minute_need_less_than_a_megabyte() {
    let mut window = SlidingWindow::new(1_000_000, 60 * S);
    for n in 0..3_000_000u64 {
        let now = Instant::from_nanos(n * 60_000);
        assert!(window.fits_at(now, 1) <= now + Duration::from_millis(2));
        window.take(window.fits_at(now, 1), 1);
    }
    assert!(window.entries.capacity() * size_of::<Entry>() + window.sums.bytes() < 1_000_000);
}

#[test]
fn a_window_forgets_exactly_one_window_later() {
    let mut counter = counter(QuotaShape::Sliding, 2, 60 * S);
    counter.take(at(0.0), 1);
    counter.take(at(10.0), 1);
    let slot = Duration::from_millis(1);
    assert_eq!(counter.fits_at(at(10.0), 1), at(60.0) + slot);
    assert_eq!(counter.fits_at(at(10.0), 2), at(70.0) + slot);
    assert_eq!(counter.fits_at(at(86_400.0 * 365.0), 2), at(86_400.0 * 365.0));
}

#[test]
fn what_has_left_a_window_counts_no_longer_though_no_call_came_since() {
    let mut window = SlidingWindow::new(1_000_000, 100 * S);
    (0..100).for_each(|second| window.take(at(f64::from(second)), 10));
    for (second, left) in [(99.0, 1_000), (120.5, 790), (150.5, 490), (163.5, 360), (164.5, 350), (199.5, 0)] {
        let taken: u64 = window.taken(at(second)).iter().map(|taken| taken.units).sum();
        assert_eq!((window.used(at(second)), taken), (left, left), "after {second} s");
    }
}

#[test]
fn what_a_call_gives_back_after_its_window_gives_nothing() {
    let mut window = SlidingWindow::new(100, 10 * S);
    window.take(at(0.0), 40);
    window.take(at(10.0), 30);
    window.refund(at(0.0), 15);
    assert_eq!(window.used(at(10.0)), 70 - 15, "at its very end it still counts");
    window.take(at(25.0), 30);
    window.refund(at(10.0), 30);
    assert_eq!(window.used(at(25.0)), 30);
}

#[test]
fn settling_gives_back_or_makes_debt() {
    for shape in [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 100 }] {
        let mut less = counter(shape, 100, 60 * S);
        less.take(at(0.0), 100);
        less.refund(at(0.0), 40);
        assert_eq!(less.fits_at(at(0.0), 40), at(0.0), "{shape:?}");
        assert!(less.fits_at(at(0.0), 41) > at(0.0), "{shape:?}");
        let mut more = counter(shape, 100, 60 * S);
        more.take(at(0.0), 100);
        more.take(at(0.0), 150);
        assert!(more.fits_at(at(59.0), 1) > at(60.0 - 1e-9), "{shape:?}: debt waits");
    }
}

#[test]
fn a_fixed_window_that_has_not_begun_lets_no_more_than_its_limit_pass() {
    let window = FixedWindow::new(100, 60 * S);
    assert_eq!([100, 101, 201].map(|units| window.fits_at(at(5.0), units)), [5.0, 65.0, 125.0].map(at));
}

#[test]
fn debt_of_a_fixed_window_goes_into_the_next_ones() {
    let mut window = FixedWindow::new(100, 60 * S);
    window.take(at(5.0), 250);
    assert_eq!(window.fits_at(at(5.0), 1), at(125.0), "two windows pay 200, the third has 50 left");
    assert_eq!(window.fits_at(at(5.0), 50), at(125.0));
    assert_eq!(window.fits_at(at(5.0), 51), at(185.0));
    assert_eq!(window.current(at(125.0)), (Some(at(125.0)), 50));
}

#[test]
fn a_bucket_refills_without_rounding() {
    let mut bucket = TokenBucket::new(7, 60 * S, 3);
    let mut now = at(0.0);
    for _ in 0..3 + 7 * 100 {
        now = bucket.fits_at(now, 1);
        bucket.take(now, 1);
    }
    assert!(now >= at(6_000.0) && now < at(6_000.0) + Duration::from_micros(1), "700 refills take 100 minutes");
}

#[test]
fn a_short_level_says_what_a_long_one_says() {
    let rule = BucketRule::of(&Quota::per_minute(60).burst(3).into()).expect("one bucket");
    assert!(rule.has_short_levels(at(1e9)) && !BucketRule::has_short_levels(rule, Instant::MAX));
    let (mut long, mut short) = (BucketLevel::default(), 0);
    for step in 0..1_000 {
        let now = at(1e9 + 0.3 * f64::from(step));
        let mut level = BucketLevel::from_short(short);
        assert_eq!(rule.try_take(&mut long, now), rule.try_take(&mut level, now));
        short = level.short();
        assert_eq!((level, rule.is_full(level, now)), (long, rule.is_full(long, now)));
    }
    let debt = BucketLevel::from_short(u64::MAX);
    assert!(
        !rule.try_take(&mut debt.clone(), at(3e9)).is_now(),
        "a debt of more than a century lets nothing pass for one"
    );
}

/// Takes `calls` units at `per_second` from a bucket with room for one, each so late; gives the time of the last.
fn spaced(per_second: u64, calls: u64, late: Duration) -> Instant {
    let mut bucket = TokenBucket::new(per_second, S, 1);
    let mut now = at(0.0);
    for _ in 0..calls {
        let due = bucket.fits_at(now, 1);
        now = if due > now { due + late } else { now };
        bucket.take_wanted(now, at(0.0), 1);
    }
    now
}

#[test]
fn a_late_timer_takes_nothing_from_the_rate() {
    for per_second in [100, 500, 1_000, 2_000] {
        for late in [Duration::from_micros(60), Duration::from_millis(1), LATE] {
            let last = spaced(per_second, 10 * per_second + 1, late);
            assert!(last <= at(10.0) + late, "{per_second} a second, {late:?} late: {last}");
        }
    }
    assert!(spaced(1_000, 1_001, 2 * LATE) > at(1.5), "more than that is lost");
}

#[test]
fn a_window_that_is_just_full_takes_nothing_from_the_rate_of_a_timer_that_serves_several_at_once() {
    let limits = Limits { quotas: alloc::vec![Quota::sliding(Dimension::Requests, 2_000, S)], burst: Some(20) };
    let mut quotas = Quotas::new(&limits).expect("sensible");
    let (mut now, mut last, mut given) = (at(0.0), at(0.0), 0);
    while given < 20_000 {
        match quotas.admit(now, &Ask::of(&Cost::request())) {
            Admit::Now => {
                quotas.take(now, at(0.0), &Cost::request());
                (given, last) = (given + 1, now);
            }
            Admit::At { at, cause } => {
                if matches!(cause, WaitCause::Quota { .. }) {
                    quotas.note_full();
                }
                now = at.max(last + Duration::from_millis(2)) + Duration::from_micros(60);
            }
            Admit::OnRelease { .. } => panic!("no call is in flight"),
        }
    }
    assert!(now < at(10.003), "{now}");
}

#[test]
fn after_idling_no_more_than_the_burst_leaves_at_once() {
    let mut bucket = TokenBucket::new(1_000, S, 3);
    for time in [at(1.0), at(9.0)] {
        for _ in 0..3 {
            assert_eq!(bucket.fits_at(time, 1), time);
            bucket.take_wanted(time, time, 1);
        }
        assert_eq!(bucket.fits_at(time, 1), time + Duration::from_millis(1));
    }
}

#[test]
fn what_is_no_request_is_not_spaced() {
    let limits = Limits { quotas: alloc::vec![Quota::per_minute(60)], burst: Some(1) };
    let quotas = Quotas::new(&limits).expect("sensible");
    let tokens = Cost::zero().with(Dimension::Tokens, 5);
    assert_eq!(quotas.forecast(at(0.0), &tokens, 30), at(0.0));
    assert_eq!(quotas.forecast(at(0.0), &Cost::request(), 30), at(29.0));
}

/// A search looks at no more entries than one sum of the lowest level has.
#[test]
fn what_is_asked_of_a_long_window_costs_no_walk() {
    let mut sums = Sums::default();
    (0..60_000).for_each(|_| sums.push(2));
    (0..1_000).for_each(|_| sums.pop(2));
    let asked = core::cell::Cell::new(0);
    let entry = |_| {
        asked.set(asked.get() + 1);
        2
    };
    assert_eq!((sums.of_first(50_000, entry), sums.reaches(99_999, entry)), (100_000, Some(49_999)));
    assert!(asked.get() <= 128, "{} entries", asked.get());
}

#[test]
fn the_burst_belongs_to_the_shortest_request_window_of_at_most_a_minute() {
    let hour = Quota::sliding(Dimension::Requests, 1_000, 3_600 * S);
    let minute = Quota::per_minute(50);
    let burst_of = |quotas: Vec<Quota>, burst| {
        let quotas = Quotas::new(&Limits { quotas, burst }).expect("sensible");
        quotas.burst.map(|bucket| (bucket.burst(), bucket.limit()))
    };
    assert_eq!(burst_of(alloc::vec![hour.clone(), minute.clone()], None), Some((1, 50)));
    assert_eq!(burst_of(alloc::vec![minute.clone()], Some(10)), Some((10, 50)));
    assert_eq!(burst_of(alloc::vec![Quota::per_minute(600)], None), Some((10, 600)));
    assert_eq!(burst_of(alloc::vec![hour], None), None, "5 per hour may leave at once");
    assert!(Quotas::new(&Limits { quotas: alloc::vec![minute], burst: Some(0) }).is_err());
}

#[test]
fn a_burst_above_its_limit_acts_or_is_refused() {
    let second = Quota::sliding(Dimension::Requests, 50, S);
    let quotas = |quota: &Quota, burst| Quotas::new(&Limits { quotas: alloc::vec![quota.clone()], burst });
    let refused = quotas(&second, Some(100)).expect_err("a second holds 50");
    assert_eq!((&*refused.key, &*refused.value), ("burst", "100"));
    assert!(quotas(&second, Some(50)).is_ok());
    let bucket =
        quotas(&Quota { shape: QuotaShape::Bucket { burst: 100 }, ..second }, None).expect("a bucket stores it");
    assert!(bucket.admit(Instant::ZERO, &Ask::of(&Cost::zero().with(Dimension::Requests, 100))).is_now());
    let crawl = crate::config::PacerConfig::default();
    let crawl = crate::config::PacerConfig {
        limits: Limits { quotas: alloc::vec![Quota::per_minute(60)], burst: Some(10) },
        ..crawl
    };
    assert!(Quotas::new(&crawl.clone().with_crawl_delay(5 * S).limits).is_ok_and(|quotas| quotas.burst.is_some()));
    assert_eq!(crawl.with_crawl_delay(90 * S).limits.burst, Some(10), "the minute is still the shortest");
}

#[test]
fn impossible_quotas_are_refused() {
    for quota in [
        Quota::per_minute(0),
        Quota::per_minute(LARGEST_LIMIT + 1),
        Quota::sliding(Dimension::Requests, 1, Duration::ZERO),
        Quota::sliding(Dimension::Requests, 1, LONGEST_WINDOW + S),
        Quota { shape: QuotaShape::Bucket { burst: 0 }, ..Quota::per_minute(1) },
    ] {
        assert!(check(&quota).is_err(), "{quota:?}");
    }
}

fn quotas(quotas: &[Quota]) -> Limits {
    Limits { quotas: quotas.to_vec(), burst: None }
}

/// The limits after `sent` requests, one every 10 s from 0 on, once they are replaced at `seconds`.
fn replaced(known: &[Quota], sent: u32, seconds: f64, next: &[Quota]) -> Quotas {
    let mut all = Quotas::new(&quotas(known)).expect("sensible");
    let call = Cost::zero().with(Dimension::Tokens, 1);
    (0..sent).for_each(|n| all.take(at(10.0 * f64::from(n)), at(10.0 * f64::from(n)), &call));
    all.reconfigure(at(seconds), &quotas(next)).expect("sensible");
    all
}

#[test]
fn new_windows_count_what_the_known_ones_remember() {
    let per = |limit, seconds| Quota::sliding(Dimension::Tokens, limit, seconds * S);
    let used = |all: &Quotas, seconds| all.counters.iter().map(|(_, c)| c.used(at(seconds))).collect::<Vec<_>>();
    // 10 units left, at 0, 10, ... 90 s.
    let longer = replaced(&[per(100, 100)], 10, 95.0, &[per(100, 200)]);
    assert_eq!(used(&longer, 95.0), [10]);
    assert_eq!(used(&longer, 201.0), [9], "each leaves when it is 200 s old");
    let shorter = replaced(&[per(100, 100)], 10, 95.0, &[per(100, 30)]);
    assert_eq!(used(&shorter, 95.0), [3], "those at 70, 80, 90 s");
    let several = replaced(&[per(9, 20), per(100, 3_600)], 10, 95.0, &[per(9, 50), per(20, 20), per(5, 7_200)]);
    assert_eq!(used(&several, 95.0), [5, 2, 10], "from the hour, from its own, and from the longest");
    let other = Quota { dimension: Dimension::Bytes, ..per(100, 100) };
    assert_eq!(used(&replaced(&[per(100, 100)], 10, 95.0, &[other]), 95.0), [0], "nothing was counted in bytes");
}

#[test]
fn a_limit_of_another_kind_counts_what_was_sent_as_sent_now() {
    let kind = |limit, shape| Quota { shape, ..Quota::sliding(Dimension::Tokens, limit, 100 * S) };
    let kinds = [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 10 }];
    for (from, to) in kinds.iter().flat_map(|from| kinds.iter().map(move |to| (*from, *to))) {
        let all = replaced(&[kind(10, from)], 9, 80.0, &[kind(10, to)]);
        let left = all.counters[0].1.fits_at(at(80.0), 2) == at(80.0);
        let bucket = |shape| matches!(shape, QuotaShape::Bucket { .. });
        assert_eq!(left, bucket(from), "{from:?} to {to:?}: one is left, but a bucket has refilled meanwhile");
    }
}

#[test]
fn a_fixed_window_goes_on_and_a_shorter_one_waits_no_longer_than_itself() {
    let fixed =
        |limit, seconds| Quota { shape: QuotaShape::Fixed, ..Quota::sliding(Dimension::Tokens, limit, seconds * S) };
    let fits = |all: &Quotas| all.counters[0].1.fits_at(at(95.0), 1);
    assert_eq!(fits(&replaced(&[fixed(10, 100)], 10, 95.0, &[fixed(10, 200)])), at(200.0), "it began at 0");
    assert_eq!(fits(&replaced(&[fixed(10, 100)], 10, 95.0, &[fixed(11, 200)])), at(95.0));
    assert_eq!(fits(&replaced(&[fixed(10, 100)], 10, 95.0, &[fixed(2, 20)])), at(115.0));
    assert_eq!(fits(&replaced(&[fixed(10, 60)], 10, 95.0, &[fixed(4, 60)])), at(120.0), "it began at 60");
}

#[test]
fn the_spacing_goes_on_under_another_window() {
    let limits = |limit, seconds| Limits {
        quotas: alloc::vec![Quota::sliding(Dimension::Requests, limit, seconds * S)],
        burst: Some(5),
    };
    let mut all = Quotas::new(&limits(60, 60)).expect("sensible");
    (0..5).for_each(|_| all.take(at(0.0), at(0.0), &Cost::request()));
    all.reconfigure(at(2.5), &limits(30, 30)).expect("sensible");
    assert_eq!(all.burst_left(at(2.5)), Some((2, 5)));
    assert_eq!(all.burst.as_ref().map(|burst| burst.fits_at(at(2.5), 3)), Some(at(3.0)), "half of it had come back");
}

/// Steps of (time passed in ms, units wanted, refund afterwards).
type Steps = Vec<(u64, u64, bool)>;

fn steps() -> impl proptest::strategy::Strategy<Value = Steps> {
    proptest::collection::vec((0u64..4_000, 1u64..40, proptest::bool::ANY), 1..200)
}

/// Of a million in 60,000 slots, filled and emptied several times and in part given back.
#[test]
fn a_window_of_a_million_agrees_with_a_walk_over_its_slots() {
    let limit = 1_000_000;
    let mut window = SlidingWindow::new(limit, 60 * S);
    let mut rng = crate::rng::Rng::new(7);
    let walk = |window: &SlidingWindow, now: Instant, units: u64| {
        let mut used = window.entries.iter().map(Entry::units).sum::<u64>();
        let fits = |used| used + units <= limit;
        let frees = window.entries.iter().find(|entry| {
            let there = !fits(used);
            used -= entry.units();
            there && fits(used)
        });
        frees.map_or(now, |entry| window.leaves(*entry).max(now))
    };
    let mut now = Instant::ZERO;
    for step in 0..200_000u64 {
        now += Duration::from_nanos(rng.next_u64() % 1_400_000);
        let units = 1 + rng.next_u64() % 25;
        if window.fits_at(now, units) == now {
            window.take(now, units);
            if rng.next_u64().is_multiple_of(3) {
                window.refund(now.saturating_sub(Duration::from_nanos(rng.next_u64() % 30_000_000_000)), units / 2);
            }
        }
        if step % 5_003 == 0 {
            for units in [1, 1_000, 500_000, limit] {
                assert_eq!(window.fits_at(now, units), walk(&window, now, units), "{units} at {now}");
            }
            let counted: u64 = window.taken(now).iter().map(|taken| taken.units).sum();
            let naive = window.entries.iter().filter(|entry| window.leaves(**entry) > now).map(Entry::units);
            assert_eq!((window.used(now), counted), (naive.clone().sum(), naive.sum()));
        }
    }
}

proptest! {
    /// After a change no new window holds more than its limit, as far back as the old one remembers.
    #[test]
    fn no_new_window_exceeds_its_limit(before in steps(), after in steps(), old in 1u32..30, new in 1u32..30) {
        let mut all = Quotas::new(&quotas(&[Quota::sliding(Dimension::Tokens, 100, old * S)])).expect("sensible");
        let next = Quota::sliding(Dimension::Tokens, 50, new * S);
        let (mut log, mut now): (Vec<(Instant, u64)>, _) = (Vec::new(), Instant::ZERO);
        let mut changed = None;
        let all_steps = before.iter().map(|step| (step, false)).chain(after.iter().map(|step| (step, true)));
        for ((passed, units, _), late) in all_steps {
            now += Duration::from_millis(*passed);
            if late && changed.is_none() {
                all.reconfigure(now, &quotas(core::slice::from_ref(&next))).expect("sensible");
                changed = Some(now);
            }
            let cost = Cost::zero().with(Dimension::Tokens, *units);
            while let Admit::At { at, .. } = all.admit(now, &Ask::of(&cost)) {
                now = at;
            }
            all.take(now, now, &cost);
            log.push((now, *units));
            if let Some(changed) = changed {
                let known = changed.saturating_sub(old * S);
                let inside = |at: Instant| at > known && at + new * S > now;
                let sum: u64 = log.iter().filter(|(at, _)| inside(*at)).map(|(_, units)| units).sum();
                prop_assert!(sum <= 50, "{} in {} s", sum, new);
            }
        }
    }

    /// Against a list of everything: the answer is the earliest time at which it fits, within one slot.
    #[test]
    fn a_sliding_window_agrees_with_a_naive_log(steps in steps()) {
        let (limit, window) = (100, 10 * S);
        let slot = Duration::from_nanos(nanos(window) / SLOTS);
        let mut counter = counter(QuotaShape::Sliding, limit, window);
        let mut log: Vec<(Instant, u64)> = Vec::new();
        let mut now = Instant::ZERO;
        let used = |log: &Vec<(Instant, u64)>, at: Instant, slack: Duration| -> u64 {
            log.iter().filter(|(t, _)| *t + window + slack > at).map(|(_, units)| units).sum()
        };
        for (passed, units, refund) in steps {
            now += Duration::from_millis(passed);
            let fits = counter.fits_at(now, units);
            prop_assert_eq!(fits, counter.fits_at(now, units));
            prop_assert!(used(&log, fits, Duration::ZERO) + units <= limit, "fits at {} but does not", fits);
            if fits > now {
                let before = fits.saturating_sub(slot + slot);
                prop_assert!(before < now || used(&log, before, Duration::ZERO) + units > limit, "fits before {}", fits);
            }
            now = fits;
            counter.take(now, units);
            prop_assert!(counter.used(now) <= limit);
            if refund {
                counter.refund(now, units);
            } else {
                log.push((now, units));
            }
            prop_assert!(counter.used(now) >= used(&log, now, Duration::ZERO));
            prop_assert!(counter.used(now) <= used(&log, now, slot));
        }
    }

    /// Never more than the burst and the refill over any span.
    #[test]
    fn a_bucket_never_gives_more_than_burst_and_refill(steps in steps()) {
        let mut bucket = TokenBucket::new(100, 10 * S, 40);
        let mut log: Vec<(Instant, u64)> = Vec::new();
        let mut now = Instant::ZERO;
        for (passed, units, _) in steps {
            now = bucket.fits_at(now + Duration::from_millis(passed), units);
            bucket.take(now, units);
            log.push((now, units));
            let mut given = 0;
            for (from, units) in log.iter().rev() {
                given += units;
                prop_assert!(u128::from(given) * 10_000_000_000 <= 40 * 10_000_000_000 + (now - *from).as_nanos() * 100);
            }
        }
    }

    /// However late, never more than the burst and the refill over any span that is longer by what is credited.
    #[test]
    fn lateness_adds_no_more_than_what_is_credited(steps in steps()) {
        let mut bucket = TokenBucket::new(1_000, S, 4);
        let mut log: Vec<Instant> = Vec::new();
        let mut now = Instant::ZERO;
        for (passed, waited, _) in steps {
            let wanted = now.max(bucket.fits_at(now, 1).saturating_sub(Duration::from_millis(waited)));
            now = bucket.fits_at(wanted, 1) + Duration::from_micros(passed);
            bucket.take_wanted(now, wanted, 1);
            log.push(now);
            for (given, from) in (1..).zip(log.iter().rev()) {
                prop_assert!((given - 4) * 1_000_000 <= (now - *from + LATE).as_nanos() as i64, "{given} since {from}");
            }
        }
    }

    /// Between two resets never more than the limit.
    #[test]
    fn a_fixed_window_never_exceeds_its_limit(steps in steps()) {
        let mut window = FixedWindow::new(100, 10 * S);
        let (mut now, mut start, mut used) = (Instant::ZERO, Instant::ZERO, 0);
        for (passed, units, _) in steps {
            now = window.fits_at(now + Duration::from_millis(passed), units);
            window.take(now, units);
            if used == 0 || now - start >= 10 * S {
                (start, used) = (now, 0);
            }
            used += units;
            prop_assert!(used <= 100);
        }
    }
}

#[test]
fn a_new_quota_inherits_from_its_kind_then_from_its_window_then_from_the_next_longer_one() {
    let quota = |shape, seconds: u32| Quota { dimension: Dimension::Tokens, limit: 5, window: seconds * S, shape };
    let next = quota(QuotaShape::Sliding, 60);
    let best_first = [
        quota(QuotaShape::Sliding, 60),
        quota(QuotaShape::Sliding, 90),
        quota(QuotaShape::Sliding, 600),
        quota(QuotaShape::Sliding, 59),
        quota(QuotaShape::Sliding, 1),
        quota(QuotaShape::Fixed, 60),
        quota(QuotaShape::Bucket { burst: 1 }, 30),
    ];
    assert!(best_first.is_sorted_by(|a, b| misfit(a, &next) < misfit(b, &next)));
}
