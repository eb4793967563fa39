//! What takes the place of an answer while the API stays down.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use paceline_core::ScopeId;
use pin_project_lite::pin_project;

use crate::again::Notify;
use crate::classify::AnswerReader;
use crate::driver::block_on;
use crate::error::{Error, RunError};
use crate::run::{BlockingCall, Run};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sourced<T, V = T> {
    /// The API's answer.
    Answer(T),
    /// The fallback's value: the API stayed down.
    Fallback(V),
}

impl<T> Sourced<T> {
    /// The value, wherever it comes from.
    pub fn into_inner(self) -> T {
        match self {
            Self::Answer(value) | Self::Fallback(value) => value,
        }
    }
}

impl<T, V> Sourced<T, V> {
    /// Whether it is the fallback's value: worth another call once the API is back.
    pub const fn is_fallback(&self) -> bool {
        matches!(self, Self::Fallback(_))
    }
}

pin_project! {
    /// An operation with a fallback, as [`Run::fallback`] returns it.
    #[must_use = "nothing is sent before it is awaited, or called in a program without async"]
    pub struct WithFallback<'a, Op, Call, Reader, N, F, Value>
    where
        Call: Future,
    {
        #[pin]
        run: Run<'a, Op, Call, Reader, N>,
        scope: ScopeId,
        fallback: Option<F>,
        #[pin]
        value: Option<Value>,
    }
}

impl<'a, Op, Call, T, E, Reader, N> Run<'a, Op, Call, Reader, N>
where
    Call: Future<Output = Result<T, E>>,
{
    /// Lets `fallback` take the place of the answer where the API stays down. Name it last.
    ///
    /// The API stayed down where retries, deferrals or the time ended with failures of the server, throttles or a used-up quota;
    /// where the scope or the account is stopped; and where the time of [`within`](Run::within) ended before the first call while
    /// the server was failing. An answer that is final (invalid, filtered), a call that is larger than its limit or may have been
    /// executed, and a wait for a local limit come back as without a fallback. Inside another `run` the outer one decides about
    /// tries, so only a fallback of the outer one is used.
    ///
    /// `fallback` is called once with what the `run` would have returned: the last error, or the last answer where the operation
    /// returns refusals as `Ok`. Its future holds no permit and no place in flight, and nothing bounds its time.
    /// Retries, limits and counts are as without it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # async fn send() -> std::io::Result<String> { Ok("invoice".to_owned()) }
    /// use paceline::{Limiter, PacerConfig, Sourced};
    ///
    /// let limiter = Limiter::new(PacerConfig::default())?;
    /// match limiter.run(send).when(|_| true).fallback(|_| async { "unknown".to_owned() }).await? {
    ///     Sourced::Answer(kind) => println!("it is of the kind {kind}"),
    ///     Sourced::Fallback(kind) => println!("the API stayed down; a guess: {kind}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn fallback<F, Value>(self, fallback: F) -> WithFallback<'a, Op, Call, Reader, N, F, Value>
    where
        F: FnOnce(Result<T, RunError<E>>) -> Value,
        Value: Future,
    {
        WithFallback { scope: self.named_scope(), run: self, fallback: Some(fallback), value: None }
    }
}

impl<Op, Blocks, T, E, Reader, N, F, Value> WithFallback<'_, Op, BlockingCall<Blocks>, Reader, N, F, Value>
where
    Op: FnMut() -> BlockingCall<Blocks>,
    Blocks: FnMut() -> Result<T, E>,
    Reader: AnswerReader<Result<T, E>>,
    N: Notify,
    F: FnOnce(Result<T, RunError<E>>) -> Value,
    Value: Future,
{
    /// Runs an operation that blocks, and its fallback where it is used: [`std::future::ready`] wraps a value of a program
    /// without async.
    ///
    /// # Errors
    /// As [`Limiter::run`](crate::Limiter::run), where the API did not stay down.
    pub fn call(self) -> Result<Sourced<T, Value::Output>, RunError<E>> {
        block_on(self)
    }
}

impl<Op, Call, T, E, Reader, N, F, Value> Future for WithFallback<'_, Op, Call, Reader, N, F, Value>
where
    Op: FnMut() -> Call,
    Call: Future<Output = Result<T, E>>,
    Reader: AnswerReader<Result<T, E>>,
    N: Notify,
    F: FnOnce(Result<T, RunError<E>>) -> Value,
    Value: Future,
{
    type Output = Result<Sourced<T, Value::Output>, RunError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(value) = this.value.as_mut().as_pin_mut() {
                return Poll::Ready(Ok(Sourced::Fallback(ready!(value.poll(context)))));
            }
            let last = ready!(this.run.as_mut().poll(context));
            let never_left = matches!(&last, Err(RunError::Limiter(Error::DeadlineExceeded { .. })));
            if !(this.run.stayed_down() || never_left && this.run.is_failing(this.scope)) {
                return Poll::Ready(last.map(Sourced::Answer));
            }
            let fallback = this.fallback.take().expect("a future is not polled after its end");
            this.value.set(Some(fallback(last)));
        }
    }
}
