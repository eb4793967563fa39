//! An answer on its way to a client: one that has begun, and is without the key of the upstream. A server that repeats what it
//! was sent would give that away.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use paceline_http::NoAnswer;
use paceline_providers::secrets::Secrets;

/// The body of an answer that has not broken off with its head.
pub(crate) struct Begun {
    /// What came of it with that.
    first: Option<Frame<Bytes>>,
    rest: Incoming,
}

/// An answer, once what came with its head is there.
///
/// # Errors
/// It broke off there: there is none.
pub(crate) fn begun(answer: Response<Incoming>) -> Result<Response<Begun>, NoAnswer> {
    let (head, mut rest) = answer.into_parts();
    let first = rest.frame().now_or_never().flatten().transpose();
    let first = first.map_err(|error| NoAnswer::Truncated(error.to_string()))?;
    Ok(Response::from_parts(head, Begun { first, rest }))
}

impl Body for Begun {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(Ok(first))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        longer(self.rest.size_hint(), self.first.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len))
    }
}

/// So many bytes come before what that is the hint of.
fn longer(mut hint: SizeHint, bytes: usize) -> SizeHint {
    if let Some(upper) = hint.upper() {
        hint.set_upper(upper + bytes as u64);
    }
    hint.set_lower(hint.lower() + bytes as u64);
    hint
}

/// The body of an answer. Its length stays, for it may be told already: a mark of the same length takes the place of the key.
pub(crate) struct Unechoed {
    body: Begun,
    secrets: Arc<Secrets>,
    /// The last bytes that came, where they may be the beginning of a key.
    begun: Bytes,
    /// What follows them.
    next: Option<Frame<Bytes>>,
}

impl Unechoed {
    pub(crate) const fn new(body: Begun, secrets: Arc<Secrets>) -> Self {
        Self { body, secrets, begun: Bytes::new(), next: None }
    }

    /// The part of it that goes on, now that these bytes have come.
    fn passed_on(&mut self, came: Bytes) -> Bytes {
        let came = if self.begun.is_empty() { came } else { [&*self.begun, &came].concat().into() };
        let is_last = self.body.is_end_stream();
        let mut part = self.secrets.masked_in(came, is_last);
        let begun = if is_last { 0 } else { self.secrets.begun_in(&part) };
        self.begun = part.split_off(part.len() - begun);
        part
    }
}

impl Body for Unechoed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        if let Some(next) = this.next.take() {
            return Poll::Ready(Some(Ok(next)));
        }
        loop {
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => break,
            };
            let mut trailers = match frame.into_data() {
                Ok(data) => match this.passed_on(data) {
                    part if part.is_empty() && !this.begun.is_empty() => continue,
                    part => return Poll::Ready(Some(Ok(Frame::data(part)))),
                },
                Err(trailers) => trailers,
            };
            trailers.trailers_mut().into_iter().for_each(|fields| this.secrets.remove_from_headers(fields));
            this.next = Some(trailers);
            break;
        }
        // Its rest has not come: the key is cut off.
        let begun = this.secrets.masked_in(std::mem::take(&mut this.begun), true);
        let last = if begun.is_empty() { this.next.take() } else { Some(Frame::data(begun)) };
        Poll::Ready(last.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.next.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        longer(self.body.size_hint(), self.begun.len())
    }
}
