//! The adaptive retry mode of the AWS SDKs: a token bucket whose rate follows a cubic curve.
//!
//! Source: botocore's `retries/adaptive.py`, `throttling.py`, `bucket.py` and `standard.py`.

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::bucket::Bucket;
use super::crew::{After, Ask, Leave, Made, Rule, seconds};

const BETA: f64 = 0.7;
const SCALE: f64 = 0.4;
const LEAST_RATE: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Adaptive {
    /// None before the first refusal: then nothing waits.
    bucket: Option<Bucket>,
    measured: Measured,
    /// The rate at the last refusal and its time.
    last_max: f64,
    last_throttle: f64,
    /// Whether retries are bounded.
    bounded: bool,
    quota: u32,
    rng: Rng,
}

/// The rate of answers, in counts of half a second.
#[derive(Debug, Default)]
struct Measured {
    rate: f64,
    count: f64,
    period: f64,
}

impl Measured {
    fn record(&mut self, now: f64) -> f64 {
        let period = (now * 2.0).floor() / 2.0;
        self.count += 1.0;
        if period > self.period {
            self.rate = 0.8 * self.count / (period - self.period) + 0.2 * self.rate;
            (self.count, self.period) = (0.0, period);
        }
        self.rate
    }
}

impl Adaptive {
    const QUOTA: u32 = 500;

    pub(super) fn new(bounded: bool, seed: u64) -> Self {
        Self {
            bucket: None,
            measured: Measured::default(),
            last_max: 0.0,
            last_throttle: 0.0,
            bounded,
            quota: Self::QUOTA,
            rng: Rng::new(seed),
        }
    }

    fn adapt(&mut self, now: f64, throttled: bool) {
        let measured = self.measured.record(now);
        let rate = if throttled {
            let rate = self.bucket.as_ref().map_or(measured, |bucket| measured.min(bucket.rate()));
            (self.last_max, self.last_throttle) = (rate, now);
            BETA * rate
        } else if self.bucket.is_some() {
            let elapsed = now - self.last_throttle - libm::cbrt(self.last_max * (1.0 - BETA) / SCALE);
            SCALE * elapsed * elapsed * elapsed + self.last_max
        } else {
            return;
        };
        let rate = rate.min(2.0 * measured).max(LEAST_RATE);
        // The SDK's bucket starts empty when it is switched on.
        let bucket = self.bucket.get_or_insert_with(|| {
            let mut bucket = Bucket::full(rate, 0.0);
            bucket.take(now, 0.0);
            bucket
        });
        bucket.set(now, rate, rate.max(1.0));
    }

    /// Whether the retry quota has room for one more.
    fn may_retry(&mut self, attempt: u32) -> bool {
        const ATTEMPTS: u32 = 3;
        const PRICE: u32 = 5;
        if !self.bounded {
            return true;
        }
        if attempt + 1 >= ATTEMPTS || self.quota < PRICE {
            return false;
        }
        self.quota -= PRICE;
        true
    }
}

impl Rule for Adaptive {
    fn admit(&mut self, now: Instant, _: &Ask<'_>) -> Leave {
        self.bucket.as_mut().map_or(Leave::Now, |bucket| bucket.leave(seconds(now)))
    }

    fn sent(&mut self, now: Instant, _: &Ask<'_>) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(seconds(now), 1.0);
        }
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>, call: Made) -> After {
        self.adapt(seconds(now), answer.class == Class::Throttled);
        if answer.class == Class::Success {
            let refund = if call.attempt > 0 { 5 } else { 1 };
            self.quota = (self.quota + refund).min(Self::QUOTA);
            return After::Done;
        }
        if !self.may_retry(call.attempt) {
            return After::Lost;
        }
        After::Again(self.rng.unit() * f64::from(1u32 << call.attempt.min(16)).min(20.0))
    }

    fn rate(&self) -> Option<f64> {
        self.bucket.as_ref().map(Bucket::rate)
    }
}
