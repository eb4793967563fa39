//! The errors of Paceline itself, and beside them, untouched, the last error of an operation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, GiveUp, Timestamp, TooLarge, WaitReason};

/// Why no permit was given. Waiting for a limit is not among the reasons: a wait is an answer, not an error
/// ([`Within`](crate::Within)).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// The request costs more than a limit ever allows at once, so it could never start. Split it, or raise the limit.
    TooLarge(TooLarge),
    /// The request's deadline passed before it could start, or certainly passes before: then the error comes at once.
    DeadlineExceeded {
        /// How long it waited in this call.
        waited: Duration,
        /// How much longer it would have had to wait at least, where it is known that the deadline comes first: for its own
        /// due time, for the end of a pause that the server asked for, for the next test of a failing server, or for room in a
        /// full window.
        needed: Option<Duration>,
    },
    /// The scope or its account is stopped until a person acts: a bad key, no credit. Nothing is sent in it before
    /// [`resume`](crate::Limiter::resume).
    Stopped {
        /// The scope's name, or the account's.
        scope: Arc<str>,
        /// Why: the provider's message, if it sent one.
        reason: Arc<str>,
    },
    /// It must wait, and the system allows no timer thread for it.
    NoTimer {
        /// The system's error.
        reason: Arc<str>,
    },
    /// An operation of [`run`](crate::Limiter::run) asks for another permit, and its own call has all places among the calls in
    /// flight: the wait would never end. A `run` inside it uses the place that it has.
    OwnPlace {
        /// How many places there are.
        places: u32,
    },
    /// The limiter was closed, so it grants no permits.
    Closed,
}

impl Error {
    /// Whether a request that gets no permit for this reason has no answer because the API stayed down for it, so that a fallback
    /// may take the answer's place. `last` is the class of its last call, if there was one.
    pub fn stayed_down(&self, last: Option<Class>) -> bool {
        match self {
            Self::Stopped { .. } => true,
            Self::DeadlineExceeded { .. } => last.is_some_and(|class| GiveUp::Deadline.stayed_down(class)),
            Self::TooLarge(_) | Self::NoTimer { .. } | Self::OwnPlace { .. } | Self::Closed => false,
        }
    }
}

/// Why [`try_acquire`](crate::Limiter::try_acquire) gave no permit.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NotNow {
    /// It must wait, and this is the strictest reason.
    Wait {
        /// How long at least, when that is known; else the wait ends when a call in flight does. For a share of a fleet's
        /// limit, which may grow at any moment, at most 100 ms. Behind older requests
        /// ([`WaitCause::Queue`](paceline_core::WaitCause::Queue)) it is an estimate.
        after: Option<Duration>,
        /// Why it waits, and the level of the rule: the account, which makes other scopes wait too, the tier or the scope.
        reason: WaitReason,
    },
    /// Waiting would not help.
    Never(Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(too_large) => too_large.fmt(f),
            Self::DeadlineExceeded { needed: Some(needed), .. } => write!(
                f,
                "the deadline comes before the earliest start, which is {needed:?} away; allow more time or send less"
            ),
            Self::DeadlineExceeded { waited, needed: None } => {
                write!(f, "the deadline passed after {waited:?} of waiting for a permit; allow more time or send less")
            }
            Self::Stopped { scope, reason } => write!(f, "{scope} is stopped: {reason}; fix the cause, then resume it"),
            Self::NoTimer { reason } => write!(
                f,
                "no permit at once, and no thread could be started to wait for one: {reason}; allow more threads"
            ),
            Self::OwnPlace { places } => write!(
                f,
                "the operation that asks for this permit has all {places} places among the calls in flight, so it would wait \
                 for itself; use run inside it, which takes its place, or allow more calls in flight"
            ),
            Self::Closed => f.write_str("the limiter is closed; nothing more is sent through it"),
        }
    }
}

impl std::error::Error for Error {}

impl From<TooLarge> for Error {
    fn from(too_large: TooLarge) -> Self {
        Self::TooLarge(too_large)
    }
}

impl fmt::Display for NotNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait { after: None, reason } => write!(f, "not now: {reason}"),
            Self::Wait { after: Some(after), reason } => write!(f, "not now: {reason}, for {after:?}"),
            Self::Never(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NotNow {}

impl From<Error> for NotNow {
    fn from(error: Error) -> Self {
        Self::Never(error)
    }
}

/// Why [`run`](crate::Limiter::run) or [`retry`](crate::retry()) has no success.
///
/// Its message and its source are those of the error inside, so that it reads as if the operation had failed alone.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunError<E> {
    /// No permit was given for the first call: nothing was sent.
    Limiter(Error),
    /// The operation failed, as often as it was called.
    #[non_exhaustive]
    Operation {
        /// Its last error, as the operation made it.
        error: E,
        /// What the error meant.
        class: Class,
        /// How often the operation was called.
        calls: u32,
        /// The server asked not to be called before, by the wall clock.
        retry_not_before: Option<Timestamp>,
    },
}

impl<E> RunError<E> {
    /// The operation's own error.
    ///
    /// # Errors
    /// Paceline's, where the operation was never called.
    pub fn into_operation(self) -> Result<E, Error> {
        match self {
            Self::Limiter(error) => Err(error),
            Self::Operation { error, .. } => Ok(error),
        }
    }

    /// Either error as one that can be made from both: a boxed error, an error of your program.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use paceline::{Limiter, PacerConfig, RunError};
    ///
    /// async fn send() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     Ok(())
    /// }
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// limiter.run(send).await.map_err(RunError::into_either)
    /// # }
    /// ```
    pub fn into_either<F: From<E> + From<Error>>(self) -> F {
        match self {
            Self::Limiter(error) => error.into(),
            Self::Operation { error, .. } => error.into(),
        }
    }

    /// How often the operation was called.
    pub const fn calls(&self) -> u32 {
        match self {
            Self::Limiter(_) => 0,
            Self::Operation { calls, .. } => *calls,
        }
    }

    /// The last call was refused by a limit.
    pub const fn is_rate_limited(&self) -> bool {
        matches!(self, Self::Operation { class: Class::Throttled | Class::QuotaExhausted, .. })
    }

    /// Another try may succeed, later.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Limiter(error) => matches!(error, Error::DeadlineExceeded { .. } | Error::NoTimer { .. }),
            Self::Operation { class, .. } => !matches!(class, Class::Account | Class::Invalid | Class::Filtered),
        }
    }

    /// Another try fails as well, until a person acts: the item is refused, or the account is.
    pub const fn is_fatal(&self) -> bool {
        !self.is_retryable()
    }

    /// The server asked not to be called before, by the wall clock.
    pub const fn retry_not_before(&self) -> Option<Timestamp> {
        match self {
            Self::Limiter(_) => None,
            Self::Operation { retry_not_before, .. } => *retry_not_before,
        }
    }
}

impl<E: fmt::Display> fmt::Display for RunError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limiter(error) => error.fmt(f),
            Self::Operation { error, .. } => error.fmt(f),
        }
    }
}

impl<E: std::error::Error> std::error::Error for RunError<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Limiter(error) => error.source(),
            Self::Operation { error, .. } => error.source(),
        }
    }
}
