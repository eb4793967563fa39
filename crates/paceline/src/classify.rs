//! What an operation's result says about the pace.

use std::error::Error;
use std::io;
use std::iter::successors;

use paceline_core::{Class, Cost, Outcome};

/// One send of an operation: what a result is read with.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// What the permit reserved. Usage that the result reports replaces it.
    pub reserved: &'a Cost,
    /// The limiter's dialect.
    #[cfg(feature = "http")]
    pub provider: paceline_providers::Provider,
}

/// A result that can be read without being told how.
///
/// Implemented for connection failures, for boxed errors, for `Result`s of such, and for `()`, which is success; with the
/// feature `http` also for HTTP responses with their whole body. For everything else there is
/// [`run_with`](crate::Limiter::run_with).
pub trait Classify {
    /// How the call ended.
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

/// The log tells the error and its causes.
fn transient(error: &(dyn Error + 'static)) -> Outcome {
    let causes = successors(error.source(), |cause| (*cause).source());
    let words = causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"));
    Outcome { reason: Some(words.into()), ..Outcome::new(Class::Transient) }
}
