//! Classification of an operation's result: by itself, or by a function of the program.

use std::error::Error;
use std::io;
use std::iter::successors;
use std::time::Duration;

use paceline_core::{Class, Cost, Outcome};

use crate::error::RunError;

/// The context of one send for reading its result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// What the permit reserved. Usage that the result reports replaces it.
    pub reserved: &'a Cost,
    /// The limiter's dialect.
    #[cfg(feature = "http")]
    pub dialect: std::sync::Arc<paceline_providers::Dialect>,
}

impl<'a> Attempt<'a> {
    /// Of a call without a limiter.
    pub(crate) fn of(reserved: &'a Cost) -> Self {
        Self {
            reserved,
            #[cfg(feature = "http")]
            dialect: generic(),
        }
    }
}

/// The dialect of an API that no provider is named for. Its table is read when it is first needed.
#[cfg(feature = "http")]
pub(crate) fn generic() -> std::sync::Arc<paceline_providers::Dialect> {
    use std::sync::{Arc, LazyLock};
    static GENERIC: LazyLock<Arc<paceline_providers::Dialect>> =
        LazyLock::new(|| Arc::new(paceline_providers::Provider::Generic.into()));
    Arc::clone(&GENERIC)
}

/// A result type that classifies itself.
///
/// Implemented for connection failures, for boxed errors, for `Result`s of such, and for `()`, which is success; with the
/// feature `http` also for HTTP responses with their whole body. For everything else there are
/// [`when`](crate::Run::when) and [`read`](crate::Run::read).
pub trait Classify {
    /// The outcome of the call.
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome;

    /// Whether the call was a success and nothing else, with no limits or usage to be learnt from it, so that its outcome need
    /// not be made. Default: false, which is always right.
    fn is_plain_success(&self) -> bool {
        false
    }
}

#[cfg(feature = "http")]
impl<B: AsRef<[u8]>> Classify for http::Response<B> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        read(self, self.body().as_ref(), attempt)
    }
}

/// The outcome of a response with that body.
#[cfg(feature = "http")]
fn read<B>(response: &http::Response<B>, body: &[u8], attempt: &Attempt<'_>) -> Outcome {
    let (status, headers) = (response.status().as_u16(), response.headers());
    let answer = paceline_providers::Answer { status, headers, body, path: "" };
    attempt.dialect.read(&answer, crate::clock::wall()).outcome_of(attempt.reserved)
}

/// HTTP responses are read by status and headers alone, in the limiter's dialect, and their bodies are left to the caller. So a
/// failure that only a body tells is a success, and a 429 whose body names a used-up quota is a refusal by a rate limit. An error
/// is a failure that may pass.
///
/// For [`Run::read_by`](crate::Run::read_by), where bodies are streams.
#[cfg(feature = "http")]
#[derive(Clone, Copy, Debug)]
pub struct ByHead;

#[cfg(feature = "http")]
impl<B, E: std::fmt::Display> AnswerReader<Result<http::Response<B>, E>> for ByHead {
    fn outcome(&self, result: &Result<http::Response<B>, E>, attempt: &Attempt<'_>) -> Outcome {
        match result {
            Ok(response) => {
                let outcome = read(response, b"", attempt);
                // What an empty body would mean, this one need not, but where gRPC says how the call ended.
                let is_done = response.status().is_success() && !response.headers().contains_key("grpc-status");
                if is_done { Outcome { class: Class::Success, ..outcome } } else { outcome }
            }
            Err(error) => Outcome { reason: Some(error.to_string().into()), ..Outcome::new(Class::Transient) },
        }
    }
}

/// Any `Ok` is a success, whatever it holds, and an error says what it means: for operations whose values are no answers that may
/// be refusals, with [`read_by`](crate::Run::read_by).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn rows() -> std::io::Result<u32> { Ok(7) }
/// use paceline::{ByError, Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(50))?;
/// assert_eq!(limiter.run(rows).read_by(ByError).await?, 7);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByError;

impl<T, E: Classify> AnswerReader<Result<T, E>> for ByError {
    fn outcome(&self, result: &Result<T, E>, attempt: &Attempt<'_>) -> Outcome {
        result.as_ref().map_or_else(|error| error.outcome(attempt), |_| Outcome::new(Class::Success))
    }

    fn is_plain_success(&self, result: &Result<T, E>) -> bool {
        result.is_ok()
    }
}

impl<T: Classify, E: Classify> Classify for Result<T, E> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        match self {
            Ok(answer) => answer.outcome(attempt),
            Err(error) => error.outcome(attempt),
        }
    }

    fn is_plain_success(&self) -> bool {
        self.as_ref().is_ok_and(Classify::is_plain_success)
    }
}

impl Classify for () {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        Outcome::new(Class::Success)
    }

    fn is_plain_success(&self) -> bool {
        true
    }
}

/// No answer came: a failure that may pass, except where no retry mends it, as a file that is not there.
impl Classify for io::Error {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        use io::ErrorKind::{InvalidInput, NotFound, PermissionDenied, Unsupported};
        let class = match self.kind() {
            NotFound | PermissionDenied | InvalidInput | Unsupported => Class::Invalid,
            _ => Class::Transient,
        };
        failure(class, self)
    }
}

/// A `run` inside this one has failed.
impl<E: Classify> Classify for RunError<E> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        match self {
            // Nothing was sent, so nothing is learnt, and another try is no better.
            Self::Limiter(error) => {
                Outcome { reason: Some(error.to_string().into()), ..Outcome::new(Class::Abandoned) }
            }
            Self::Operation { error, .. } => error.outcome(attempt),
        }
    }
}

/// A failure of an unknown kind may pass.
impl Classify for Box<dyn Error + Send + Sync> {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        failure(Class::Transient, &**self)
    }
}

/// How the result of an operation is read: by itself ([`Classified`]), or by a function that returns its outcome.
#[diagnostic::on_unimplemented(
    message = "Paceline cannot tell from `{R}` whether a call has succeeded",
    label = "not every part of this result implements `Classify`",
    note = "say which errors may pass with `.when(|error| ...)`, or read the result with `.read(|result, _| Outcome::new(...))`",
    note = "reqwest: `limiter.run(paceline_http::operation(client.get(url)))`, of the crate paceline-http",
    note = "`http::Response` with its whole body is read with the feature `http` of paceline",
    note = "where its body is a stream, as hyper's `Incoming`: `.read_by(ByHead)`, and `PaceLayer::new(limiter).by_head()`"
)]
pub trait AnswerReader<R> {
    /// The outcome of the call.
    fn outcome(&self, result: &R, attempt: &Attempt<'_>) -> Outcome;

    /// As [`Classify::is_plain_success`].
    fn is_plain_success(&self, _: &R) -> bool {
        false
    }
}

/// The result classifies itself.
#[derive(Clone, Copy, Debug)]
pub struct Classified;

impl<R: Classify> AnswerReader<R> for Classified {
    fn outcome(&self, result: &R, attempt: &Attempt<'_>) -> Outcome {
        result.outcome(attempt)
    }

    fn is_plain_success(&self, result: &R) -> bool {
        result.is_plain_success()
    }
}

impl<R, F: Fn(&R, &Attempt<'_>) -> Outcome> AnswerReader<R> for F {
    fn outcome(&self, result: &R, attempt: &Attempt<'_>) -> Outcome {
        self(result, attempt)
    }
}

/// Errors for which a predicate is true may pass, the others are final; see [`when`](crate::Run::when).
#[derive(Clone, Copy, Debug)]
pub struct ByPredicate<F>(pub(crate) F);

impl<T, E, F: Fn(&E) -> bool> AnswerReader<Result<T, E>> for ByPredicate<F> {
    fn outcome(&self, result: &Result<T, E>, _: &Attempt<'_>) -> Outcome {
        Outcome::new(match result {
            Ok(_) => Class::Success,
            Err(error) if self.0(error) => Class::Transient,
            Err(_) => Class::Invalid,
        })
    }

    fn is_plain_success(&self, result: &Result<T, E>) -> bool {
        result.is_ok()
    }
}

/// Errors that name a wait are refusals by a limit; see [`hint`](crate::Run::hint).
#[derive(Clone, Copy, Debug)]
pub struct ByHint<F, Otherwise> {
    pub(crate) hint: F,
    pub(crate) otherwise: Otherwise,
}

impl<T, E, F, Otherwise> AnswerReader<Result<T, E>> for ByHint<F, Otherwise>
where
    F: Fn(&E) -> Option<Duration>,
    Otherwise: AnswerReader<Result<T, E>>,
{
    fn outcome(&self, result: &Result<T, E>, attempt: &Attempt<'_>) -> Outcome {
        match result.as_ref().err().and_then(&self.hint) {
            Some(wait) => Outcome::new(Class::Throttled).with_hint(wait, true),
            None => self.otherwise.outcome(result, attempt),
        }
    }

    fn is_plain_success(&self, result: &Result<T, E>) -> bool {
        result.is_ok() && self.otherwise.is_plain_success(result)
    }
}

/// An outcome whose reason is the error with its causes.
fn failure(class: Class, error: &(dyn Error + 'static)) -> Outcome {
    let causes = successors(error.source(), |cause| (*cause).source());
    let message = causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"));
    Outcome { reason: Some(message.into()), ..Outcome::new(class) }
}
