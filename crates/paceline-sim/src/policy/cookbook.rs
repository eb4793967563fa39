//! The parallel processor of the OpenAI cookbook: pools of requests and tokens, and a pause after a refusal.
//!
//! Source: `api_request_parallel_processor.py` of openai/openai-cookbook.

use paceline_core::{Class, Dimension, Instant};

use super::bucket::Bucket;
use super::crew::{After, Ask, Leave, Made, Rule, seconds};
use super::{CallResult, Setting};

#[derive(Debug)]
pub(super) struct Cookbook {
    requests: Bucket,
    tokens: Option<Bucket>,
    paused_until: f64,
}

impl Cookbook {
    pub(super) fn new(setting: &Setting<'_>) -> Self {
        let minute = |rate: f64| Bucket::full(rate, 60.0 * rate);
        let limits = &setting.scenario.provider.limits;
        let tokens = limits.iter().find(|limit| limit.quota.dimension == Dimension::Tokens).map(|limit| {
            let rate = limit.quota.limit as f64 / limit.quota.window.as_secs_f64();
            minute(rate / f64::from(setting.processes))
        });
        Self { requests: minute(setting.rate()), tokens, paused_until: 0.0 }
    }
}

fn tokens(ask: &Ask<'_>) -> f64 {
    ask.estimate.get(&Dimension::Tokens) as f64
}

impl Rule for Cookbook {
    fn admit(&mut self, now: Instant, ask: &Ask<'_>) -> Leave {
        let now = seconds(now);
        let tokens = self.tokens.as_mut().map_or(now, |pool| pool.ready(now, tokens(ask)));
        let ready = self.requests.ready(now, 1.0).max(tokens).max(self.paused_until);
        if ready > now { Leave::At(ready) } else { Leave::Now }
    }

    fn sent(&mut self, now: Instant, ask: &Ask<'_>) {
        let now = seconds(now);
        self.requests.take(now, 1.0);
        if let Some(pool) = &mut self.tokens {
            pool.take(now, tokens(ask));
        }
    }

    fn answered(&mut self, now: Instant, answer: &CallResult<'_>, call: Made) -> After {
        const ATTEMPTS: u32 = 5;
        const PAUSE: f64 = 15.0;
        if answer.class == Class::Success {
            return After::Done;
        }
        if answer.class == Class::Throttled {
            self.paused_until = seconds(now) + PAUSE;
        }
        if call.attempt + 1 < ATTEMPTS { After::Again(0.0) } else { After::Lost }
    }
}
