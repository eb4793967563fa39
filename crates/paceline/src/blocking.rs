//! The limiter for programs without async.

use paceline_core::{MaxWait, Request};

use crate::driver::{Permit, Within, block_on};
use crate::error::Error;
use crate::limiter::Limiter;
use crate::run::{BlockingCall, Run, blocking};

/// A limiter whose calls block their thread. Blocked threads and waiting tasks share one queue.
///
/// In a task it blocks a thread of the runtime, as any blocking call does: use the [`Limiter`] itself there, or
/// `tokio::task::spawn_blocking`. In a test that pauses Tokio's clock nothing but the test itself moves the clock on while
/// a thread of the runtime is blocked, one of `spawn_blocking` too; a thread outside the runtime sees the real time.
///
/// ```
/// # fn send() -> std::io::Result<()> { Ok(()) }
/// use paceline::{Class, Limiter, Outcome, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(50))?;
/// limiter.blocking().run(send).call()?;
///
/// let permit = limiter.blocking().acquire("chat")?;
/// permit.complete(Outcome::new(Class::Success));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Blocking<'a> {
    limiter: &'a Limiter,
}

impl<'a> Blocking<'a> {
    pub(crate) const fn new(limiter: &'a Limiter) -> Self {
        Self { limiter }
    }

    /// [`Limiter::run`] for an operation that blocks; [`Run::call`] runs it.
    pub fn run<Op, R>(self, operation: Op) -> Run<'a, impl FnMut() -> BlockingCall<Op>, BlockingCall<Op>>
    where
        Op: FnMut() -> R,
    {
        Run::new(self.limiter, blocking(operation))
    }

    /// [`Limiter::acquire`]: blocks the thread until the call may be made.
    ///
    /// # Errors
    /// As [`Limiter::acquire`].
    pub fn acquire(self, request: impl Into<Request>) -> Result<Permit, Error> {
        block_on(self.limiter.acquire(request))
    }

    /// [`Limiter::acquire_within`]: blocks the thread until the call may be made, or until its known wait exceeds `max_wait`.
    ///
    /// # Errors
    /// As [`Limiter::acquire`].
    pub fn acquire_within(self, request: impl Into<Request>, max_wait: impl Into<MaxWait>) -> Result<Within, Error> {
        block_on(self.limiter.acquire_within(request, max_wait))
    }
}
