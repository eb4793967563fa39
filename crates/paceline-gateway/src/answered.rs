//! What goes to a client: an answer as it comes, the last one of several, or that there is none.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::response::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Either};
use hyper::ext::ReasonPhrase;
use paceline::{Class, clock};
use paceline_http::{NoAnswer, gateway};

use crate::bodies::HeldBody;
use crate::bounds::Bounds;
use crate::departed::Departed;
use crate::echo::Begun;
use crate::forward::{AnswerBody, whole_body};
use crate::headers;
use crate::notes::Kind;
use crate::refusal::Refusal;
use crate::tap::Tap;

/// A success that is compressed, which was not asked for, and cannot be unpacked: the server did its work and is not asked again,
/// and what might repeat its key goes to no client.
pub(crate) fn unreadable(mut departed: Departed, head: Response<Bytes>, error: &NoAnswer) -> (Class, Refusal) {
    let upstream = Arc::clone(&departed.upstream);
    let length: Option<u64> = head.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    departed.unread = length.unwrap_or_default().max(1);
    let class = departed.ends(&Ok(head)).0;
    let why = format!(
        "a success came compressed, which was not asked for, and cannot be searched for the upstream's key: {error}"
    );
    if upstream.may_tell(Kind::Unreadable) {
        tracing::warn!(upstream = upstream.name(), "{why}");
    }
    (class, Refusal::new(StatusCode::BAD_GATEWAY, "unreadable", format!("upstream {}: {why}", upstream.name())))
}

pub(crate) fn broken(message: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_GATEWAY, "no_answer", message)
}

/// The answer goes to the client as it comes; what it means is known at its end.
pub(crate) fn passed_on(departed: Departed, answer: Response<Begun>, bounds: &Bounds) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    // The end of an answer of a known length, which reads its head too, is about to come.
    if !head.headers.contains_key(CONTENT_LENGTH) {
        let mut limits = departed.upstream.sending.dialect.announced(&head.headers, clock::wall());
        departed.leave_out_announced(&mut limits);
        departed.permit.observe_limits(&limits);
    }
    let read = head.clone();
    departed.upstream.secrets().remove_from_headers(&mut head.headers);
    to_client(&mut head);
    let tap = Tap::new(departed, read, body, bounds.idle);
    Response::from_parts(head, Either::Right(tap))
}

fn whole(answer: Response<Bytes>) -> Response<AnswerBody> {
    let (mut head, body) = answer.into_parts();
    to_client(&mut head);
    let body = match head.extensions.remove::<Arc<HeldBody>>() {
        Some(room) if body.len() > PIECE => Either::Left(Pieces { rest: body, _room: room }.boxed_unsync()),
        _ => whole_body(body),
    };
    Response::from_parts(head, body)
}

/// So much of a long answer goes to its client at once: what the connection holds of it is a copy, ...
const PIECE: usize = 64 << 10;

/// ... so that the rest is held here, in its room, until it is taken.
struct Pieces {
    rest: Bytes,
    _room: Arc<HeldBody>,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

/// What belonged to the connection or the name of the upstream does not go to the client.
fn to_client(head: &mut Parts) {
    // An upstream's own would say something of calls that this gateway has not made.
    headers::remove_those_of_connection(&mut head.headers, headers::is_of_the_origin);
    headers::leave_out_logins(&mut head.headers);
    // `2, 2` is one length for the client of the gateway, and none for strict ones of others.
    let length = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.split(',').next());
    let length: Option<u64> = length.and_then(|length| length.trim().parse().ok());
    length.into_iter().for_each(|length| drop(head.headers.insert(CONTENT_LENGTH, length.into())));
    // Words that the server chose may be the key that it was sent.
    head.extensions.remove::<ReasonPhrase>();
    head.version = Version::default();
}

/// The last answer. A client that would send its request again would only repeat what was done here; one that counts its
/// retries is told how many were spent.
pub(crate) fn ended(
    class: Class,
    answer: Result<Response<Bytes>, NoAnswer>,
    retries: u32,
) -> Result<Response<AnswerBody>, Refusal> {
    match answer {
        Ok(answer) => {
            let mut answer = whole(answer);
            if class != Class::Success && !class.is_final() {
                answer.headers_mut().insert(gateway::RETRIES, retries.into());
            }
            if matches!(class, Class::Transient | Class::Overloaded) {
                stop_retries(answer.headers_mut());
            }
            Ok(answer)
        }
        Err(error) => {
            let status = match error {
                NoAnswer::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
                _ => StatusCode::BAD_GATEWAY,
            };
            let code = if error.is_unsent() { "no_connection" } else { "no_answer" };
            Err(Refusal::new(status, code, format!("the upstream gave no answer: {error}")).retried(retries))
        }
    }
}

fn stop_retries(headers: &mut HeaderMap) {
    headers.insert("x-should-retry", HeaderValue::from_static("false"));
}
