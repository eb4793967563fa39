//! Requests behind all others: what they leave free, and what they get while others come.

use std::collections::VecDeque;
use std::time::Duration;

use paceline_core::{
    Background, Class, Concurrency, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota,
    Request, Ticket, WaitCause,
};

use crate::job::at;

const S: Duration = Duration::from_secs(1);

fn pacer(background: Background, quotas: Vec<Quota>, concurrency: Concurrency, pace: Pace) -> Pacer {
    let config =
        PacerConfig { limits: Limits { quotas, burst: None }, concurrency, pace, background, ..PacerConfig::default() };
    Pacer::new(config, 1, Instant::ZERO).expect("sensible")
}

fn enqueue(pacer: &mut Pacer, now: Instant, scope: &str, priority: i32, tokens: u64) -> Ticket {
    let cost = Cost::request().with(Dimension::Tokens, tokens);
    pacer.enqueue(now, Request { priority, ..Request::new(scope, cost) }).expect("it fits")
}

fn granted(pacer: &mut Pacer) -> Vec<Ticket> {
    let of = |event| if let Event::Granted { ticket, .. } = event { Some(ticket) } else { None };
    std::iter::from_fn(|| pacer.poll_event()).filter_map(of).collect()
}

/// Both scopes are known to answer: one that is silent takes few places.
fn answered(pacer: &mut Pacer) {
    for scope in ["a", "b"] {
        let one = enqueue(pacer, Instant::ZERO, scope, 0, 0);
        assert_eq!(granted(pacer), [one]);
        pacer.complete(Instant::ZERO, one, Outcome::new(Class::Success));
    }
}

const RESERVED: Background = Background { reserve: 0.05, share: 0.0 };

#[test]
fn one_request_leaves_at_once_beside_long_calls_of_the_background() {
    let now = Instant::ZERO;
    for (background, concurrency, pace, long) in [
        (Background::default(), Concurrency::Fixed { max: 512 }, Pace::Fixed, 512),
        (RESERVED, Concurrency::Fixed { max: 512 }, Pace::Fixed, 486),
        (RESERVED, Concurrency::Aimd { floor: 1, start: 10, max: 50 }, Pace::Aimd, 9),
        (RESERVED, Concurrency::Fixed { max: 2 }, Pace::Fixed, 1),
        (RESERVED, Concurrency::Fixed { max: 1 }, Pace::Fixed, 1),
    ] {
        let mut pacer = pacer(background, Vec::new(), concurrency, pace);
        (0..600).for_each(|_| _ = enqueue(&mut pacer, now, "a", -1, 1));
        let out = granted(&mut pacer);
        assert_eq!(out.len(), long, "{concurrency:?}");
        assert_eq!(pacer.poll_timeout(), None, "only the end of a call lets another leave");
        let one = enqueue(&mut pacer, at(1.0), "a", 0, 1);
        let leaves = background.reserve > 0.0 && concurrency.max() > 1;
        assert_eq!(granted(&mut pacer), if leaves { vec![one] } else { vec![] }, "{concurrency:?}");
        // Its place does not go to the background, and that of the background does.
        if leaves {
            pacer.complete(at(2.0), one, Outcome::new(Class::Success));
            assert_eq!(granted(&mut pacer).len(), 0);
            pacer.complete(at(2.0), out[0], Outcome::new(Class::Success));
            assert_eq!(granted(&mut pacer).len(), 1);
        }
    }
}

#[test]
fn a_place_is_left_over_all_scopes_and_no_scope_waits_for_one_behind() {
    let now = Instant::ZERO;
    let mut pacer = pacer(RESERVED, Vec::new(), Concurrency::Fixed { max: 20 }, Pace::Fixed);
    answered(&mut pacer);
    (0..30).for_each(|n| _ = enqueue(&mut pacer, now, if n % 2 == 0 { "a" } else { "b" }, -1, 1));
    assert_eq!(granted(&mut pacer).len(), 19);
    assert_eq!(pacer.snapshot(now).account.waits_for, Some((WaitCause::Reserve, None)), "one of the 20 is free");
    let one = enqueue(&mut pacer, now, "c", 0, 1);
    assert_eq!(granted(&mut pacer), [one]);
}

#[test]
fn of_each_window_a_share_is_left() {
    let tokens = |limit| Quota::sliding(Dimension::Tokens, limit, 60 * S);
    let mut pacer = pacer(RESERVED, vec![tokens(10_000)], Concurrency::default(), Pace::Fixed);
    (0..100).for_each(|_| _ = enqueue(&mut pacer, at(0.0), "a", -1, 300));
    assert_eq!(granted(&mut pacer).len(), 31, "9,300 of 9,500");
    let next = pacer.poll_timeout().expect("the window opens");
    assert!(next > at(0.0), "no timer that changes nothing");
    let one = enqueue(&mut pacer, at(1.0), "a", 0, 700);
    assert_eq!(granted(&mut pacer), [one]);
    // What takes more than the rest leaves once the window has room for it.
    let mut pacer = self::pacer(RESERVED, vec![tokens(10_000)], Concurrency::default(), Pace::Fixed);
    let large = enqueue(&mut pacer, at(0.0), "a", -1, 9_900);
    assert_eq!(granted(&mut pacer), [large]);
}

/// Of 1,000 calls, those of the background, where both kinds wait all the time and calls take a second.
fn of_the_background(mut pacer: Pacer, scopes: (&str, &str), wakes: bool) -> usize {
    let (mut now, mut out, mut kinds) = (Instant::ZERO, VecDeque::new(), (0, 0));
    answered(&mut pacer);
    let behind: Vec<_> = (0..1_000).map(|_| enqueue(&mut pacer, now, scopes.1, -1, 10)).collect();
    (0..200).for_each(|_| _ = enqueue(&mut pacer, now, scopes.0, 0, 10));
    while kinds.0 + kinds.1 < 1_000 {
        for ticket in granted(&mut pacer) {
            if behind.contains(&ticket) {
                kinds.1 += 1;
            } else {
                kinds.0 += 1;
                enqueue(&mut pacer, now, scopes.0, 0, 10);
            }
            out.push_back((now + S, ticket));
        }
        let timer = pacer.poll_timeout().filter(|_| wakes);
        let ends = out.front().map(|(at, _)| *at);
        now = [timer, ends].into_iter().flatten().min().expect("something happens");
        pacer.handle_timeout(now);
        while let Some((_, ticket)) = out.pop_front_if(|(at, _)| *at <= now) {
            pacer.complete(now, ticket, Outcome::new(Class::Success));
        }
    }
    kinds.1
}

#[test]
fn the_background_gets_its_share_whatever_makes_it_wait() {
    let shared = Background { reserve: 0.1, share: 0.1 };
    for scopes in [("a", "a"), ("a", "b")] {
        let places = |background| pacer(background, Vec::new(), Concurrency::Fixed { max: 4 }, Pace::Fixed);
        let window = Quota::sliding(Dimension::Tokens, 1_000, 60 * S);
        let windows = |background| pacer(background, vec![window.clone()], Concurrency::default(), Pace::Fixed);
        assert_eq!(of_the_background(places(Background::default()), scopes, false), 4, "before the others came");
        let found = of_the_background(places(shared), scopes, false);
        assert!((95..=105).contains(&found), "places {scopes:?}: {found}");
        // The first window is full of what came first.
        let found = of_the_background(windows(shared), scopes, true);
        assert!((170..=195).contains(&found), "windows {scopes:?}: {found}");
    }
}

#[test]
fn a_held_scope_of_the_background_takes_no_share_from_another() {
    let shared = Background { reserve: 0.0, share: 0.1 };
    let mut pacer = pacer(shared, Vec::new(), Concurrency::Fixed { max: 4 }, Pace::Fixed);
    let held = pacer.scope("held");
    pacer.hold(Instant::ZERO, Some(&held), at(1_000_000_000.0));
    (0..100).for_each(|_| _ = enqueue(&mut pacer, Instant::ZERO, "held", -1, 1));
    let found = of_the_background(pacer, ("a", "b"), false);
    assert!((95..=105).contains(&found), "{found}");
}

#[test]
fn shares_that_cannot_be_are_refused() {
    for (background, key) in [
        (Background { reserve: 1.0, share: 0.0 }, "background.reserve"),
        (Background { reserve: f64::NAN, share: 0.0 }, "background.reserve"),
        (Background { reserve: 0.0, share: 0.6 }, "background.share"),
    ] {
        let config = PacerConfig { background, ..PacerConfig::default() };
        assert_eq!(Pacer::new(config, 1, Instant::ZERO).expect_err("it cannot be").key, key);
    }
}
