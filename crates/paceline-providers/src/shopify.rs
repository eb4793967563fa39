//! Shopify's GraphQL costs: points in a bucket that refills all the time.

use std::time::Duration;

use paceline_core::{Dimension, LimitReport, RefillMode};
use serde_json::Value;

use super::body::Body;
use super::case::{Case, Hint};
use super::shape;

/// Whether an entry of a GraphQL answer's `errors` is a throttle.
pub(super) fn is_throttle(error: &Value) -> bool {
    error["extensions"]["code"] == "THROTTLED"
}

/// The points of the bucket.
pub(super) fn limit(body: &Body<'_>) -> Option<LimitReport> {
    let number = |place: &str| body.in_root(place).and_then(points);
    let most = number("/extensions/cost/throttleStatus/maximumAvailable")?;
    Some(LimitReport {
        dimension: Dimension::Named("cost".into()),
        limit: Some(most as u64),
        remaining: number("/extensions/cost/throttleStatus/currentlyAvailable").map(|left| left as u64),
        reset: None,
        window: None,
        restores: RefillMode::Gradually,
    })
}

/// The time until the points are back that the query lacks.
pub(super) fn wait(case: &Case<'_>) -> Option<Hint> {
    let number = |place: &str| case.body.in_root(place).and_then(points);
    let lacks =
        number("/extensions/cost/requestedQueryCost")? - number("/extensions/cost/throttleStatus/currentlyAvailable")?;
    let rate = number("/extensions/cost/throttleStatus/restoreRate").filter(|rate| *rate > 0.0)?;
    let wait = Duration::try_from_secs_f64((lacks / rate).max(0.0)).ok().filter(|wait| *wait <= shape::LONGEST)?;
    Some(Hint { wait, exact: true, from: "cost of the query" })
}

/// Whether the query costs more than the bucket holds.
pub(super) fn never_fits(case: &Case<'_>) -> bool {
    let number = |place: &str| case.body.in_root(place).and_then(points);
    match (number("/extensions/cost/requestedQueryCost"), number("/extensions/cost/throttleStatus/maximumAvailable")) {
        (Some(cost), Some(most)) => cost > most,
        _ => false,
    }
}

/// Numbers that can be points: everything above is a mistake.
fn points(value: &Value) -> Option<f64> {
    const MOST: f64 = 1e9;
    value.as_f64().filter(|number| (0.0..=MOST).contains(number))
}
