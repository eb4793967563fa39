//! A whole answer, within bounds.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Response;

use crate::memory::{AnswerMemory, Memory};
use crate::no_answer::NoAnswer;

/// 32 MiB: more than any answer of a language model.
pub const LARGEST_ANSWER: usize = 32 << 20;

/// Reads the whole body of an answer, whatever its status, with at most so many bytes ([`LARGEST_ANSWER`] suits most). Both
/// results are [`Classify`](paceline::Classify): [`Limiter::run`](paceline::Limiter::run) reads them.
///
/// # Errors
/// How far the call got, when there is no whole answer.
pub async fn receive(response: reqwest::Response, largest: usize) -> Result<Response<Bytes>, NoAnswer> {
    Ok(receive_within(response, largest, None, &Memory::of(usize::MAX)).await?.0)
}

/// [`receive`] for a call with that timeout, for the error's message, as far as there is memory for the answer.
pub(crate) async fn receive_within(
    mut response: reqwest::Response,
    largest: usize,
    timeout: Option<Duration>,
    memory: &Memory,
) -> Result<(Response<Bytes>, AnswerMemory), NoAnswer> {
    let (mut body, mut held) = (BytesMut::new(), AnswerMemory::default());
    while let Some(chunk) = response.chunk().await.map_err(|error| NoAnswer::of(&error, timeout))? {
        if body.len() + chunk.len() > largest {
            return Err(NoAnswer::TooLarge(largest));
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
