//! The details of Google's errors: which quota, what it is worth, and how long until it opens.

use std::time::Duration;

use paceline_core::{Dimension, LimitReport, RefillMode};
use serde_json::Value;

use super::body::Body;
use super::case::{Case, Hint};
use super::table::{COMMON, contains_any};
use super::{header, shape};

/// Whether the details name a quota of a day or longer.
pub(super) fn is_daily(body: &Body<'_>) -> bool {
    quotas(body).any(|quota| contains_any(&quota_name(quota), &COMMON.long_periods))
}

/// The quotas that the details name.
pub(super) fn limits(body: &Body<'_>) -> impl Iterator<Item = LimitReport> {
    quotas(body).filter_map(|quota| {
        let name = quota_name(quota);
        let limit = value(quota).filter(|limit| *limit > 0)?;
        let dimension = match () {
            () if name.contains("input") && name.contains("token") => Dimension::InputTokens,
            () if name.contains("token") => Dimension::Tokens,
            () => Dimension::Requests,
        };
        let window = match () {
            () if name.contains("perminute") => Some(60),
            () if name.contains("perday") => Some(86_400),
            () => None,
        };
        let (window, restores) = (window.map(Duration::from_secs), RefillMode::Unknown);
        Some(LimitReport { dimension, limit: Some(limit), remaining: None, reset: None, window, restores })
    })
}

/// The details that are Google's.
pub(super) fn details<'a>(body: &'a Body<'_>) -> impl Iterator<Item = &'a Value> {
    let all = body.in_error("/details").and_then(Value::as_array).into_iter().flatten();
    all.filter(|detail| detail["@type"].as_str().is_some_and(|kind| kind.contains("google.rpc.")))
}

fn quotas<'a>(body: &'a Body<'_>) -> impl Iterator<Item = &'a Value> {
    details(body).filter_map(|detail| detail["violations"].as_array()).flatten()
}

/// The name in lower case: `generaterequestsperdayperprojectpermodel`.
fn quota_name(quota: &Value) -> String {
    let text = |key: &str| quota[key].as_str().unwrap_or_default();
    let name = if text("quotaId").is_empty() { text("quotaMetric") } else { text("quotaId") };
    name.to_ascii_lowercase().replace('_', "")
}

fn value(quota: &Value) -> Option<u64> {
    let value = &quota["quotaValue"];
    value.as_u64().or_else(|| header::whole(value.as_str()?))
}

/// "limit: 0" in the text or as the quota's value: the tier has no access.
pub(super) fn is_zero(body: &Body<'_>, message: &str) -> bool {
    let in_text = message.match_indices("limit: 0").any(|(at, found)| {
        let rest = &message[at + found.len()..];
        let digit = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
        !digit(rest) && !rest.strip_prefix(['.', ',']).is_some_and(digit)
    });
    in_text || quotas(body).any(|quota| value(quota) == Some(0))
}

/// The delay that the details ask for.
pub(super) fn delay(case: &Case<'_>) -> Option<Hint> {
    let hints = details(case.body).filter_map(|detail| detail["retryDelay"].as_str());
    let waits = hints.filter_map(|text| shape::reset(text, case.now)).max_by_key(|wait| wait.duration)?;
    Some(Hint::new(waits, "RetryInfo.retryDelay"))
}
