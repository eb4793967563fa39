//! How late permits come and what waiting for them costs: `cargo run --profile dist -p paceline-bench --bin late`.
//!
//! Real time on a real runtime, so it is no test. Tasks that all wait at once show what the queue and its timer cost;
//! calls that may not leave together show what the timer takes from the rate. A permit is late against the instant at
//! which the same engine lets it leave when it is called exactly when it asks to be.

use std::time::Duration;

use paceline::{
    Class, Concurrency, Cost, Dimension, Instant, Limiter, Limits, Outcome, Pace, PacerConfig, Quota, Request, Ticket,
};
use paceline_core::{Event, Pacer};

/// How many wait at once, how fast they may leave, and how many of them together.
const WAITING: u64 = 10_000;
const PER_SECOND: u64 = 5_000;
const BURSTS: [u64; 2] = [50, 1];
/// So long before the limit opens they begin to wait: ten thousand tasks take some milliseconds to start.
const BEFORE: Duration = Duration::from_millis(200);
/// The bars: a permit comes so late at most, and all of them cost so much time of a processor.
const LATEST: Duration = Duration::from_millis(5);
const PROCESSOR: f64 = 0.12;
/// Permits that come so shortly after one another were given together.
const TOGETHER: Duration = Duration::from_millis(1);
/// How much of the rate must be left where no two calls may leave together, and the rates that are tried.
const SHARE: f64 = 0.97;
const ALONE: [u64; 4] = [100, 500, 1_000, 2_000];
const TASKS: u64 = 10;
const SECONDS: u64 = 3;
/// The best of so many counts: noise only adds.
const ROUNDS: usize = 3;

fn main() -> std::io::Result<()> {
    for threads in [1, 2] {
        let runtime = match threads {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        }
        .worker_threads(threads)
        .enable_all()
        .build()?;
        for burst in BURSTS {
            let rounds: Vec<_> = (0..ROUNDS).map(|_| runtime.block_on(many_wait(burst))).collect();
            let latest = rounds.iter().map(|round| round.late).min().unwrap_or(Duration::MAX);
            let processor = rounds.iter().map(|round| round.processor).fold(f64::INFINITY, f64::min);
            let overtaken: usize = rounds.iter().map(|round| round.overtaken).sum();
            println!(
                "measure late, many wait: threads={threads} waiting={WAITING} per_second={PER_SECOND} burst={burst} \
                 late_max_ms={:.2} bar={} processor_s={processor:.3} bar={PROCESSOR} overtaken={overtaken} bar=0 {}",
                millis(latest),
                millis(LATEST),
                verdict(latest <= LATEST && processor <= PROCESSOR && overtaken == 0),
            );
        }
        for rate in ALONE {
            let share = (0..ROUNDS).map(|_| runtime.block_on(alone(rate))).fold(0.0, f64::max);
            println!(
                "measure late, one at a time: threads={threads} per_second={rate} burst=1 share={share:.3} bar={SHARE} {}",
                verdict(share >= SHARE),
            );
        }
    }
    Ok(())
}

/// What became of those that waited together.
struct Waited {
    /// How late the latest permit came.
    late: Duration,
    /// Seconds of the processor.
    processor: f64,
    /// Permits that came after one that had been asked for later.
    overtaken: usize,
}

/// All wait for the same instant.
async fn many_wait(burst: u64) -> Waited {
    let limiter = limiter(PER_SECOND, burst);
    let before = processor_time();
    let begin = limiter.now() + BEFORE;
    let permits = permits(&limiter, begin, WAITING, WAITING).await;
    let processor = processor_time() - before;
    let late = |((at, _), due): (&(Instant, Ticket), Duration)| (*at - begin).saturating_sub(due);
    let late = permits.iter().zip(on_time(WAITING, burst)).map(late).max().unwrap_or_default();
    Waited { late, processor, overtaken: overtaken(&permits) }
}

/// Permits before which one came, clearly earlier, that had been asked for later. Tasks that are woken together run in any order.
fn overtaken(permits: &[(Instant, Ticket)]) -> usize {
    let (mut latest, mut clearly_earlier) = (None, permits.iter().peekable());
    let is_overtaken = |(at, ticket): &&(Instant, Ticket)| {
        while let Some((_, earlier)) = clearly_earlier.next_if(|earlier| earlier.0 + TOGETHER < *at) {
            latest = latest.max(Some(*earlier));
        }
        latest > Some(*ticket)
    };
    permits.iter().filter(is_overtaken).count()
}

/// When permits leave from an engine that is called exactly when it asks to be.
fn on_time(permits: u64, burst: u64) -> Vec<Duration> {
    let mut pacer = Pacer::new(config(PER_SECOND, burst), 1, Instant::ZERO).expect("a configuration that can be");
    let scope = pacer.scope("chat");
    for _ in 0..permits {
        pacer.enqueue(Instant::ZERO, Request::new(&scope, Cost::request())).expect("not too large");
    }
    let (mut times, mut now) = (Vec::new(), Instant::ZERO);
    loop {
        while let Some(event) = pacer.poll_event() {
            if matches!(event, Event::Granted { .. }) {
                times.push(now - Instant::ZERO);
            }
        }
        let Some(due) = pacer.poll_timeout().filter(|_| times.len() < permits as usize) else { return times };
        now = due;
        pacer.handle_timeout(now);
    }
}

/// No two calls may leave together. How much of the rate was left.
async fn alone(rate: u64) -> f64 {
    let limiter = limiter(rate, 1);
    let permits = permits(&limiter, limiter.now(), rate * SECONDS, TASKS).await;
    let took = permits[permits.len() - 1].0 - permits[0].0;
    (permits.len() - 1) as f64 / took.as_secs_f64() / rate as f64
}

/// So many tasks take permits from an instant on; when they got them, in order. Tickets count up while none is given back.
async fn permits(limiter: &Limiter, begin: Instant, permits: u64, tasks: u64) -> Vec<(Instant, Ticket)> {
    let scope = limiter.scope("chat");
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let (limiter, scope) = (limiter.clone(), scope.clone());
            tokio::spawn(async move {
                let mut times = Vec::with_capacity((permits / tasks) as usize);
                for _ in 0..permits / tasks {
                    let request = Request { not_before: Some(begin), ..Request::new(&scope, Cost::request()) };
                    let permit = limiter.acquire(request).await.expect("a wait is no error");
                    times.push((limiter.now(), permit.ticket()));
                    permit.complete(Outcome::new(Class::Success));
                }
                times
            })
        })
        .collect();
    let mut times = Vec::with_capacity(permits as usize);
    for task in tasks {
        times.extend(task.await.expect("no task panics"));
    }
    times.sort_unstable();
    times
}

fn config(per_second: u64, burst: u64) -> PacerConfig {
    let quotas = vec![Quota::sliding(Dimension::Requests, per_second, Duration::from_secs(1))];
    PacerConfig {
        limits: Limits { quotas, burst: Some(burst) },
        concurrency: Concurrency::Fixed { max: u32::MAX },
        pace: Pace::Fixed,
        ..PacerConfig::default()
    }
}

fn limiter(per_second: u64, burst: u64) -> Limiter {
    Limiter::with_seed(config(per_second, burst), 1).expect("a configuration that can be")
}

/// What this process has used of its processors, in seconds.
fn processor_time() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
