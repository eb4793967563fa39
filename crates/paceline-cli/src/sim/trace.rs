//! A run as a table, span by span.

use std::time::Duration;

use paceline_sim::Trace;

/// The columns of a trace.
pub(crate) const COLUMNS: [&str; 13] = [
    "time_s",
    "sent",
    "admitted",
    "refused",
    "succeeded",
    "lost",
    "oracle",
    "capacity",
    "in_flight",
    "rate",
    "limit",
    "delay_ms",
    "explain",
];

/// A trace as rows of a table: where there is no such number there is nothing.
pub(crate) fn rows(trace: &Trace) -> impl Iterator<Item = [String; 13]> {
    trace.spans.iter().map(|span| {
        let number = |value: f64| format!("{}", (value * 1e6).round() / 1e6);
        let millis = |delay: Duration| number(delay.as_secs_f64() * 1e3);
        let count = |count: u32| count.to_string();
        let pace = &span.pace;
        [
            number(span.start.as_nanos() as f64 * 1e-9),
            count(span.sent),
            count(span.admitted),
            count(span.refused),
            count(span.succeeded),
            count(span.lost),
            count(span.oracle),
            if span.capacity.is_finite() { number(span.capacity) } else { String::new() },
            count(span.in_flight),
            pace.rate.map(number).unwrap_or_default(),
            pace.limit.map(count).unwrap_or_default(),
            pace.delay.map(millis).unwrap_or_default(),
            pace.description.clone().unwrap_or_default(),
        ]
    })
}
