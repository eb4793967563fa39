//! A pacer uses its configured limits in full, and no more than that.

use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, Instant, LimitReport, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, QuotaShape,
    RefillMode, Request, Ticket,
};

use crate::job::{Job, at, run};
use crate::restored::{learnt, restore};

const S: Duration = Duration::from_secs(1);

fn fixed(quotas: Vec<Quota>) -> Pacer {
    let config = PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() };
    Pacer::new(config, 1, Instant::ZERO).expect("sensible")
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let granted = |event| match event {
        Event::Granted { ticket, .. } => Some(ticket),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect()
}

/// Calls that pass within a moment when each ends at once with that usage.
fn passes(quotas: Vec<Quota>, reserved: &Cost, usage: &Cost) -> usize {
    let mut pacer = fixed(quotas);
    let scope = pacer.scope("a");
    for sent in 0..1_000 {
        let ticket = pacer.enqueue(at(1.0), Request::new(&scope, reserved.clone())).expect("fits");
        if granted(&mut pacer).is_empty() {
            return sent;
        }
        pacer.complete(at(1.0), ticket, Outcome::new(Class::Success).with_usage(usage.clone()));
    }
    1_000
}

#[test]
fn usage_that_names_tokens_only_gives_no_request_back() {
    let hourly = Quota::sliding(Dimension::Requests, 100, 3_600 * S);
    let points = Dimension::Named("points".into());
    let reserved = Cost::request().with(Dimension::Tokens, 200).with(points.clone(), 2);
    let tokens = Cost::zero().with(Dimension::Tokens, 120);
    assert_eq!(passes(vec![hourly.clone()], &reserved, &tokens), 100);
    assert_eq!(passes(vec![Quota { dimension: points.clone(), ..hourly.clone() }], &reserved, &tokens), 50);
    let of_tokens = Quota { dimension: Dimension::Tokens, limit: 1_000, ..hourly };
    assert_eq!(passes(vec![of_tokens], &reserved, &tokens), 7, "7 used 840, and 200 do not fit");
}

#[test]
fn what_a_call_really_used_replaces_its_estimate_in_the_limits_of_its_tier_too() {
    let quotas = vec![Quota::sliding(Dimension::Tokens, 1_000, 3_600 * S)];
    let tiers = vec![("tier".into(), Limits { quotas, burst: None })];
    let mut pacer =
        Pacer::new(PacerConfig { tiers, pace: Pace::Fixed, ..PacerConfig::default() }, 1, at(0.0)).expect("sensible");
    let scope = pacer.scope("tier");
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    for (reserved, used, left) in [(900, 100, 900), (100, 500, 400), (400, 400, 0)] {
        let ticket = pacer.enqueue(at(1.0), Request::new(&scope, tokens(reserved))).expect("fits");
        assert_eq!(granted(&mut pacer), [ticket]);
        pacer.complete(at(1.0), ticket, Outcome::new(Class::Success).with_usage(tokens(used)));
        assert_eq!(pacer.snapshot(at(1.0)).scopes[0].quotas[0].remaining, left);
    }
}

#[test]
fn a_usage_beyond_all_measure_fills_its_window_and_no_more() {
    let hourly = Quota::sliding(Dimension::Tokens, 1_000, 3_600 * S);
    let reserved = Cost::request().with(Dimension::Tokens, 200);
    for shape in [QuotaShape::Sliding, QuotaShape::Fixed, QuotaShape::Bucket { burst: 1_000 }] {
        for tokens in [1_001, u64::from(u32::MAX) * 3, u64::MAX] {
            let usage = Cost::zero().with(Dimension::Tokens, tokens);
            assert_eq!(passes(vec![Quota { shape, ..hourly.clone() }], &reserved, &usage), 1, "{shape:?}, {tokens}");
        }
    }
    let mut pacer = fixed(vec![hourly]);
    let scope = pacer.scope("a");
    let first = pacer.enqueue(at(0.0), Request::new(&scope, reserved.clone())).expect("fits");
    let second = pacer.enqueue(at(0.0), Request::new(&scope, reserved.clone())).expect("fits");
    granted(&mut pacer);
    for ticket in [first, second] {
        let usage = Cost::zero().with(Dimension::Tokens, u64::MAX);
        pacer.complete(at(0.0), ticket, Outcome::new(Class::Success).with_usage(usage));
    }
    let third = pacer.enqueue(at(0.0), Request::new(&scope, reserved)).expect("fits");
    pacer.handle_timeout(at(3_601.0));
    assert_eq!(granted(&mut pacer), [third], "an hour later all of that has left the window");
}

#[test]
fn what_usage_names_as_zero_is_given_back() {
    let hourly = Quota::sliding(Dimension::Requests, 100, 3_600 * S);
    let reserved = Cost::request().with(Dimension::Tokens, 200);
    let no_call = Cost::zero().with(Dimension::Requests, 0);
    assert_eq!(passes(vec![hourly.clone()], &reserved, &no_call), 1_000);
    let tokens = Quota { dimension: Dimension::Tokens, ..hourly };
    let more = Quota { limit: 1_000, ..tokens };
    assert_eq!(passes(vec![more.clone()], &reserved, &no_call), 5, "of tokens it says nothing");
    assert_eq!(passes(vec![more], &reserved, &reserved.free()), 1_000);
}

/// A server that counts `limit` calls per window, of which `used` are gone at the beginning, and says so in its headers; it
/// promises `more` than there is.
fn announcing(limit: u64, used: u64, more: u64, window: Duration, items: u64, until: Instant) -> (Job, usize) {
    let (mut used, mut turn, mut refused) = (used, 0, 0);
    let job = run(PacerConfig::default(), items, until, |now, _| {
        let now_in = now.as_nanos() / window.as_nanos() as u64;
        if now_in > turn {
            (used, turn) = (0, now_in);
        }
        let admitted = used < limit;
        (used, refused) = (used + u64::from(admitted), refused + usize::from(!admitted));
        let report = LimitReport {
            dimension: Dimension::Requests,
            limit: Some(limit),
            remaining: Some(limit - used + if admitted { more } else { 0 }),
            reset: Some(Duration::from_nanos((turn + 1) * window.as_nanos() as u64 - now.as_nanos())),
            window: Some(window),
            restores: RefillMode::AtOnce,
        };
        let class = if admitted { Class::Success } else { Class::Throttled };
        (S / 10, Outcome { limits: vec![report], ..Outcome::new(class) })
    });
    (job, refused)
}

#[test]
fn announced_two_per_4_s_takes_ten_items_16_s() {
    let (job, refused) = announcing(2, 0, 0, 4 * S, 10, at(100.0));
    assert_eq!((job.succeeded.len(), refused), (10, 0));
    assert!(job.makespan() < 17.0, "{}", job.makespan());
}

#[test]
fn all_81_that_are_left_of_5000_are_used_before_the_reset() {
    let (job, refused) = announcing(5_000, 4_919, 0, 3_000 * S, 100, at(2_999.0));
    assert_eq!(
        (job.succeeded.len(), refused),
        (81, 0),
        "one waits for the answer of the one before, none for the reset"
    );
}

#[test]
fn a_count_that_refusals_prove_wrong_keeps_a_margin_again() {
    // A window of 100 that always promises one more: each window that is used to its end costs a refusal.
    let (_, refused) = announcing(100, 0, 1, 60 * S, 2_000, at(10.0 * 60.0));
    assert_eq!(refused, 1, "in ten windows");
}

/// What leaves of a window of 5 within 4 s of its reset, at 100 calls a second, while no answer comes; and what leaves then.
/// `stale`: then an answer comes that the server gave before the reset.
fn after_a_reset(window: Option<Duration>, stale: bool) -> (usize, usize) {
    let mut pacer = Pacer::new(PacerConfig::default(), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    restore(&mut pacer, at(0.0), learnt("a", 100.0));
    let send = |pacer: &mut Pacer, now| pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits");
    let answer = |remaining, reset: f64| {
        let (limit, remaining) = (Some(5), Some(remaining));
        let reset = Some(Duration::from_secs_f64(reset));
        let restores = RefillMode::AtOnce;
        let report = LimitReport { dimension: Dimension::Requests, limit, remaining, reset, window, restores };
        Outcome { limits: vec![report], ..Outcome::new(Class::Success) }
    };
    let [first, second] = [send(&mut pacer, at(0.0)), send(&mut pacer, at(1.0))];
    (2..40).for_each(|_| _ = send(&mut pacer, at(1.0)));
    pacer.handle_timeout(at(1.5));
    pacer.complete(at(2.0), first, answer(1, 8.0));
    if !stale {
        pacer.complete(at(2.0), second, answer(0, 8.0));
    }
    granted(&mut pacer);
    let (mut left, mut now) = (0, at(2.0));
    while let Some(due) = pacer.poll_timeout().filter(|due| *due <= at(12.0)) {
        now = due.max(now);
        pacer.handle_timeout(now);
        let new = granted(&mut pacer).len();
        assert!(new == 0 || now >= at(8.0), "{new} leave at {now:?}, before the reset");
        left += new;
    }
    if stale {
        // As the server said at 7.9 s, with a little rounding.
        pacer.complete(at(12.0), second, answer(0, 7.1));
    }
    pacer.handle_timeout(at(12.0));
    (left, granted(&mut pacer).len())
}

#[test]
fn after_the_reset_of_an_announced_window_no_more_than_its_limit_leaves_before_the_next_header() {
    for (window, stale) in [(Some(20 * S), false), (None, false), (Some(20 * S), true)] {
        assert_eq!(after_a_reset(window, stale), (5, 0), "{window:?}, {stale}");
    }
}

#[test]
fn reconfigure_keeps_the_count_when_only_the_window_changes() {
    let config = |minutes: u32| {
        let quotas = vec![Quota::sliding(Dimension::Requests, 100, minutes * 60 * S)];
        PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() }
    };
    let mut pacer = Pacer::new(config(2), 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    let sends = |pacer: &mut Pacer, now| {
        (0..100).for_each(|_| _ = pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits"));
        granted(pacer).len()
    };
    assert_eq!(sends(&mut pacer, at(0.0)), 100);
    pacer.reconfigure(at(30.0), config(3)).expect("sensible");
    assert_eq!(sends(&mut pacer, at(30.0)), 0);
    pacer.handle_timeout(at(179.9));
    assert_eq!(granted(&mut pacer).len(), 0, "all of them left in these three minutes");
    pacer.handle_timeout(at(180.1));
    assert_eq!(granted(&mut pacer).len(), 100);
}
