//! The gateway's own answers: what it did not send, why, and what to do.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use paceline::{Cost, WaitCause};
use paceline_http::gateway::{ATTEMPTS, RETRIES};
use serde_json::json;

/// A client is never asked to stay away for longer: what it waits for may end sooner.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Where it is not known how long a wait is, another try is worth it after that time.
pub(crate) const LEAST: Duration = Duration::from_secs(1);

/// Why a request has no answer of its upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
    /// The limit that it would have waited for.
    limit: Option<String>,
    /// How long the client is to wait at least, if another try may succeed.
    retry_after: Option<Duration>,
    /// How long the wait is that nothing shortens.
    known: Option<Duration>,
    /// The retries that were spent before.
    retried: u32,
    /// Whose request it is, for the log, where its key is in force no longer.
    client: Option<Arc<str>>,
}

impl Refusal {
    /// One that no retry changes.
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, code, message, limit: None, retry_after: None, known: None, retried: 0, client: None }
    }

    /// Another try may succeed after that time.
    pub(crate) fn after(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    /// Nothing shortens a wait of that time.
    pub(crate) fn known(self, wait: Duration) -> Self {
        Self { known: Some(wait), ..self }
    }

    /// So many retries were spent before.
    pub(crate) fn retried(self, retried: u32) -> Self {
        Self { retried, ..self }
    }

    /// It names the limit.
    pub(crate) fn for_limit(self, limit: String) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// The client of that name shows a key that has ended.
    pub(crate) fn of_client(self, client: Option<Arc<str>>) -> Self {
        Self { client, ..self }
    }

    /// Whose it is, where its key has ended.
    pub(crate) fn client(&self) -> Option<Arc<str>> {
        self.client.clone()
    }

    /// The request itself is wrong.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// Its status.
    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// Its code.
    pub(crate) const fn code(&self) -> &'static str {
        self.code
    }

    /// What it says.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The answer. A client that retries is told how long to wait, or not to.
    pub(crate) fn into_response(self) -> Response<Bytes> {
        let wait = self.retry_after.map(|wait| wait.min(LONGEST_WAIT));
        let body = json!({ "error": {
            "type": "paceline",
            "code": self.code,
            "message": self.message,
            "limit": self.limit,
            "retry_after_ms": wait.map(|wait| wait.as_millis() as u64),
            "wait_ms": self.known.map(|wait| wait.as_millis() as u64),
        }});
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // So that each answer is known for one of a gateway.
        headers.insert(ATTEMPTS, 0.into());
        if self.retried > 0 {
            headers.insert(RETRIES, self.retried.into());
        }
        match wait {
            Some(wait) => {
                // Whole seconds, rounded up: a client must not come too early.
                let seconds = wait.as_millis().div_ceil(1_000).max(1) as u64;
                headers.insert(RETRY_AFTER, seconds.into());
                headers.insert("retry-after-ms", (wait.as_millis().max(1) as u64).into());
            }
            None => drop(headers.insert("x-should-retry", HeaderValue::from_static("false"))),
        }
        response
    }
}

/// Says of a request that waits for a limit which its estimate exceeds that it is one; else nothing.
pub(crate) fn of_estimate(cost: &Cost, cause: &WaitCause) -> String {
    match cause {
        WaitCause::Quota { dimension, limit, .. } if cost.get(dimension) > *limit => {
            let units = dimension.amount(cost.get(dimension));
            format!(
                " (it is estimated at {units} {dimension}, after what answers of this model reported, and so leaves once nothing else \
                 counts there)"
            )
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_told_in_seconds_and_milliseconds_and_never_above_a_minute() {
        for (wait, seconds, millis) in [(1_500, "2", "1500"), (0, "1", "1"), (3_600_000, "60", "60000")] {
            let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "wait_too_long", "later");
            let response = refusal.after(Duration::from_millis(wait)).for_limit("500rpm".to_owned()).into_response();
            let header = |name: &str| response.headers()[name].to_str().expect("digits");
            assert_eq!((header("retry-after"), header("retry-after-ms")), (seconds, millis));
            assert!(!response.headers().contains_key("x-should-retry"));
            let body: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
            assert_eq!((&body["error"]["code"], &body["error"]["limit"]), (&json!("wait_too_long"), &json!("500rpm")));
        }
    }

    #[test]
    fn a_client_is_told_not_to_repeat_what_stays_wrong() {
        let response = Refusal::bad_request("no").into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["x-should-retry"]),
            (400, &"false".parse().expect("a word"))
        );
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
