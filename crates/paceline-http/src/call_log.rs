//! The log line of an answer.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use paceline::LimitReport;
use paceline_providers::Reading;

use crate::no_answer::NoAnswer;

/// Logs what an answer means.
pub(crate) fn log(
    scope: &str,
    item: Option<u64>,
    answer: &Result<Response<Bytes>, NoAnswer>,
    reading: &Reading,
    latency: Duration,
) {
    tracing::trace!(
        scope,
        ordinal = item,
        status = answer.as_ref().ok().map(|answer| answer.status().as_u16()),
        class = reading.class.as_str(),
        steps = reading.steps.join("; "),
        limits = described(&reading.limits),
        "answered after {latency:.1?}"
    );
}

/// The limits that headers announced, for a log line: `requests: 3 of 500 left, reset in 1.2s`.
fn described(limits: &[LimitReport]) -> String {
    let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let describe = |report: &LimitReport| {
        let LimitReport { dimension, limit, remaining, reset, .. } = report;
        let reset = reset.map(|reset| format!(", reset in {reset:.1?}")).unwrap_or_default();
        format!("{dimension}: {} of {} left{reset}", number(*remaining), number(*limit))
    };
    limits.iter().map(describe).collect::<Vec<_>>().join("; ")
}
