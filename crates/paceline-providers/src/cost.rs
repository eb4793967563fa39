//! The cost that an answer reports.

use serde_json::Value;

use super::body::Body;
use super::reported::Reported;
use super::table::Charge;
use super::usage::Usage;

/// More than any call can cost: a larger number is a mistake.
const MOST: f64 = 1e9;

/// The reported cost, in the parts that count.
pub(super) fn of(body: &Body<'_>, charge: &Charge) -> Option<Usage> {
    if let Some(stream) = &body.stream {
        return stream.usage.map(|usage| usage.counted(charge));
    }
    let mut places = ["usage", "usageMetadata", "meta"].into_iter().filter_map(|key| body.root.get(key));
    match places.find_map(Reported::read) {
        Some(reported) => Some(reported.counted(charge)),
        None => Some(Usage { units: units(body)?, ..Usage::default() }),
    }
}

/// What an answer says that its call was charged, rounded up.
fn units(body: &Body<'_>) -> Option<u64> {
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
    use super::*;
    use crate::body::Wanted;

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
            assert_eq!(units(&Body::of_success(body.as_bytes(), "", wanted)), expected, "{body}");
        }
    }
}
