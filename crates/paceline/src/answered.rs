//! What an operation's result says about the pace.

use std::io;

use paceline_core::{Class, Timestamp};

use crate::provider::{self, Answer, NoResponse, Provider, Reading};

/// A result that can be read without being told how.
///
/// Implemented for HTTP responses with their whole body, for connection failures, for boxed errors that may be caused by
/// one, for `Result`s of such, and for `()`, which is success. For everything else there is
/// [`run_with`](crate::Limiter::run_with).
pub trait Answered {
    /// What it means in the provider's dialect. `now` is the wall time, to which dates in headers refer.
    fn reading(&self, provider: Provider, now: Timestamp) -> Reading;
}

impl<B: AsRef<[u8]>> Answered for http::Response<B> {
    fn reading(&self, provider: Provider, now: Timestamp) -> Reading {
        let (status, body) = (self.status().as_u16(), self.body().as_ref());
        let answer = Answer { status, headers: self.headers(), body, path: "" };
        provider::read(provider, &answer, now)
    }
}

impl<T: Answered, E: Answered> Answered for Result<T, E> {
    fn reading(&self, provider: Provider, now: Timestamp) -> Reading {
        match self {
            Ok(answer) => answer.reading(provider, now),
            Err(error) => error.reading(provider, now),
        }
    }
}

impl Answered for () {
    fn reading(&self, _: Provider, _: Timestamp) -> Reading {
        Reading::new(Class::Success)
    }
}

impl Answered for io::Error {
    fn reading(&self, _: Provider, _: Timestamp) -> Reading {
        let kind = match self.kind() {
            io::ErrorKind::TimedOut => NoResponse::Timeout,
            io::ErrorKind::UnexpectedEof => NoResponse::Truncated,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
                NoResponse::Reset
            }
            _ => NoResponse::Connect,
        };
        Reading { words: Some(self.to_string()), ..provider::no_response(kind) }
    }
}

/// A failure of an unknown kind may pass: it is transient.
impl Answered for Box<dyn std::error::Error + Send + Sync> {
    fn reading(&self, provider: Provider, now: Timestamp) -> Reading {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&**self);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                return error.reading(provider, now);
            }
            cause = error.source();
        }
        Reading { words: Some(self.to_string()), ..Reading::new(Class::Transient) }
    }
}
