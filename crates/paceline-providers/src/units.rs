//! Units that a provider counts beside requests and tokens, and what a call is expected to cost of them.

use paceline_core::Dimension;
use serde::Deserialize;

use super::usage::TokenRatio;

/// A provider's own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Units {
    /// DynamoDB's: a kilobyte written or four read. A request is taken for a write of its size until answers to
    /// `ReturnConsumedCapacity` say more.
    CapacityUnits,
    /// Shopify's, for a GraphQL query: the mean of those that were charged.
    Cost,
    /// GitHub's, for its secondary limit: 1 for a reading call, 5 for one that writes.
    Points,
}

impl Units {
    /// As limits name it.
    pub fn dimension(self) -> Dimension {
        Dimension::from_name(match self {
            Self::CapacityUnits => "capacity_units",
            Self::Cost => "cost",
            Self::Points => "points",
        })
    }

    /// What a call is expected to cost.
    pub(super) fn reserved(self, path: &str, body: &[u8], ratio: &TokenRatio) -> u64 {
        match self {
            Self::CapacityUnits if ratio.units() > 0 => ratio.units(),
            Self::CapacityUnits => (body.len() as u64).div_ceil(1_024).max(1),
            Self::Cost => ratio.units().max(1),
            Self::Points if body.is_empty() => 1,
            Self::Points if path.split(['?', '#']).next().is_some_and(|path| path.ends_with("/graphql")) => {
                if memchr::memmem::find(body, b"mutation").is_some() {
                    5
                } else {
                    1
                }
            }
            Self::Points => 5,
        }
    }
}
