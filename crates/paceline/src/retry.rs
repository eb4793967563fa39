//! The retry loop around one operation: each send takes a permit, and its answer is classified and reported.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, NextAction, Outcome, Request};

use crate::classify::{Attempt, Classify};
use crate::clock;
use crate::driver::Permit;
use crate::driver::block_on;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::log::BackingOff;
use crate::nested::{FRAME, Frame, Report, Sender};

impl Limiter {
    /// Runs an operation, each send with a permit of its own, until it succeeds or no retry is left or useful.
    ///
    /// The answer is read by [`Classify`]. What may succeed later is retried when the pacer allows it, under the
    /// configured bounds; the waits happen in the queue, so they block no other caller. The last result is returned as the
    /// operation made it, a refusal as well as an error: neither its type nor its message or source change.
    /// A panic or a dropped future returns the permit.
    ///
    /// A `run` of the same limiter inside the operation, in the same task, makes one send and no re-sends: it uses the
    /// permit of the outer one if that is unused and of the same scope, reports its own answer, and the outer one decides
    /// about the next try of the whole. So nested layers share one budget instead of multiplying theirs.
    ///
    /// # Errors
    /// Paceline's own [`Error`] when not even a first send was possible. Afterwards the operation's last result is worth
    /// more, and is returned even when it is a deadline or a stopped scope that prevents the next try.
    pub async fn run<T, E, Op, Call>(&self, request: Request, operation: Op) -> Result<Result<T, E>, Error>
    where
        Op: FnMut() -> Call,
        Call: Future<Output = Result<T, E>>,
        T: Classify,
        E: Classify,
    {
        self.run_with(request, operation, Classify::outcome).await
    }

    /// Like [`run`](Self::run), for any type of result: `read` returns the outcome of the call. [`Outcome::new`] suffices for a
    /// class.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn send() -> Answer { Answer::Rows(7) }
    /// use std::time::Duration;
    /// use paceline::{Class, Cost, Limiter, Outcome, PacerConfig, Request};
    ///
    /// enum Answer {
    ///     Rows(u64),
    ///     ComeBackIn(Duration),
    /// }
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let request = Request::new(limiter.scope("rows"), Cost::request());
    /// let answer = limiter.run_with(request, || send(), |answer, _| match answer {
    ///     Answer::Rows(_) => Outcome::new(Class::Success),
    ///     Answer::ComeBackIn(wait) => Outcome::new(Class::Throttled).with_hint(*wait, true),
    /// });
    /// assert!(matches!(answer.await?, Answer::Rows(7)));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub async fn run_with<R, Op, Call, Read>(&self, request: Request, operation: Op, read: Read) -> Result<R, Error>
    where
        Op: FnMut() -> Call,
        Call: Future<Output = R>,
        Read: Fn(&R, &Attempt<'_>) -> Outcome,
    {
        let frame = FRAME.try_with(Arc::clone).ok().and_then(|frame| frame.of(self.driver()));
        match frame {
            Some(outer) => self.run_inside(&outer, request, operation, read).await,
            None => self.run_outside(request, operation, read).await,
        }
    }

    /// [`run`](Self::run) for a program without async: the operation blocks, and so do the waits. In a task use `run`; what
    /// [`acquire_blocking`](Self::acquire_blocking) says of tasks holds here too.
    ///
    /// ```
    /// # fn send() -> std::io::Result<()> { Ok(()) }
    /// use paceline::{Cost, Limiter, PacerConfig, Request};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let scope = limiter.scope("chat");
    /// limiter.run_blocking(Request::new(scope, Cost::request()), || send())??;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_blocking<T, E, Op>(&self, request: Request, operation: Op) -> Result<Result<T, E>, Error>
    where
        Op: FnMut() -> Result<T, E>,
        T: Classify,
        E: Classify,
    {
        let operation = RefCell::new(operation);
        // Called when the future is polled, so that a `run` inside finds the attempt that it is part of.
        block_on(self.run(request, || async { (operation.borrow_mut())() }))
    }

    async fn run_outside<R, Op, Call, Read>(&self, request: Request, mut op: Op, read: Read) -> Result<R, Error>
    where
        Op: FnMut() -> Call,
        Call: Future<Output = R>,
        Read: Fn(&R, &Attempt<'_>) -> Outcome,
    {
        let mut permit = self.acquire(request).await?;
        loop {
            let (result, report) = self.attempt(permit, op(), &read).await;
            let Some(next) = self.follow(report) else { return Ok(result) };
            permit = match self.acquire(next).await {
                Ok(permit) => permit,
                Err(error) => {
                    tracing::error!(%error, "gave up: no permit for another try");
                    return Ok(result);
                }
            };
        }
    }

    async fn run_inside<R, Op, Call, Read>(
        &self,
        outer: &Frame,
        request: Request,
        mut op: Op,
        read: Read,
    ) -> Result<R, Error>
    where
        Op: FnMut() -> Call,
        Call: Future<Output = R>,
        Read: Fn(&R, &Attempt<'_>) -> Outcome,
    {
        let permit = match outer.take_permit(&request.scope) {
            Some(permit) => permit,
            None => self.acquire(outer.count_on(request)).await?,
        };
        let (result, report) = self.attempt(permit, op(), &read).await;
        outer.report(report);
        Ok(result)
    }

    /// One call of the operation, and the report of its sender: the operation itself, or a `run` inside it.
    async fn attempt<R>(
        &self,
        permit: Permit,
        call: impl Future<Output = R>,
        read: impl Fn(&R, &Attempt<'_>) -> Outcome,
    ) -> (R, Report) {
        let frame = Arc::new(Frame::new(self.driver(), permit));
        let result = FRAME.scope(Arc::clone(&frame), call).await;
        let outcome = read(&result, &self.reads(frame.reserved()));
        let report = match frame.finish() {
            Sender::Operation(permit) => Report::new(outcome, |outcome| permit.complete(outcome)),
            Sender::Inside(Some(report)) if outcome.class != Class::Success => report,
            Sender::Inside(_) => Report::new(outcome, |_| NextAction::Done),
        };
        (result, report)
    }

    /// The request of the next try, if there is one; writes a log line.
    fn follow(&self, report: Report) -> Option<Request> {
        let Report { action, class, reason, wait_from } = report;
        match action {
            NextAction::Retry { next, delay } | NextAction::Resend { next, delay } => {
                self.warn(class, wait_from, &next, delay);
                Some(*next)
            }
            NextAction::GiveUp { reason: bound, request } => {
                let words = reason.as_deref().unwrap_or_default();
                let (item, class, sends) = (request.item, class.as_str(), request.sends());
                tracing::error!(item, class, sends, words, "gave up after {sends} calls: {bound}");
                None
            }
            _ => None,
        }
    }

    fn warn(&self, class: Class, wait_from: &str, next: &Request, delay: Duration) {
        // A stopped account has no next try: a caller that requests one gets an error.
        if class == Class::Account {
            return;
        }
        let resend = self.driver().look(|state, _| BackingOff::new(class, next, &state.retry, delay));
        tracing::warn!(
            scope = &**next.scope.name(),
            item = next.item,
            class = class.as_str(),
            hint_source = wait_from,
            not_before = (clock::wall() + delay).to_string(),
            "{resend}"
        );
    }
}
