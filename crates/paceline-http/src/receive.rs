//! A whole answer, within bounds.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;
use paceline::{Clock, Instant};
use tokio::time::{sleep, timeout};

use crate::memory::{AnswerMemory, Memory};
use crate::no_answer::NoAnswer;

/// 32 MiB: more than any answer of a language model.
pub const LARGEST_ANSWER: usize = 32 << 20;

/// A timer that is this late says that the process stood still.
const STOOD_STILL: Duration = Duration::from_millis(100);

/// For so long what has come meanwhile may be read.
const CATCHING_UP: Duration = Duration::from_secs(1);

/// What comes until that time. A process that stood still beyond it (Ctrl-Z, a laptop that sleeps) finds in its sockets what came
/// meanwhile, and reads it before it gives up: the server has been paid for that.
pub(crate) async fn until<T>(clock: &Clock, deadline: Instant, coming: impl Future<Output = T>) -> Option<T> {
    let mut coming = pin!(coming);
    tokio::select! {
        biased;
        came = &mut coming => return Some(came),
        () = sleep(deadline.saturating_since(clock.now())) => {}
    }
    let late = clock.now().saturating_since(deadline);
    if late < STOOD_STILL { None } else { timeout(CATCHING_UP, coming).await.ok() }
}

/// Reads the whole body of an answer, whatever its status, with at most so many bytes ([`LARGEST_ANSWER`] suits most). Both
/// results are [`Classify`](paceline::Classify): [`Limiter::run`](paceline::Limiter::run) reads them.
///
/// # Errors
/// How far the call got, when there is no whole answer.
pub async fn receive(response: reqwest::Response, largest: usize) -> Result<Response<Bytes>, NoAnswer> {
    Ok(receive_within(response, largest, true, &Memory::of(usize::MAX)).await?.0)
}

/// [`receive`] as far as there is memory for the answer. A success whose body is not `needed` is empty where that is too large.
pub(crate) async fn receive_within(
    mut response: reqwest::Response,
    largest: usize,
    needed: bool,
    memory: &Memory,
) -> Result<(Response<Bytes>, AnswerMemory), NoAnswer> {
    let (mut body, mut held) = (BytesMut::new(), AnswerMemory::default());
    while let Some(chunk) = response.chunk().await.map_err(|error| NoAnswer::of(&error))? {
        if body.len() + chunk.len() > largest {
            if needed || !response.status().is_success() {
                return Err(NoAnswer::TooLarge(largest));
            }
            (body, held) = (BytesMut::new(), AnswerMemory::default());
            break;
        }
        memory.take(&mut held, chunk.len()).await;
        body.extend_from_slice(&chunk);
    }
    let mut whole = Response::new(body.freeze());
    *whole.status_mut() = response.status();
    *whole.version_mut() = response.version();
    *whole.headers_mut() = std::mem::take(response.headers_mut());
    Ok((whole, held))
}
