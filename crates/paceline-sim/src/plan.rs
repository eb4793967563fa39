//! What a job would do under a pacer as the user configured it: how long, what it waits for, and which calls.

use std::time::Duration;

use paceline_core::{Cost, Dimension, Instant, PacerConfig, Quota};
use serde::Serialize;

use crate::engine::{self, Setup, SimError};
use crate::oracle::Job;
use crate::scenario::{Item, Scenario};

/// A plan looks no further than this beyond what limits ask for.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// A job from its start to its end, or to the day when it is not looked at any more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// Items that succeeded.
    pub succeeded: u64,
    /// Items that were given up: no retries left, or larger than a limit.
    pub failed: u64,
    /// Items that had not ended after eight times what the limits ask for, and a day.
    pub unfinished: u64,
    /// Seconds to the end of the last item.
    pub seconds: f64,
    /// The same of an oracle that sees the provider's state and never has a call refused.
    pub oracle_seconds: f64,
    /// Calls, all together.
    pub calls: u64,
    /// Calls after an item's first.
    pub resends: u64,
    /// Calls that only tested whether a failing server is back: they use up no retries.
    pub probes: u64,
    /// Calls that the provider refused.
    pub refused: u64,
    /// Tokens of the admitted calls.
    pub tokens: u64,
    /// The longest time in which nothing left although something waited, in seconds.
    pub longest_wait_s: f64,
    /// What the next call waited for, longest first; together all of the time.
    pub waits: Vec<Wait>,
}

/// What calls wait for, and how long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wait {
    /// In words.
    #[serde(rename = "for")]
    pub reason: String,
    /// How long, in seconds.
    pub seconds: f64,
}

/// Runs the items of a scenario under a configured pacer, to their end.
///
/// # Errors
/// As [`crate::simulate`].
pub fn plan(scenario: &Scenario, config: &PacerConfig, scope: &str, seed: u64) -> Result<Plan, SimError> {
    let setup = Setup { pacer: Some(config.clone()), scope: scope.to_owned(), seed, ..Setup::new("the configuration") };
    engine::plan(scenario, &setup, |oracle, items| {
        let oracle = oracle - Instant::ZERO;
        Instant::ZERO + oracle.max(configured(scenario, config, scope, items)) * 8 + PATIENCE
    })
}

/// How long the configured limits ask for.
fn configured(scenario: &Scenario, config: &PacerConfig, scope: &str, items: &[Item]) -> Duration {
    let tier = config.tiers.iter().find(|(name, _)| **name == *scope).map(|(_, limits)| limits);
    let quotas: Vec<Quota> =
        [Some(&config.limits), tier].into_iter().flatten().flat_map(|limits| &limits.quotas).cloned().collect();
    let tokens = items.iter().map(|item| item.estimate.get(&Dimension::Tokens)).sum();
    let calls = items.len() as u64;
    let cost = Cost::zero().with(Dimension::Requests, calls).with(Dimension::Tokens, tokens);
    let latency = scenario.provider.latency;
    let job = Job {
        calls,
        cost,
        mean_latency: latency.mean() + scenario.net,
        median_latency: latency.median() + scenario.net,
    };
    job.finish_time(&quotas, Some(config.concurrency.max()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Latency, Limit, ProviderConfig, ProviderError};
    use paceline_core::{Limits, Pace, Retry};

    const SECOND: Duration = Duration::from_secs(1);

    fn told(pace: Pace, quotas: &[Quota]) -> PacerConfig {
        let limits = Limits { quotas: quotas.to_vec(), burst: None };
        PacerConfig { pace, limits, ..PacerConfig::default() }
    }

    /// A provider with exactly these limits.
    fn exact(items: u32, quotas: &[Quota], tokens: u64) -> Scenario {
        let latency = Latency::Uniform { low: SECOND / 20, high: SECOND / 2 };
        let limits = quotas.iter().cloned().map(Limit::from).collect();
        Scenario::exact(items, ProviderConfig { limits, latency, ..ProviderConfig::default() }, tokens)
    }

    #[test]
    fn a_job_under_its_provider_s_limits_waits_for_them_and_for_nothing_else() {
        let minute = [Quota::requests_per_minute(600)];
        let plan = plan(&exact(1_000, &minute, 0), &told(Pace::Fixed, &minute), "sim", 1).expect("it runs");
        assert_eq!((plan.succeeded, plan.calls, plan.refused, plan.resends), (1_000, 1_000, 0, 0), "{plan:?}");
        assert!((97.0..103.0).contains(&plan.seconds), "ten at once, then ten a second: {plan:?}");
        assert_eq!(plan.waits[0].reason, "the spacing of the configured limit");
        let all: f64 = plan.waits.iter().map(|wait| wait.seconds).sum();
        assert!((all - plan.seconds).abs() < 0.01 && plan.waits[0].seconds > 0.95 * all, "{plan:?}");
    }

    #[test]
    fn tokens_count_and_what_exceeds_a_limit_alone_is_given_up() {
        let tokens = [Quota::sliding(Dimension::Tokens, 60_000, 60 * SECOND)];
        let fits = plan(&exact(100, &tokens, 1_200), &told(Pace::Fixed, &tokens), "sim", 1).expect("it runs");
        assert_eq!((fits.succeeded, fits.tokens, fits.refused), (100, 120_000, 0), "{fits:?}");
        assert!((60.0..125.0).contains(&fits.seconds), "50 a minute: {fits:?}");
        assert!(fits.longest_wait_s > 50.0 && fits.waits[0].reason.contains("60000 tokens"), "{fits:?}");
        let large = plan(&exact(100, &tokens, 60_001), &told(Pace::Fixed, &tokens), "sim", 1);
        assert_eq!(large, Err(SimError::Provider(ProviderError::Never)));
        let small = [Quota::sliding(Dimension::Tokens, 1_000, 60 * SECOND)];
        let beyond = plan(&exact(100, &tokens, 1_200), &told(Pace::Fixed, &small), "sim", 1).expect("it runs");
        assert_eq!((beyond.failed, beyond.calls, beyond.unfinished), (100, 0, 0), "{beyond:?}");
    }

    #[test]
    fn resends_without_retries_are_tests_of_a_failing_server() {
        let minute = [Quota::requests_per_minute(600)];
        let mut scenario = exact(400, &minute, 0);
        scenario.provider.fault = 0.7;
        let retry = Retry { max_retries: 0, ..Retry::default() };
        let config = PacerConfig { retry, ..told(Pace::Fixed, &minute) };
        let tested = plan(&scenario, &config, "sim", 1).expect("it runs");
        assert!(tested.resends > 0 && tested.resends <= tested.probes, "{tested:?}");
        let working = plan(&exact(400, &minute, 0), &config, "sim", 1).expect("it runs");
        assert_eq!((working.resends, working.probes), (0, 0), "{working:?}");
    }

    #[test]
    fn a_limit_of_hours_is_planned_in_an_instant() {
        let hour = [Quota::sliding(Dimension::Requests, 5, 3_600 * SECOND)];
        let plan = plan(&exact(40, &hour, 0), &told(Pace::Fixed, &hour), "sim", 1).expect("it runs");
        assert!((7.0..7.1).contains(&(plan.seconds / 3_600.0)), "five an hour, forty of them: {plan:?}");
        assert!(plan.longest_wait_s > 3_590.0 && plan.refused == 0, "{plan:?}");
    }

    #[test]
    fn the_limits_of_a_tier_hold_in_its_scope() {
        let slow: std::sync::Arc<str> = "tier model=slow".into();
        let minute = Limits { quotas: vec![Quota::requests_per_minute(60)], burst: None };
        let config = PacerConfig { tiers: vec![(slow, minute)], ..told(Pace::Fixed, &[]) };
        let seconds = |scope: &str| plan(&exact(50, &[], 0), &config, scope, 1).expect("it runs").seconds;
        assert!(seconds("another") < 10.0 && seconds("tier model=slow") > 45.0);
    }

    /// What learns is refused, retries, and says that it waits for what it learnt or for its retries.
    #[test]
    fn a_plan_without_limits_on_a_limited_provider_has_refusals() {
        let scenario = Scenario::named("b10-20").expect("built in");
        let plan = plan(&scenario, &told(Pace::Auto, &[]), "sim", 1).expect("it runs");
        assert_eq!((plan.succeeded, plan.calls), (200, 200 + plan.refused), "{plan:?}");
        assert!(plan.refused > 0 && plan.resends == plan.refused && plan.seconds >= plan.oracle_seconds, "{plan:?}");
    }
}
