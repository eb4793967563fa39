//! A failure is read whole before anything of it goes to the client: the request may be sent again. So is an answer that is
//! compressed, although that was not asked for: it may repeat the key of the upstream.

use std::io::{Cursor, Read as _};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use paceline_http::{LARGEST_ANSWER, NoAnswer, codings, is_gzip, transfer_codings, without_coding};
use serde_json::json;
use tokio::time::timeout;

use crate::bodies::{Bodies, BodiesOfClient, HeldBody, LEAST_LARGE};
use crate::bounds::Bounds;
use crate::echo::Begun;
use crate::payload::add;
use crate::tap::is_event_stream;

/// Whether an answer goes to the client as it comes.
pub(crate) fn is_none(status: StatusCode) -> bool {
    status.as_u16() < 400 && status != StatusCode::SWITCHING_PROTOCOLS
}

/// The head of a success that must be read whole to be searched for the key: what is packed for its way here alone, of which the
/// client would not learn; of a client `with_key` whatever is coded; else what is a gzip, but for streams, which go on as they
/// come, and parts.
pub(crate) fn packed<B: Body>(answer: &Response<B>, with_key: bool) -> Option<Response<Bytes>> {
    let headers = answer.headers();
    let is_gzip_as_a_whole = || {
        let is_stream = headers.get(CONTENT_TYPE).is_some_and(is_event_stream);
        let is_whole = !is_stream && answer.status() != StatusCode::PARTIAL_CONTENT;
        is_whole && matches!(&codings(headers)[..], [one] if is_gzip(one))
    };
    let is_packed = match with_key {
        true => !codings(headers).is_empty(),
        false => !transfer_codings(headers).is_empty() || is_gzip_as_a_whole(),
    };
    let is_packed = is_packed && is_none(answer.status()) && !answer.body().is_end_stream();
    is_packed.then(|| {
        let mut head = Response::new(Bytes::new());
        (*head.status_mut(), *head.headers_mut()) = (answer.status(), answer.headers().clone());
        head
    })
}

/// A longer failure is no message for people: the client is told so in its place.
const LARGEST_FAILURE: usize = 4 << 20;

/// So much is unpacked at once.
const PIECE: usize = 64 << 10;

/// A failure of which no more was read than its beginning.
#[derive(Clone, Copy)]
struct Cut;

/// An answer as it is read, in the room for bodies.
struct Whole {
    bytes: Vec<u8>,
    room: HeldBody,
    held_bytes: u64,
    /// So many bytes it may have.
    most: usize,
}

/// There is no room for more of an answer.
struct Full;

impl Whole {
    fn add(&mut self, data: &[u8]) -> Result<(), Full> {
        if self.bytes.len() + data.len() > self.most {
            return Err(Full);
        }
        self.room.grow(data.len() as u64, self.held_bytes).map_err(|_| Full)?;
        add(&mut self.bytes, data);
        Ok(())
    }

    /// All of a body, or of a failure its beginning, and whether there was more. No part may take longer than `idle`.
    async fn take(&mut self, mut body: Begun, idle: Duration) -> Result<Result<(), Full>, NoAnswer> {
        let late = |_| NoAnswer::Timeout(Some(idle));
        while let Some(frame) = timeout(idle, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|error| NoAnswer::Truncated(error.to_string()))?;
            if let Some(Err(full)) = frame.data_ref().map(|data| self.add(data)) {
                return Ok(Err(full));
            }
        }
        Ok(Ok(()))
    }
}

/// What is no success, or packed, with all of its body, of which it holds room until it is dropped. Of a failure that is too long
/// the beginning.
///
/// # Errors
/// There is no answer, or it cannot be read.
pub(crate) async fn read(
    sent: Result<Response<Begun>, NoAnswer>,
    bounds: &Bounds,
    [packed, unpacked]: [HeldBody; 2],
    (threads, client): (&Bodies, &BodiesOfClient),
) -> Result<Response<Bytes>, NoAnswer> {
    let (head, body) = sent?.into_parts();
    // None was asked for: nothing that follows is an answer.
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let why = "it changed the protocol without being asked".to_owned();
        return Err(NoAnswer::Malformed { why, maybe_tls: false });
    }
    let (is_failure, bytes) = (!is_none(head.status), Vec::new());
    let most = if is_failure { LARGEST_FAILURE } else { LARGEST_ANSWER };
    let held_bytes = bounds.held_bytes;
    let mut whole = Whole { bytes, room: packed, held_bytes, most };
    let all = whole.take(body, bounds.idle);
    // A success may take as long as one that goes on as it comes.
    let mut came = match is_failure {
        true => timeout(bounds.idle, all).await.map_err(|_| NoAnswer::Timeout(Some(bounds.idle)))??,
        false => all.await?,
    };
    let mut answer = Response::from_parts(head, ());
    if came.is_ok() && is_packed(answer.headers_mut())? {
        let members = std::mem::take(&mut whole.bytes);
        let body = Whole { bytes: Vec::new(), room: unpacked, held_bytes, most };
        let mut unpacking = Unpacking { members: MultiGzDecoder::new(Cursor::new(members)), body };
        // A few bytes may be a thousand times as many: the length shows while they come.
        let ended = match unpacking.go_on(LEAST_LARGE)? {
            Some(ended) => (Ok(ended), unpacking.body),
            None => {
                let rest = move || (unpacking.go_on(usize::MAX), unpacking.body);
                let (ended, body) = threads.read(client, usize::MAX, rest).await;
                (ended.map(|ended| ended.unwrap_or(Ok(()))), body)
            }
        };
        (came, whole) = (ended.0?, ended.1);
    }
    let Whole { bytes, room, .. } = whole;
    answer.extensions_mut().insert(Arc::new(room));
    match came {
        Ok(()) => {}
        Err(Full) if is_failure => drop(answer.extensions_mut().insert(Cut)),
        Err(Full) => return Err(NoAnswer::Undecodable("there is no room for so long an answer".to_owned())),
    }
    Ok(answer.map(|()| bytes.into()))
}

/// What goes to a client of an answer that was read.
pub(crate) fn for_client(mut answer: Response<Bytes>) -> Response<Bytes> {
    if answer.extensions_mut().remove::<Cut>().is_none() {
        return answer;
    }
    let message = format!(
        "the upstream answered {} with more than is held of a failure ({LARGEST_FAILURE} bytes, and what is free of the room for bodies), and \
         the gateway has left it out",
        answer.status()
    );
    let said = json!({ "error": { "message": message, "type": "upstream_error", "code": "too_long" } });
    answer.extensions_mut().remove::<Arc<HeldBody>>();
    answer.headers_mut().remove(CONTENT_LENGTH);
    answer.headers_mut().remove(CONTENT_ENCODING);
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.map(|_| said.to_string().into())
}

/// Whether what has that head is compressed, although that was not asked for: what it means and repeats must be read.
fn is_packed(headers: &mut HeaderMap) -> Result<bool, NoAnswer> {
    let is_gzip = match &codings(headers)[..] {
        [] => false,
        [one] if is_gzip(one) => true,
        others => {
            return Err(NoAnswer::Undecodable(format!("it is compressed as {others:?}, which was not asked for")));
        }
    };
    match is_gzip {
        true => without_coding(headers),
        false => drop(headers.remove(CONTENT_ENCODING)),
    }
    Ok(is_gzip)
}

/// A body that is unpacked, all of its members, as far as there is room.
struct Unpacking {
    members: MultiGzDecoder<Cursor<Vec<u8>>>,
    body: Whole,
}

impl Unpacking {
    /// How it ended; none once it has become longer than that.
    fn go_on(&mut self, until: usize) -> Result<Option<Result<(), Full>>, NoAnswer> {
        let mut piece = vec![0; PIECE];
        while self.body.bytes.len() <= until {
            match self.members.read(&mut piece).map_err(|error| NoAnswer::Undecodable(error.to_string()))? {
                0 => return Ok(Some(Ok(()))),
                read => {
                    if let Err(full) = self.body.add(&piece[..read]) {
                        return Ok(Some(Err(full)));
                    }
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    /// A serving thread unpacks no more than a little of an answer that is large.
    #[test]
    fn what_is_large_once_unpacked_stops_where_that_shows() {
        for (length, ends_at_once) in [(100, true), (LEAST_LARGE + 1, false), (8 << 20, false)] {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(&vec![b' '; length]).expect("memory");
            let members = MultiGzDecoder::new(Cursor::new(packed.finish().expect("memory")));
            let room = Bodies::default().begin(&BodiesOfClient::default());
            let body = Whole { bytes: Vec::new(), room, held_bytes: u64::MAX, most: LARGEST_ANSWER };
            let mut unpacking = Unpacking { members, body };
            let first = unpacking.go_on(LEAST_LARGE).expect("it is no damage");
            assert_eq!(first.is_some(), ends_at_once, "{length}");
            assert!(unpacking.body.bytes.len() <= LEAST_LARGE + PIECE);
            assert!(unpacking.go_on(usize::MAX).expect("it is no damage").is_some_and(|ended| ended.is_ok()));
            assert_eq!(unpacking.body.bytes.len(), length);
        }
    }
}
