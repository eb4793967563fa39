//! The plan of a job under a configured pacer: how long it takes, what it waits for, and its calls.

use std::time::Duration;

use paceline_core::{Cost, Dimension, Instant, PacerConfig, Quota};
use paceline_model::{Job, Schedule};
use serde::Serialize;

use crate::engine::{self, NEVER};
use crate::ideal::Ideal;
use crate::policy::Wait;
use crate::scenario::{Item, Scenario};
use crate::setup::{Setup, SimError};

/// A plan looks no further than this beyond what limits ask for.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// A longer job is simulated so far. Its other items are taken to go as those of the second half did.
const SAMPLE: u32 = 10_000;

/// A job from its start to its end, or to the day when it is not looked at any more.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The items that were simulated; the figures of a longer job are extrapolated from them.
    pub simulated: u32,
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
    /// Calls that tested whether a failing server is back. Each is a call of its item like any other.
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

/// Runs the items of a scenario under a configured pacer, to their end. Of more than 10,000 items as many are run, and the
/// figures are extrapolated: no job takes more memory or time than that.
///
/// # Errors
/// As [`crate::simulate`].
pub fn plan(scenario: &Scenario, config: &PacerConfig, scope: &str, seed: u64) -> Result<Plan, SimError> {
    let run = |items: u32| simulated(&Scenario { items, ..scenario.clone() }, config, scope, seed);
    if scenario.items <= SAMPLE {
        return run(scenario.items);
    }
    let (half, sample) = (run(SAMPLE / 2)?, run(SAMPLE)?);
    let calls = u64::from(scenario.items);
    let tokens = (sample.tokens as f64 / sample.calls.max(1) as f64 * calls as f64) as u64;
    let asked = configured(config, scope).asked(scenario, calls, tokens).as_secs_f64();
    let at_best = provided(scenario).asked(scenario, calls, tokens).as_secs_f64();
    Ok(sample.extrapolated(&half, scenario.items, asked, at_best))
}

fn simulated(scenario: &Scenario, config: &PacerConfig, scope: &str, seed: u64) -> Result<Plan, SimError> {
    let setup = Setup { pacer: Some(config.clone()), scope: scope.to_owned(), seed, ..Setup::new("the configuration") };
    // A job runs to its end, whatever the oracle did.
    let end = |ideal: &Ideal, items: &[Item]| {
        let tokens = items.iter().map(|item| item.estimate.get(&Dimension::Tokens)).sum();
        let asked = configured(config, scope).asked(scenario, items.len() as u64, tokens);
        Instant::ZERO + (ideal.finished - Instant::ZERO).max(asked) * 8 + PATIENCE
    };
    let plan = engine::run(
        scenario,
        &setup,
        &NEVER,
        end,
        |world, _| world.watch(),
        |world, ideal| {
            let (waits, longest, ended) = world.waited();
            let record = &world.record;
            let (succeeded, failed) = (record.times.len() as u64, u64::from(record.lost));
            Plan {
                simulated: scenario.items,
                succeeded,
                failed,
                unfinished: u64::from(scenario.items) - succeeded - failed,
                seconds: seconds(ended),
                oracle_seconds: seconds(ideal.finished),
                calls: record.sends,
                resends: record.sends - u64::from(record.begun()),
                probes: world.probes(),
                refused: record.refusals,
                tokens: record.tokens.last().copied().unwrap_or_default(),
                longest_wait_s: longest.as_secs_f64(),
                waits,
            }
        },
    );
    plan.map(|plan| plan.expect("the flag is never set"))
}

fn seconds(at: Instant) -> f64 {
    (at - Instant::ZERO).as_secs_f64()
}

impl Plan {
    /// The same of a job of more items. `half`: of half as many. `asked`: the seconds that the configured limits ask for, some
    /// of which the sample may not have met; `at_best`: those that the provider's do.
    fn extrapolated(&self, half: &Self, items: u32, asked: f64, at_best: f64) -> Self {
        let times = f64::from(items - self.simulated) / f64::from(self.simulated - half.simulated);
        let more = |all: f64, half: f64| all + times * (all - half).max(0.0);
        let count = |of: fn(&Self) -> u64| more(of(self) as f64, of(half) as f64).round() as u64;
        let seconds = more(self.seconds, half.seconds);
        let waited =
            |reason: &str| half.waits.iter().find(|wait| wait.reason == reason).map_or(0.0, |wait| wait.seconds);
        let mut waits: Vec<Wait> = self
            .waits
            .iter()
            .map(|wait| Wait { reason: wait.reason.clone(), seconds: more(wait.seconds, waited(&wait.reason)) })
            .collect();
        if asked > seconds {
            let reason = "configured limits that the simulated items do not reach".to_owned();
            waits.push(Wait { reason, seconds: asked - seconds });
        }
        waits.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Self {
            simulated: self.simulated,
            succeeded: count(|plan| plan.succeeded),
            failed: count(|plan| plan.failed),
            unfinished: count(|plan| plan.unfinished),
            seconds: seconds.max(asked),
            oracle_seconds: more(self.oracle_seconds, half.oracle_seconds).max(at_best),
            calls: count(|plan| plan.calls),
            resends: count(|plan| plan.resends),
            probes: count(|plan| plan.probes),
            refused: count(|plan| plan.refused),
            tokens: count(|plan| plan.tokens),
            longest_wait_s: self.longest_wait_s,
            waits,
        }
    }
}

/// Limits that stand still.
struct Standing {
    quotas: Vec<Quota>,
    concurrency: Option<u32>,
}

/// The configured ones.
fn configured(config: &PacerConfig, scope: &str) -> Standing {
    let tier = config.tiers.iter().find(|(name, _)| **name == *scope).map(|(_, limits)| limits);
    let limits = [Some(&config.limits), tier].into_iter().flatten();
    Standing {
        quotas: limits.flat_map(|limits| &limits.quotas).cloned().collect(),
        concurrency: Some(config.concurrency.max()),
    }
}

/// Those of a provider whose limits no schedule changes; none of another.
fn provided(scenario: &Scenario) -> Standing {
    let provider = &scenario.provider;
    if provider.schedule != Schedule::Constant {
        return Standing { quotas: Vec::new(), concurrency: None };
    }
    Standing {
        quotas: provider.limits.iter().map(|limit| limit.quota.clone()).collect(),
        concurrency: provider.concurrency,
    }
}

impl Standing {
    /// How long they ask for.
    fn asked(&self, scenario: &Scenario, calls: u64, tokens: u64) -> Duration {
        let cost = Cost::zero().with(Dimension::Requests, calls).with(Dimension::Tokens, tokens);
        let latency = scenario.provider.latency;
        let job = Job {
            calls,
            cost,
            mean_latency: latency.mean() + scenario.net,
            median_latency: latency.median() + scenario.net,
        };
        job.finish_time(&self.quotas, self.concurrency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_core::{Limits, Pace, Retry};
    use paceline_model::{Latency, ModelLimit, ProviderConfig, ProviderError};

    const SECOND: Duration = Duration::from_secs(1);

    fn config(pace: Pace, quotas: &[Quota]) -> PacerConfig {
        let limits = Limits { quotas: quotas.to_vec(), burst: None };
        PacerConfig { pace, limits, ..PacerConfig::default() }
    }

    /// A provider with exactly these limits.
    fn exact(items: u32, quotas: &[Quota], tokens: u64) -> Scenario {
        let latency = Latency::Uniform { low: SECOND / 20, high: SECOND / 2 };
        let limits = quotas.iter().cloned().map(ModelLimit::from).collect();
        Scenario::exact(items, ProviderConfig { limits, latency, ..ProviderConfig::default() }, tokens)
    }

    #[test]
    fn a_job_under_its_provider_s_limits_waits_for_them_and_for_nothing_else() {
        let minute = [Quota::per_minute(600)];
        let plan = plan(&exact(1_000, &minute, 0), &config(Pace::Fixed, &minute), "sim", 1).expect("it runs");
        assert_eq!((plan.succeeded, plan.calls, plan.refused, plan.resends), (1_000, 1_000, 0, 0), "{plan:?}");
        assert!((97.0..103.0).contains(&plan.seconds), "ten at once, then ten a second: {plan:?}");
        assert_eq!(plan.waits[0].reason, "the spacing of the configured limit");
        let all: f64 = plan.waits.iter().map(|wait| wait.seconds).sum();
        assert!((all - plan.seconds).abs() < 0.01 && plan.waits[0].seconds > 0.95 * all, "{plan:?}");
    }

    #[test]
    fn tokens_count_and_what_exceeds_a_limit_alone_is_given_up() {
        let tokens = [Quota::sliding(Dimension::Tokens, 60_000, 60 * SECOND)];
        let fits = plan(&exact(100, &tokens, 1_200), &config(Pace::Fixed, &tokens), "sim", 1).expect("it runs");
        assert_eq!((fits.succeeded, fits.tokens, fits.refused), (100, 120_000, 0), "{fits:?}");
        assert!((60.0..125.0).contains(&fits.seconds), "50 a minute: {fits:?}");
        assert!(fits.longest_wait_s > 50.0 && fits.waits[0].reason.contains("60000 tokens"), "{fits:?}");
        let large = plan(&exact(100, &tokens, 60_001), &config(Pace::Fixed, &tokens), "sim", 1);
        assert_eq!(large, Err(SimError::Provider(ProviderError::Never)));
        let small = [Quota::sliding(Dimension::Tokens, 1_000, 60 * SECOND)];
        let beyond = plan(&exact(100, &tokens, 1_200), &config(Pace::Fixed, &small), "sim", 1).expect("it runs");
        assert_eq!((beyond.failed, beyond.calls, beyond.unfinished), (100, 0, 0), "{beyond:?}");
    }

    #[test]
    fn without_retries_each_item_gets_one_call_and_some_of_them_test_a_failing_server() {
        let minute = [Quota::per_minute(600)];
        let mut scenario = exact(400, &minute, 0);
        scenario.provider.fault = 0.7;
        let retry = Retry { max_retries: 0, ..Retry::default() };
        let config = PacerConfig { retry, ..config(Pace::Fixed, &minute) };
        let tested = plan(&scenario, &config, "sim", 1).expect("it runs");
        assert_eq!((tested.calls, tested.resends), (400, 0), "a test is a call of its item: {tested:?}");
        assert!(tested.probes > 0 && tested.probes < tested.calls, "{tested:?}");
        let working = plan(&exact(400, &minute, 0), &config, "sim", 1).expect("it runs");
        assert_eq!((working.resends, working.probes), (0, 0), "{working:?}");
    }

    #[test]
    fn a_limit_of_hours_is_planned_in_an_instant() {
        let hour = [Quota::sliding(Dimension::Requests, 5, 3_600 * SECOND)];
        let plan = plan(&exact(40, &hour, 0), &config(Pace::Fixed, &hour), "sim", 1).expect("it runs");
        assert!((7.0..7.1).contains(&(plan.seconds / 3_600.0)), "five an hour, forty of them: {plan:?}");
        assert!(plan.longest_wait_s > 3_590.0 && plan.refused == 0, "{plan:?}");
    }

    #[test]
    fn a_job_of_a_billion_is_extrapolated_from_a_sample() {
        let limits = [Quota::per_minute(6_000), Quota::sliding(Dimension::Requests, 1_000_000, 86_400 * SECOND)];
        let plan = |items| plan(&exact(items, &limits, 0), &config(Pace::Fixed, &limits), "sim", 1).expect("it runs");
        let (few, many) = (plan(40_000), plan(1_000_000_000));
        assert_eq!((few.simulated, few.succeeded, few.calls), (10_000, 40_000, 40_000), "{few:?}");
        assert!((390.0..410.0).contains(&few.seconds), "100 a second: {few:?}");
        let days = many.seconds / 86_400.0;
        assert!((998.0..1_000.0).contains(&days), "a million a day, of which the sample meets nothing: {many:?}");
        assert_eq!((many.succeeded, many.refused), (1_000_000_000, 0));
        assert!(
            many.oracle_seconds <= many.seconds && many.waits[0].reason.starts_with("configured limits"),
            "{many:?}"
        );
    }

    #[test]
    fn the_limits_of_a_tier_hold_in_its_scope() {
        let slow: std::sync::Arc<str> = "tier model=slow".into();
        let minute = Limits { quotas: vec![Quota::per_minute(60)], burst: None };
        let config = PacerConfig { tiers: vec![(slow, minute)], ..config(Pace::Fixed, &[]) };
        let seconds = |scope: &str| plan(&exact(50, &[], 0), &config, scope, 1).expect("it runs").seconds;
        assert!(seconds("another") < 10.0 && seconds("tier model=slow") > 45.0);
    }

    /// What learns is refused, retries, and says that it waits for what it learnt or for its retries.
    #[test]
    fn a_plan_without_limits_on_a_limited_provider_has_refusals() {
        let scenario = Scenario::named("b10-20").expect("built in");
        let plan = plan(&scenario, &config(Pace::Auto, &[]), "sim", 1).expect("it runs");
        assert_eq!((plan.succeeded, plan.calls), (200, 200 + plan.refused), "{plan:?}");
        assert!(plan.refused > 0 && plan.resends == plan.refused && plan.seconds >= plan.oracle_seconds, "{plan:?}");
    }
}
