//! What the head of an answer announces acts while its call is still in flight, as with a stream.

use std::time::Duration;

use crate::job::at;
use paceline_core::{
    Admit, Class, Cost, Dimension, Event, Instant, LimitReport, Outcome, Pacer, PacerConfig, RefillMode, Request,
    ScopeId, Ticket,
};

const S: Duration = Duration::from_secs(1);

fn fast() -> (Pacer, ScopeId) {
    let config = PacerConfig { start: Some(1_000_000.0), ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a");
    (pacer, scope)
}

fn left(remaining: u64) -> LimitReport {
    LimitReport {
        dimension: Dimension::Requests,
        limit: Some(10),
        remaining: Some(remaining),
        reset: Some(30 * S),
        window: Some(60 * S),
        restores: RefillMode::AtOnce,
    }
}

fn ask(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Ticket {
    pacer.enqueue(now, Request::new(scope, Cost::request())).expect("it fits")
}

/// Calls that leave at that time if as many want to as may.
fn leave(pacer: &mut Pacer, now: Instant, scope: &ScopeId) -> Vec<Ticket> {
    pacer.handle_timeout(now);
    (0..50).for_each(|_| _ = ask(pacer, now, scope));
    granted(pacer)
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let granted = |event| if let Event::Granted { ticket, .. } = event { Some(ticket) } else { None };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(granted).collect()
}

fn success(limits: Vec<LimitReport>) -> Outcome {
    Outcome { limits, ..Outcome::new(Class::Success) }
}

#[test]
fn a_limit_that_the_head_of_a_stream_announces_holds_others_back_while_it_runs() {
    let (mut pacer, scope) = fast();
    let stream = ask(&mut pacer, at(0.0), &scope);
    assert_eq!(granted(&mut pacer), [stream]);
    pacer.observe(at(0.5), stream, &[left(0)]);
    let other = ask(&mut pacer, at(0.5), &scope);
    pacer.handle_timeout(at(29.9));
    assert_eq!(granted(&mut pacer), [], "the stream still runs");
    assert_eq!(pacer.poll_timeout(), Some(at(30.0)));
    pacer.handle_timeout(at(30.0));
    assert_eq!(granted(&mut pacer), [other]);
}

#[test]
fn what_waits_leaves_as_soon_as_the_head_of_a_stream_announces_room() {
    let (mut pacer, scope) = fast();
    let streams = [ask(&mut pacer, at(0.0), &scope), ask(&mut pacer, at(0.0), &scope)];
    pacer.handle_timeout(at(0.1));
    assert_eq!(granted(&mut pacer), streams);
    pacer.observe(at(0.5), streams[0], &[left(0)]);
    let other = ask(&mut pacer, at(0.5), &scope);
    assert_eq!(granted(&mut pacer), []);
    pacer.observe(at(1.0), streams[1], &[left(5)]);
    assert_eq!(granted(&mut pacer), [other]);
}

/// With and without an observation, and with the same limits in the outcome or none there, as many leave.
#[test]
fn the_outcome_of_an_observed_call_counts_its_limits_no_second_time() {
    for (observes, again) in [(true, true), (true, false), (false, true)] {
        let (mut pacer, scope) = fast();
        let stream = ask(&mut pacer, at(0.0), &scope);
        assert_eq!(granted(&mut pacer), [stream]);
        let mut left_before = 0;
        if observes {
            pacer.observe(at(0.5), stream, &[left(5)]);
            left_before = leave(&mut pacer, at(1.0), &scope).len();
            assert_eq!(left_before, 5);
        }
        pacer.complete(at(2.0), stream, success(if again { vec![left(5)] } else { vec![] }));
        assert_eq!(left_before + granted(&mut pacer).len() + leave(&mut pacer, at(3.0), &scope).len(), 5);
    }
}

/// A stream may run for longer than the window whose state its head announced.
#[test]
fn the_outcome_of_an_observed_call_does_not_bring_a_past_window_back() {
    let (mut pacer, scope) = fast();
    let stream = ask(&mut pacer, at(0.0), &scope);
    assert_eq!(granted(&mut pacer), [stream]);
    pacer.observe(at(0.5), stream, &[left(1)]);
    let first = ask(&mut pacer, at(31.0), &scope);
    assert_eq!(granted(&mut pacer), [first], "of a new window of ten");
    pacer.complete(at(32.0), stream, success(vec![left(1)]));
    assert_eq!(leave(&mut pacer, at(33.0), &scope).len(), 9);
}

#[test]
fn a_call_that_is_not_in_flight_has_nothing_to_observe() {
    let (mut pacer, scope) = fast();
    let done = ask(&mut pacer, at(0.0), &scope);
    pacer.complete(at(1.0), done, success(vec![]));
    pacer.hold(at(1.0), Some(&scope), at(9.0));
    let waiting = ask(&mut pacer, at(1.0), &scope);
    for ticket in [done, waiting] {
        pacer.observe(at(2.0), ticket, &[left(0)]);
    }
    pacer.resume(at(3.0), Some(&scope));
    assert_eq!(pacer.admit(at(3.0), &Request::new(&scope, Cost::request())), Admit::Now);
}
