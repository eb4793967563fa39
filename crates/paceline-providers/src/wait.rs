//! The wait that an answer asks for, and its source.

use std::time::Duration;

use http::HeaderName;
use jiff::ToSpan;
use paceline_core::{Dimension, Timestamp};
use serde_json::Value;

use super::case::{Case, Hint};
use super::{header, shape, shopify};

/// The wait of a refusal that our rate caused: the first usable source. A header is not overridden
/// by a text, and a reset counts only for a limit of which nothing is left.
pub(super) fn of_throttle(case: &Case<'_>) -> Option<Hint> {
    let hint = in_headers(case).or_else(|| in_body(case)).or_else(|| reset(case)).or_else(|| misspelt(case));
    longer(hint, unified(case))
}

/// The wait in the headers that are made for it.
pub(super) fn in_headers(case: &Case<'_>) -> Option<Hint> {
    configured(case)
        .or_else(|| millis(case, "retry-after-ms"))
        .or_else(|| millis(case, "x-amz-retry-after"))
        .or_else(|| millis(case, "grpc-retry-pushback-ms"))
        .or_else(|| seconds(case, "retry-after"))
        .or_else(|| seconds(case, "llm_provider-retry-after"))
}

/// Why a header for waits was ignored, for the explanation.
pub(super) fn passed_over(case: &Case<'_>) -> Option<&'static str> {
    let unusable = |name, read: fn(&str, Timestamp) -> Option<shape::Wait>| {
        let values = || header::values(case.headers, name);
        let given = values().next().is_some();
        let usable = values().any(|value| read(value, case.now).is_some());
        (given && !usable).then(|| values().any(shape::is_a_time))
    };
    let too_long = unusable("retry-after", shape::retry_after)
        .or_else(|| unusable("retry-after-ms", |value, _| shape::millis(value)))?;
    Some(match too_long {
        true => "wait: the header asks for more than 366 days or for the past, and is ignored",
        false => "wait: the header is neither a number nor a date, and is ignored",
    })
}

/// The field of the standard alone.
pub(super) fn retry_after(case: &Case<'_>) -> Option<Hint> {
    seconds(case, "retry-after")
}

/// The time to the first of the next month, 00:00 UTC.
pub(super) fn to_next_month(now: Timestamp) -> Option<Hint> {
    let now = jiff::Timestamp::from_millisecond(now.as_millis()).ok()?;
    let today = now.to_zoned(jiff::tz::TimeZone::UTC);
    let first = today.first_of_month().ok()?.checked_add(1.month()).ok()?.start_of_day().ok()?;
    let wait = Duration::try_from(now.duration_until(first.timestamp())).ok()?;
    Some(Hint { wait, exact: false, from: "calendar month" })
}

/// The wait in a field that the user named.
fn configured(case: &Case<'_>) -> Option<Hint> {
    const FROM: &str = "header of the configuration";
    let wait = |name: &HeaderName| {
        let waits = header::values(case.headers, name).filter_map(|value| match name.as_str().ends_with("-ms") {
            true => shape::millis(value),
            false => shape::retry_after(value, case.now),
        });
        waits.max_by_key(|wait| wait.duration)
    };
    case.wait_headers.iter().find_map(wait).map(|wait| Hint::new(wait, FROM))
}

fn millis(case: &Case<'_>, name: &'static str) -> Option<Hint> {
    let waits = header::values(case.headers, name).filter_map(shape::millis);
    waits.max_by_key(|wait| wait.duration).map(|wait| Hint::new(wait, name))
}

/// The largest of several equal fields: the strictest one binds.
fn seconds(case: &Case<'_>, name: &'static str) -> Option<Hint> {
    let waits = header::values(case.headers, name).filter_map(|value| shape::retry_after(value, case.now));
    waits.max_by_key(|wait| wait.duration).map(|wait| Hint::new(wait, name))
}

/// The windows of a subscription that reject: all together, of five hours, of a week. The longest wait holds.
fn unified(case: &Case<'_>) -> Option<Hint> {
    const WINDOWS: [(&str, &str); 3] = [
        ("anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset"),
        ("anthropic-ratelimit-unified-5h-status", "anthropic-ratelimit-unified-5h-reset"),
        ("anthropic-ratelimit-unified-7d-status", "anthropic-ratelimit-unified-7d-reset"),
    ];
    let shut = WINDOWS.into_iter().filter(|(status, _)| header::is(case.headers, *status, "rejected"));
    let waits = shut
        .filter_map(|(_, reset)| Some(Hint::new(shape::reset(header::first(case.headers, reset)?, case.now)?, reset)));
    waits.max_by_key(|hint| hint.wait)
}

/// Structured fields first, the message last.
fn in_body(case: &Case<'_>) -> Option<Hint> {
    let field = |value: &Value| match value {
        Value::Number(number) => shape::retry_after(&number.to_string(), case.now),
        Value::String(text) => shape::retry_after(text, case.now),
        _ => None,
    };
    let root = case.body.root.get("retry_after").and_then(field).map(|wait| Hint::new(wait, "retry_after in the body"));
    let embedded = || {
        let headers = case.body.in_error("/metadata/headers")?;
        let nothing_left = headers.get("X-RateLimit-Remaining").is_none_or(|left| left == "0" || left == 0);
        let reset = headers.get("X-RateLimit-Reset").filter(|_| nothing_left)?;
        let text = reset.as_str().map_or_else(|| reset.to_string(), str::to_owned);
        Some(Hint::new(shape::reset(&text, case.now)?, "reset in the body"))
    };
    root.or_else(embedded).or_else(|| shopify::wait(case)).or_else(|| in_message(case))
}

/// The wait in the message of the error.
pub(super) fn in_message(case: &Case<'_>) -> Option<Hint> {
    Some(Hint::new(shape::in_message(case.body.message(), case.now)?, "message"))
}

/// The reset of the limit of which nothing is left; the largest of several.
pub(super) fn reset(case: &Case<'_>) -> Option<Hint> {
    let used_up = case.limits.iter().filter(|limit| limit.remaining == Some(0));
    let ours = used_up.filter(|limit| !matches!(limit.dimension, Dimension::Named(_)));
    let (wait, from) =
        ours.filter_map(|limit| Some((limit.reset?, source(&limit.dimension)))).max_by_key(|(wait, _)| *wait)?;
    Some(Hint { wait, exact: wait.subsec_nanos() > 0, from })
}

const fn source(dimension: &Dimension) -> &'static str {
    match dimension {
        Dimension::Requests => "reset of requests",
        Dimension::Tokens => "reset of tokens",
        Dimension::InputTokens => "reset of input tokens",
        Dimension::OutputTokens => "reset of output tokens",
        Dimension::ProjectTokens => "reset of project tokens",
        Dimension::Bytes => "reset of bytes",
        _ => "reset",
    }
}

/// A header that Azure sends under a name of its own, without any other hint.
fn misspelt(case: &Case<'_>) -> Option<Hint> {
    const RESET: &str = "x-rate-limit-reset-tokens";
    let wait = shape::reset(header::first(case.headers, RESET)?, case.now)?;
    Some(Hint::new(wait, RESET)).filter(|hint| !hint.wait.is_zero())
}

fn longer(one: Option<Hint>, other: Option<Hint>) -> Option<Hint> {
    one.into_iter().chain(other).max_by_key(|hint| hint.wait)
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, Provider, read};
    use super::*;
    use http::HeaderMap;

    #[test]
    fn a_header_that_is_no_wait_is_passed_over_and_that_is_said() {
        let answer = |name: &'static str, value: &str| {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().expect("printable"))]);
            let answer = Answer { status: 429, headers: &headers, body: b"", path: "" };
            read(Provider::Generic, &answer, shape::date("2026-11-20T12:00:00Z").expect("a date"))
        };
        let digits = "9".repeat(20);
        for (name, value, message) in [
            ("retry-after", &*digits, "more than 366 days"),
            ("retry-after", "31622401", "more than 366 days"),
            ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT", "more than 366 days"),
            ("retry-after", "2099-11-20T12:00:00Z", "more than 366 days"),
            ("retry-after", "4102444800000", "more than 366 days"),
            ("retry-after-ms", &digits, "more than 366 days"),
            ("retry-after", "-5", "neither a number nor a date"),
            ("retry-after", "soon", "neither a number nor a date"),
            ("retry-after-ms", "-5", "neither a number nor a date"),
        ] {
            let reading = answer(name, value);
            assert_eq!((reading.wait, reading.wait_from), (None, "policy"), "{name}: {value}");
            assert!(
                reading.ignored_wait().is_some_and(|why| why.contains(message)),
                "{name}: {value}: {:?}",
                reading.steps
            );
        }
        for value in ["0", "7", "31622400", "Fri, 20 Nov 2026 11:00:00 GMT"] {
            let reading = answer("retry-after", value);
            let ignored = reading.ignored_wait().is_some();
            assert_eq!((reading.wait_from, ignored), ("retry-after", false), "{value}: {:?}", reading.steps);
        }
    }

    #[test]
    fn the_next_month_begins_on_its_first() {
        for (now, days) in
            [("2026-11-20T12:00:00Z", 10.5), ("2026-12-31T12:00:00Z", 0.5), ("2028-02-28T00:00:00Z", 2.0)]
        {
            let now = shape::date(now).expect("a date");
            let wait = to_next_month(now).expect("a month later").wait;
            assert_eq!(wait, Duration::from_secs_f64(days * 86_400.0), "{now:?}");
        }
        assert_eq!(to_next_month(Timestamp::from_millis(i64::MAX)), None);
    }
}
