//! The protocol of a judge outside this process: one JSON object as the request, one as the decision.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Case, Judgement};
use crate::work::item::{HistoryEntry, shortened};

/// A longer text is no decision: a decision is a line.
const DECISION_BYTES: usize = 64 << 10;

/// A judge's answer that is no valid decision; the rules decide, and a line in the log says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the judge's answer cannot be read: {why}")]
pub struct InvalidDecision {
    why: String,
}

/// The request to a judge, as one line of JSON.
pub fn encode_request(case: &Case<'_>) -> String {
    let failure = case.failure;
    let history: Vec<Value> = case.history.iter().map(HistoryEntry::to_json).collect();
    json!({
        "item": { "key": case.item.key, "group": &*case.item.group },
        "error": {
            "class": failure.class.as_str(),
            "status": failure.status,
            "code": failure.code,
            "words": shortened(&failure.message),
        },
        "retry": case.retry,
        "max_retries": case.max_retries,
        "history": history,
    })
    .to_string()
}

/// Reads a decision: `{"action": "retry" | "skip" | "abort", "reason": "...", "suggested_delay_seconds": N}`.
///
/// A fence of three backticks around it is taken off; upper and lower case are the same in the keys and the action. A delay
/// may be a fraction or a number in quotes; 0, a negative one or none at all leaves the delay to the backoff, and the scheduler
/// caps one that is too long.
///
/// # Errors
/// Everything else. It is never taken for a `skip`: an answer that was not understood must not cost an item.
pub fn parse_decision(text: &str) -> Result<Judgement, InvalidDecision> {
    if text.len() > DECISION_BYTES {
        return Err(invalid(format!("{} bytes are more than {DECISION_BYTES}", text.len())));
    }
    let object: Map<String, Value> =
        serde_json::from_str(without_fence(text.trim())).map_err(|error| invalid(error.to_string()))?;
    let reason = field(&object, "reason").and_then(Value::as_str).map(shortened);
    let action = match field(&object, "action") {
        Some(Value::String(action)) => action.trim().to_ascii_lowercase(),
        Some(other) => return Err(invalid(format!("the action is {}", shown(other)))),
        None => return Err(invalid("it has no action".to_owned())),
    };
    match action.as_str() {
        "retry" => Ok(Judgement::Retry { delay: delay(field(&object, "suggested_delay_seconds"))?, reason }),
        "skip" => Ok(Judgement::Skip { reason }),
        "abort" => Ok(Judgement::Abort { reason }),
        _ => Err(invalid(format!("the action is {}", shown(&Value::String(action))))),
    }
}

fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object
        .get(name)
        .or_else(|| object.iter().find(|(key, _)| key.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

/// Seconds; none leaves the delay to the backoff.
fn delay(value: Option<&Value>) -> Result<Option<Duration>, InvalidDecision> {
    let seconds = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => None,
    };
    match seconds.filter(|seconds: &f64| seconds.is_finite()) {
        None => Err(invalid(format!("the delay is {}", value.map_or_else(String::new, shown)))),
        Some(seconds) if seconds <= 0.0 => Ok(None),
        Some(seconds) => Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))),
    }
}

/// The text within a fence, whatever language the fence names.
fn without_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```").and_then(|text| text.strip_suffix("```")) else { return text };
    inner.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric()).trim()
}

fn invalid(why: String) -> InvalidDecision {
    InvalidDecision { why }
}

/// A value for a message, shortened.
fn shown(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(delay: Option<f64>) -> Judgement {
        Judgement::Retry { delay: delay.map(Duration::from_secs_f64), reason: None }
    }

    #[test]
    fn answers_that_mean_something() {
        let skip = |reason: Option<&str>| Judgement::Skip { reason: reason.map(str::to_owned) };
        for (text, expected) in [
            (r#"{"action":"retry"}"#, retry(None)),
            (r#"{"action":"retry","suggested_delay_seconds":30}"#, retry(Some(30.0))),
            (r#"{"action":"retry","suggested_delay_seconds":0.25}"#, retry(Some(0.25))),
            (r#"{"action":"retry","suggested_delay_seconds":"12"}"#, retry(Some(12.0))),
            (r#"{"action":"retry","suggested_delay_seconds":" 1.5 "}"#, retry(Some(1.5))),
            (r#"{"action":"retry","suggested_delay_seconds":86400}"#, retry(Some(86_400.0))),
            (r#"{"action":"retry","suggested_delay_seconds":0}"#, retry(None)),
            (r#"{"action":"retry","suggested_delay_seconds":-5}"#, retry(None)),
            (r#"{"action":"retry","suggested_delay_seconds":"-5"}"#, retry(None)),
            (r#"{"action":"retry","suggested_delay_seconds":null}"#, retry(None)),
            (r#"{"action":"retry","more":{"of":["it"]}}"#, retry(None)),
            (r#"{"Action":"RETRY","Suggested_Delay_Seconds":2}"#, retry(Some(2.0))),
            ("```json\n{\"action\":\"retry\"}\n```", retry(None)),
            ("```\n{\"action\": \" Retry \"}\n```\n", retry(None)),
            ("\n  {\"action\":\"skip\",\"reason\":\"a duplicate\"}\n", skip(Some("a duplicate"))),
            (r#"{"action":"SKIP","reason":7}"#, skip(None)),
            (r#"{"action":"abort"}"#, Judgement::Abort { reason: None }),
        ] {
            assert_eq!(parse_decision(text), Ok(expected), "{text}");
        }
        let huge = parse_decision(r#"{"action":"retry","suggested_delay_seconds":1e300}"#);
        assert_eq!(huge, Ok(Judgement::Retry { delay: Some(Duration::MAX), reason: None }));
    }

    #[test]
    fn nonsense_of_every_kind_is_left_to_the_rules() {
        let lines = include_str!("../../../tests/invalid_decisions.jsonl").lines();
        let mut invalid: Vec<String> =
            lines.map(|line| serde_json::from_str(line).expect("a line is a JSON string")).collect();
        assert!(invalid.len() >= 30);
        invalid.push(format!(r#"{{"action":"skip","reason":"{}"}}"#, "x".repeat(DECISION_BYTES)));
        for text in invalid {
            assert!(parse_decision(&text).is_err(), "{text} was taken for {:?}", parse_decision(&text));
        }
    }
}
