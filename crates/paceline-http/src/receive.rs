//! A whole answer, within bounds, and unpacked.

use std::io::{self, Read};
use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::bufread::MultiGzDecoder;
use http::Response;
use paceline::{Clock, Instant};
use paceline_providers::{Provider, Rule};
use tokio::time::{sleep, timeout};

use crate::coding::{codings, is_gzip, without_coding};
use crate::cut::Cut;
use crate::memory::{AnswerMemory, Memory};
use crate::no_answer::NoAnswer;
use crate::sender_config::SenderConfig;

/// 32 MiB: more than any answer of a language model.
pub const LARGEST_ANSWER: usize = 32 << 20;

/// A whole answer as it came.
pub(crate) struct Received {
    pub(crate) response: Response<Bytes>,
    pub(crate) memory: AnswerMemory,
    /// The target of a redirect, and why the sender did not follow it.
    pub(crate) redirect: Option<String>,
}

/// A timer that is this late says that the process stood still.
const STOOD_STILL: Duration = Duration::from_millis(100);

/// So much is unpacked before other calls have their turn.
const PIECE: usize = 64 << 10;

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

/// [`receive_unpacked`] until that time. Where the head alone says that the call is done, an answer without its body is one.
pub(crate) async fn receive_until(
    clock: &Clock,
    deadline: Instant,
    response: reqwest::Response,
    config: &SenderConfig,
    memory: &Memory,
    cut: &Cut,
) -> Result<(Response<Bytes>, AnswerMemory), NoAnswer> {
    let head = is_done(config, &response).then(|| without_body(&response));
    let body = receive_unpacked(response, config.largest_answer, config.needs_answers, memory, cut);
    let came = until(clock, deadline, body).await.unwrap_or(Err(NoAnswer::Timeout(Some(config.timeout))));
    came.or_else(|error| Ok((head.ok_or(error)?, AnswerMemory::default())))
}

/// Whether the head of an answer alone says that the call is done, whatever becomes of the body: nothing is expected of that,
/// or a rule of the user says so.
fn is_done(config: &SenderConfig, response: &reqwest::Response) -> bool {
    let SenderConfig { dialect, needs_answers, .. } = config;
    let is_said = Rule::success_by_head(dialect.rules(), response.status().as_u16(), response.headers());
    let nothing_is_expected = !needs_answers && dialect.provider() == Provider::Generic;
    response.status().is_success() && (is_said || nothing_is_expected)
}

/// The head of an answer whose body did not come.
fn without_body(response: &reqwest::Response) -> Response<Bytes> {
    let mut head = Response::new(Bytes::new());
    (*head.status_mut(), *head.version_mut()) = (response.status(), response.version());
    head.headers_mut().clone_from(response.headers());
    without_coding(head.headers_mut());
    head
}

/// Reads the whole body of an answer, whatever its status, with at most so many bytes ([`LARGEST_ANSWER`] suits most). Both
/// results are [`Classify`](paceline::Classify): [`Limiter::run`](paceline::Limiter::run) reads them.
///
/// # Errors
/// How far the call got, when there is no whole answer.
pub async fn receive(response: reqwest::Response, largest: usize) -> Result<Response<Bytes>, NoAnswer> {
    Ok(receive_within(response, largest, true, &Memory::of(usize::MAX), &Cut::default()).await?.0)
}

/// [`receive`] as far as there is memory for the answer, and without its gzip: all members of it. A success whose body is not
/// `needed` is empty where that is too large.
async fn receive_unpacked(
    response: reqwest::Response,
    largest: usize,
    needed: bool,
    memory: &Memory,
    cut: &Cut,
) -> Result<(Response<Bytes>, AnswerMemory), NoAnswer> {
    let (mut whole, mut held) = receive_within(response, largest, needed, memory, cut).await?;
    if whole.body().is_empty() || !matches!(&codings(whole.headers())[..], [one] if is_gzip(one)) {
        return Ok((whole, held));
    }
    let (mut body, mut piece) = (BytesMut::new(), vec![0; PIECE]);
    let packed = whole.body().clone();
    let mut members = MultiGzDecoder::new(&packed[..]);
    loop {
        let read = members.read(&mut piece).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => NoAnswer::Truncated(error.to_string()),
            _ => NoAnswer::Undecodable(error.to_string()),
        })?;
        if read == 0 {
            break;
        }
        if body.len() + read > largest {
            if needed || !whole.status().is_success() {
                return Err(NoAnswer::TooLarge(largest));
            }
            (body, held) = (BytesMut::new(), AnswerMemory::default());
            break;
        }
        memory.take(&mut held, read).await;
        body.extend_from_slice(&piece[..read]);
    }
    without_coding(whole.headers_mut());
    Ok((whole.map(|_| body.freeze()), held))
}

/// [`receive`] as far as there is memory for the answer. A success whose body is not `needed` is empty where that is too large.
async fn receive_within(
    mut response: reqwest::Response,
    largest: usize,
    needed: bool,
    memory: &Memory,
    cut: &Cut,
) -> Result<(Response<Bytes>, AnswerMemory), NoAnswer> {
    let (mut body, mut held) = (BytesMut::new(), AnswerMemory::default());
    loop {
        let chunk = match response.chunk().await {
            Ok(Some(chunk)) => chunk,
            Ok(None) => break,
            Err(error) => {
                cut.keep(&response, body);
                return Err(NoAnswer::of(&error));
            }
        };
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
