//! What AWS tells in more places than the name of the exception.

use paceline_core::Class;
use serde_json::Value;

use super::decide::{Case, Decision, paused, waiting};
use super::{names, wait};

/// A cancelled transaction is judged by the reasons of its parts.
pub(super) fn cancelled_transaction(case: &Case<'_>) -> Option<Decision> {
    const THROTTLES: [&str; 2] = ["ThrottlingError", "ProvisionedThroughputExceeded"];
    if names::of_aws(case.headers, case.body) != Some("TransactionCanceledException") {
        return None;
    }
    let reasons = case.body.root.get("CancellationReasons").and_then(Value::as_array).into_iter().flatten();
    let codes: Vec<&str> =
        reasons.filter_map(|reason| reason["Code"].as_str()).filter(|code| *code != "None").collect();
    let all = |known: &[&str]| !codes.is_empty() && codes.iter().all(|code| known.contains(code));
    Some(if all(&THROTTLES) {
        paused(wait::of_throttle(case), "cancelled transaction: every reason is a throttle")
    } else if all(&[THROTTLES[0], THROTTLES[1], "TransactionConflict"]) {
        waiting(case, Class::Transient, "cancelled transaction: a conflict with another")
    } else {
        Decision::new(Class::Invalid, "cancelled transaction: a reason that stays")
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Provider, read};
    use super::*;
    use http::HeaderMap;
    use paceline_core::Timestamp;

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
