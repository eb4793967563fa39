//! What is left of a batch.

use std::error::Error;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use paceline::{Attempt, Class, Classify, Outcome};

use crate::reader::outcome;

/// A batch on its way: each try sends what the tries before have left of it.
///
/// ```
/// # use aws_smithy_runtime_api::client::{orchestrator::HttpResponse, result::SdkError};
/// # struct Answer { unprocessed_items: Option<Vec<u32>> }
/// # async fn batch_write_item(_: Vec<u32>) -> Result<Answer, SdkError<std::fmt::Error, HttpResponse>> {
/// #     Ok(Answer { unprocessed_items: None })
/// # }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (limiter, items) = (paceline::Limiter::new(paceline::PacerConfig::default())?, vec![1, 2]);
/// use paceline_aws::Batch;
///
/// let batch = Batch::new(items);
/// // |items| client.batch_write_item().set_request_items(Some(items)).send()
/// limiter.run(|| batch.send(batch_write_item, |answer| answer.unprocessed_items)).scope("orders").await?;
/// assert!(batch.left().is_empty());
/// # Ok(())
/// # }
/// ```
///
/// However that ends, [`left`](Self::left) has what was not accepted.
#[derive(Debug)]
pub struct Batch<B>(Mutex<B>);

/// Why a try has not finished a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError<E> {
    /// The call failed.
    #[error(transparent)]
    Sdk(#[from] Box<SdkError<E, HttpResponse>>),
    /// Part of the batch was not accepted: a limit is used up.
    #[error("part of the batch was not accepted")]
    Partial,
}

impl<B: Clone> Batch<B> {
    /// A batch of which nothing was sent.
    pub const fn new(items: B) -> Self {
        Self(Mutex::new(items))
    }

    /// Sends what is left. `rest` takes the answer, and returns what that names as not accepted, perhaps nothing. What the
    /// answers of several tries hold, as the rows of a read, it collects behind a [`Mutex`].
    ///
    /// # Errors
    /// That of the call, or [`BatchError::Partial`]. Both are [`Classify`]: [`Limiter::run`](paceline::Limiter::run) reads them.
    pub async fn send<T, E, Call>(
        &self,
        send: impl FnOnce(B) -> Call,
        rest: impl FnOnce(T) -> Option<B>,
    ) -> Result<(), BatchError<E>>
    where
        Call: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
        B: Default,
        for<'a> &'a B: IntoIterator,
    {
        let left = rest(send(self.left()).await.map_err(Box::new)?).unwrap_or_default();
        let done = (&left).into_iter().next().is_none();
        *self.items() = left;
        if done { Ok(()) } else { Err(BatchError::Partial) }
    }

    /// What was not accepted so far.
    pub fn left(&self) -> B {
        self.items().clone()
    }

    fn items(&self) -> MutexGuard<'_, B> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Error + 'static> Classify for BatchError<E> {
    fn outcome(&self, attempt: &Attempt<'_>) -> Outcome {
        match self {
            Self::Sdk(error) => outcome(error, attempt),
            Self::Partial => Outcome { reason: Some(self.to_string().into()), ..Outcome::new(Class::Partial) },
        }
    }
}
