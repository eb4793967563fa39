//! The scenarios that come along.

use super::{Scenario, ScenarioError, noise, random};

macro_rules! scenarios {
    ($folder:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../scenarios/", $folder, $name, ".toml")))),*]
    };
}

/// Long jobs against providers of every kind.
pub(super) const DEVELOPMENT: &[(&str, &str)] = scenarios! { "":
    "tb-1s" "tb-60s" "tb-slow" "fw-60s" "fw-short" "slog-60s" "slog-punish" "conc" "rpm+tpm" "tpm-shift"
    "steps" "sine" "tenants" "overload" "brownout" "tb+conc" "ddb" "ddb-steps" "duty"
};

/// Jobs of seconds and minutes.
pub(super) const SHORT: &[(&str, &str)] = scenarios! { "short/":
    "b2-20" "b10-20" "b50-20" "b2-60" "b10-60" "b50-60" "n1-300" "n10-30" "n20-50" "l10-30" "l50-30" "f10-60"
    "f30-33" "q20-50" "p20-50" "c8-30" "d8-100" "d5-5" "f6-50" "q1-300"
};

/// Single questions to a controller.
pub(super) const QUESTIONS: &[(&str, &str)] = scenarios! { "more/":
    "step-5x" "w6-50" "c5-500" "b10-1" "tpm-wide" "tpm-thrice" "rpm-wide"
};

/// Jobs that show one thing, by which no policy is judged.
pub(super) const SHOWN: &[(&str, &str)] = scenarios! { "": "table-scales" };

pub(super) fn named(name: &str) -> Result<Scenario, ScenarioError> {
    let seed_of = |kind: &str| name.strip_prefix(kind).and_then(|seed| seed.parse().ok());
    if let Some(seed) = seed_of("random-") {
        return Scenario::from_toml(&random::text(seed, false));
    }
    if let Some(seed) = seed_of("noisy-") {
        return Scenario::from_toml(&random::text(seed, true));
    }
    if let Some(text) = noise::text(name) {
        return Scenario::from_toml(&text);
    }
    let (_, text) = DEVELOPMENT
        .iter()
        .chain(SHORT)
        .chain(QUESTIONS)
        .chain(SHOWN)
        .find(|(known, _)| *known == name)
        .ok_or_else(|| ScenarioError::Unknown(name.to_owned()))?;
    Scenario::from_toml(text)
}
