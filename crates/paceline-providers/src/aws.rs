//! Details of AWS errors beside the name of the exception: the reason, and the table.

use paceline_core::{Class, LimitScope};
use serde_json::Value;

use super::case::{Case, Classification};
use super::refusal::{paused, throttled, waiting};
use super::{names, wait};

/// A throttle that says what ran out: of the account, of a table or index, or of one range of keys.
pub(super) fn throttling_reasons(case: &Case<'_>) -> Option<Classification> {
    let reasons = case.body.root.get("ThrottlingReasons").and_then(Value::as_array)?;
    let named: Vec<&str> = reasons.iter().filter_map(|reason| reason["reason"].as_str()).collect();
    let reach = if named.is_empty() {
        return None;
    } else if named.iter().any(|reason| reason.ends_with("AccountLimitExceeded")) {
        LimitScope::Account
    } else if named.iter().all(|reason| reason.ends_with("KeyRangeThroughputExceeded")) {
        LimitScope::Item
    } else {
        LimitScope::Scope
    };
    let step = format!("throttling reasons: {}", named.join(", "));
    Some(Classification { reach, ..throttled(case, step.into()) })
}

/// A cancelled transaction is judged by the reasons of its parts.
pub(super) fn cancelled_transaction(case: &Case<'_>) -> Option<Classification> {
    const THROTTLES: [&str; 2] = ["ThrottlingError", "ProvisionedThroughputExceeded"];
    if names::of_aws(case.headers, case.body) != Some("TransactionCanceledException") {
        return None;
    }
    let reasons = case.body.root.get("CancellationReasons").and_then(Value::as_array).into_iter().flatten();
    let codes: Vec<&str> =
        reasons.filter_map(|reason| reason["Code"].as_str()).filter(|code| *code != "None").collect();
    let all = |known: &[&str]| !codes.is_empty() && codes.iter().all(|code| known.contains(code));
    Some(if all(&THROTTLES) {
        paused(case, wait::of_throttle(case), "cancelled transaction: every reason is a throttle")
    } else if all(&[THROTTLES[0], THROTTLES[1], "TransactionConflict"]) {
        waiting(case, Class::Transient, "cancelled transaction: a conflict with another")
    } else {
        Classification::new(Class::Invalid, "cancelled transaction: a reason that stays")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Provider, read};
    use super::*;
    use http::HeaderMap;
    use paceline_core::Timestamp;

    #[test]
    fn a_throttle_reaches_as_far_as_what_ran_out() {
        for (reasons, reach) in [
            (&["TableWriteProvisionedThroughputExceeded"][..], LimitScope::Scope),
            (&["IndexReadMaxOnDemandThroughputExceeded"], LimitScope::Scope),
            (&["TableWriteKeyRangeThroughputExceeded"], LimitScope::Item),
            (&["TableWriteKeyRangeThroughputExceeded", "IndexWriteProvisionedThroughputExceeded"], LimitScope::Scope),
            (&["TableReadAccountLimitExceeded", "TableReadKeyRangeThroughputExceeded"], LimitScope::Account),
            (&[], LimitScope::Scope),
        ] {
            let resource = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders";
            let reasons: Vec<Value> =
                reasons.iter().map(|reason| serde_json::json!({ "reason": reason, "resource": resource })).collect();
            let body = serde_json::json!({
                "__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
                "ThrottlingReasons": reasons,
            });
            let body = body.to_string();
            let answer = Answer { status: 400, headers: &HeaderMap::new(), body: body.as_bytes(), path: "" };
            let reading = read(Provider::DynamoDb, &answer, Timestamp::from_millis(0));
            assert_eq!((reading.class, reading.reach), (Class::Throttled, reach), "{reasons:?}");
        }
    }

    #[test]
    fn one_reason_that_stays_is_enough() {
        for (codes, class) in [
            (&["ThrottlingError", "None"][..], Class::Throttled),
            (&["ProvisionedThroughputExceeded"], Class::Throttled),
            (&["TransactionConflict", "None"], Class::Transient),
            (&["TransactionConflict", "ThrottlingError"], Class::Transient),
            (&["TransactionConflict", "ConditionalCheckFailed"], Class::Invalid),
            (&["ValidationError"], Class::Invalid),
            (&["None"], Class::Invalid),
            (&[], Class::Invalid),
        ] {
            let reasons: Vec<Value> = codes.iter().map(|code| serde_json::json!({ "Code": code })).collect();
            let body = serde_json::json!({
                "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
                "CancellationReasons": reasons,
            });
            let body = body.to_string();
            let answer = Answer { status: 400, headers: &HeaderMap::new(), body: body.as_bytes(), path: "" };
            for provider in [Provider::DynamoDb, Provider::Generic] {
                assert_eq!(read(provider, &answer, Timestamp::from_millis(0)).class, class, "{codes:?}");
            }
        }
    }
}
