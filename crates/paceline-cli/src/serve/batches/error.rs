//! What the batch service refuses, in the form of OpenAI's errors.

use std::error::Error;
use std::io;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, StatusCode};
use paceline_gateway::NoBody;
use paceline_store::is_disk_full;
use serde_json::json;

/// An answer without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    /// The request is wrong: a value of that parameter.
    pub(super) fn invalid(param: impl Into<Option<&'static str>>, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: None, param: param.into(), message: message.into() }
    }

    /// There is nothing of that id.
    pub(super) fn unknown(kind: &'static str, id: &str) -> Self {
        let message = format!("No such {kind} object: {}", id.chars().take(100).collect::<String>());
        Self { status: StatusCode::NOT_FOUND, param: Some("id"), ..Self::invalid(None, message) }
    }

    /// It does not go with what is there.
    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self { status: StatusCode::CONFLICT, ..Self::invalid(None, message) }
    }

    /// The service cannot be used here.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, code: Some("unavailable"), ..Self::invalid(None, message) }
    }

    /// With another status.
    pub(super) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// With a code that programs can tell.
    pub(super) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }
}

/// What is wrong with a request whose body came to no end, if that is why something failed.
pub(super) fn no_body(error: &(dyn Error + 'static)) -> Option<ApiError> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    let error: &NoBody = causes.find_map(|cause| cause.downcast_ref())?;
    Some(ApiError::invalid(None, error.to_string()).with_status(error.status()))
}

/// An error of the state folder.
impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> Self {
        let message = format!("the gateway's state folder: {error}");
        let failed = Self { status: StatusCode::INTERNAL_SERVER_ERROR, ..Self::invalid(None, message) };
        if is_disk_full(&error) {
            return failed.with_status(StatusCode::INSUFFICIENT_STORAGE).with_code("disk_full");
        }
        failed
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, param, message } = self;
        let kind = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let body = json!({ "error": { "message": message, "type": kind, "param": param, "code": code } });
        // A client would only repeat it.
        let retry = (HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        (status, [retry], Json(body)).into_response()
    }
}
