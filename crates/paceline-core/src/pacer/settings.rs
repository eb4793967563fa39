//! What a configuration means for a pacer: its limits, places and tiers, and whether it can be.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::ToString;
use alloc::sync::Arc;

use crate::config::{Concurrency, Limits, Pace, PacerConfig, tier_and_part};
use crate::error::ConfigError;
use crate::quota::Quotas;
use crate::scope::{self, Scope};

/// Under `Pace::None` no configured limit acts.
pub(super) fn limits(config: &PacerConfig) -> Limits {
    if config.pace == Pace::None { Limits::default() } else { config.limits.clone() }
}

/// The places of the account among the calls in flight; scopes that are accounts of their own have theirs.
pub(super) fn places(config: &PacerConfig) -> Concurrency {
    let max = if config.per_scope.is_some() { u32::MAX } else { config.concurrency.max() };
    Concurrency::Fixed { max: config.places.map_or(max, |most| most.min(max)) }
}

/// The limits of the scope of that name.
pub(super) fn tier_of<'a>(
    name: &str,
    tiers: &BTreeMap<Arc<str>, usize>,
    config: &'a PacerConfig,
) -> Option<&'a Limits> {
    let whole = || tier_and_part(name).and_then(|(tier, _)| tiers.get(tier));
    tiers.get(name).or_else(whole).map(|place| &config.tiers[*place].1).or(config.per_scope.as_ref())
}

/// Whether a scope of that name is a part of a tier, with the limits of that for itself.
pub(super) fn is_part(name: &str, tiers: &BTreeMap<Arc<str>, usize>) -> bool {
    !tiers.contains_key(name) && tier_and_part(name).is_some_and(|(tier, _)| tiers.contains_key(tier))
}

/// Of several tiers of one name the first counts.
pub(super) fn tiers(config: &PacerConfig) -> BTreeMap<Arc<str>, usize> {
    let places = config.tiers.iter().enumerate().rev();
    places.map(|(place, (name, _))| (name.clone(), place)).collect()
}

pub(super) fn check(config: &PacerConfig) -> Result<(), ConfigError> {
    config.retry.check()?;
    config.background.check()?;
    check_in_flight(config)?;
    if let Some(start) = config.start.filter(|start| !(*start > 0.0 && *start <= scope::FASTEST_START)) {
        let expected = "a rate of more than 0 and at most 1,000,000 calls a second";
        return Err(ConfigError { key: "start".into(), value: start.to_string(), expected });
    }
    Quotas::new(&config.limits)?;
    for (name, limits) in &config.tiers {
        Scope::new(name.clone(), Some(limits), config)?;
    }
    Scope::new("".into(), config.per_scope.as_ref(), config)?;
    Ok(())
}

/// What is said of calls in flight beside [`PacerConfig::concurrency`]. None at all is no limit that a call can wait for.
fn check_in_flight(config: &PacerConfig) -> Result<(), ConfigError> {
    const AT_LEAST_1: &str = "a whole number of at least 1";
    let none = |key, expected| Err(ConfigError { key, value: "0".into(), expected });
    if config.places == Some(0) {
        return none("places".into(), AT_LEAST_1);
    }
    if let Some((tier, _)) = config.tier_places.iter().find(|(_, most)| *most == 0) {
        return none(format!("places of {tier}"), AT_LEAST_1);
    }
    if config.longest_call.is_some_and(|longest| longest.is_zero()) {
        return Err(ConfigError {
            key: "longest_call".into(),
            value: "0s".into(),
            expected: "a duration of more than 0",
        });
    }
    Ok(())
}
