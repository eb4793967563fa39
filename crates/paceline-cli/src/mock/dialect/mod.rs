//! A provider's headers for limits and bodies of refusals, from its table.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use paceline_core::{Dimension, Timestamp};
use paceline_model::{Cause, Hints, LimitState, ToldWait};
use paceline_providers::Provider;
use paceline_providers::table::{ErrorFields, LimitHeaders, MockError, ResetForm, Table, fill};
use serde_json::Value;

use super::go_duration::{decimal, go_duration};

/// Whose headers and errors a mock speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect(pub(crate) Provider);

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failed {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// The key of the body that names the request, and the header that does.
    pub(crate) id_in_body: Option<(&'static str, &'static HeaderName)>,
}

impl Dialect {
    /// The dialect of that name.
    ///
    /// # Errors
    /// There is none; the error lists those that there are.
    pub(crate) fn from_name(name: &str) -> Result<Self, String> {
        let known = || Provider::ALL.map(Provider::as_str).join(", ");
        Provider::from_name(name).map(Self).ok_or_else(|| format!("expected one of {}", known()))
    }

    fn table(self) -> &'static Table {
        self.0.table()
    }

    /// The header that names a request.
    pub(crate) fn request_id(self) -> HeaderName {
        self.table().errors.request_id.clone()
    }

    /// Adds the headers of the limits that the hints allow.
    pub(crate) fn add_limits(self, headers: &mut HeaderMap, states: &[LimitState], hints: Hints, now: Timestamp) {
        let announced: Vec<LimitState> = states.iter().filter_map(|state| hints.state(state)).collect();
        if self.table().mock.ietf {
            return add_standard(headers, &announced);
        }
        for announced in &announced {
            let row = self.table().limits.iter().find(|row| row.dimension == announced.dimension);
            for (name, value) in row.into_iter().flat_map(|row| fields(row, announced, hints, now)) {
                headers.insert(name, text(&value));
            }
        }
    }

    /// Adds the wait of a refusal, in the provider's fields.
    pub(crate) fn add_wait(self, headers: &mut HeaderMap, cause: &Cause, announced: ToldWait) {
        let table = self.table();
        if table.mock.reset_wait && matches!(cause, Cause::Limit { .. }) {
            return;
        }
        let millis = || decimal(announced.wait.as_nanos().div_ceil(1_000), 1_000);
        for name in &table.errors.wait {
            let value = match name.as_str() {
                "retry-after-ms" if announced.exact => millis(),
                "retry-after-ms" => continue,
                _ => whole_seconds(announced.wait).to_string(),
            };
            add(headers, name, &value);
        }
    }

    /// The error of a call that the provider refused.
    pub(crate) fn refusal(self, cause: &Cause, model: &str, hints: Hints, wait: Option<Duration>) -> Failed {
        let mock = &self.table().mock;
        let (error, refused) = match cause {
            Cause::Limit { state, requested } => (&mock.limit, Some((state, *requested))),
            Cause::TooLarge { state, requested } => (&mock.too_large, Some((state, *requested))),
            Cause::Concurrency { .. } | Cause::Chance { status: 429 } => (&mock.concurrency, None),
            Cause::Overloaded | Cause::Chance { .. } => (&mock.overloaded, None),
        };
        let announced = refused.and_then(|(state, _)| hints.state(state));
        let values = values(refused, announced.as_ref(), model, wait);
        let figures = if announced.is_some() { &mock.figures } else { &mock.no_figures };
        let hint = if wait.is_some() { mock.hint.as_str() } else { "" };
        let mut all = values.clone();
        all.push(("figures", in_text(figures, &values)));
        all.push(("hint", in_text(hint, &values)));
        let mut failed = self.failed(error, 503, None, &all, wait);
        if let (Cause::Limit { .. }, Some(place)) = (cause, failed.body.get_mut("error").and_then(Value::as_object_mut))
        {
            let quota = mock.details.as_deref().filter(|_| announced.is_some());
            let delay = mock.retry_details.as_deref().filter(|_| wait.is_some());
            let details: Vec<Value> = quota.into_iter().chain(delay).map(|shape| json_of(&fill(shape, &all))).collect();
            if !details.is_empty() {
                place.insert("details".to_owned(), details.into());
            }
        }
        failed
    }

    /// The error of a call that failed in service.
    pub(crate) fn fault(self) -> Failed {
        self.failed(&self.table().mock.fault, 500, None, &[], None)
    }

    /// The error of a call that makes no sense.
    pub(crate) fn invalid(self, status: u16, message: &str) -> Failed {
        let mock = &self.table().mock;
        let own = match status {
            404 => mock.not_found.as_ref(),
            413 => mock.too_long.as_ref(),
            _ => None,
        };
        self.failed(own.unwrap_or(&mock.invalid), status, Some(message), &[], None)
    }

    /// An error in the provider's shape, with its names replaced.
    fn failed(
        self,
        error: &MockError,
        status: u16,
        message: Option<&str>,
        values: &[(&str, Value)],
        wait: Option<Duration>,
    ) -> Failed {
        let shape = &self.table().errors;
        let filled = |text: &Option<String>| text.as_ref().map(|text| in_text(text, values));
        let filled = |text| filled(text).and_then(|text| text.as_str().map(str::to_owned));
        let (code, error_type) = (filled(&error.code), filled(&error.error_type));
        let message = message.map(str::to_owned).or_else(|| filled(&error.message));
        let status = error.status.unwrap_or(status);
        let body = shape.render(&ErrorFields {
            status,
            code: code.as_deref(),
            error_type: error_type.as_deref(),
            message: message.as_deref(),
            wait,
        });
        let mut headers = HeaderMap::from_iter(shape.headers.iter().cloned());
        if let Some(kind) = &shape.content_type {
            headers.insert(http::header::CONTENT_TYPE, text(kind));
        }
        if let (Some(name), Some(code)) = (&shape.code_header, &code) {
            headers.insert(name, text(code));
        }
        let status = StatusCode::from_u16(status).expect("statuses of the tables have three digits");
        let id_in_body = shape.id_in_body.as_deref().map(|key| (key, &shape.request_id));
        Failed { status, headers, body: json_of(&body), id_in_body }
    }
}

/// The fields of one limit, as its row writes them.
fn fields(row: &LimitHeaders, announced: &LimitState, hints: Hints, now: Timestamp) -> Vec<(HeaderName, String)> {
    if let Some(name) = &row.used_of_limit {
        return vec![(
            name.clone(),
            format!("{}/{}", announced.limit.saturating_sub(announced.remaining), announced.limit),
        )];
    }
    let epoch = || (now + announced.reset).as_millis();
    let reset = |index: usize| match (row.reset, index) {
        (ResetForm::GoDuration | ResetForm::Any, _) => go_duration(announced.reset),
        (ResetForm::Rfc3339, _) => rfc3339(now + announced.reset, hints),
        (ResetForm::Seconds, _) => whole_seconds(announced.reset).to_string(),
        (ResetForm::DecimalSeconds, 2) => decimal(announced.reset.as_nanos().div_ceil(1_000_000), 1_000),
        (ResetForm::DecimalSeconds, _) => decimal(epoch().unsigned_abs().into(), 1_000),
        (ResetForm::Epoch, _) => epoch().saturating_add(999).div_euclid(1_000).to_string(),
    };
    let value = |index: usize| match index {
        0 => announced.limit.to_string(),
        1 => announced.remaining.to_string(),
        index => reset(index),
    };
    row.headers.iter().enumerate().map(|(index, name)| (name.clone(), value(index))).collect()
}

/// The IETF's fields, of as many limits as there are.
fn add_standard(headers: &mut HeaderMap, announced: &[LimitState]) {
    let list = |item: fn(&LimitState) -> String| announced.iter().map(item).collect::<Vec<_>>().join(", ");
    if !announced.is_empty() {
        let left = |t: &LimitState| format!("\"{}\";r={};t={}", t.dimension, t.remaining, whole_seconds(t.reset));
        let policy = |t: &LimitState| format!("\"{}\";q={};w={}", t.dimension, t.limit, t.window.as_secs().max(1));
        headers.insert("ratelimit", text(&list(left)));
        headers.insert("ratelimit-policy", text(&list(policy)));
    }
}

/// What the names in messages stand for. OpenAI's figures are those of the minute, not of the bucket: they fit the wait,
/// `(used + requested - limit) / limit` of a minute.
fn values(
    refused: Option<(&LimitState, u64)>,
    announced: Option<&LimitState>,
    model: &str,
    wait: Option<Duration>,
) -> Vec<(&'static str, Value)> {
    let mut values: Vec<(&str, Value)> = vec![("model", model.into())];
    if let Some((state, requested)) = refused {
        let requests = state.dimension == Dimension::Requests;
        values.extend([
            ("dimension", state.dimension.as_str().into()),
            ("short", if requests { "RPM" } else { "TPM" }.into()),
            ("size", state.limit.into()),
            ("requested", requested.into()),
            ("quota", quota_id(requests).into()),
        ]);
    }
    if let Some(announced) = announced {
        let used = announced.per_window.saturating_sub(announced.remaining);
        values.extend([("limit", announced.per_window.into()), ("used", used.into())]);
    }
    if let Some(wait) = wait {
        let whole = whole_seconds(wait);
        values.extend([
            ("wait", go_duration(wait).into()),
            ("wait_s", (whole as u64).into()),
            ("wait_whole", format!("{whole}s").into()),
        ]);
    }
    values
}

/// Google's names of quotas per minute.
const fn quota_id(requests: bool) -> &'static str {
    if requests { "GenerateRequestsPerMinutePerProjectPerModel" } else { "GenerateContentInputTokensPerModelPerMinute" }
}

/// A text with its names replaced.
fn in_text(shape: &str, values: &[(&str, Value)]) -> Value {
    json_of(&fill(&Value::from(shape).to_string(), values))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).expect("the shapes of the tables are JSON")
}

fn whole_seconds(duration: Duration) -> u128 {
    duration.as_nanos().div_ceil(1_000_000_000)
}

fn text(value: &str) -> HeaderValue {
    HeaderValue::try_from(value).expect("values are printable ASCII")
}

/// Milliseconds for the exact, whole seconds, rounded up, for the others.
fn rfc3339(at: Timestamp, hints: Hints) -> String {
    let millis = at.as_millis();
    let announced = if hints == Hints::Honest { millis } else { millis.saturating_add(999).div_euclid(1_000) * 1_000 };
    jiff::Timestamp::from_millisecond(announced).map_or_else(|_| announced.to_string(), |at| at.to_string())
}

fn add(headers: &mut HeaderMap, name: &str, value: &str) {
    let name = HeaderName::try_from(name).expect("names are made of letters and hyphens");
    headers.insert(name, HeaderValue::try_from(value).expect("values are printable ASCII"));
}

#[cfg(test)]
mod tests;
