//! What the result of a call means.

use std::error::Error;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use http::{Response, StatusCode};
use paceline::{AnswerReader, Attempt, Class, Classify as _, Outcome};
use paceline_providers::{NoResponse, no_response};

/// Reads the results of an SDK's calls, for [`Run::read_by`](paceline::Run::read_by).
///
/// An error that AWS answered is read from its answer as it came, in the dialect of the limiter, which knows the names of its
/// exceptions also without [`with_provider`](paceline::Limiter::with_provider). A call without an answer may pass; one that could
/// not be built never does. Each `Ok` is a success: where it may have left something undone, use [`Batch`](crate::Batch).
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
    let outcome = match error {
        SdkError::ConstructionFailure(_) => Outcome::new(Class::Invalid),
        SdkError::TimeoutError(_) => no_response(NoResponse::Timeout).outcome(),
        SdkError::DispatchFailure(failure) if failure.is_timeout() => no_response(NoResponse::Timeout).outcome(),
        SdkError::DispatchFailure(failure) if failure.is_user() => Outcome::new(Class::Invalid),
        _ => match error.raw_response() {
            Some(answer) => return answered(answer).outcome(attempt),
            None => no_response(NoResponse::Reset).outcome(),
        },
    };
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    let reason = causes.fold(error.to_string(), |reason, cause| format!("{reason}: {cause}"));
    Outcome { reason: Some(reason.into()), ..outcome }
}

/// The answer as every other client has it. A header whose value is no text is none that says anything.
fn answered(answer: &HttpResponse) -> Response<&[u8]> {
    let mut whole = Response::new(answer.body().bytes().unwrap_or_default());
    *whole.status_mut() = StatusCode::from_u16(answer.status().as_u16()).expect("both allow the same statuses");
    let headers = answer.headers().iter().filter_map(|(name, value)| Some((name.parse().ok()?, value.parse().ok()?)));
    whole.headers_mut().extend::<Vec<(http::HeaderName, http::HeaderValue)>>(headers.collect());
    whole
}
