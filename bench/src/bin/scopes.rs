//! What a call costs beside many scopes: `cargo run --profile dist -p paceline-bench --bin scopes`.
//!
//! Every scope exists and has sent a call before. Then calls go through one scope, through ten, or through all in turn, while
//! the others sleep; and at last a request waits in each scope for the one call that the account lets pass at a time. What a
//! sleeping scope costs is shown by the ratio of the last line to the first. Each figure is the best of several rounds,
//! because noise only adds.

use std::hint::black_box;
use std::time::Duration;

use paceline::Clock;
use paceline_core::{
    Class, Concurrency, Cost, Dimension, Event, Instant, Limits, Outcome, Pace, Pacer, PacerConfig, Quota, Request,
};

const SCOPES: [usize; 4] = [1, 100, 10_000, 100_000];
/// Calls of one round at most, and the time after which it ends: slow engines make fewer.
const CALLS: u32 = 200_000;
const ROUND: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;
/// What calls are apart.
const SPACING: Duration = Duration::from_micros(100);
/// The most that the last line may be of the first.
const BAR: f64 = 1.3;

fn main() {
    println!(
        "{:>8}{:>12}{:>12}{:>12}{:>12}{:>14}",
        "scopes", "ns, in one", "in ten", "in all", "all wait", "bytes each"
    );
    let lines = SCOPES.map(|scopes| {
        let line = Line::measure(scopes);
        println!(
            "{scopes:>8}{:>12.0}{:>12.0}{:>12.0}{:>12.0}{:>14.0}",
            line.one, line.ten, line.all, line.waiting, line.bytes
        );
        line
    });
    let [first, .., last] = &lines;
    for (name, first, last) in [
        ("one", first.one, last.one),
        ("ten", first.ten, last.ten),
        ("all", first.all, last.all),
        ("all wait", first.waiting, last.waiting),
    ] {
        verdict(&format!("scopes, calls in {name}"), first, last);
    }
    let (few, many) = (window(60), window(60_000));
    verdict("a window of a million, a call of half of it, 60 and 60,000 slots", few, many);
}

/// What a slow engine does is said, not hidden: the bar is the issue's.
fn verdict(what: &str, first: f64, last: f64) {
    let ratio = last / first;
    let word = if ratio <= BAR { "met" } else { "MISSED" };
    println!("measure {what}: first_ns={first:.0} last_ns={last:.0} ratio={ratio:.2} bar={BAR} {word}");
}

/// One line of the table: nanoseconds per call, and bytes per scope.
struct Line {
    one: f64,
    ten: f64,
    all: f64,
    waiting: f64,
    bytes: f64,
}

impl Line {
    fn measure(scopes: usize) -> Self {
        let names: Vec<String> = (0..scopes).map(|n| format!("customer-{n}")).collect();
        let before = resident();
        let mut world = World::new(&names);
        let bytes = resident().saturating_sub(before) as f64 / scopes as f64;
        let (one, ten) = (best(&mut world, 1), best(&mut world, 10));
        let all = best(&mut world, scopes);
        let waiting = (0..ROUNDS).map(|_| all_wait(&names)).fold(f64::INFINITY, f64::min);
        Self { one, ten, all, waiting, bytes }
    }
}

/// A pacer whose scopes have all sent a call.
struct World {
    pacer: Pacer,
    scopes: Vec<paceline_core::ScopeId>,
    now: Instant,
}

impl World {
    fn new(names: &[String]) -> Self {
        let mut pacer = Pacer::new(config(), 1, Instant::ZERO).expect("a configuration that can be");
        let scopes: Vec<_> = names.iter().map(|name| pacer.scope(name)).collect();
        let mut world = Self { pacer, scopes, now: Instant::ZERO };
        (0..world.scopes.len()).for_each(|index| world.call(index));
        world
    }

    fn call(&mut self, index: usize) {
        self.now += SPACING;
        let request = Request::new(&self.scopes[index], cost());
        self.pacer.enqueue(self.now, request).expect("not too large");
        let Some(Event::Granted { ticket, .. }) = self.pacer.poll_event() else { panic!("the limits are wide") };
        black_box(self.pacer.complete(self.now, ticket, Outcome::new(Class::Success)));
    }
}

/// Nanoseconds per call through so many scopes in turn, but for the first calls.
fn best(world: &mut World, through: usize) -> f64 {
    let through = through.min(world.scopes.len());
    let round = |world: &mut World| timed(|call| world.call(call % through));
    (0..ROUNDS).map(|_| round(world)).fold(f64::INFINITY, f64::min)
}

/// A request waits in each scope; each answer lets the next one pass, and its scope asks again.
fn all_wait(names: &[String]) -> f64 {
    let config = PacerConfig { concurrency: Concurrency::Fixed { max: 1 }, ..config() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
    let mut now = Instant::ZERO;
    for name in names {
        let scope = pacer.scope(name);
        pacer.enqueue(now, Request::new(&scope, cost())).expect("not too large");
    }
    timed(|_| {
        now += SPACING;
        let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("one at a time") };
        let again = pacer.request(ticket).expect("it is in flight").scope.clone();
        pacer.enqueue(now, Request::new(again, cost())).expect("not too large");
        black_box(pacer.complete(now, ticket, Outcome::new(Class::Success)));
    })
}

/// Nanoseconds of the question when half of a full window fits again.
fn window(slots: u64) -> f64 {
    let minute = Duration::from_secs(60);
    let quotas = vec![Quota::sliding(Dimension::Tokens, 1_000_000, minute)];
    let config = PacerConfig { limits: Limits { quotas, burst: None }, pace: Pace::Fixed, ..PacerConfig::default() };
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("chat");
    let mut now = Instant::ZERO;
    for _ in 0..slots {
        let cost = Cost::request().with(Dimension::Tokens, 1_000_000 / slots);
        pacer.enqueue(now, Request::new(&scope, cost)).expect("not too large");
        let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("the window has room") };
        pacer.complete(now, ticket, Outcome::new(Class::Success));
        now += minute / u32::try_from(slots).expect("few slots");
    }
    let half = Request::new(&scope, Cost::request().with(Dimension::Tokens, 500_000));
    (0..ROUNDS).map(|_| timed(|_| drop(black_box(pacer.admit(now, &half))))).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds per call of `call`.
fn timed(mut call: impl FnMut(usize)) -> f64 {
    let clock = Clock::new();
    let start = clock.now();
    let mut calls = 0;
    while calls < CALLS {
        call(calls as usize);
        calls += 1;
        // The clock costs as much as a tenth of a call.
        if calls.is_multiple_of(64) && clock.now() - start > ROUND {
            break;
        }
    }
    (clock.now() - start).as_nanos() as f64 / f64::from(calls)
}

/// Limits so wide that nothing waits for them.
fn config() -> PacerConfig {
    let minute = Duration::from_secs(60);
    let quotas = vec![Quota::per_minute(1_000_000_000), Quota::sliding(Dimension::Tokens, 1_000_000_000_000, minute)];
    PacerConfig { limits: Limits { quotas, burst: None }, ..PacerConfig::default() }
}

fn cost() -> Cost {
    Cost::request().with(Dimension::Tokens, 1_200)
}

/// Bytes of memory that the process holds.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    4_096 * pages
}
