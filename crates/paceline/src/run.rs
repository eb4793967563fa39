//! The retry loop around one operation: each send takes a permit, and its answer is classified and reported.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use paceline_core::{Class, Cost, NextAction, Outcome, Request, ScopeId};
use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;
use tracing::Instrument as _;
use tracing::instrument::Instrumented;

use crate::again::{Ended, Notify, Retrying, follow};
use crate::classify::{AnswerReader, Attempt, ByHint, ByPredicate, Classified};
use crate::driver::{Admission, Permit, Waiting, block_on};
use crate::error::{Error, RunError};
use crate::limiter::Limiter;
use crate::nested::{FRAME, Frame, Report, Sender, is_inside_retry, tell};

pin_project! {
    /// One operation on its way through the limiter, as [`Limiter::run`] and [`Blocking::run`](crate::Blocking::run) return it.
    ///
    /// Nothing is sent before it is awaited, or before [`call`](Run::call) in a program without async. The options name the scope
    /// and the cost of the call, and say how its result is read; the shortest program names none of them. Once it is polled it
    /// has taken them. Dropping it cancels the request, or gives the permit back.
    #[must_use = "nothing is sent before it is awaited, or called in a program without async"]
    pub struct Run<'a, Op, Call, Reader = Classified, N = ()>
    where
        Call: Future,
    {
        task: Task<'a, Op, Reader, N>,
        // Before the first permit is asked for.
        request: Option<Request>,
        // The last result, while a permit for another try is awaited.
        failed: Option<(Call::Output, Ended)>,
        #[pin]
        step: Step<Call>,
    }
}

/// All but the step that it is in.
struct Task<'a, Op, Reader, N> {
    limiter: &'a Limiter,
    operation: Op,
    reader: Reader,
    notify: N,
    /// The attempt of an outer `run` that this one is part of.
    outer: Option<Arc<Frame>>,
    calls: u32,
    /// It ended without an answer because the API stayed down.
    stayed_down: bool,
}

/// One call, in a frame and a span of its own.
type Sending<Call> = Instrumented<TaskLocalFuture<Arc<Frame>, Call>>;

pin_project! {
    #[project = StepNow]
    enum Step<Call> {
        Begun,
        Waiting { waiting: Waiting },
        Sending { #[pin] call: Sending<Call>, frame: Arc<Frame> },
    }
}

/// One call of an operation that blocks: it begins when it is polled, so that a `run` inside finds the attempt that it is part
/// of.
#[derive(Debug)]
pub struct BlockingCall<Op>(Rc<RefCell<Op>>);

impl<Op: FnMut() -> R, R> Future for BlockingCall<Op> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<R> {
        Poll::Ready((self.0.borrow_mut())())
    }
}

/// The calls of an operation that blocks.
pub(crate) fn blocking<Op: FnMut() -> R, R>(operation: Op) -> impl FnMut() -> BlockingCall<Op> {
    let operation = Rc::new(RefCell::new(operation));
    move || BlockingCall(Rc::clone(&operation))
}

impl<'a, Op, Call: Future> Run<'a, Op, Call> {
    pub(crate) fn new(limiter: &'a Limiter, operation: Op) -> Self {
        let request = Some(Request::new(limiter.default_scope(), Cost::request()));
        let task =
            Task { limiter, operation, reader: Classified, notify: (), outer: None, calls: 0, stayed_down: false };
        Self { task, request, failed: None, step: Step::Begun }
    }
}

impl<'a, Op, Call, T, E, N> Run<'a, Op, Call, Classified, N>
where
    Call: Future<Output = Result<T, E>>,
{
    /// Retries the errors for which `retryable` is true, as transient failures; other errors are final, and each `Ok` is a
    /// success. For operations whose errors implement no [`Classify`](crate::Classify), and whose `Ok` is no answer that may be
    /// a refusal.
    pub fn when<F: Fn(&E) -> bool>(self, retryable: F) -> Run<'a, Op, Call, ByPredicate<F>, N> {
        self.change(|_, notify| (ByPredicate(retryable), notify))
    }

    /// Reads results with a function of your own, which returns the [`Outcome`](crate::Outcome) of the call:
    /// [`Outcome::new`](crate::Outcome::new) with a class suffices.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn send() -> std::io::Result<Answer> { Ok(Answer::Rows(7)) }
    /// use std::time::Duration;
    /// use paceline::{Class, Limiter, Outcome, PacerConfig};
    ///
    /// enum Answer {
    ///     Rows(u64),
    ///     ComeBackIn(Duration),
    /// }
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// let answer = limiter.run(send).read(|answer, _| match answer {
    ///     Ok(Answer::Rows(_)) => Outcome::new(Class::Success),
    ///     Ok(Answer::ComeBackIn(wait)) => Outcome::new(Class::Throttled).with_hint(*wait, true),
    ///     Err(_) => Outcome::new(Class::Transient),
    /// });
    /// assert!(matches!(answer.await?, Answer::Rows(7)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn read<F>(self, read: F) -> Run<'a, Op, Call, F, N>
    where
        F: Fn(&Result<T, E>, &Attempt<'_>) -> Outcome,
    {
        self.change(|_, notify| (read, notify))
    }
}

impl<'a, Op, Call, T, E, Reader, N> Run<'a, Op, Call, Reader, N>
where
    Call: Future<Output = Result<T, E>>,
{
    /// The wait that an error asks for, if the server named one: such an error is a refusal by a limit (class throttled). What
    /// gives no hint is read by [`Classify`](crate::Classify); after [`when`](Run::when) or [`read`](Run::read) by those.
    pub fn hint<F>(self, hint: F) -> Run<'a, Op, Call, ByHint<F, Reader>, N>
    where
        F: Fn(&E) -> Option<Duration>,
    {
        self.change(|otherwise, notify| (ByHint { hint, otherwise }, notify))
    }
}

impl<'a, Op, Call: Future, Reader, N> Run<'a, Op, Call, Reader, N> {
    /// Reads results with a reader that has a name, such as `ByHead` (feature `http`), in place of
    /// [`Classify`](crate::Classify).
    pub fn read_by<R>(self, reader: R) -> Run<'a, Op, Call, R, N> {
        self.change(|_, notify| (reader, notify))
    }

    /// Hears of each try that is to be made again, before its wait.
    pub fn notify<F: FnMut(&Retrying<'_>)>(self, notify: F) -> Run<'a, Op, Call, Reader, F> {
        self.change(|reader, _| (reader, notify))
    }

    /// The scope of the call: a model, an endpoint family, a table. Default: the limiter's scope named "default".
    pub fn scope(self, scope: impl Into<ScopeId>) -> Self {
        self.with(|request, _| request.scope = scope.into())
    }

    /// What the call is expected to cost. Default: one request.
    pub fn cost(self, cost: Cost) -> Self {
        self.with(|request, _| request.cost = cost)
    }

    /// Higher goes first. Default 0.
    pub fn priority(self, priority: i32) -> Self {
        self.with(|request, _| request.priority = priority)
    }

    /// The item that the call is for: a breaker opens on failures of several items. Default: an item of its own.
    pub fn item(self, item: u64) -> Self {
        self.with(|request, _| request.item = Some(item))
    }

    /// Each call must leave within so long; time in a held scope does not count. Default: no bound.
    pub fn within(self, bound: Duration) -> Self {
        self.with(|request, limiter| request.deadline = Some(limiter.now() + bound))
    }

    /// A request with everything that it can say, in place of the options above.
    pub fn request(self, wanted: Request) -> Self {
        self.with(|request, _| *request = wanted)
    }

    pub(crate) fn named_scope(&self) -> ScopeId {
        self.request.as_ref().expect("nothing was asked for yet").scope.clone()
    }

    /// Whether it ended without an answer because the API stayed down.
    pub(crate) const fn stayed_down(&self) -> bool {
        self.task.stayed_down
    }

    /// Whether the server of a scope fails, as far as the limiter knows.
    pub(crate) fn is_failing(&self, scope: &ScopeId) -> bool {
        self.task.limiter.scope_snapshot(scope).is_some_and(|scope| scope.failing_since.is_some())
    }

    fn with(mut self, set: impl FnOnce(&mut Request, &Limiter)) -> Self {
        set(self.request.as_mut().expect("nothing was asked for yet"), self.task.limiter);
        self
    }

    fn change<R, M>(self, change: impl FnOnce(Reader, N) -> (R, M)) -> Run<'a, Op, Call, R, M> {
        let Self {
            task: Task { limiter, operation, reader, notify, outer, calls, stayed_down },
            request,
            failed,
            step,
        } = self;
        let (reader, notify) = change(reader, notify);
        Run { task: Task { limiter, operation, reader, notify, outer, calls, stayed_down }, request, failed, step }
    }
}

impl<Op, Blocks, T, E, Reader, N> Run<'_, Op, BlockingCall<Blocks>, Reader, N>
where
    Op: FnMut() -> BlockingCall<Blocks>,
    Blocks: FnMut() -> Result<T, E>,
{
    /// Runs an operation that blocks: so do its waits.
    ///
    /// # Errors
    /// As [`Limiter::run`].
    pub fn call(self) -> Result<T, RunError<E>>
    where
        // Here, so that the compiler says how a result may be read.
        Reader: AnswerReader<Result<T, E>>,
        N: Notify,
    {
        block_on(self)
    }
}

impl<Op, Call, T, E, Reader, N> Future for Run<'_, Op, Call, Reader, N>
where
    Op: FnMut() -> Call,
    Call: Future<Output = Result<T, E>>,
    Reader: AnswerReader<Result<T, E>>,
    N: Notify,
{
    type Output = Result<T, RunError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let asked = match this.step.as_mut().project() {
                StepNow::Begun => this.task.begin(this.request.take().expect("a future is not polled after its end")),
                StepNow::Waiting { waiting } => ready!(Pin::new(waiting).poll(context)).map(Admission::from),
                StepNow::Sending { call, frame } => {
                    let result = ready!(call.poll(context));
                    let frame = Arc::clone(frame);
                    // What the call held is dropped before anything else waits.
                    this.step.set(Step::Begun);
                    let (next, ended) = this.task.settle(&frame, &result);
                    let Some(next) = next else {
                        return Poll::Ready(result.map_err(|error| ended.error(error, this.task.calls)));
                    };
                    *this.failed = Some((result, ended));
                    this.task.enqueue(next)
                }
            };
            match asked {
                Ok(Admission::Granted(permit)) => {
                    drop(this.failed.take());
                    let (call, frame) = this.task.send(permit);
                    this.step.set(Step::Sending { call, frame });
                }
                Ok(Admission::Deferred { .. }) => unreachable!("it takes any wait"),
                Ok(Admission::Waiting(waiting)) => this.step.set(Step::Waiting { waiting }),
                Err(error) => {
                    this.step.set(Step::Begun);
                    let failed = this.failed.take();
                    this.task.stayed_down = error.stayed_down(failed.as_ref().map(|(_, ended)| ended.class));
                    let Some((result, ended)) = failed else {
                        return Poll::Ready(Err(RunError::Limiter(error)));
                    };
                    tracing::error!(%error, "gave up: no permit for another try");
                    return Poll::Ready(result.map_err(|error| ended.error(error, this.task.calls)));
                }
            }
        }
    }
}

impl<Op, Reader, N> Task<'_, Op, Reader, N> {
    /// Asks for the first permit. Inside the attempt of an outer `run` that attempt's own permit is taken, if it is unused.
    fn begin(&mut self, request: Request) -> Result<Admission, Error> {
        self.outer = Frame::current(self.limiter.driver());
        let Some(outer) = &self.outer else { return self.enqueue(request) };
        match outer.take_permit(&request.scope) {
            Some(permit) => Ok(Admission::Granted(permit)),
            None => self.enqueue(outer.count_on(request)),
        }
    }

    fn enqueue(&self, request: Request) -> Result<Admission, Error> {
        self.limiter.driver().enqueue(Request { max_wait: None, ..request })
    }

    /// One call of the operation.
    fn send<Call>(&mut self, permit: Permit) -> (Sending<Call>, Arc<Frame>)
    where
        Op: FnMut() -> Call,
        Call: Future,
    {
        self.calls += 1;
        let frame = Arc::new(Frame::new(self.limiter.driver(), permit));
        let request = || frame.request();
        let span =
            tracing::debug_span!("call", scope = &**request().scope.name(), item = request().item, calls = self.calls);
        let call = span.in_scope(&mut self.operation);
        (FRAME.scope(Arc::clone(&frame), call).instrument(span), frame)
    }

    /// Reports the end of a call, and returns the request of the next try, if there is one.
    fn settle<R>(&mut self, frame: &Frame, result: &R) -> (Option<Request>, Ended)
    where
        Reader: AnswerReader<R>,
        N: Notify,
    {
        let outcome = match self.reader.is_plain_success(result) {
            true => Outcome::new(Class::Success),
            false => self.reader.outcome(result, &self.limiter.driver().attempt(&frame.request().cost)),
        };
        self.calls += outcome.retried;
        let is_failure = outcome.class != Class::Success;
        // A retry without a limiter around it decides about the next try of the whole.
        let told = (is_failure && is_inside_retry()).then(|| outcome.clone());
        let report = match frame.finish() {
            Sender::Operation(permit) => Report::new(outcome, |outcome| permit.complete(outcome)),
            Sender::Inside(Some(report)) if is_failure => report,
            Sender::Inside(_) => Report::new(outcome, |_| NextAction::Done),
        };
        let ended = Ended { class: report.class, wait: report.hint };
        let is_told = told.map(tell).is_some();
        if let Some(outer) = &self.outer {
            outer.report(report);
            return (None, ended);
        }
        (if is_told { None } else { self.follow(report) }, ended)
    }

    /// The request of the next try, if there is one.
    fn follow(&mut self, report: Report) -> Option<Request>
    where
        N: Notify,
    {
        let (class, driver) = (report.class, self.limiter.driver());
        let bounds = || driver.look(|state, _| state.retry.clone());
        let next = follow(report, self.calls, &mut self.notify, bounds);
        self.stayed_down = matches!(&next, Err(Some(bound)) if bound.stayed_down(class));
        next.ok()
    }
}
