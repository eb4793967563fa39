//! What calls are charged, provider by provider.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use paceline_core::Class;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

pub use super::super::reported::CachePercent;
use super::super::units::Units;

/// What a call is charged.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Charge {
    /// The tokens for which there must be room before a call leaves.
    #[serde(default)]
    pub reserves: Reserves,
    /// Which tokens limits on tokens count.
    #[serde(default)]
    pub counts: Counts,
    /// Whether tokens that were reserved and not used come back.
    #[serde(default = "yes")]
    pub refunds: bool,
    /// Whether input that the provider had in its cache counts.
    #[serde(default)]
    pub cached_input: CachedInput,
    /// What input costs that was read from its cache, or written into it.
    #[serde(default)]
    pub cache_percent: CachePercent,
    /// How often an output token counts once it is there, by a part of the path that names the model; once for all others.
    #[serde(default)]
    pub output_weights: BTreeMap<String, u32>,
    /// What is counted beside requests and tokens.
    pub units: Option<Units>,
    /// Answers whose calls cost nothing.
    #[serde(default)]
    pub free: Vec<Free>,
}

impl Default for Charge {
    /// The prompt and the longest answer are reserved, and what was used is counted.
    fn default() -> Self {
        Self {
            reserves: Reserves::default(),
            counts: Counts::default(),
            refunds: true,
            cached_input: CachedInput::default(),
            cache_percent: CachePercent::default(),
            output_weights: BTreeMap::new(),
            units: None,
            free: Vec::new(),
        }
    }
}

impl Charge {
    /// How often an output token counts for a call of that path.
    pub fn output_weight(&self, path: &str) -> u32 {
        self.output_weights.iter().find(|(model, _)| path.contains(model.as_str())).map_or(1, |(_, weight)| *weight)
    }
}

/// The tokens that a call reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reserves {
    /// Those of the prompt, and all that the answer may have.
    #[default]
    InputAndOutput,
    /// Those of the prompt or all that the answer may have, whichever are more.
    Larger,
    /// Those of the prompt.
    Input,
}

/// The tokens that limits on tokens count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// Those of prompts and answers.
    #[default]
    All,
    /// Those of prompts.
    Input,
}

/// Whether cached input counts against a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachedInput {
    /// Like any other.
    #[default]
    Counts,
    /// Not at all.
    Free,
}

/// Answers whose calls cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Free {
    /// Those with this status.
    Status(u16),
    /// Those of this class.
    Class(Class),
}

impl Free {
    /// Whether an answer is one of them.
    pub(crate) fn includes(self, status: u16, class: Class) -> bool {
        match self {
            Self::Status(free) => free == status,
            Self::Class(free) => free == class,
        }
    }
}

impl fmt::Display for Free {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Class(class) => class.fmt(f),
        }
    }
}

impl FromStr for Free {
    type Err = NotFree;

    fn from_str(text: &str) -> Result<Self, NotFree> {
        let status = text.parse().ok().filter(|status| (100..=599).contains(status));
        status.map(Self::Status).or_else(|| Class::from_name(text).map(Self::Class)).ok_or(NotFree)
    }
}

/// A text that is neither a status nor a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a status from 100 to 599, or a class such as throttled")]
pub struct NotFree;

impl<'de> Deserialize<'de> for Free {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

fn yes() -> bool {
    true
}
