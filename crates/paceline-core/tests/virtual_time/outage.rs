//! A server that is down, met by a rate that is learnt: calls are too few then for a share of failures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::job::{Arrival, at, run, seconds};
use paceline_core::{
    Class, Concurrency, Cost, Event, Instant, NextAction, Outcome, Pace, Pacer, PacerConfig, Request, Retry, Ticket,
};

#[test]
fn no_item_pays_for_an_outage_and_few_calls_are_spent_on_it() {
    for (from, to) in [(0.0, 600.0), (1.0, 600.0)] {
        let down = at(from)..at(to);
        let job = run(PacerConfig::default(), 2_000, at(10_000.0), |now, _| {
            let class = if down.contains(&now) { Class::Overloaded } else { Class::Success };
            (Duration::from_millis(20), Outcome::new(class))
        });
        assert_eq!((job.succeeded.len(), job.failed.len()), (2_000, 0), "down from {from} s on");
        let spent = job.arrivals.iter().filter(|arrival| down.contains(&arrival.at)).count();
        assert!(spent < 80, "{spent} calls in ten minutes");
        let first = job.succeeded.iter().map(|(_, at)| seconds(*at)).find(|at| *at > to).expect("some are left");
        assert!(first < to + 40.0, "noticed after {first} s");
    }
}

#[test]
fn a_wait_that_a_failing_server_asks_for_is_waited_for_once() {
    let asked = Duration::from_secs(3_600);
    let job = run(PacerConfig::default(), 50, at(100_000.0), |now, _| {
        let overloaded = Outcome::new(Class::Overloaded).with_hint(asked, false);
        let outcome = if now < at(20.0) { overloaded } else { Outcome::new(Class::Success) };
        (Duration::from_millis(20), outcome)
    });
    assert_eq!((job.succeeded.len(), job.failed.len()), (50, 0));
    let last = job.succeeded.iter().map(|(_, at)| seconds(*at)).fold(0.0, f64::max);
    assert!(last < 3_700.0, "the last is done after {last} s, the server asked for 3,600 s");
}

/// Two hundred calls that fail, each repeated as often as its item may be.
fn opens_the_breaker(item: Option<u64>) -> bool {
    let config = PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("a model");
    for _ in 0..200 {
        let request = Request { item, ..Request::new(&scope, Cost::request()) };
        let ticket = pacer.enqueue(Instant::ZERO, request).expect("it fits");
        pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Transient));
        while let Some(event) = pacer.poll_event() {
            if matches!(event, Event::BreakerOpened { .. }) {
                return true;
            }
        }
    }
    false
}

#[test]
fn requests_without_an_item_are_items_of_their_own_for_the_breaker() {
    assert!(opens_the_breaker(None));
    assert!(!opens_the_breaker(Some(0)), "one bad item never opens it");
}

#[test]
fn an_item_without_a_retry_left_does_not_test_a_server_that_may_be_down() {
    let retry = Retry { max_retries: 1, ..Retry::default() };
    let config = PacerConfig { retry, concurrency: Concurrency::Fixed { max: 20 }, ..PacerConfig::default() };
    for k in 0..40 {
        let from = 2.5 + 0.037 * f64::from(k);
        let down = at(from)..at(from + 6.0);
        let mut calls = 0;
        let job = run(config.clone(), 3_000, at(1_000.0), |now, _| {
            calls += 1;
            let (took, class) = match down.contains(&now) {
                true => (1 + calls * 31 % 5, Class::Overloaded),
                false => (20 + calls * 7_919 % 13, Class::Success),
            };
            (Duration::from_millis(took), Outcome::new(class))
        });
        assert_eq!((job.succeeded.len(), job.failed.len()), (3_000, 0), "down from {from} s on");
    }
}

#[test]
fn where_nothing_fails_an_item_without_a_retry_left_keeps_its_turn() {
    let config =
        PacerConfig { pace: Pace::Fixed, concurrency: Concurrency::Fixed { max: 1 }, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let scope = pacer.scope("a model");
    let request = |attempts| Request { attempts, ..Request::new(&scope, Cost::request()) };
    let tickets = [0, 7, 0].map(|attempts| pacer.enqueue(Instant::ZERO, request(attempts)).expect("fits"));
    for ticket in tickets {
        assert_eq!(pacer.poll_event(), Some(Event::Granted { ticket, probe: false }));
        pacer.complete(Instant::ZERO, ticket, Outcome::new(Class::Success));
    }
}

/// Ten places, of which a host that hangs until the timeout takes all: its items came first. Twenty time-outs open its breaker,
/// and one probe at a time leaves the other places to the host behind it.
#[test]
fn a_host_that_hangs_does_not_keep_the_places_of_another() {
    let (concurrency, pace) = (Concurrency::Fixed { max: 10 }, Pace::Fixed);
    let config = PacerConfig { concurrency, pace, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
    let (hangs, works) = (pacer.scope("hangs"), pacer.scope("works"));
    let mut calls: BTreeMap<Ticket, bool> = BTreeMap::new();
    for n in 0..200 {
        let is_stuck = n < 100;
        let request = Request::new(if is_stuck { &hangs } else { &works }, Cost::request());
        calls.insert(pacer.enqueue(Instant::ZERO, request).expect("fits"), is_stuck);
    }
    let (mut now, mut out, mut done) = (Instant::ZERO, BTreeSet::new(), 0);
    while done < 100 && now < at(600.0) {
        while let Some(event) = pacer.poll_event() {
            if let Event::Granted { ticket, .. } = event {
                out.insert((now + Duration::from_millis(if calls[&ticket] { 15_000 } else { 100 }), ticket));
            }
        }
        let ends = out.first().map(|(end, _)| *end);
        now = pacer.poll_timeout().into_iter().chain(ends).min().expect("something happens").max(now);
        match out.first().copied().filter(|(end, _)| *end <= now) {
            Some((end, ticket)) => {
                out.remove(&(end, ticket));
                let class = if calls[&ticket] { Class::Transient } else { Class::Success };
                match pacer.complete(now, ticket, Outcome::new(class)) {
                    NextAction::Retry { next, .. } => _ = calls.insert(pacer.enqueue(now, *next).expect("fits"), true),
                    _ => done += 1,
                }
            }
            None => pacer.handle_timeout(now),
        }
    }
    assert!(done == 100 && now < at(50.0), "{done} items of the other host by {now:?}");
}

/// One 503 may be chance, but not the time that it names.
#[test]
fn an_overloaded_server_that_names_a_time_gets_no_other_call_before_it() {
    for pace in [Pace::Auto, Pace::Fixed] {
        let config = PacerConfig { pace, ..PacerConfig::default() }.with_in_flight(8);
        for asked in [6.0, 7_200.0] {
            let job = run(config.clone(), 400, at(asked + 600.0), |now, _| {
                let overloaded = Outcome::new(Class::Overloaded).with_hint(Duration::from_secs_f64(asked), false);
                let down = (1.0..1.2).contains(&seconds(now));
                (Duration::from_millis(100), if down { overloaded } else { Outcome::new(Class::Success) })
            });
            assert_eq!((job.succeeded.len(), job.failed.len()), (400, 0), "{pace:?}");
            let first = job.arrivals.iter().find(|arrival| arrival.at >= at(1.0)).expect("one is refused").at;
            let answered = first + Duration::from_millis(100);
            let meanwhile =
                |arrival: &&Arrival| arrival.at > answered && arrival.at < first + Duration::from_secs_f64(asked);
            assert_eq!(job.arrivals.iter().filter(meanwhile).count(), 0, "{pace:?}, {asked} s");
        }
    }
}

/// A ban by refusals that name no time, some of which come late, and that each call may lengthen: it is tested ever more seldom,
/// by one call each time, whether its items are few or many, end or stay.
#[test]
fn a_server_that_refuses_all_calls_is_tested_ever_more_seldom() {
    for (items, max_deferrals, passes) in [(5, None, 0), (60, None, 0), (400, Some(2), 0), (60, None, 10)] {
        let mut calls = 0;
        let retry = Retry { max_deferrals, ..Retry::default() };
        let job = run(PacerConfig { retry, ..PacerConfig::default() }, items, at(1_800.0), |now, _| {
            calls += 1;
            let class = if calls > passes { Class::Throttled } else { Class::Success };
            let is_late = now > at(10.0) && calls % 4 == 3;
            (Duration::from_millis(if is_late { 400 } else { 2 }), Outcome::new(class))
        });
        let case = format!("{items} items, {max_deferrals:?} deferrals, {passes} pass");
        let calls: Vec<f64> = job.arrivals.iter().map(|arrival| seconds(arrival.at)).collect();
        for pair in calls.windows(2).filter(|pair| pair[0] >= 130.0) {
            let least = 0.9 * (pair[0] / 8.0).min(120.0);
            assert!(pair[1] - pair[0] >= least - 1.0, "{case}: {pair:?}");
        }
        assert!(calls.last().is_some_and(|last| *last > 1_600.0), "{case}: it is tested to the end");
    }
}
