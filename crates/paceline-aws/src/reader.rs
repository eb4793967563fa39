//! What the result of a call means.

use std::error::Error;
use std::io::{self, ErrorKind};

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use http::{Response, StatusCode};
use paceline::{AnswerReader, Attempt, Class, Classify as _, Outcome};
use paceline_providers::{NoResponse, Reading, no_response};

/// Reads the results of an SDK's calls, for [`Run::read_by`](paceline::Run::read_by).
///
/// An error that AWS answered is read from its answer as it came, in the dialect of the limiter, which knows the names of its
/// exceptions also without [`with_provider`](paceline::Limiter::with_provider). A call without an answer may pass, and one for
/// which no server was found counts against no bound of retries; one that could not be built never passes.
///
/// Each `Ok` is a success: where it may have left something undone, use [`Batch`](crate::Batch).
#[derive(Clone, Copy, Debug)]
pub struct Aws;

impl<T, E: Error + 'static> AnswerReader<Result<T, SdkError<E, HttpResponse>>> for Aws {
    fn outcome(&self, result: &Result<T, SdkError<E, HttpResponse>>, attempt: &Attempt<'_>) -> Outcome {
        match result {
            Ok(_) => Outcome::new(Class::Success),
            Err(error) => outcome(error, attempt),
        }
    }
}

pub(crate) fn outcome<E: Error + 'static>(error: &SdkError<E, HttpResponse>, attempt: &Attempt<'_>) -> Outcome {
    if let Some(answer) = error.raw_response() {
        return answered(answer).outcome(attempt);
    }
    let causes = || std::iter::successors(error.source(), |&cause| cause.source());
    let reading = match error {
        SdkError::ConstructionFailure(_) => Reading::new(Class::Invalid),
        SdkError::TimeoutError(_) => no_response(NoResponse::Timeout),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => no_response(NoResponse::Timeout),
        SdkError::DispatchFailure(failure) if failure.is_user() => Reading::new(Class::Invalid),
        _ if causes().any(found_no_server) => Reading { unsent: true, ..no_response(NoResponse::Connect) },
        _ => no_response(NoResponse::Reset),
    };
    let reason = causes().fold(error.to_string(), |reason, cause| format!("{reason}: {cause}"));
    Outcome { reason: Some(reason.into()), ..reading.outcome() }
}

/// The SDK does not tell whether it was connected. These errors come before a connection alone.
fn found_no_server(cause: &(dyn Error + 'static)) -> bool {
    use ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let kind = cause.downcast_ref().map(io::Error::kind);
    kind.is_some_and(|kind| matches!(kind, ConnectionRefused | HostUnreachable | NetworkUnreachable))
}

/// The answer as every other client has it. A header whose value is no text is none that says anything.
fn answered(answer: &HttpResponse) -> Response<&[u8]> {
    let mut whole = Response::new(answer.body().bytes().unwrap_or_default());
    *whole.status_mut() = StatusCode::from_u16(answer.status().as_u16()).expect("both allow the same statuses");
    let headers = answer.headers().iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
    whole.headers_mut().extend::<Vec<(http::HeaderName, http::HeaderValue)>>(headers.collect());
    whole
}
