//! Configured limits under the pace `auto`: they are trusted until a refusal contradicts it.

use std::time::Duration;

use paceline_core::{
    Class, Cost, Dimension, Event, Instant, Limits, Outcome, Pacer, PacerConfig, Quota, QuotaShape, Request, ScopeId,
    Ticket,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

/// The default pace, which is `auto`, with these limits.
fn configured(quotas: Vec<Quota>, burst: Option<u64>) -> (Pacer, ScopeId) {
    let config = PacerConfig { limits: Limits { quotas, burst }, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let granted = |event| match event {
        Event::Granted { ticket, .. } => Some(ticket),
        _ => None,
    };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect()
}

fn ask(pacer: &mut Pacer, scope: &ScopeId, calls: usize, cost: &Cost) -> Vec<Ticket> {
    (0..calls).for_each(|_| _ = pacer.enqueue(at(0.0), Request::new(scope, cost.clone())).expect("fits"));
    granted(pacer)
}

/// Calls granted by then, when each succeeds as soon as it has left.
fn granted_until(pacer: &mut Pacer, mut out: Vec<Ticket>, until: Instant) -> usize {
    let mut count = out.len();
    let mut now = at(0.0);
    loop {
        for ticket in std::mem::take(&mut out) {
            pacer.complete(now, ticket, Outcome::new(Class::Success));
        }
        out = granted(pacer);
        if out.is_empty() {
            let Some(due) = pacer.poll_timeout().filter(|due| *due <= until) else { return count };
            now = due;
            pacer.handle_timeout(now);
            out = granted(pacer);
        }
        count += out.len();
    }
}

#[test]
fn the_burst_of_a_configured_limit_acts_at_once() {
    let (mut pacer, scope) = configured(vec![Quota::per_minute(50)], Some(10));
    assert_eq!(ask(&mut pacer, &scope, 20, &Cost::request()).len(), 10);
    let second = Quota::sliding(Dimension::Requests, 50, S);
    let (mut pacer, scope) = configured(vec![second.clone()], Some(50));
    assert_eq!(ask(&mut pacer, &scope, 200, &Cost::request()).len(), 50);
    let bucket = Quota { shape: QuotaShape::Bucket { burst: 100 }, ..second };
    let (mut pacer, scope) = configured(vec![bucket], None);
    assert_eq!(ask(&mut pacer, &scope, 200, &Cost::request()).len(), 100);
}

#[test]
fn there_is_no_slow_start_below_a_configured_limit() {
    let (mut pacer, scope) = configured(vec![Quota::per_minute(600)], Some(10));
    let first = ask(&mut pacer, &scope, 1_000, &Cost::request());
    let count = granted_until(&mut pacer, first, at(10.0));
    assert!((109..=111).contains(&count), "{count}: 10 at once, then 10 a second");
}

#[test]
fn configured_tokens_are_believed_too() {
    let cost = Cost::request().with(Dimension::Tokens, 100);
    let (mut pacer, scope) = configured(vec![Quota::sliding(Dimension::Tokens, 5_000, 60 * S)], None);
    assert_eq!(ask(&mut pacer, &scope, 200, &cost).len(), 50, "all of a minute's tokens may be used at once");
}

#[test]
fn after_a_refusal_a_configured_limit_is_no_longer_trusted() {
    let (mut pacer, scope) = configured(vec![Quota::per_minute(6_000)], Some(100));
    let mut out = ask(&mut pacer, &scope, 5_000, &Cost::request());
    assert_eq!(out.len(), 100);
    for ticket in out.split_off(10) {
        pacer.complete(at(0.1), ticket, Outcome::new(Class::Throttled));
    }
    out.extend(granted(&mut pacer));
    let count = granted_until(&mut pacer, out, at(3.0));
    assert!(count < 30, "{count}: the configured limit would have allowed another 270 in these seconds");
}

/// A server counts from when calls arrive, and the first takes longest: one of those behind it may come too soon.
#[test]
fn one_refusal_among_the_first_calls_leaves_a_configured_limit_as_it_is() {
    let refused = |count: usize| {
        let (mut pacer, scope) = configured(vec![Quota::per_minute(1_200)], Some(20));
        let mut out = ask(&mut pacer, &scope, 1_000, &Cost::request());
        assert_eq!(out.len(), 20);
        for ticket in out.split_off(20 - count) {
            pacer.complete(at(0.05), ticket, Outcome::new(Class::Throttled));
        }
        out.extend(granted(&mut pacer));
        let calls = granted_until(&mut pacer, out, at(10.0));
        let estimate = pacer.snapshot(at(10.0)).scopes[0].estimate.clone().expect("the pace is auto");
        (calls, estimate.refused.is_some())
    };
    let (calls, slower) = refused(1);
    assert!((218..=219).contains(&calls) && !slower, "{calls}: 19 at once, then 20 a second");
    assert!(refused(2).1, "a second one refutes the limit");
}

/// Told twice what the server takes: its 51st call is refused, and the next one.
#[test]
fn a_second_refusal_of_the_first_second_knows_what_passed_before_the_first() {
    let (mut pacer, scope) = configured(vec![Quota::sliding(Dimension::Requests, 100, S)], Some(1));
    let mut out: Vec<(usize, Instant, Ticket)> = Vec::new();
    let mut count = 0;
    for _ in 0..200 {
        pacer.enqueue(at(0.0), Request::new(&scope, Cost::request())).expect("fits");
    }
    for step in 0..=56 {
        let now = at(0.01 * f64::from(step));
        pacer.handle_timeout(now);
        for (number, _, ticket) in out.extract_if(.., |(_, left, _)| now - *left >= S / 20) {
            let class = if number < 50 { Class::Success } else { Class::Throttled };
            pacer.complete(now, ticket, Outcome::new(class));
        }
        for ticket in granted(&mut pacer) {
            out.push((count, now, ticket));
            count += 1;
        }
    }
    let estimate = pacer.snapshot(at(0.56)).scopes[0].estimate.clone().expect("the pace is auto");
    let (_, rate) = estimate.refused.expect("the second one refutes the limit, and ends the start");
    assert!((45.0..50.0).contains(&rate), "{rate}: what passed is known");
}

/// The learnt rate once a refusal has contradicted the configured limit.
fn contradicted(pacer: &mut Pacer, now: Instant, refused: Ticket) -> f64 {
    pacer.complete(now, refused, Outcome::new(Class::Throttled));
    let (_, rate) =
        pacer.snapshot(now).scopes[0].estimate.clone().and_then(|estimate| estimate.refused).expect("it was refused");
    rate
}

#[test]
fn a_configured_limit_that_a_refusal_contradicts_gives_way_to_the_admitted_rate() {
    // Ten at once and then ten a second, for ten seconds.
    let (mut pacer, scope) = configured(vec![Quota::per_minute(600)], Some(10));
    let first = ask(&mut pacer, &scope, 109, &Cost::request());
    assert_eq!(granted_until(&mut pacer, first, at(10.0)), 109);
    pacer.enqueue(at(10.0), Request::new(&scope, Cost::request())).expect("fits");
    let refused = granted(&mut pacer)[0];
    let rate = contradicted(&mut pacer, at(10.1), refused);
    assert!((10.0..11.5).contains(&rate), "{rate}");
    let (mut pacer, scope) = configured(vec![Quota::per_minute(600)], Some(10));
    let refused = ask(&mut pacer, &scope, 1, &Cost::request())[0];
    let rate = contradicted(&mut pacer, at(0.1), refused);
    assert!((0.99..1.01).contains(&rate), "nothing was admitted, so one a second: {rate}");
}

/// A client that asks three times a minute, or retries with long waits, would wait for half a minute before each call.
#[test]
fn a_refusal_of_seldom_calls_does_not_make_them_the_rate() {
    for (configured_limit, least) in [(Quota::per_minute(300), 0.99), (Quota::per_minute(12), 0.19)] {
        let (mut pacer, scope) = configured(vec![configured_limit], None);
        for minute in 0..3 {
            let now = at(f64::from(20 * minute));
            let ticket = ask_at(&mut pacer, now, &scope);
            pacer.complete(now + S / 10, ticket, Outcome::new(Class::Success));
        }
        let refused = ask_at(&mut pacer, at(60.0), &scope);
        let rate = contradicted(&mut pacer, at(60.1), refused);
        assert!((least..1.2).contains(&rate), "{rate}");
    }
}

fn ask_at(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Ticket {
    pacer.enqueue(now, Request::new(scope, Cost::request())).expect("fits");
    granted(pacer)[0]
}

#[test]
fn what_passed_before_a_hold_says_nothing_about_the_rate_after_it() {
    let (mut pacer, scope) = configured(vec![Quota::per_minute(6_000)], Some(100));
    let first = ask(&mut pacer, &scope, 1_000, &Cost::request());
    assert_eq!(granted_until(&mut pacer, first, at(30.0)), 1_000);
    pacer.hold(at(30.0), Some(&scope), at(60.0));
    // A canary, and then one a second.
    let mut last = None;
    for second in 60..80 {
        let now = at(f64::from(second));
        pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("fits");
        let ticket = granted(&mut pacer)[0];
        match second {
            79 => last = Some(ticket),
            _ => _ = pacer.complete(now + S / 10, ticket, Outcome::new(Class::Success)),
        }
    }
    let rate = contradicted(&mut pacer, at(79.1), last.expect("the last"));
    assert!((0.9..1.2).contains(&rate), "{rate}");
}
