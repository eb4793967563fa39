//! A client whose author read the provider's documentation: the true rate, burst and cap, divided by the processes.
//!
//! Source: a token bucket and a semaphore, as in most client libraries, with full jitter for what is refused all the same.

use paceline_core::{Class, Dimension, Instant, QuotaShape, Rng};

use super::bucket::Bucket;
use super::crew::{After, Ask, Leave, Made, Rule, full_jitter, seconds};
use super::{CallResult, Setting};

#[derive(Debug)]
pub(super) struct Known {
    /// None where nothing limits the rate.
    bucket: Option<Bucket>,
    most: u32,
    rng: Rng,
}

impl Known {
    pub(super) fn new(setting: &Setting<'_>) -> Self {
        let provider = &setting.scenario.provider;
        let bursts = provider.limits.iter().map(|limit| match (limit.quota.shape, &limit.quota.dimension) {
            (QuotaShape::Bucket { burst }, Dimension::Requests) => burst as f64,
            (QuotaShape::Bucket { burst }, _) => burst as f64 / setting.scenario.mean_cost(),
            (QuotaShape::Fixed | QuotaShape::Sliding, _) => 1.0,
        });
        let burst = bursts.fold(f64::INFINITY, f64::min);
        let share = |burst: f64| (burst / f64::from(setting.processes)).max(1.0);
        let places = provider.concurrency.into_iter().chain(provider.overload.map(|overload| overload.capacity));
        Self {
            bucket: burst.is_finite().then(|| Bucket::full(setting.rate(), share(burst))),
            most: places.min().map_or(u32::MAX, |places| (places / setting.processes).max(1)),
            rng: Rng::new(setting.seed),
        }
    }
}

impl Rule for Known {
    fn admit(&mut self, now: Instant, ask: &Ask<'_>) -> Leave {
        if ask.in_flight >= self.most {
            return Leave::OnAnswer;
        }
        self.bucket.as_mut().map_or(Leave::Now, |bucket| bucket.leave(seconds(now)))
    }

    fn sent(&mut self, now: Instant, _: &Ask<'_>) {
        if let Some(bucket) = &mut self.bucket {
            bucket.take(seconds(now), 1.0);
        }
    }

    fn answered(&mut self, _: Instant, answer: &CallResult<'_>, call: Made) -> After {
        if answer.class == Class::Success {
            return After::Done;
        }
        After::Again(full_jitter(call.attempt, &mut self.rng))
    }

    fn rate(&self) -> Option<f64> {
        self.bucket.as_ref().map(Bucket::rate)
    }

    fn limit(&self) -> Option<u32> {
        Some(self.most).filter(|most| *most < u32::MAX)
    }
}
