//! Retries without a limiter, for an operation that has no limit to obey. Where nothing fails they cost next to nothing: all that
//! a failure needs is made at the first one.

use std::future::{Ready, ready};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use paceline_core::{Class, Cost, Outcome, Request, Retry, Unpaced};
use pin_project_lite::pin_project;

use crate::again::{Ended, Notify, Retrying, follow};
use crate::classify::{AnswerReader, Attempt, ByHint, ByPredicate, Classified};
use crate::driver::{Admission, Driver, Waiting, block_on};
use crate::error::{Error, RunError};
use crate::nested::{self, Report};

/// Calls an operation until it succeeds, or no retry is left or useful: [`Limiter::run`](crate::Limiter::run) for what has no
/// limit to obey, such as a database on the same machine, a file, a service of one's own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn save() -> std::io::Result<()> { Ok(()) }
/// use paceline::{Retry, retry};
///
/// retry(save).await?;
/// retry(save).with(Retry { max_retries: 3, ..Retry::default() }).notify(|again| eprintln!("{again}")).await?;
/// # Ok(())
/// # }
/// ```
///
/// The result is read as there, the same follows from it, and an error has the same in it. What differs is that nothing is
/// shared: a refusal, and the wait that it asks for, hold this call and no other. So what has a limit, known or not, belongs in a
/// limiter. Where nothing fails it takes no clock, no lock and no memory, but for a [`Retry::deadline`], whose time begins with
/// the first call.
///
/// Inside an operation of another `retry`, or of a `run` of any limiter, in the same task, it makes one call: the outermost of
/// them decides about the next try of the whole. A `run` inside the operation of a `retry` makes one call too. So nested layers
/// share one budget instead of multiplying theirs. A `retry` reads the result of its operation by itself, whatever a loop inside
/// made of it, and waits as long as that loop was asked to wait the last time.
///
/// A thread of the library ends the waits, under any executor; in a test that pauses Tokio's clock that does. Dropping the future
/// ends them too.
///
/// # Errors
/// [`RunError::Operation`] with the operation's last error, and no other.
pub fn retry<Op, Call>(operation: Op) -> WithRetries<Op, Call>
where
    Op: FnMut() -> Call,
    Call: Future,
{
    WithRetries::of(Task::of(operation, Classified, (), None))
}

/// [`retry`] for an operation that blocks; [`WithRetries::call`] runs it. Its waits block the thread, so in a test that pauses
/// Tokio's clock in that thread they never end.
///
/// ```
/// # fn save() -> std::io::Result<()> { Ok(()) }
/// paceline::blocking_retry(save).call()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn blocking_retry<Op, R>(mut operation: Op) -> WithRetries<impl FnMut() -> Ready<R>, Ready<R>>
where
    Op: FnMut() -> R,
{
    retry(move || ready(operation()))
}

pin_project! {
    /// One operation with its retries, as [`retry`] and [`blocking_retry`] return it.
    ///
    /// Nothing is called before it is awaited, or before [`call`](WithRetries::call) in a program without async. Dropping it ends
    /// its wait.
    #[must_use = "nothing is called before it is awaited, or called in a program without async"]
    pub struct WithRetries<Op, Call, Reader = Classified, N = ()>
    where
        Call: Future,
    {
        task: Task<Op, Reader, N>,
        // The last result, while another try waits.
        failed: Option<(Call::Output, Ended)>,
        #[pin]
        step: Step<Call>,
    }
}

/// All but the step that it is in.
struct Task<Op, Reader, N> {
    operation: Op,
    reader: Reader,
    notify: N,
    /// `None`: the defaults.
    policy: Option<Retry>,
    calls: u32,
    history: Option<Box<History>>,
    /// What a loop inside the call under way said of its failure, the last time.
    told: Option<Box<Outcome>>,
}

/// Of an item that has failed, or has a deadline.
struct History {
    driver: Arc<Driver>,
    item: Unpaced,
}

pin_project! {
    #[project = StepNow]
    enum Step<Call> {
        Begun,
        Waiting { waiting: Waiting },
        Calling { #[pin] call: Call },
    }
}

impl<Op, Call, T, E, N> WithRetries<Op, Call, Classified, N>
where
    Call: Future<Output = Result<T, E>>,
{
    /// As [`Run::when`](crate::Run::when): the errors for which `retryable` is true may pass, others are final.
    pub fn when<F: Fn(&E) -> bool>(self, retryable: F) -> WithRetries<Op, Call, ByPredicate<F>, N> {
        self.change(|_, notify| (ByPredicate(retryable), notify))
    }

    /// As [`Run::read`](crate::Run::read): results are read with a function of your own.
    pub fn read<F>(self, read: F) -> WithRetries<Op, Call, F, N>
    where
        F: Fn(&Result<T, E>, &Attempt<'_>) -> Outcome,
    {
        self.change(|_, notify| (read, notify))
    }
}

impl<Op, Call, T, E, Reader, N> WithRetries<Op, Call, Reader, N>
where
    Call: Future<Output = Result<T, E>>,
{
    /// As [`Run::hint`](crate::Run::hint): the wait that an error asks for, if it names one, which makes it a refusal by a limit.
    pub fn hint<F>(self, hint: F) -> WithRetries<Op, Call, ByHint<F, Reader>, N>
    where
        F: Fn(&E) -> Option<Duration>,
    {
        self.change(|otherwise, notify| (ByHint { hint, otherwise }, notify))
    }
}

impl<Op, Call: Future, Reader, N> WithRetries<Op, Call, Reader, N> {
    /// How often and how late the operation is called again. Default: [`Retry::default`].
    ///
    /// # Panics
    /// Where no limiter would take it, for a reason of [`Retry::check`].
    #[track_caller]
    pub fn with(mut self, policy: Retry) -> Self {
        if let Err(error) = policy.check() {
            panic!("{error}");
        }
        self.task.policy = Some(policy);
        self
    }

    /// As [`Run::read_by`](crate::Run::read_by): results are read with a reader that has a name.
    pub fn read_by<R>(self, reader: R) -> WithRetries<Op, Call, R, N> {
        self.change(|_, notify| (reader, notify))
    }

    /// Hears of each try that is to be made again, before its wait.
    pub fn notify<F: FnMut(&Retrying<'_>)>(self, notify: F) -> WithRetries<Op, Call, Reader, F> {
        self.change(|reader, _| (reader, notify))
    }

    const fn of(task: Task<Op, Reader, N>) -> Self {
        Self { task, failed: None, step: Step::Begun }
    }

    fn change<R, M>(self, change: impl FnOnce(Reader, N) -> (R, M)) -> WithRetries<Op, Call, R, M> {
        let Task { operation, reader, notify, policy, .. } = self.task;
        let (reader, notify) = change(reader, notify);
        WithRetries::of(Task::of(operation, reader, notify, policy))
    }
}

impl<Op, T, E, Reader, N> WithRetries<Op, Ready<Result<T, E>>, Reader, N>
where
    Op: FnMut() -> Ready<Result<T, E>>,
{
    /// Runs an operation that blocks: so do its waits.
    ///
    /// # Errors
    /// As [`retry`].
    pub fn call(self) -> Result<T, RunError<E>>
    where
        // Here, so that the compiler says how a result may be read.
        Reader: AnswerReader<Result<T, E>>,
        N: Notify,
    {
        block_on(self)
    }
}

impl<Op, Call, T, E, Reader, N> Future for WithRetries<Op, Call, Reader, N>
where
    Op: FnMut() -> Call,
    Call: Future<Output = Result<T, E>>,
    Reader: AnswerReader<Result<T, E>>,
    N: Notify,
{
    type Output = Result<T, RunError<E>>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let asked = match this.step.as_mut().project() {
                StepNow::Begun => {
                    let call = this.task.call();
                    this.step.set(Step::Calling { call });
                    continue;
                }
                StepNow::Waiting { waiting } => ready!(Pin::new(waiting).poll(context)).map(Admission::from),
                StepNow::Calling { call } => {
                    let result = ready!(nested::inside(&mut this.task.told, || call.poll(context)));
                    if this.task.reader.is_plain_success(&result) {
                        return Poll::Ready(result.map_err(|error| Ended::SUCCESS.error(error, this.task.calls)));
                    }
                    // What the call held is dropped before anything waits.
                    this.step.set(Step::Begun);
                    let (next, ended) = this.task.settle(&result);
                    let Some(next) = next else {
                        return Poll::Ready(result.map_err(|error| ended.error(error, this.task.calls)));
                    };
                    *this.failed = Some((result, ended));
                    this.task.enqueue(next)
                }
            };
            match asked {
                Ok(Admission::Granted(due)) => {
                    due.withdraw();
                    drop(this.failed.take());
                    this.step.set(Step::Begun);
                }
                Ok(Admission::Deferred { .. }) => unreachable!("it takes any wait"),
                Ok(Admission::Waiting(waiting)) => this.step.set(Step::Waiting { waiting }),
                Err(error) => {
                    this.step.set(Step::Begun);
                    tracing::error!(%error, "gave up: no wait for another try");
                    let (result, ended) = this.failed.take().expect("only what has failed waits");
                    return Poll::Ready(result.map_err(|error| ended.error(error, this.task.calls)));
                }
            }
        }
    }
}

impl<Op, Reader, N> Task<Op, Reader, N> {
    const fn of(operation: Op, reader: Reader, notify: N, policy: Option<Retry>) -> Self {
        Self { operation, reader, notify, policy, calls: 0, history: None, told: None }
    }

    /// One call of the operation.
    #[inline]
    fn call<Call>(&mut self) -> Call
    where
        Op: FnMut() -> Call,
    {
        if self.policy.as_ref().is_some_and(|policy| policy.deadline.is_some()) {
            self.history();
        }
        self.calls += 1;
        nested::inside(&mut self.told, &mut self.operation)
    }

    /// The end of a call that was more than a success. Returns the request of the next try, if there is one.
    #[inline(never)]
    fn settle<R>(&mut self, result: &R) -> (Option<Request>, Ended)
    where
        Reader: AnswerReader<R>,
        N: Notify,
    {
        let mut outcome = self.reader.outcome(result, &Attempt::of(&Cost::request()));
        let told = self.told.take();
        if outcome.class == Class::Success {
            return (None, Ended::SUCCESS);
        }
        // Whether this is the failure of the loop inside, or one after it, nothing says: of that loop the wait alone counts.
        if let Some(told) = told {
            outcome.hint = outcome.hint.or(told.hint);
            outcome.retried = outcome.retried.max(told.retried);
        }
        self.calls += outcome.retried;
        let ended = Ended { class: outcome.class, wait: outcome.hint.map(|hint| hint.wait) };
        if nested::is_inside_any() {
            nested::tell(outcome);
            return (None, ended);
        }
        let history = self.history();
        let report = Report::new(outcome, |outcome| history.item.complete(history.driver.now(), &outcome));
        let Self { calls, notify, policy, .. } = self;
        (follow(report, *calls, notify, || policy.clone().unwrap_or_default()).ok(), ended)
    }

    /// Waits until that request is due.
    fn enqueue(&mut self, next: Request) -> Result<Admission, Error> {
        self.history().driver.enqueue(next)
    }

    #[cold]
    fn history(&mut self) -> &mut History {
        self.history.get_or_insert_with(|| {
            let driver = Driver::without_limits();
            let policy = self.policy.clone().unwrap_or_default();
            let item = Unpaced::new(policy, RandomState::new().hash_one(0), driver.now());
            Box::new(History { driver, item })
        })
    }
}
