//! The limiter as programs use it, in virtual time.

mod acquire;
mod advice;
mod crowds;
mod fallback;
mod hostile;
mod keyed;
mod layer;
mod log;
mod metrics;
mod names;
mod nested;
mod observed;
mod pace;
mod restored;
mod retry;
mod run;
mod sleeper;
mod testing;
mod threads;
mod unreported;
mod within;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline::{
    Backoff, Concurrency, Cost, Dimension, Growth, Instant, Jitter, Limiter, Limits, Outcome, Pace, PacerConfig, Quota,
    Request, Retry,
};

const S: Duration = Duration::from_secs(1);

/// Only the limits given: no learning, no spacing.
fn fixed(quotas: Vec<Quota>, burst: Option<u64>, max: u32) -> PacerConfig {
    PacerConfig {
        limits: Limits { quotas, burst },
        concurrency: Concurrency::Fixed { max },
        pace: Pace::Fixed,
        ..PacerConfig::default()
    }
}

fn requests(limit: u64, window: Duration) -> Quota {
    Quota::sliding(Dimension::Requests, limit, window)
}

/// A constant delay, without jitter.
fn backing_off(delay: Duration, max_retries: u32) -> Retry {
    let backoff = Backoff { growth: Growth::Constant { delay }, jitter: Jitter::None };
    Retry { max_retries, backoff, ..Retry::default() }
}

fn limiter(config: PacerConfig) -> Limiter {
    Limiter::with_seed(config, 1).expect("a configuration that can be")
}

fn request(limiter: &Limiter) -> Request {
    Request::new(limiter.scope("test"), Cost::request())
}

fn success() -> Outcome {
    Outcome::new(paceline::Class::Success)
}

/// Makes so many calls, one after another.
fn call_blocking(limiter: &Limiter, calls: u32) {
    for _ in 0..calls {
        limiter.blocking().acquire(request(limiter)).expect("a wait is no error").complete(success());
    }
}

/// How many calls were made; nothing waits and nothing is in flight.
fn sends(limiter: &Limiter) -> u64 {
    let account = limiter.snapshot().account;
    assert_eq!((account.waiting, account.concurrency.in_flight), (0, 0));
    account.totals.sends
}

/// What a server saw: the times of all arrivals, in seconds since its start.
#[derive(Clone)]
struct Arrivals {
    limiter: Limiter,
    start: Instant,
    times: Arc<Mutex<Vec<f64>>>,
}

impl Arrivals {
    fn at(limiter: &Limiter) -> Self {
        Self { limiter: limiter.clone(), start: limiter.now(), times: Arc::default() }
    }

    fn record(&self) {
        let time = (self.limiter.now() - self.start).as_secs_f64();
        self.times.lock().expect("no test panics here").push(time);
    }

    fn seconds(&self) -> Vec<f64> {
        self.times.lock().expect("no test panics here").clone()
    }

    /// The most arrivals in any window of that many seconds.
    fn most_within(&self, window: f64) -> usize {
        let times = self.seconds();
        times
            .iter()
            .map(|start| times.iter().filter(|t| (*start..*start + window).contains(*t)).count())
            .max()
            .unwrap_or(0)
    }
}
