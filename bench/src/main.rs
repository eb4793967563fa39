//! What pacing one call costs, beside `governor` in the same run: `cargo run --profile dist -p paceline-bench`.
//!
//! `governor` decides about one limit without a queue, so it is the floor of what a decision can cost, not a rival: it
//! neither counts calls in flight nor lets anybody wait. Limits are so wide that nothing ever waits: this measures the
//! work of deciding. Each figure is the best of several rounds, because noise only adds.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota as Cells, RateLimiter};
use paceline::{
    Class, Clock, Concurrency, Cost, Dimension, Limiter, Limits, Outcome, Pace, PacerConfig, Quota, Request,
};
use paceline_core::{Event, Instant, Pacer};

const CALLS: u64 = 1_000_000;
const ROUNDS: usize = 5;
/// What the engine's requests are apart: ten thousand a second.
const SPACING: Duration = Duration::from_micros(100);

fn main() {
    let threads = 2;
    let governor = best(governor_check);
    let governor_contended = best(|| contended(threads, governor_loop(governor_limiter())));
    println!("{:<52}{:>10}{:>12}", "ns per call, best of rounds", "ns", "x governor");
    row("governor: one limit, check", governor, governor);
    row("Pacer: enqueue, poll_event, complete", best(pacer_request), governor);
    row("Limiter: acquire, complete", best(limiter_acquire), governor);
    row("governor: check, 2 threads", governor_contended, governor_contended);
    let contended = best(|| contended(threads, limiter_loop(limiter())));
    row("Limiter: acquire, complete, 2 threads", contended, governor_contended);
}

fn row(name: &str, nanos: f64, beside: f64) {
    println!("{name:<52}{nanos:>10.1}{:>12.2}", nanos / beside);
}

fn best(round: impl Fn() -> f64) -> f64 {
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds per call of `work`, which makes `CALLS` of them.
fn timed(work: impl FnOnce()) -> f64 {
    let clock = Clock::new();
    let start = clock.now();
    work();
    (clock.now() - start).as_nanos() as f64 / CALLS as f64
}

/// Wall time per call when so many threads share the calls.
fn contended(threads: u64, work: impl Fn(u64) + Send + Sync + 'static) -> f64 {
    let (work, barrier) = (Arc::new(work), Arc::new(Barrier::new(threads as usize + 1)));
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (work, barrier) = (work.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                work(CALLS / threads);
            })
        })
        .collect();
    barrier.wait();
    timed(|| workers.into_iter().for_each(|worker| worker.join().expect("no worker panics")))
}

fn governor_limiter() -> DefaultDirectRateLimiter {
    RateLimiter::direct(Cells::per_second(NonZeroU32::MAX))
}

fn governor_loop(limiter: DefaultDirectRateLimiter) -> impl Fn(u64) {
    move |calls| {
        for _ in 0..calls {
            assert!(black_box(&limiter).check().is_ok(), "the limit is wide");
        }
    }
}

fn governor_check() -> f64 {
    let work = governor_loop(governor_limiter());
    timed(|| work(CALLS))
}

/// Three quotas over the account and one below it, AIMD, and all that a scope has by default.
fn config() -> PacerConfig {
    let minute = Duration::from_secs(60);
    let quotas = vec![
        Quota::per_minute(1_000_000_000),
        Quota::sliding(Dimension::Tokens, 1_000_000_000_000, minute),
        Quota::sliding(Dimension::Requests, 10_000_000_000, 60 * minute),
    ];
    let tier = Limits { quotas: vec![Quota::per_minute(900_000_000)], burst: None };
    PacerConfig {
        limits: Limits { quotas, burst: None },
        concurrency: Concurrency::Aimd { floor: 5, start: 10, max: 50 },
        tiers: vec![("chat".into(), tier)],
        ..PacerConfig::default()
    }
}

fn cost() -> Cost {
    Cost::request().with(Dimension::Tokens, 1_200)
}

fn pacer_request() -> f64 {
    let mut pacer = Pacer::new(config(), 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("chat");
    let mut now = Instant::ZERO;
    timed(|| {
        for _ in 0..CALLS {
            now += SPACING;
            pacer.enqueue(now, Request::new(&scope, cost())).expect("not too large");
            let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("the limits are wide") };
            black_box(pacer.complete(now, ticket, Outcome::new(Class::Success)));
        }
    })
}

/// At the configured limits: a rate that is learnt, at most a million a second at first, would make these calls wait.
fn limiter() -> Limiter {
    let config = PacerConfig { pace: Pace::Fixed, ..config() };
    Limiter::with_seed(config, 1).expect("a configuration that can be")
}

fn limiter_loop(limiter: Limiter) -> impl Fn(u64) {
    let scope = limiter.scope("chat");
    move |calls| {
        for _ in 0..calls {
            let permit = at_once(limiter.acquire(Request::new(&scope, cost()))).expect("not too large");
            black_box(permit.complete(Outcome::new(Class::Success)));
        }
    }
}

fn limiter_acquire() -> f64 {
    let work = limiter_loop(limiter());
    timed(|| work(CALLS))
}

/// The value of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the limits are wide"),
    }
}
