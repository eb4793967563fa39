//! A reading as JSON.

use std::time::Duration;

use paceline::{LimitReport, LimitScope};
use paceline_providers::Reading;
use serde_json::{Value, json};

use super::together::Together;

/// Everything that was found out, under the keys that scripts rely on.
pub(super) fn of(reading: &Reading, together: &Together) -> Value {
    json!({
        "class": reading.class.as_str(),
        "action": reading.action().as_str(),
        "scope": scope(reading.reach),
        "limited_together": together.name(),
        "configured_limits": together.limits(),
        "wait_ms": reading.wait.map(millis),
        "wait_from": reading.wait_from,
        "limits": reading.limits.iter().map(limit).collect::<Vec<_>>(),
        "words": reading.message,
        "code": reading.code,
        "error_type": reading.error_type,
        "tokens_in": reading.usage.map(|usage| usage.prompt_tokens()),
        "tokens_out": reading.usage.map(|usage| usage.output_tokens),
        "steps": reading.steps,
    })
}

/// The name of a reach, as rules of the configuration have it.
pub(crate) const fn scope(reach: LimitScope) -> &'static str {
    match reach {
        LimitScope::Item => "item",
        LimitScope::Scope => "model",
        LimitScope::Account => "key",
    }
}

fn limit(limit: &LimitReport) -> Value {
    json!({
        "dimension": limit.dimension.as_str(),
        "limit": limit.limit,
        "remaining": limit.remaining,
        "reset_ms": limit.reset.map(millis),
        "window_ms": limit.window.map(millis),
    })
}

/// Rounded up, so that no caller comes too early.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
