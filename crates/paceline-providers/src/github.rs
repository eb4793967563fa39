//! GitHub's limits, which it answers with 403 as well as 429, and in an order of its own.

use std::time::Duration;

use paceline_core::LimitScope;
use serde_json::Value;

use super::case::{Case, Classification, Hint};
use super::refusal::paused;
use super::table::Provider;
use super::{header, shape, wait};

/// Whether a refusal is a limit of GitHub's: by its message, whichever server it seems to come from; under its own name
/// also by its headers.
pub(super) fn is_limit(case: &Case<'_>) -> bool {
    let message = case.body.message().to_ascii_lowercase();
    let by_words = message.contains("secondary rate limit") || message.starts_with("api rate limit exceeded");
    let nothing_left =
        || header::count(case.headers, "x-ratelimit-remaining") == Some(0) || case.headers.contains_key("retry-after");
    by_words || in_graphql(case) || (case.provider == Provider::GitHub && (case.status == 429 || nothing_left()))
}

/// `Retry-After`; the reset and a second where nothing remains; a minute.
pub(super) fn limit(case: &Case<'_>) -> Classification {
    let late = |hint: Hint| Hint { wait: (hint.wait + Duration::from_secs(1)).min(shape::LONGEST), ..hint };
    let minute = || Hint { wait: Duration::from_secs(60), exact: false, from: "documented minute" };
    let hint = wait::retry_after(case).or_else(|| wait::reset(case).map(late)).unwrap_or_else(minute);
    // The primary limit is that of a resource, which is a scope; everything else concerns the account.
    let primary = header::count(case.headers, "x-ratelimit-remaining") == Some(0)
        && !case.body.message().to_ascii_lowercase().contains("secondary rate limit");
    let (reach, step) = match primary {
        true => (LimitScope::Scope, "GitHub's limit of a resource"),
        false => (LimitScope::Account, "GitHub's secondary limit"),
    };
    Classification { reach, ..paused(case, Some(hint), step) }
}

fn in_graphql(case: &Case<'_>) -> bool {
    let errors = case.body.root.get("errors").and_then(Value::as_array);
    errors.is_some_and(|all| all.iter().any(is_graphql_limit))
}

/// An entry of a GraphQL answer's `errors`.
pub(super) fn is_graphql_limit(error: &Value) -> bool {
    error["type"] == "RATE_LIMITED" || error["type"] == "RATE_LIMIT"
}

#[cfg(test)]
mod tests {
    use super::super::{Answer, read};
    use super::*;
    use http::{HeaderMap, HeaderName, HeaderValue};
    use paceline_core::{Class, Timestamp};

    #[test]
    fn a_resource_is_limited_apart_and_a_caller_as_a_whole() {
        for (remaining, message, reach, wait) in [
            ("0", "API rate limit exceeded for user ID 1.", LimitScope::Scope, 61),
            ("0", "You have exceeded a secondary rate limit.", LimitScope::Account, 61),
            ("4711", "You have exceeded a secondary rate limit.", LimitScope::Account, 60),
            ("12", "API rate limit exceeded for user ID 1.", LimitScope::Account, 60),
        ] {
            let fields =
                [("x-ratelimit-limit", "30"), ("x-ratelimit-remaining", remaining), ("x-ratelimit-reset", "60")];
            let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
            let headers: HeaderMap = fields.into_iter().map(field).collect();
            let body = format!(r#"{{"message":"{message}"}}"#);
            let answer = Answer { status: 403, headers: &headers, body: body.as_bytes(), path: "/search/code" };
            let reading = read(Provider::GitHub, &answer, Timestamp::from_millis(0));
            let waited = reading.wait.map(|wait| wait.as_secs());
            assert_eq!((reading.class, reading.reach, waited), (Class::Throttled, reach, Some(wait)), "{message}");
        }
    }
}
