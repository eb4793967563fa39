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

/// The head of a success that must be read whole to be searched for the key. Streams, parts and heads alone need not.
pub(crate) fn packed<B: Body>(answer: &Response<B>) -> Option<Response<Bytes>> {
    let is_packed = is_none(answer.status())
        && answer.headers().get(CONTENT_ENCODING).is_some_and(is_gzip)
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
    let Some(encoding) = answer.headers_mut().remove(CONTENT_ENCODING).filter(|encoding| encoding != "identity") else {
        return Ok(answer);
    };
    answer.headers_mut().remove(CONTENT_LENGTH);
    let unreadable = |why: String| NoAnswer::Undecodable(why);
    if !is_gzip(&encoding) {
        return Err(unreadable(format!("it is compressed as {encoding:?}, which was not asked for")));
    }
    let mut body = Vec::new();
    let mut bounded = MultiGzDecoder::new(answer.body().as_ref()).take(LARGEST_ANSWER as u64 + 1);
    bounded.read_to_end(&mut body).map_err(|error| unreadable(error.to_string()))?;
    if body.len() > LARGEST_ANSWER {
        return Err(NoAnswer::TooLarge(LARGEST_ANSWER));
    }
    Ok(answer.map(|_| body.into()))
}
