//! How a provider tells its limits and its refusals: OpenAI's words and Anthropic's.

use std::time::Duration;

use clap::ValueEnum;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use paceline_core::{Dimension, Timestamp};
use paceline_sim::{Cause, Hints, LimitState, ToldWait};
use serde_json::{Value, json};

use super::go_duration::{decimal, go_duration};

/// Whose headers and errors a mock speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dialect {
    /// x-ratelimit-* headers, retry-after-ms, 503 when overloaded
    #[default]
    Openai,
    /// anthropic-ratelimit-* headers, retry-after in seconds, 529 when overloaded
    Anthropic,
}

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failed {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Dialect {
    /// The header that names a request.
    pub(crate) const fn request_id(self) -> HeaderName {
        match self {
            Self::Openai => HeaderName::from_static("x-request-id"),
            Self::Anthropic => HeaderName::from_static("request-id"),
        }
    }

    /// Adds what the hints let be said about the limits.
    pub(crate) fn add_limits(self, headers: &mut HeaderMap, states: &[LimitState], hints: Hints, now: Timestamp) {
        for told in states.iter().filter_map(|state| hints.state(state)) {
            let (limit, remaining) = (told.limit.to_string(), told.remaining.to_string());
            let fields = match self {
                Self::Openai => {
                    let name = |field| format!("x-ratelimit-{field}-{}", told.dimension);
                    [(name("limit"), limit), (name("remaining"), remaining), (name("reset"), go_duration(told.reset))]
                }
                Self::Anthropic => {
                    let name = |field| format!("anthropic-ratelimit-{}-{field}", told.dimension);
                    let reset = rfc3339(now + told.reset, hints);
                    [(name("limit"), limit), (name("remaining"), remaining), (name("reset"), reset)]
                }
            };
            for (name, value) in fields {
                add(headers, &name, &value);
            }
        }
    }

    /// Adds the wait of a refusal. Anthropic knows whole seconds only.
    pub(crate) fn add_wait(self, headers: &mut HeaderMap, told: ToldWait) {
        let seconds = told.wait.as_nanos().div_ceil(1_000_000_000);
        add(headers, "retry-after", &seconds.to_string());
        if told.exact && self == Self::Openai {
            add(headers, "retry-after-ms", &decimal(told.wait.as_nanos().div_ceil(1_000), 1_000));
        }
    }

    /// The error of a call that the provider refused.
    pub(crate) fn refusal(self, cause: &Cause, model: &str, hints: Hints, wait: Option<Duration>) -> Failed {
        match (cause, self) {
            (Cause::Limit { state, requested }, Self::Openai) => {
                let message = reached(state, *requested, model, hints, wait);
                openai(429, state.dimension.as_str(), Some("rate_limit_exceeded"), &message)
            }
            (Cause::Limit { state, .. }, Self::Anthropic) => {
                let of =
                    hints.state(state).map(|told| format!(" of {} {} per minute", told.per_window, told.dimension));
                let of = of.unwrap_or_default();
                let message = format!("This request would exceed your organization's rate limit{of}.");
                anthropic(429, "rate_limit_error", &message)
            }
            (Cause::TooLarge { state, requested }, Self::Openai) => {
                let message = format!(
                    "Request too large for {model} in organization org-mock on {} per min ({}): Limit {}, Requested {requested}.",
                    state.dimension,
                    short(&state.dimension),
                    state.limit,
                );
                openai(429, state.dimension.as_str(), Some("rate_limit_exceeded"), &message)
            }
            (Cause::TooLarge { .. }, Self::Anthropic) => {
                anthropic(413, "request_too_large", "Request exceeds the rate limit by itself and can never pass.")
            }
            (Cause::Concurrency { .. }, Self::Openai) => {
                let message = format!("Too many concurrent requests for {model}.");
                openai(429, "requests", Some("rate_limit_exceeded"), &message)
            }
            (Cause::Concurrency { .. }, Self::Anthropic) => {
                anthropic(429, "rate_limit_error", "Number of concurrent connections has exceeded your rate limit.")
            }
            (Cause::Overloaded, Self::Openai) => {
                let code = Some("server_is_overloaded");
                openai(503, "service_unavailable_error", code, "The server is overloaded. Please try again later.")
            }
            (Cause::Overloaded, Self::Anthropic) => anthropic(529, "overloaded_error", "Overloaded"),
        }
    }

    /// The error of a call that failed in service.
    pub(crate) fn fault(self) -> Failed {
        let message = "The server had an error while processing your request.";
        match self {
            Self::Openai => openai(500, "server_error", None, message),
            Self::Anthropic => anthropic(500, "api_error", message),
        }
    }

    /// The error of a call that makes no sense.
    pub(crate) fn invalid(self, status: u16, message: &str) -> Failed {
        match self {
            Self::Openai => openai(status, "invalid_request_error", None, message),
            Self::Anthropic if status == 413 => anthropic(status, "request_too_large", message),
            Self::Anthropic if status == 404 => anthropic(status, "not_found_error", message),
            Self::Anthropic => anthropic(status, "invalid_request_error", message),
        }
    }
}

/// OpenAI's message for a limit that is used up. Its figures are those of the minute, not of the bucket: they fit the
/// wait, `(used + requested - limit) / limit` of a minute.
fn reached(state: &LimitState, requested: u64, model: &str, hints: Hints, wait: Option<Duration>) -> String {
    let (dimension, short) = (&state.dimension, short(&state.dimension));
    let mut message =
        format!("Rate limit reached for {model} in organization org-mock on {dimension} per min ({short})");
    match hints.state(state) {
        Some(told) => {
            let used = told.per_window.saturating_sub(told.remaining);
            message += &format!(": Limit {}, Used {used}, Requested {requested}.", told.per_window);
        }
        None => message.push('.'),
    }
    if let Some(wait) = wait {
        message += &format!(" Please try again in {}.", go_duration(wait));
    }
    message
}

fn short(dimension: &Dimension) -> &'static str {
    if *dimension == Dimension::Requests { "RPM" } else { "TPM" }
}

fn openai(status: u16, kind: &str, code: Option<&str>, message: &str) -> Failed {
    let error = json!({"message": message, "type": kind, "param": null, "code": code});
    Failed { status: status_code(status), body: json!({"error": error}) }
}

fn anthropic(status: u16, kind: &str, message: &str) -> Failed {
    let error = json!({"type": kind, "message": message});
    Failed { status: status_code(status), body: json!({"type": "error", "error": error}) }
}

fn status_code(status: u16) -> StatusCode {
    StatusCode::from_u16(status).expect("statuses here are written out and have three digits")
}

/// Milliseconds for the exact, whole seconds, rounded up, for the others.
fn rfc3339(at: Timestamp, hints: Hints) -> String {
    let millis = at.as_millis();
    let told = if hints == Hints::Honest { millis } else { millis.saturating_add(999).div_euclid(1_000) * 1_000 };
    jiff::Timestamp::from_millisecond(told).map_or_else(|_| told.to_string(), |at| at.to_string())
}

fn add(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::try_from(name).expect("names are made of letters and hyphens");
    headers.insert(name, HeaderValue::try_from(value).expect("values are printable ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NOON: Timestamp = Timestamp::from_millis(1_795_176_000_000);

    fn state() -> LimitState {
        LimitState {
            dimension: Dimension::Requests,
            limit: 20,
            remaining: 0,
            reset: 850 * MS,
            per_window: 1_200,
            window: Duration::from_secs(60),
        }
    }

    fn headers(dialect: Dialect, hints: Hints, wait: Option<ToldWait>) -> Vec<String> {
        let mut headers = HeaderMap::new();
        dialect.add_limits(&mut headers, &[state()], hints, NOON);
        if let Some(wait) = wait {
            dialect.add_wait(&mut headers, wait);
        }
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII"))).collect()
    }

    #[test]
    fn openai_tells_go_durations_and_milliseconds() {
        let wait = ToldWait { wait: 1_386 * MS, exact: true };
        let told = [
            "x-ratelimit-limit-requests: 20",
            "x-ratelimit-remaining-requests: 0",
            "x-ratelimit-reset-requests: 850ms",
            "retry-after: 2",
            "retry-after-ms: 1386",
        ];
        assert_eq!(headers(Dialect::Openai, Hints::Honest, Some(wait)), told);
        let coarse = ToldWait { wait: 2_000 * MS, exact: false };
        assert_eq!(
            headers(Dialect::Openai, Hints::Coarse, Some(coarse))[2..],
            ["x-ratelimit-reset-requests: 1s", "retry-after: 2"]
        );
        assert!(headers(Dialect::Openai, Hints::None, None).is_empty());
    }

    #[test]
    fn anthropic_tells_dates_and_whole_seconds() {
        let wait = ToldWait { wait: 1_386 * MS, exact: true };
        let told = [
            "anthropic-ratelimit-requests-limit: 20",
            "anthropic-ratelimit-requests-remaining: 0",
            "anthropic-ratelimit-requests-reset: 2026-11-20T12:00:00.85Z",
            "retry-after: 2",
        ];
        assert_eq!(headers(Dialect::Anthropic, Hints::Honest, Some(wait)), told);
        assert_eq!(
            headers(Dialect::Anthropic, Hints::Coarse, None)[2],
            "anthropic-ratelimit-requests-reset: 2026-11-20T12:00:01Z"
        );
    }

    #[test]
    fn the_figures_of_a_message_fit_its_wait() {
        let cause = Cause::Limit { state: state(), requested: 1 };
        let message = |hints, wait| {
            let failed = Dialect::Openai.refusal(&cause, "m", hints, wait);
            assert_eq!((failed.status.as_u16(), &failed.body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
            failed.body["error"]["message"].as_str().expect("a text").to_owned()
        };
        let start = "Rate limit reached for m in organization org-mock on requests per min (RPM)";
        // (1200 + 1 - 1200) / 1200 of a minute.
        let honest = format!("{start}: Limit 1200, Used 1200, Requested 1. Please try again in 50ms.");
        assert_eq!(message(Hints::Honest, Some(50 * MS)), honest);
        assert_eq!(message(Hints::None, None), format!("{start}."));
    }
}
