use super::*;

/// Ten calls a second after a refusal, and then so many that pass. Gives the rate.
fn after(calls: u64, windowed: bool) -> f64 {
    let mut rate = Rate::new(Start::At(12.5), Duration::from_secs(60));
    rate.cut(Instant::ZERO, 1_000, 1_000);
    rate.set(10.0);
    (rate.goal, rate.again, rate.windowed) = (0.0, f64::INFINITY, windowed);
    // The first call was held back by nothing.
    (1..calls).for_each(|run| rate.grow(run));
    rate.x
}

#[test]
fn growth_is_paid_for_and_faster_after_a_long_quiet() {
    let one = after(100, false);
    assert!((11.7..11.9).contains(&one), "one payment of 100 calls earns a cut, {one}");
    assert_eq!(one, after(100, true));
    let (quiet, window) = (after(600, false), after(600, true));
    assert!(quiet > 1.3 * window, "{quiet} and {window}");
}

#[test]
fn a_refusal_soon_after_the_last_takes_more() {
    let cut = |run| {
        let mut rate = Rate::new(Start::At(10.0), Duration::from_secs(60));
        rate.ramp = None;
        assert!(!rate.cut(Instant::ZERO, 1_000, run));
        rate.x
    };
    assert!((cut(60) - 8.2).abs() < 1e-9 && (cut(3) - 8.0).abs() < 1e-9);
}

#[test]
fn what_passed_between_two_refusals_bounds_the_cut_and_growth_earns_that_again() {
    let between = |calls: u64, time: Duration| {
        let mut rate = Rate::new(Start::At(25.0), Duration::from_secs(60));
        rate.ramp = None;
        rate.cut(Instant::ZERO, 1_000, 10);
        rate.set(21.0);
        rate.cut(Instant::ZERO + time, 1_000 + calls, calls);
        rate
    };
    let mut measured = between(40, Duration::from_secs(2));
    assert!((measured.x - 0.96 * 20.0).abs() < 1e-9, "{}", measured.x);
    let payment = measured.payment() as u64;
    (1..=payment).for_each(|run| measured.grow(run));
    assert!((20.8..21.3).contains(&measured.x), "a payment earns what was taken, {}", measured.x);
    let least = between(43, Duration::from_secs(2));
    assert!((least.x - 0.94 * 21.0).abs() < 1e-9, "{}", least.x);
    for (calls, time) in [(20, 1_000), (40, 1_000), (20, 2_000)] {
        let usual = between(calls, Duration::from_millis(time));
        assert!((usual.x - 0.8 * 21.0).abs() < 1e-9, "{calls} in {time} ms: {}", usual.x);
    }
}
