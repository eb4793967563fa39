//! Permits: the right to make one call, and the duty to report its outcome.

use std::fmt;
use std::sync::Arc;

use paceline_core::{Class, Instant, LimitReport, NextAction, Outcome, Request, Ticket, WaitReason};

use crate::classify::Classify;
use crate::driver::Driver;

/// The result of [`acquire_within`](crate::Limiter::acquire_within). A long wait is no error: it is an answer.
#[derive(Debug)]
#[must_use = "a permit that is dropped reports nothing: its call counts in the limits, and its place in flight is free at once"]
pub enum Within {
    /// The call may be made.
    Granted(Permit),
    /// The known wait exceeds the request's bound. Nothing was taken, and nothing of the request is left in the queue.
    Deferred {
        /// When it could be made at the earliest, on the limiter's clock ([`now`](crate::Limiter::now)): worth another
        /// [`acquire_within`](crate::Limiter::acquire_within) then.
        until: Instant,
        /// Why it waits until then, and on which level: the account, the tier or the scope.
        reason: WaitReason,
    },
}

/// The right to make one call.
///
/// Report the outcome of the call with [`complete`](Self::complete). A permit that is dropped instead, also by a panic or by a
/// cancelled task, reports [`Class::Abandoned`]: its place becomes free, nothing is learnt from it, and it counts in the limits,
/// for the call may have left. Where it has not, [`withdraw`](Self::withdraw).
#[must_use = "a permit that is dropped reports nothing: its call counts in the limits, and its place in flight is free at once"]
pub struct Permit {
    driver: Arc<Driver>,
    ticket: Ticket,
    probe: bool,
    answered: bool,
}

impl Permit {
    pub(crate) fn new(driver: Arc<Driver>, ticket: Ticket, probe: bool) -> Self {
        Self { driver, ticket, probe, answered: false }
    }

    pub(super) const fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Reports the outcome of the call, and returns what follows for the item.
    ///
    /// To send an item again, pass `next` of the result to [`acquire`](crate::Limiter::acquire): it carries the attempts so far,
    /// the earliest start and its place in the queue.
    pub fn complete(mut self, outcome: Outcome) -> NextAction {
        self.answered = true;
        self.driver.complete(self.ticket, outcome)
    }

    /// What the head of an answer announces acts at once, while its body still comes, as with a stream: other callers wait where
    /// a limit is used up, and leave where there is room. The headers are read in the limiter's dialect
    /// ([`with_dialect`](crate::Limiter::with_dialect)). [`complete`](Self::complete) may bring the same limits again: they count
    /// once.
    ///
    /// For answers that succeed so far. A refusal, and the wait that its headers ask for, belongs in `complete`, at once: nothing
    /// of it is worth waiting for.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn begin() -> http::Response<()> { http::Response::new(()) }
    /// # async fn pass_on(_: http::Response<()>) {}
    /// use paceline::{Class, Limiter, Outcome, PacerConfig};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let permit = limiter.acquire(limiter.scope("chat")).await?;
    /// let response = begin().await;
    /// permit.observe(response.headers());
    /// pass_on(response).await;
    /// permit.complete(Outcome::new(Class::Success));
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "http")]
    pub fn observe(&self, headers: &http::HeaderMap) {
        self.observe_limits(&self.driver.dialect().announced(headers, crate::clock::wall()));
    }

    /// [`observe`](Self::observe) for limits that a program reads itself.
    pub fn observe_limits(&self, limits: &[LimitReport]) {
        self.driver.observe(self.ticket, limits);
    }

    /// The pacer has taken it back.
    pub(super) fn taken_back(mut self) {
        self.answered = true;
    }

    /// The driver and its name for this call.
    pub(crate) fn call(&self) -> (Arc<Driver>, Ticket) {
        (Arc::clone(&self.driver), self.ticket)
    }

    /// [`complete`](Self::complete) with the outcome that the result of the call tells, as [`run`](crate::Limiter::run) reads it:
    /// a refusal waits as it asks, a bad key stops the account.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn send() -> std::io::Result<()> { Ok(()) }
    /// use paceline::{Limiter, NextAction, PacerConfig, Request};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let mut request = Request::from(limiter.scope("chat"));
    /// loop {
    ///     let permit = limiter.acquire(request).await?;
    ///     let result = send().await;
    ///     match permit.complete_with(&result) {
    ///         NextAction::Retry { next, .. } => request = *next,
    ///         _ => break result?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the call may have to be made again: only the caller can do that"]
    pub fn complete_with(self, result: &impl Classify) -> NextAction {
        let reserved = self.request().cost;
        let outcome = result.outcome(&self.driver.attempt(&reserved));
        self.complete(outcome)
    }

    /// Gives the permit back: the call never left, so it counts in no window or bucket, and all its units are refunded. Its
    /// turn in the spacing ([`Limits::burst`](crate::Limits::burst)) is not: the next call leaves when it would have left
    /// after this one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # fn has_room() -> bool { false }
    /// use paceline::{Dimension, Limiter, Limits, Pace, PacerConfig, Quota};
    /// use std::time::Duration;
    ///
    /// let hourly = Quota::sliding(Dimension::Requests, 1, Duration::from_hours(1));
    /// let limits = Limits { quotas: vec![hourly], burst: None };
    /// let limiter = Limiter::new(PacerConfig { limits, pace: Pace::Fixed, ..PacerConfig::default() })?;
    /// let permit = limiter.acquire(limiter.scope("chat")).await?;
    /// if !has_room() {
    ///     permit.withdraw();
    /// }
    /// limiter.try_acquire(limiter.scope("chat"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn withdraw(mut self) {
        self.answered = true;
        self.driver.act(|pacer, now| pacer.cancel(now, self.ticket));
    }

    /// The request that was granted, as the pacer keeps it: with its item and its arrival number.
    pub fn request(&self) -> Request {
        let (state, _) = self.driver.lock();
        state.pacer.request(self.ticket).expect("it stays until it is completed").clone()
    }

    /// The retries that are left to the item beside this call: as many a gateway behind it may make
    /// ([`Outcome::retried`]).
    pub fn retries_left(&self) -> u32 {
        self.driver.retries_left(&self.request())
    }

    /// The pacer's name for this call.
    pub const fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether the call tests a failing server. Its failure counts against no item.
    pub const fn is_probe(&self) -> bool {
        self.probe
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.answered {
            self.driver.complete(self.ticket, Outcome::new(Class::Abandoned));
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("ticket", &self.ticket).field("probe", &self.probe).finish_non_exhaustive()
    }
}
