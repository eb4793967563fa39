//! Pacers of one account that take turns: over all of them no window holds more than its limit.

use std::time::Duration;

use paceline_core::{
    Admit, Class, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, PacerState, Quota,
    QuotaShape, Request, Ticket, WaitCause, part_of_tier, tier_and_part,
};
use proptest::prelude::*;

use crate::job::at;

const S: Duration = Duration::from_secs(1);

/// When a call left, how much of it still counts, and whose call it is, until it ends.
type Left = (Instant, u64, Option<(usize, Ticket)>);

/// Processes on one account, and the file that they share.
struct Account {
    pacers: Vec<Pacer>,
    /// What each exported last, and when.
    exported: Vec<Option<(Instant, PacerState)>>,
    turn: usize,
    left: Vec<Left>,
}

impl Account {
    /// A tier of the same limits is inside the account.
    fn new(pacers: usize, limits: Limits) -> Self {
        let tiers = vec![("tier".into(), limits.clone())];
        let config = PacerConfig { limits, tiers, pace: Pace::Fixed, ..PacerConfig::default() };
        let begun = |_| Pacer::new(config.clone(), 1, Instant::ZERO).expect("sensible");
        let mut pacers: Vec<_> = (0..pacers).map(begun).collect();
        pacers[1..].iter_mut().for_each(|pacer| pacer.yield_turn(Instant::ZERO));
        Self { exported: vec![None; pacers.len()], pacers, turn: 0, left: Vec::new() }
    }

    fn pass(&mut self, now: Instant, next: usize) {
        let pacer = &mut self.pacers[self.turn];
        pacer.yield_turn(now);
        if let Some(state) = pacer.own_windows(now) {
            self.exported[self.turn] = Some((now, state));
        }
        self.turn = next;
        let others = (0..self.exported.len()).filter(|of| *of != next).filter_map(|of| self.exported[of].clone());
        let others: Vec<_> = others.map(|(at, state)| (state, now - at)).collect();
        self.pacers[next].take_turn(now, &others).expect("the present version");
        self.collect(now);
    }

    /// Every pacer is asked, and only the one whose turn it is may let a call leave.
    fn ask(&mut self, now: Instant, of: usize, cost: Cost) {
        let scope = self.pacers[of].scope("tier");
        self.pacers[of].enqueue(now, Request::new(&scope, cost)).expect("it fits");
        self.collect(now);
    }

    fn end(&mut self, now: Instant, call: usize, actual: u64) {
        let Some((_, units, Some((of, ticket)))) = self.left.get(call).copied() else { return };
        let mut outcome = Outcome::new(Class::Success);
        outcome.usage = Some(Cost::request().with(Dimension::Tokens, units.min(actual)));
        self.pacers[of].complete(now, ticket, outcome);
        (self.left[call].1, self.left[call].2) = (units.min(actual), None);
        self.collect(now);
    }

    fn collect(&mut self, now: Instant) {
        for (of, pacer) in self.pacers.iter_mut().enumerate() {
            pacer.handle_timeout(now);
            while let Some(event) = pacer.poll_event() {
                let Event::Granted { ticket, .. } = event else { continue };
                assert_eq!(of, self.turn, "it was not its turn");
                let units = pacer.request(ticket).expect("granted").cost.get(&Dimension::Tokens);
                self.left.push((now, units, Some((of, ticket))));
            }
        }
    }
}

/// Steps of (time passed in ms, who asks, tokens wanted, who has the turn then, which call ends, what it cost).
type Steps = Vec<(u64, usize, u64, usize, usize, u64)>;

fn steps() -> impl Strategy<Value = Steps> {
    proptest::collection::vec((0u64..900, 0usize..3, 1u64..60, 0usize..3, 0usize..200, 0u64..60), 1..150)
}

proptest! {
    #[test]
    fn together_they_hold_every_window(steps in steps()) {
        let quotas = vec![Quota::sliding(Dimension::Tokens, 100, 7 * S), Quota::sliding(Dimension::Requests, 5, 3 * S)];
        let mut account = Account::new(3, Limits { quotas, burst: Some(5) });
        let mut now = at(1e4);
        for (passed, who, tokens, next, call, actual) in steps {
            now += Duration::from_millis(passed);
            account.ask(now, who, Cost::request().with(Dimension::Tokens, tokens));
            account.end(now, call, actual);
            account.pass(now, next);
            let inside = |window: Duration| account.left.iter().filter(move |(at, ..)| *at + window > now);
            let tokens: u64 = inside(7 * S).map(|(_, units, _)| units).sum();
            prop_assert!(tokens <= 100, "{tokens} tokens");
            prop_assert!(inside(3 * S).count() <= 5);
        }
    }

    #[test]
    fn together_they_have_one_bucket(steps in steps()) {
        let shape = QuotaShape::Bucket { burst: 3 };
        let quotas = vec![Quota { shape, ..Quota::sliding(Dimension::Requests, 4, 2 * S) }];
        let mut account = Account::new(3, Limits { quotas, burst: None });
        let mut now = at(1e4);
        for (passed, who, _, next, ..) in steps {
            now += Duration::from_millis(passed);
            account.ask(now, who, Cost::request());
            account.pass(now, next);
            for (given, (from, ..)) in (1..).zip(account.left.iter().rev()) {
                prop_assert!(f64::from(given) <= 3.0 + 2.0 * (now - *from).as_secs_f64() + 1e-6, "{given} since {from}");
            }
        }
    }
}

#[test]
fn the_one_that_has_the_turn_gets_all_that_is_left() {
    for shape in [QuotaShape::Sliding, QuotaShape::Bucket { burst: 5 }, QuotaShape::Fixed] {
        let quotas = vec![Quota { shape, ..Quota::sliding(Dimension::Requests, 5, 10 * S) }];
        let mut account = Account::new(2, Limits { quotas, burst: Some(5) });
        // Both always have calls to make.
        for _ in 0..60 {
            (0..2).for_each(|of| account.ask(at(1e4), of, Cost::request()));
        }
        assert_eq!(account.left.len(), 5, "{shape:?}");
        for n in 1..=200 {
            let now = at(1e4 + 0.5 * f64::from(n));
            let call = account.left.len() - 1;
            account.end(now, call, 0);
            account.pass(now, n as usize % 2);
        }
        // In 100 s nine or ten windows pass after the first five: what comes free is taken at the next turn.
        assert!((50..=55).contains(&account.left.len()), "{shape:?}: {}", account.left.len());
    }
}

#[test]
fn each_part_of_a_tier_has_its_limits_for_itself_over_all_pacers() {
    fn left(pacer: &mut Pacer, part: &str, now: Instant, calls: u32) -> usize {
        let scope = pacer.scope(&part_of_tier("tier", part));
        for _ in 0..calls {
            pacer.enqueue(now, Request::new(&scope, Cost::request())).expect("it fits");
        }
        std::iter::from_fn(|| pacer.poll_event()).filter(|event| matches!(event, Event::Granted { .. })).count()
    }
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 5, 10 * S)], burst: Some(5) };
    let config =
        PacerConfig { pace: Pace::Fixed, ..PacerConfig::default() }.with_tier("tier", limits).with_in_flight(99);
    let [mut first, mut second] = [(); 2].map(|()| Pacer::new(config.clone(), 1, Instant::ZERO).expect("sensible"));
    assert_eq!([left(&mut first, "a", at(1.0), 3), left(&mut first, "b", at(1.0), 9)], [3, 5]);
    let told = first.own_windows(at(1.0)).expect("calls have left");
    second.take_turn(at(2.0), &[(told, S)]).expect("the present version");
    let asked = [("a", 2), ("b", 1), ("c", 5)].map(|(part, calls)| left(&mut second, part, at(2.0), calls));
    assert_eq!(asked, [2, 0, 5], "what the first has sent counts, by part");
    let scope = second.scope(&part_of_tier("tier", "a"));
    assert!(!second.admit(at(2.0), &Request::new(&scope, Cost::request())).is_now());
    second.take_turn(at(12.5), &[]).expect("the present version");
    assert_eq!(left(&mut second, "b", at(12.5), 0), 1, "what waited");
    assert_eq!(tier_and_part(&part_of_tier("tier label=x at y", "a:80")), Some(("tier label=x at y", "a:80")));
}

#[test]
fn a_call_that_is_taken_late_is_late_for_the_others_too() {
    let limits = Limits { quotas: vec![Quota::sliding(Dimension::Requests, 1, 10 * S)], burst: None };
    let config = PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() };
    let [mut first, mut second] = [(); 2].map(|()| Pacer::new(config.clone(), 1, Instant::ZERO).expect("sensible"));
    let scope = first.scope("a");
    let ticket = first.enqueue(at(1.0), Request::new(&scope, Cost::request())).expect("it fits");
    first.take_later(ticket);
    assert!(first.own_windows(at(1.0)).is_some(), "it is granted");
    assert_eq!(first.take(at(4.0), ticket), None, "it leaves");
    let told = first.own_windows(at(4.0)).expect("it counts from now on");
    second.take_turn(at(4.0), &[(told, Duration::ZERO)]).expect("the present version");
    let scope = second.scope("a");
    let fits = |at| second.admit(at, &Request::new(&scope, Cost::request())).is_now();
    assert_eq!([at(11.5), at(14.1)].map(fits), [false, true]);
}

#[test]
fn each_part_of_a_tier_has_its_calls_in_flight_for_itself() {
    for pace in [Pace::Fixed, Pace::None, Pace::Aimd] {
        let config = PacerConfig { pace, ..PacerConfig::default() };
        let config = config.with_tier("tier", Limits::default()).with_tier_places("tier", 2).with_in_flight(40);
        let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("sensible");
        let mut left = |scope: &str| {
            let scope = pacer.scope(scope);
            for _ in 0..6 {
                pacer.enqueue(at(1.0), Request::new(&scope, Cost::request())).expect("it fits");
            }
            std::iter::from_fn(|| pacer.poll_event()).filter(|event| matches!(event, Event::Granted { .. })).count()
        };
        let left = [left("c"), left(&part_of_tier("tier", "a")), left(&part_of_tier("tier", "b"))];
        assert_eq!(left, [6, 2, 2], "under the pace {pace:?}");
    }
}

#[test]
fn a_large_request_finds_its_room_among_small_ones() {
    let mut account =
        Account::new(2, Limits { quotas: vec![Quota::sliding(Dimension::Tokens, 100, 10 * S)], burst: None });
    let tokens = |units| Cost::request().with(Dimension::Tokens, units);
    // One always has small ones, which take all there is.
    for n in 0..400u32 {
        let now = at(1e4 + 0.1 * f64::from(n));
        (0..2).for_each(|_| account.ask(now, 0, tokens(1)));
        if n == 200 {
            account.ask(now, 1, tokens(90));
        }
        if n % 5 == 0 && account.pacers[account.turn].waits_for_room(now).is_none() {
            account.pass(now, 1 - account.turn);
        }
    }
    assert!(account.left.iter().any(|(_, units, _)| *units == 90), "it starves");
}

#[test]
fn a_wait_for_the_turn_is_estimated_to_last_as_long_again() {
    let mut account = Account::new(2, Limits { quotas: vec![Quota::per_minute(5)], burst: None });
    let second = &mut account.pacers[1];
    let scope = second.scope("a");
    let wait = second.admit(at(30.0), &Request::new(&scope, Cost::request()));
    assert_eq!(wait, Admit::At { at: at(60.0), cause: WaitCause::Turn });
    assert!(second.own_windows(at(30.0)).is_some_and(|state| state == PacerState::default()));
    assert_eq!(second.own_windows(at(40.0)), None, "nothing has left since");
    let later = PacerState { version: 2, ..PacerState::default() };
    assert!(second.take_turn(at(50.0), &[(later, S)]).is_err());
    assert!(!second.admit(at(50.0), &Request::new(&scope, Cost::request())).is_now());
}
