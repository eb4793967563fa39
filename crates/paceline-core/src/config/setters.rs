//! How a configuration is written in a program: setters, and what becomes a configuration by itself.

use alloc::sync::Arc;
use core::time::Duration;

use super::{Background, BreakerConfig, Concurrency, Limits, Pace, PacerConfig, Quota, Retry};
use crate::cost::Dimension;
use crate::responsive::ResponsiveConfig;

impl PacerConfig {
    /// One more limit of the account; all of them hold at once.
    #[must_use]
    pub fn with_quota(mut self, quota: Quota) -> Self {
        self.limits.quotas.push(quota);
        self
    }

    /// The limits of the account.
    #[must_use]
    pub fn with_limits(self, limits: impl Into<Limits>) -> Self {
        Self { limits: limits.into(), ..self }
    }

    /// Limits of the scope of that name, below those of the account.
    #[must_use]
    pub fn with_tier(mut self, scope: impl Into<Arc<str>>, limits: impl Into<Limits>) -> Self {
        self.tiers.push((scope.into(), limits.into()));
        self
    }

    /// At most so many calls in flight, at least 1, of the scope of that name, or of each part of it: of one host among many.
    #[must_use]
    pub fn with_tier_places(mut self, scope: impl Into<Arc<str>>, most: u32) -> Self {
        self.tier_places.push((scope.into(), most));
        self
    }

    /// At most so many calls in flight, at least 1.
    #[must_use]
    pub fn with_in_flight(self, max: u32) -> Self {
        Self { concurrency: Concurrency::Fixed { max }, ..self }
    }

    /// How the number of calls in flight adapts.
    #[must_use]
    pub fn with_concurrency(self, concurrency: Concurrency) -> Self {
        Self { concurrency, ..self }
    }

    /// The policy that decides how fast the calls leave.
    #[must_use]
    pub fn with_pace(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }

    /// The first rate of each scope under [`Pace::Auto`], in calls a second.
    #[must_use]
    pub fn with_start(self, rate: f64) -> Self {
        Self { start: Some(rate), ..self }
    }

    /// Calls in flight that the server bears for the whole account, at least 1: those of all processes of a fleet together.
    #[must_use]
    pub fn with_places(self, places: u32) -> Self {
        Self { places: Some(places), ..self }
    }

    /// How long a call may be in flight at most, more than 0.
    #[must_use]
    pub fn with_longest_call(self, longest: Duration) -> Self {
        Self { longest_call: Some(longest), ..self }
    }

    /// The delay of [`Pace::Responsive`].
    #[must_use]
    pub fn with_responsive(self, responsive: ResponsiveConfig) -> Self {
        Self { responsive, ..self }
    }

    /// How requests of a priority below 0 share the account with the others.
    #[must_use]
    pub fn with_background(self, background: Background) -> Self {
        Self { background, ..self }
    }

    /// How often and how late items are sent again.
    #[must_use]
    pub fn with_retry(self, retry: Retry) -> Self {
        Self { retry, ..self }
    }

    /// Re-sends after a failure: calls are 1 + this.
    #[must_use]
    pub fn with_max_retries(mut self, max_retries: u32) -> Self {
        self.retry.max_retries = max_retries;
        self
    }

    /// Deferrals after refusals by a limit and used-up quotas before the item fails.
    #[must_use]
    pub fn with_max_deferrals(mut self, max_deferrals: u32) -> Self {
        self.retry.max_deferrals = Some(max_deferrals);
        self
    }

    /// How long after an item's first send the last one may leave.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.retry.deadline = Some(deadline);
        self
    }

    /// When a scope counts as down.
    #[must_use]
    pub fn with_breaker(self, breaker: BreakerConfig) -> Self {
        Self { breaker, ..self }
    }

    /// The same, but no two calls leave within `delay`, as a `Crawl-delay` in a robots.txt asks for. It holds under every
    /// pace: [`Pace::None`] becomes [`Pace::Fixed`] with no other limit. A delay of 0 asks for nothing.
    #[must_use]
    pub fn with_crawl_delay(mut self, delay: Duration) -> Self {
        if delay.is_zero() {
            return self;
        }
        if self.pace == Pace::None {
            self.pace = Pace::Fixed;
            self.limits = Limits::default();
            self.tiers.clear();
        }
        self.limits.quotas.push(Quota::sliding(Dimension::Requests, 1, delay));
        if self.limits.spacing().is_some_and(|(quota, burst)| burst > quota.limit) {
            self.limits.burst = None;
        }
        self
    }
}

impl From<Quota> for Limits {
    fn from(quota: Quota) -> Self {
        Self { quotas: [quota].into(), burst: None }
    }
}

impl<const N: usize> From<[Quota; N]> for Limits {
    fn from(quotas: [Quota; N]) -> Self {
        Self { quotas: quotas.into(), burst: None }
    }
}

impl From<Limits> for PacerConfig {
    fn from(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }
}

impl From<Quota> for PacerConfig {
    fn from(quota: Quota) -> Self {
        Limits::from(quota).into()
    }
}

impl<const N: usize> From<[Quota; N]> for PacerConfig {
    fn from(quotas: [Quota; N]) -> Self {
        Limits::from(quotas).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_setter_sets_is_what_its_field_says() {
        let responsive = ResponsiveConfig { up: 2.0, ..ResponsiveConfig::default() };
        let background = Background { reserve: 0.2, share: 0.1 };
        let set = PacerConfig::default()
            .with_start(50.0)
            .with_places(8)
            .with_longest_call(Duration::from_secs(60))
            .with_responsive(responsive)
            .with_background(background)
            .with_max_deferrals(3);
        let written = PacerConfig {
            start: Some(50.0),
            places: Some(8),
            longest_call: Some(Duration::from_secs(60)),
            responsive,
            background,
            retry: Retry { max_deferrals: Some(3), ..Retry::default() },
            ..PacerConfig::default()
        };
        assert_eq!(set, written);
    }
}
