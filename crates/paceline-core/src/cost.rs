//! What a request costs: units in any number of dimensions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

/// What a limit counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Calls.
    Requests,
    /// Tokens in and out together.
    Tokens,
    /// Tokens of the prompt.
    InputTokens,
    /// Tokens of the answer.
    OutputTokens,
    /// Tokens under a limit of the project, below the organization's.
    ProjectTokens,
    /// Bytes of the request body.
    Bytes,
    /// Anything else: query points, capacity units.
    Named(Arc<str>),
}

/// Dimensions with a place of their own in a [`Cost`].
const BUILT_IN: usize = 6;

impl Dimension {
    /// The name used in files, logs and JSON.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::ProjectTokens => "project_tokens",
            Self::Bytes => "bytes",
            Self::Named(name) => name,
        }
    }

    /// The dimension of that name; every unknown name is one of the user's own.
    pub fn from_name(name: &str) -> Self {
        match name {
            "requests" => Self::Requests,
            "tokens" => Self::Tokens,
            "input_tokens" => Self::InputTokens,
            "output_tokens" => Self::OutputTokens,
            "project_tokens" => Self::ProjectTokens,
            "bytes" => Self::Bytes,
            other => Self::Named(other.into()),
        }
    }

    const fn index(&self) -> Option<usize> {
        match self {
            Self::Requests => Some(0),
            Self::Tokens => Some(1),
            Self::InputTokens => Some(2),
            Self::OutputTokens => Some(3),
            Self::ProjectTokens => Some(4),
            Self::Bytes => Some(5),
            Self::Named(_) => None,
        }
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Units that a request takes from each dimension; absent dimensions are 0.
///
/// ```
/// use paceline_core::{Cost, Dimension};
/// let cost = Cost::request().with(Dimension::Tokens, 1_200);
/// assert_eq!(cost.get(&Dimension::Requests), 1);
/// assert_eq!(cost.get(&Dimension::Tokens), 1_200);
/// assert_eq!(cost.get(&Dimension::Bytes), 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    built_in: [u64; BUILT_IN],
    named: Vec<(Arc<str>, u64)>,
}

impl Cost {
    /// Nothing at all.
    pub const fn zero() -> Self {
        Self { built_in: [0; BUILT_IN], named: Vec::new() }
    }

    /// One request and nothing else.
    pub const fn request() -> Self {
        let mut cost = Self::zero();
        cost.built_in[0] = 1;
        cost
    }

    /// With `units` of a dimension, replacing what was there.
    #[must_use]
    pub fn with(mut self, dimension: Dimension, units: u64) -> Self {
        self.set(dimension, units);
        self
    }

    /// Replaces the units of a dimension.
    pub fn set(&mut self, dimension: Dimension, units: u64) {
        match (dimension.index(), dimension) {
            (Some(index), _) => self.built_in[index] = units,
            (None, Dimension::Named(name)) => match self.named.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = units,
                None => self.named.push((name, units)),
            },
            (None, _) => unreachable!("only named dimensions have no place of their own"),
        }
    }

    /// Adds another cost, dimension by dimension.
    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, units) in self.built_in.iter_mut().zip(other.built_in) {
            *sum = sum.saturating_add(units);
        }
        for (name, units) in &other.named {
            let dimension = Dimension::Named(name.clone());
            let sum = self.get(&dimension).saturating_add(*units);
            self.set(dimension, sum);
        }
    }

    /// Units of a dimension.
    pub fn get(&self, dimension: &Dimension) -> u64 {
        match (dimension.index(), dimension) {
            (Some(index), _) => self.built_in[index],
            (None, Dimension::Named(name)) => {
                self.named.iter().find(|(known, _)| known == name).map_or(0, |(_, units)| *units)
            }
            (None, _) => 0,
        }
    }
}
