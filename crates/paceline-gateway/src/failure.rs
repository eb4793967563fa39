//! A failure is read whole before anything of it goes to the client: the request may be sent again. So is an answer that is
//! compressed, although that was not asked for: it may repeat the key of the upstream.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use paceline_http::{LARGEST_ANSWER, NoAnswer};
use tokio::time::timeout;

use crate::bounds::Bounds;
use crate::tap::is_event_stream;

/// Whether an answer goes to the client as it comes.
pub(crate) fn is_none(status: StatusCode) -> bool {
    status.as_u16() < 400 && status != StatusCode::SWITCHING_PROTOCOLS
}

/// The head of a success that must be read whole to be searched for the key, of a client `with_key` also in a coding that is not
/// known here. Streams, parts and heads alone need not.
pub(crate) fn packed<B: Body>(answer: &Response<B>, with_key: bool) -> Option<Response<Bytes>> {
    let is_coded = |coding: &HeaderValue| is_gzip(coding) || (with_key && coding != "identity");
    let is_packed = is_none(answer.status())
        && answer.headers().get_all(CONTENT_ENCODING).iter().any(is_coded)
        && !answer.headers().get(CONTENT_TYPE).is_some_and(is_event_stream)
        && answer.status() != StatusCode::PARTIAL_CONTENT
        && !answer.body().is_end_stream();
    is_packed.then(|| {
        let mut head = Response::new(Bytes::new());
        (*head.status_mut(), *head.headers_mut()) = (answer.status(), answer.headers().clone());
        head
    })
}

/// What is no success, or packed, with all of its body.
///
/// # Errors
/// There is no answer, or it cannot be read.
pub(crate) async fn read(
    sent: Result<Response<Incoming>, NoAnswer>,
    bounds: &Bounds,
) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = sent?.into_parts();
    // None was asked for: nothing that follows is an answer.
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(NoAnswer::Malformed("it changed the protocol without being asked".to_owned()));
    }
    match timeout(bounds.idle, Limited::new(body, LARGEST_ANSWER).collect()).await {
        Ok(Ok(body)) => decoded(Response::from_parts(head, body.to_bytes())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(NoAnswer::TooLarge(LARGEST_ANSWER)),
        Ok(Err(error)) => Err(NoAnswer::Truncated(error.to_string())),
        Err(_) => Err(NoAnswer::Timeout(Some(bounds.idle))),
    }
}

/// Whether a coding is the one that is unpacked here.
fn is_gzip(coding: &HeaderValue) -> bool {
    [b"gzip".as_slice(), b"x-gzip"].iter().any(|name| coding.as_bytes().eq_ignore_ascii_case(name))
}

/// A failure that is compressed, although that was not asked for: what it means and repeats must be read.
fn decoded(mut answer: Response<Bytes>) -> Result<Response<Bytes>, NoAnswer> {
    let codings: Vec<_> = answer.headers().get_all(CONTENT_ENCODING).iter().cloned().collect();
    answer.headers_mut().remove(CONTENT_ENCODING);
    let unreadable = |why: String| NoAnswer::Undecodable(why);
    match &codings[..] {
        [] => return Ok(answer),
        [one] if one == "identity" => return Ok(answer),
        [one] if is_gzip(one) => drop(answer.headers_mut().remove(CONTENT_LENGTH)),
        others => return Err(unreadable(format!("it is compressed as {others:?}, which was not asked for"))),
    }
    let mut body = Vec::new();
    let mut bounded = MultiGzDecoder::new(answer.body().as_ref()).take(LARGEST_ANSWER as u64 + 1);
    bounded.read_to_end(&mut body).map_err(|error| unreadable(error.to_string()))?;
    if body.len() > LARGEST_ANSWER {
        return Err(NoAnswer::TooLarge(LARGEST_ANSWER));
    }
    Ok(answer.map(|_| body.into()))
}
