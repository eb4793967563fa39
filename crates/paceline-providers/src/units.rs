//! Units that a provider counts beside requests and tokens: what a call is expected to cost, and what it did.

use paceline_core::Dimension;
use serde::Deserialize;
use serde_json::Value;

use super::body::Body;
use super::usage::TokenRatio;

/// More than any call can cost: a larger number is a mistake.
const MOST: f64 = 1e9;

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

/// What an answer says that its call was charged, rounded up.
pub(super) fn reported(body: &Body<'_>) -> Option<u64> {
    let units = |capacity: &Value| capacity["CapacityUnits"].as_f64();
    let consumed = body.root.get("ConsumedCapacity").and_then(|consumed| match consumed {
        Value::Array(tables) => tables.iter().map(units).sum(),
        one => units(one),
    });
    let points = || body.in_root("/extensions/cost/actualQueryCost")?.as_f64();
    let units = consumed.or_else(points).filter(|units| (0.0..=MOST).contains(units))?;
    Some(units.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::body::Wanted;
    use super::*;

    #[test]
    fn charges_that_answers_report() {
        let wanted = Wanted { keys: None, arrays: false };
        for (body, expected) in [
            (r#"{"ConsumedCapacity":{"TableName":"t","CapacityUnits":2.5}}"#, Some(3)),
            (r#"{"ConsumedCapacity":[{"CapacityUnits":2.0},{"CapacityUnits":5.0}]}"#, Some(7)),
            (r#"{"ConsumedCapacity":[{"CapacityUnits":2.0},{}]}"#, None),
            (r#"{"ConsumedCapacity":{"CapacityUnits":-1}}"#, None),
            (r#"{"ConsumedCapacity":{"CapacityUnits":1e99}}"#, None),
            (r#"{"extensions":{"cost":{"actualQueryCost":46}}}"#, Some(46)),
            (r#"{"extensions":{"cost":{"actualQueryCost":null}}}"#, None),
            ("{}", None),
        ] {
            assert_eq!(reported(&Body::of_success(body.as_bytes(), "", wanted)), expected, "{body}");
        }
    }
}
