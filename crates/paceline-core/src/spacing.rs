//! The delay that spaces the calls of a scope under the paces `responsive`, `linear` and `exponential`.

use alloc::boxed::Box;
use core::time::Duration;

use crate::admit::{Admit, WaitCause};
use crate::backoff::Growth;
use crate::config::{Pace, PacerConfig};
use crate::error::ConfigError;
use crate::responsive::{Responsive, ResponsiveConfig, ResponsiveCounters, exponential_delay, linear_delay};
use crate::rng::Rng;
use crate::time::Instant;

/// What exponential growth multiplies by where the retries do not say.
const MULTIPLIER: f64 = 2.0;

#[derive(Clone, Debug)]
pub(crate) struct Spacing {
    rule: Rule,
    /// When the last call was sent or, if later, a refusal arrived.
    since: Instant,
    /// The end of the last hint.
    hinted: Instant,
    /// The newest call sent before the delay changed: outcomes up to it say nothing about the new delay.
    mark: u64,
}

#[derive(Clone, Debug)]
enum Rule {
    Off,
    Responsive { config: ResponsiveConfig, delay: Box<Responsive> },
    Growing { growth: Growth, delay: Duration },
}

impl Spacing {
    pub(crate) fn new(config: &PacerConfig) -> Result<Self, ConfigError> {
        Ok(Self { rule: rule(config)?, since: Instant::ZERO, hinted: Instant::ZERO, mark: 0 })
    }

    /// A delay is kept where its rule stays.
    pub(crate) fn reconfigure(&mut self, config: &PacerConfig) -> Result<(), ConfigError> {
        let new = rule(config)?;
        let same = match (&self.rule, &new) {
            (Rule::Responsive { config: old, .. }, Rule::Responsive { config, .. }) => old == config,
            (Rule::Growing { growth: old, .. }, Rule::Growing { growth, .. }) => old == growth,
            _ => false,
        };
        if !same {
            self.rule = new;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn admit(&self, now: Instant) -> Admit {
        if matches!(self.rule, Rule::Off) {
            return Admit::Now;
        }
        let delay = self.delay();
        let spaced = if delay.is_zero() { now } else { self.since + delay };
        Admit::at(spaced.max(self.hinted), now, || WaitCause::Spacing { delay })
    }

    /// A call leaves.
    pub(crate) fn sent(&mut self, now: Instant) {
        if let Rule::Responsive { delay, .. } = &mut self.rule {
            delay.idle(now - (self.since + delay.current_delay()));
        }
        self.since = now;
    }

    /// Call `number` was throttled, or its server is overloaded; `last` is the newest call sent. Calls that were in flight
    /// together are one failure.
    pub(crate) fn failed(&mut self, now: Instant, number: u64, last: u64, hint: Option<Duration>, rng: &mut Rng) {
        if let Some(hint) = hint {
            self.hinted = self.hinted.max(now + hint);
        }
        let counts = self.counts(number);
        match &mut self.rule {
            Rule::Responsive { delay, .. } if counts => drop(delay.on_failure(hint, rng)),
            Rule::Growing { growth, delay } if counts => *delay = next(*growth, *delay),
            _ => return,
        }
        (self.mark, self.since) = (last, now);
    }

    /// Call `number` succeeded.
    pub(crate) fn succeeded(&mut self, number: u64, last: u64, rng: &mut Rng) {
        if !self.counts(number) {
            return;
        }
        let before = self.delay();
        match &mut self.rule {
            Rule::Off => return,
            Rule::Responsive { delay, .. } => drop(delay.on_success(rng)),
            Rule::Growing { delay, .. } => *delay = Duration::ZERO,
        }
        if self.delay() != before {
            self.mark = last;
        }
    }

    /// The delay between calls.
    pub(crate) fn delay(&self) -> Duration {
        match &self.rule {
            Rule::Off => Duration::ZERO,
            Rule::Responsive { delay, .. } => delay.current_delay(),
            Rule::Growing { delay, .. } => *delay,
        }
    }

    /// The counters of the responsive delay, if it acts.
    pub(crate) fn counters(&self) -> Option<ResponsiveCounters> {
        match &self.rule {
            Rule::Responsive { delay, .. } => Some(delay.counters()),
            Rule::Off | Rule::Growing { .. } => None,
        }
    }

    /// The classic rule counts every outcome.
    fn counts(&self, number: u64) -> bool {
        number > self.mark || matches!(&self.rule, Rule::Responsive { config, .. } if config.compat)
    }
}

fn rule(config: &PacerConfig) -> Result<Rule, ConfigError> {
    let responsive = Responsive::new(config.responsive)?;
    let backoff = &config.retry.backoff;
    let (first, cap) = (backoff.first(), backoff.cap());
    Ok(match config.pace {
        Pace::Auto | Pace::Fixed | Pace::Aimd | Pace::None => Rule::Off,
        Pace::Responsive => Rule::Responsive { config: config.responsive, delay: Box::new(responsive) },
        Pace::Linear => Rule::Growing { growth: Growth::Linear { step: first, cap }, delay: Duration::ZERO },
        Pace::Exponential => {
            let multiplier = match backoff.growth {
                Growth::Exponential { multiplier, .. } => multiplier,
                Growth::Constant { .. } | Growth::Linear { .. } => MULTIPLIER,
            };
            Rule::Growing { growth: Growth::Exponential { base: first, multiplier, cap }, delay: Duration::ZERO }
        }
    })
}

/// The delay after one more failure.
fn next(growth: Growth, delay: Duration) -> Duration {
    match growth {
        Growth::Constant { delay } => delay,
        Growth::Linear { step, cap } => linear_delay(delay, step, cap),
        Growth::Exponential { base, multiplier, cap } => exponential_delay(delay, base, multiplier, cap),
    }
}
