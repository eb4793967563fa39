//! The cost that an answer reports.

use serde_json::Value;

use super::body::Body;
use super::table::CachedInput;
use super::usage::Usage;

/// More than any call can cost: a larger number is a mistake.
const MOST: f64 = 1e9;

/// The reported cost, in the parts that count.
pub(super) fn of(body: &Body<'_>, cached: CachedInput) -> Option<Usage> {
    if let Some(stream) = &body.stream {
        return stream.usage;
    }
    let places = ["usage", "usageMetadata", "meta"].into_iter().filter_map(|key| body.root.get(key));
    let Some((usage, read)) = places.filter_map(|usage| Some((usage, Usage::read(usage)?))).next() else {
        return Some(Usage { units: units(body)?, ..Usage::default() });
    };
    Some(match cached {
        CachedInput::Counts => read,
        CachedInput::Free => read.without_cached(usage),
    })
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

    #[test]
    fn cached_input_is_free_where_the_provider_says_so() {
        let body =
            br#"{"usage":{"prompt_tokens":90,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64}}}"#;
        let body = Body::of_success(body, "", crate::body::Wanted { keys: None, arrays: false });
        let input = |cached| of(&body, cached).expect("usage").input_tokens;
        assert_eq!((input(CachedInput::Counts), input(CachedInput::Free)), (90, 26));
    }
}
