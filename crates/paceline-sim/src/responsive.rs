//! One worker under a responsive delay, against a server that refuses a call that comes too soon.

use std::time::Duration;

use paceline_core::{ConfigError, Responsive, ResponsiveConfig, ResponsiveCounters, Rng};

/// The gap before a request that the server asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Until a request has succeeded; where it is longer than `gap` the delay overshoots.
    pub until_first_success: Duration,
    /// From then on.
    pub gap: Duration,
}

/// One request of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paced {
    /// The wait before it.
    pub delay: Duration,
    /// The gap that the server required.
    pub required: Duration,
    /// Whether the wait was long enough.
    pub succeeded: bool,
}

/// All requests of the worker, and the counters of the delay afterwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Course {
    /// In order.
    pub requests: Vec<Paced>,
    /// The wait after the last request is among the counted ones.
    pub counters: ResponsiveCounters,
}

impl Requirement {
    /// The same gap from the start.
    pub const fn constant(gap: Duration) -> Self {
        Self { until_first_success: gap, gap }
    }
}

impl Course {
    /// Sends so many requests, one after the other; answers take no time. The same seed gives the same course.
    ///
    /// # Errors
    /// Invalid settings of the delay.
    pub fn of(
        config: ResponsiveConfig,
        requirement: Requirement,
        requests: usize,
        seed: u64,
    ) -> Result<Self, ConfigError> {
        let (mut delay, mut rng) = (Responsive::new(config)?, Rng::new(seed));
        let (mut sent, mut wait, mut any) = (Vec::with_capacity(requests), Duration::ZERO, false);
        for _ in 0..requests {
            let required = if any { requirement.gap } else { requirement.until_first_success };
            let succeeded = wait >= required;
            sent.push(Paced { delay: wait, required, succeeded });
            any |= succeeded;
            wait = if succeeded { delay.on_success(&mut rng) } else { delay.on_failure(None, &mut rng) };
        }
        Ok(Self { requests: sent, counters: delay.counters() })
    }

    /// How many requests succeeded.
    pub fn succeeded(&self) -> usize {
        self.requests.iter().filter(|request| request.succeeded).count()
    }

    /// The delay of the first request that succeeded: the end of the first climb.
    pub fn climbed_to(&self) -> Option<Duration> {
        self.requests.iter().find(|request| request.succeeded).map(|request| request.delay)
    }

    /// The waits before the requests, per successful request. None when nothing succeeded.
    pub fn spacing(&self) -> Option<Duration> {
        let waited: Duration = self.requests.iter().map(|request| request.delay).sum();
        u32::try_from(self.succeeded()).ok().and_then(|succeeded| waited.checked_div(succeeded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn classic() -> ResponsiveConfig {
        ResponsiveConfig {
            initial: MS,
            down: 0.6,
            randomization: 0.0,
            threshold: 5,
            compat: true,
            ..Default::default()
        }
    }

    fn course(config: ResponsiveConfig, requirement: Requirement, requests: usize) -> Course {
        Course::of(config, requirement, requests, 1).expect("sensible knobs")
    }

    #[test]
    fn the_classic_graph_to_the_nanosecond() {
        let course = course(classic(), Requirement { until_first_success: 200 * MS, gap: 60 * MS }, 90);
        let counters = course.counters;
        assert_eq!((course.succeeded(), counters.went_up, counters.went_down), (63, 27, 12));
        assert_eq!(course.climbed_to(), Some(Duration::from_nanos(291_929_238)));
        assert_eq!((counters.sleep_time.as_nanos() + 500) / 1_000, 7_546_067);
        let before: Duration = course.requests.iter().map(|request| request.delay).sum();
        assert_eq!((before.as_nanos() + 500) / 1_000, 7_463_618, "all but the wait after the last");
        assert_eq!(course.requests[15].required, 200 * MS);
        assert_eq!(course.requests[16].required, 60 * MS);
    }

    #[test]
    fn the_classic_rule_fails_a_fifth_of_the_time_and_the_default_hardly_ever() {
        let constant = Requirement::constant(60 * MS);
        assert_eq!(course(classic(), constant, 1_000).succeeded(), 790);
        let search = course(ResponsiveConfig { compat: false, ..classic() }, constant, 1_000);
        assert!(search.succeeded() >= 950 && search.spacing().is_some_and(|gap| gap <= 66 * MS), "{search:?}");
    }

    #[test]
    fn without_success_there_is_no_spacing() {
        let course = course(classic(), Requirement::constant(3_600_000 * MS), 5);
        assert_eq!((course.climbed_to(), course.spacing(), course.succeeded()), (None, None, 0));
    }
}
