//! Classification of an operation's result.

use std::error::Error;
use std::io;
use std::iter::successors;

use paceline_core::{Class, Cost, Outcome};

/// The context of one send for reading its result.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// What the permit reserved. Usage that the result reports replaces it.
    pub reserved: &'a Cost,
    /// The limiter's dialect.
    #[cfg(feature = "http")]
    pub provider: paceline_providers::Provider,
}

/// A result type that classifies itself.
///
/// Implemented for connection failures, for boxed errors, for `Result`s of such, and for `()`, which is success; with the
/// feature `http` also for HTTP responses with their whole body. For everything else there is
/// [`run_with`](crate::Limiter::run_with).
pub trait Classify {
    /// The outcome of the call.
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome;
}

#[cfg(feature = "http")]
impl<B: AsRef<[u8]>> Classify for http::Response<B> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        let (status, body) = (self.status().as_u16(), self.body().as_ref());
        let answer = paceline_providers::Answer { status, headers: self.headers(), body, path: "" };
        paceline_providers::read(attempt.provider, &answer, crate::clock::wall()).outcome_of(attempt.reserved)
    }
}

impl<T: Classify, E: Classify> Classify for Result<T, E> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        match self {
            Ok(answer) => answer.outcome(attempt),
            Err(error) => error.outcome(attempt),
        }
    }
}

impl Classify for () {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        Outcome::new(Class::Success)
    }
}

/// No answer came: a failure that may pass.
impl Classify for io::Error {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        transient(self)
    }
}

/// A failure of an unknown kind may pass.
impl Classify for Box<dyn Error + Send + Sync> {
    fn outcome(&self, _: &Attempt<'_>) -> Outcome {
        transient(&**self)
    }
}

/// A transient outcome whose reason is the error with its causes.
fn transient(error: &(dyn Error + 'static)) -> Outcome {
    let causes = successors(error.source(), |cause| (*cause).source());
    let message = causes.fold(error.to_string(), |message, cause| format!("{message}: {cause}"));
    Outcome { reason: Some(message.into()), ..Outcome::new(Class::Transient) }
}
