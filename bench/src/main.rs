//! What pacing one call costs, beside `governor` in the same run, and what retrying one costs beside `backon`:
//! `cargo run --profile dist -p paceline-bench`.
//!
//! `governor` decides about one limit without a queue: it neither counts calls in flight nor lets callers wait, and reads its
//! clock by the counter of the processor. Limits are so wide that nothing ever waits: this measures the work of deciding. Each
//! row has rounds of both in turn, and shows the median of each and of their ratios. A bar is a ratio or, where it has a unit,
//! what Paceline's own figure may be; a row that misses it says so.

mod measured;

use std::hint::black_box;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota as Cells, RateLimiter};
use measured::{Bar, heading, resident, row, shared, timed};
use paceline::{
    Class, Concurrency, Cost, Dimension, KeyedLimiter, Limiter, Limits, NextAction, Outcome, Pace, PacerConfig, Quota,
    Request, retry,
};
use paceline_core::fleet::{
    FleetLimit, Grant, LimitKind, Member, MemberConfig, MemberId, MemberInput, OnLoss, Quiet, SyncReply,
};
use paceline_core::{Event, Instant, Pacer, ScopeId};

/// Calls of one round.
const CALLS: u64 = 1_000_000;
/// What the engine's requests are apart in virtual time: ten thousand a second.
const SPACING: Duration = Duration::from_micros(100);
/// As good as no limit, for `governor` too.
const WIDE: u64 = u32::MAX as u64;

fn main() {
    if let [_, mode, whose] = &*std::env::args().collect::<Vec<_>>()
        && mode == BYTES
    {
        return print_bytes(whose);
    }
    heading();
    // First, as long as no freed memory is used again.
    exact_window();
    bytes_of_keys();
    let bucket = || one_bucket(Quota::per_second(WIDE).burst(WIDE));
    for (threads, bar) in [(1, 1.5), (2, 1.0), (8, 1.0)] {
        let name = format!("one bucket, a permit, {threads} threads");
        row(
            &name,
            Bar::Ratio(bar),
            shared(threads, CALLS, governor_loop),
            shared(threads, CALLS, || permits(bucket())),
        );
    }
    row("three budgets in one decision", Bar::Ratio(1.0), timed(CALLS, three_governors), timed(CALLS, three_budgets));
    row("Pacer: enqueue, poll_event, complete", Bar::None, timed(CALLS, governor_loop), timed(CALLS, pacer_calls));
    for (threads, bar) in [(1, 150.0), (2, 250.0)] {
        let name = format!("Limiter: acquire, complete, {threads} threads");
        row(&name, Bar::Nanos(bar), shared(threads, CALLS, governor_loop), shared(threads, CALLS, limiter_calls));
    }
    row("a grant in a fleet, beside none", Bar::Ratio(1.1), timed(CALLS, limiter_calls), timed(CALLS, fleet_calls));
    row(
        "retry, beside that of backon: a success",
        Bar::Ratio(2.0),
        timed(CALLS, backon_calls),
        timed(CALLS, retry_calls),
    );
    row("run, beside retry of backon: a success", Bar::None, timed(CALLS, backon_calls), timed(CALLS, run_calls));
    row("100,000 keys with a bucket each", Bar::Ratio(1.5), timed(CALLS, governor_keys), timed(CALLS, keys));
    for threads in [2, 8] {
        one_too_many(threads);
    }
}

fn governor_limiter() -> DefaultDirectRateLimiter {
    let billion = NonZeroU32::new(1_000_000_000).expect("many");
    RateLimiter::direct(Cells::per_second(billion).allow_burst(NonZeroU32::MAX))
}

fn governor_loop() -> impl Fn(u64) {
    let limiter = governor_limiter();
    move |calls| {
        for _ in 0..calls {
            assert!(black_box(&limiter).check().is_ok(), "the limit is wide");
        }
    }
}

fn one_bucket(quota: Quota) -> Limiter {
    let config = PacerConfig::from(quota).with_pace(Pace::Fixed).with_in_flight(u32::MAX);
    Limiter::with_seed(config, 1).expect("a configuration that can be")
}

fn permits(limiter: Limiter) -> impl Fn(u64) {
    let calls_of_chat = limiter.unreported("chat");
    move |calls| {
        for _ in 0..calls {
            assert!(black_box(&calls_of_chat).try_acquire().is_ok(), "the limit is wide");
        }
    }
}

fn three_governors() -> impl Fn(u64) {
    let limiters = [1, 1_200, 500].map(|units| (governor_limiter(), NonZeroU32::new(units).expect("some units")));
    move |calls| {
        for _ in 0..calls {
            for (limiter, units) in black_box(&limiters) {
                assert!(matches!(limiter.check_n(*units), Ok(Ok(()))), "the limit is wide");
            }
        }
    }
}

fn three_budgets() -> impl Fn(u64) {
    let wide = 1 << 47;
    let budget = |dimension| Quota::per_second(wide).burst(wide).of(dimension);
    let limits = Limits::from([Dimension::Requests, Dimension::Tokens, Dimension::Bytes].map(budget));
    let config = PacerConfig::from(limits).with_pace(Pace::Fixed).with_in_flight(u32::MAX);
    let limiter = Limiter::with_seed(config, 1).expect("a configuration that can be");
    let calls_of_chat = limiter.unreported(Request::new("chat", cost().with(Dimension::Bytes, 500)));
    move |calls| {
        for _ in 0..calls {
            assert!(black_box(&calls_of_chat).try_acquire().is_ok(), "the limit is wide");
        }
    }
}

/// Three quotas over the account and one below it, AIMD, and all that a scope has by default.
fn config() -> PacerConfig {
    let minute = Duration::from_secs(60);
    let quotas = [
        Quota::per_minute(1_000_000_000),
        Quota::sliding(Dimension::Tokens, 1_000_000_000_000, minute),
        Quota::sliding(Dimension::Requests, 10_000_000_000, 60 * minute),
    ];
    PacerConfig::from(quotas).with_concurrency(Concurrency::AIMD).with_tier("chat", Quota::per_minute(900_000_000))
}

fn cost() -> Cost {
    Cost::request().with(Dimension::Tokens, 1_200)
}

fn pacer_calls() -> impl Fn(u64) {
    |calls| {
        let mut pacer = Pacer::new(config(), 1, Instant::ZERO).expect("a configuration that can be");
        let scope = pacer.scope("chat");
        let mut now = Instant::ZERO;
        for _ in 0..calls {
            now += SPACING;
            black_box(call(&mut pacer, now, Request::new(&scope, cost())));
        }
    }
}

fn call(pacer: &mut Pacer, now: Instant, request: Request) -> NextAction {
    pacer.enqueue(now, request).expect("not too large");
    let Some(Event::Granted { ticket, .. }) = pacer.poll_event() else { panic!("the limits are wide") };
    pacer.complete(now, ticket, Outcome::new(Class::Success))
}

/// At the configured limits: a rate that is learnt, at most a million a second at first, would make these calls wait.
fn limiter_calls() -> impl Fn(u64) {
    calls_of(Limiter::with_seed(config().with_pace(Pace::Fixed), 1).expect("a configuration that can be"))
}

/// The same with a share of each limit, which is all of it: what each call does more.
fn fleet_calls() -> impl Fn(u64) {
    let limiter = Limiter::with_seed(config().with_pace(Pace::Fixed), 1).expect("a configuration that can be");
    limiter.divide().expect("limits that can be divided");
    let limit = |limit: paceline::DividedLimit| FleetLimit {
        units: limit.quota.limit,
        kind: LimitKind::Window(limit.quota.window),
    };
    let limits: Vec<_> = limiter.divided_limits().into_iter().map(limit).collect();
    let (id, alone_share) = (MemberId(1), vec![0; limits.len()]);
    let config = MemberConfig { id, weight: 1, limits: limits.clone(), on_loss: OnLoss::Strict, alone_share };
    let mut member = Member::new(config, 1, limiter.now());
    let quiet = Quiet { since: Instant::ZERO, asked: Instant::ZERO };
    limiter.hear(&mut member, MemberInput::Linked { run: 1, quiet: Some(quiet) });
    let seq = member.poll_request().expect("it asks at once").seq();
    let all = |limit: &FleetLimit| Grant { has: limit.units, target: limit.units, quarantine: 0, contended: false };
    let (lease, grants) = (Duration::from_hours(24), limits.iter().map(all).collect());
    let reply = SyncReply { seq, lease, members: 1, grants, newest: 0, notes: Vec::new() };
    limiter.hear(&mut member, MemberInput::Reply(reply));
    // It says what it has to say, as it would in its task.
    limiter.hear(&mut member, MemberInput::Time);
    calls_of(limiter)
}

fn calls_of(limiter: Limiter) -> impl Fn(u64) {
    let scope = limiter.scope("chat");
    move |calls| {
        for _ in 0..calls {
            let permit = at_once(limiter.acquire(Request::new(&scope, cost()))).expect("not too large");
            black_box(permit.complete(Outcome::new(Class::Success)));
        }
    }
}

/// What succeeds at once.
async fn succeed() -> std::io::Result<()> {
    black_box(Ok(()))
}

fn backon_calls() -> impl Fn(u64) {
    |calls| {
        for _ in 0..calls {
            at_once(succeed.retry(ExponentialBuilder::default())).expect("it succeeds");
        }
    }
}

/// Without a limiter, as those of backon.
fn retry_calls() -> impl Fn(u64) {
    |calls| {
        for _ in 0..calls {
            at_once(retry(succeed)).expect("it succeeds");
        }
    }
}

/// Through a limiter that has no limit. There is no bar beside backon, which does a part of it: this takes a permit, which
/// another caller may have to wait for, and tells the limiter what became of the call, so it cannot take less than a permit does.
/// What has no limit to obey needs no limiter, and is the row before.
fn run_calls() -> impl Fn(u64) {
    let limiter =
        Limiter::with_seed(PacerConfig::default().with_pace(Pace::None), 1).expect("a configuration that can be");
    move |calls| {
        for _ in 0..calls {
            at_once(limiter.run(succeed)).expect("it succeeds");
        }
    }
}

/// The value of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the limits are wide"),
    }
}

/// A million calls, evenly over a minute; then the window is full, and its first unit returns no sooner than a minute after it
/// left.
fn exact_window() {
    // Once before, for the memory of the program itself.
    drop(full_window(1_000));
    let before = resident();
    let (pacer, scope) = full_window(1_000_000);
    let bytes = resident().saturating_sub(before);
    let last = Instant::ZERO + Duration::from_secs(60);
    let over = u64::from(pacer.admit(last, &Request::from(&scope)).is_now());
    row_of_one("exact window of a million a minute, MB", bytes as f64 / 1e6, 0.55);
    row_of_one("exact window, calls too many", over as f64, 0.0);
}

fn full_window(limit: u32) -> (Pacer, ScopeId) {
    let config = PacerConfig::from(Quota::per_minute(limit.into())).with_pace(Pace::Fixed);
    let mut pacer = Pacer::new(config, 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("chat");
    for n in 0..limit {
        call(&mut pacer, Instant::ZERO + Duration::from_secs(60) * n / limit, (&scope).into());
    }
    (pacer, scope)
}

/// Asks this program for the bytes of a key.
const BYTES: &str = "bytes-of";

/// Keys of the benchmark, all of them in use: what one call takes is refilled in a tenth of a second.
const KEYS: u64 = 100_000;

/// All keys at random, many times each.
fn any_key(n: u64) -> u64 {
    n.wrapping_mul(6_364_136_223_846_793_005) >> 33
}

fn governor_keyed() -> DefaultKeyedRateLimiter<u64> {
    let [ten, million] = [10, 1_000_000].map(|units| NonZeroU32::new(units).expect("some"));
    let limiter = RateLimiter::keyed(Cells::per_second(ten).allow_burst(million));
    (0..KEYS).for_each(|key| assert!(limiter.check_key(&key).is_ok(), "the limit is wide"));
    limiter
}

fn governor_keys() -> impl Fn(u64) {
    let limiter = governor_keyed();
    move |calls| {
        for n in 0..calls {
            assert!(limiter.check_key(&(any_key(n) % KEYS)).is_ok(), "the limit is wide");
        }
    }
}

fn keyed() -> KeyedLimiter<u64> {
    let limiter = KeyedLimiter::new(Quota::per_second(10).burst(1_000_000)).expect("a configuration that can be");
    (0..KEYS).for_each(|key| assert!(limiter.try_acquire(&key).is_ok(), "the limit is wide"));
    limiter
}

fn keys() -> impl Fn(u64) {
    let limiter = keyed();
    move |calls| {
        for n in 0..calls {
            assert!(limiter.try_acquire(&(any_key(n) % KEYS)).is_ok(), "the limit is wide");
        }
    }
}

/// Bytes of a key that has called once, each in a process of its own: one would use what the other has freed.
fn bytes_of_keys() {
    let [peer, own] = ["governor", "paceline"].map(|whose| {
        let program = std::env::current_exe().expect("this program");
        let output = std::process::Command::new(program).args([BYTES, whose]).output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().expect("a number")
    });
    measured::line("100,000 keys, bytes of each", Some(peer), own, Some(own / peer), Bar::Ratio(1.5));
}

/// Prints the bytes of a key, as [`bytes_of_keys`] asks for them.
fn print_bytes(whose: &str) {
    let before = resident();
    let (peer, own) = if whose == "governor" { (Some(governor_keyed()), None) } else { (None, Some(keyed())) };
    println!("{}", (resident() - before) as f64 / KEYS as f64);
    drop((peer, own));
}

/// Threads that take as fast as they can from a bucket that is soon empty.
fn one_too_many(threads: u64) {
    let (burst, hourly) = (100_000, 3_600_000);
    let limiter = one_bucket(Quota::per_hour(hourly).burst(burst));
    let start = limiter.now();
    let granted = Arc::new(AtomicU64::new(0));
    let prepare = || {
        let (calls_of_chat, granted) = (limiter.unreported("chat"), granted.clone());
        move |calls| {
            for _ in 0..calls {
                granted.fetch_add(u64::from(calls_of_chat.try_acquire().is_ok()), Ordering::Relaxed);
            }
        }
    };
    shared(threads, 2 * burst, prepare)();
    let refilled = (limiter.now() - start).as_millis() as u64;
    let over = granted.load(Ordering::Relaxed).saturating_sub(burst + refilled + 1);
    row_of_one(&format!("one bucket, permits too many, {threads} threads"), over as f64, 0.0);
}

fn row_of_one(name: &str, figure: f64, most: f64) {
    measured::line(name, None, figure, None, Bar::Most(most));
}
