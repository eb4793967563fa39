//! A sliding minute with a pool for bursts, as application rate limiters for language models have it.
//!
//! Source: the usual "calls per minute plus burst pool" helper around the OpenAI API, which raises when its pool is
//! empty; here it waits instead, unless it shall raise.

use std::collections::VecDeque;

use paceline_core::{Class, Instant, Rng};

use super::CallResult;
use super::bucket::Bucket;
use super::crew::{After, Ask, Leave, Made, Rule, seconds};

#[derive(Debug)]
pub(super) struct Window {
    per_minute: f64,
    pool: Bucket,
    sent: VecDeque<f64>,
    /// Whether an empty pool ends the job instead of making it wait.
    raises: bool,
    raised: bool,
    rng: Rng,
}

impl Window {
    pub(super) const fn new(per_minute: f64, pool: f64, raises: bool, seed: u64) -> Self {
        let pool = Bucket::full(per_minute / 60.0, pool.max(1.0));
        Self { per_minute, pool, sent: VecDeque::new(), raises, raised: false, rng: Rng::new(seed) }
    }
}

impl Rule for Window {
    /// Retries do not pass the limiter again.
    fn admit(&mut self, now: Instant, ask: &Ask<'_>) -> Leave {
        let now = seconds(now);
        if ask.attempt > 0 {
            return Leave::Now;
        }
        while self.sent.front().is_some_and(|sent| sent + 60.0 <= now) {
            self.sent.pop_front();
        }
        let room = if (self.sent.len() as f64) < self.per_minute.floor().max(1.0) {
            now
        } else {
            self.sent.front().map_or(now, |sent| sent + 60.0)
        };
        let ready = self.pool.ready(now, 1.0).max(room);
        self.raised |= self.raises && ready > now;
        match ready {
            _ if self.raised => Leave::OnAnswer,
            ready if ready <= now => Leave::Now,
            ready => Leave::At(ready),
        }
    }

    fn sent(&mut self, now: Instant, ask: &Ask<'_>) {
        if ask.attempt == 0 {
            self.pool.take(seconds(now), 1.0);
            self.sent.push_back(seconds(now));
        }
    }

    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        match answer.class {
            Class::Success => After::Done,
            Class::Throttled if call.attempt < 4 => {
                let delay = f64::from(1u32 << call.attempt).min(60.0);
                After::Again(delay * (0.1 + 0.9 * self.rng.unit()))
            }
            _ => After::Lost,
        }
    }
}
