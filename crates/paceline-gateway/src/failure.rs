//! An upstream's answer that is no success, as a whole: whether its request is sent again depends on it.

use std::io::Read as _;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::Response;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use paceline_http::{LARGEST_ANSWER, NoAnswer};
use tokio::time::timeout;

use crate::bounds::Bounds;

/// A failure is read whole before anything of it goes to the client: the request may be sent again.
pub(crate) async fn whole_failure(answer: Response<Incoming>, bounds: &Bounds) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = answer.into_parts();
    match timeout(bounds.idle, Limited::new(body, LARGEST_ANSWER).collect()).await {
        Ok(Ok(body)) => decoded(Response::from_parts(head, body.to_bytes())),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(NoAnswer::TooLarge(LARGEST_ANSWER)),
        Ok(Err(error)) => Err(NoAnswer::Truncated(error.to_string())),
        Err(_) => Err(NoAnswer::Timeout(Some(bounds.idle))),
    }
}

/// A failure that is compressed, although that was not asked for: what it means and repeats must be read.
fn decoded(mut answer: Response<Bytes>) -> Result<Response<Bytes>, NoAnswer> {
    let Some(encoding) = answer.headers_mut().remove(CONTENT_ENCODING).filter(|encoding| encoding != "identity") else {
        return Ok(answer);
    };
    answer.headers_mut().remove(CONTENT_LENGTH);
    let unreadable = |why: String| NoAnswer::Undecodable(why);
    if encoding != "gzip" && encoding != "x-gzip" {
        return Err(unreadable(format!("it is compressed as {encoding:?}, which was not asked for")));
    }
    let mut body = Vec::new();
    let mut bounded = GzDecoder::new(answer.body().as_ref()).take(LARGEST_ANSWER as u64 + 1);
    bounded.read_to_end(&mut body).map_err(|error| unreadable(error.to_string()))?;
    if body.len() > LARGEST_ANSWER {
        return Err(NoAnswer::TooLarge(LARGEST_ANSWER));
    }
    Ok(answer.map(|_| body.into()))
}
