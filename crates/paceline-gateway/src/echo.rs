//! An answer on its way to a client, without the key of the upstream: a server that repeats what it was sent would give it away.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use paceline_providers::secrets::Secrets;

/// The body of an answer. Its length stays, for it may be told already: a mark of the same length takes the place of the key.
pub(crate) struct Unechoed {
    body: Incoming,
    secrets: Arc<Secrets>,
    /// The last bytes that came, where they may be the beginning of a key.
    begun: Bytes,
    /// What follows them.
    next: Option<Frame<Bytes>>,
}

impl Unechoed {
    pub(crate) const fn new(body: Incoming, secrets: Arc<Secrets>) -> Self {
        Self { body, secrets, begun: Bytes::new(), next: None }
    }

    /// The part of it that goes on, now that these bytes have come.
    fn passed_on(&mut self, came: Bytes) -> Bytes {
        let came = if self.begun.is_empty() { came } else { [&*self.begun, &came].concat().into() };
        let mut part = self.secrets.masked_in(came);
        let begun = if self.body.is_end_stream() { 0 } else { self.secrets.begun_in(&part) };
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
        let begun = std::mem::take(&mut this.begun);
        let last = if begun.is_empty() { this.next.take() } else { Some(Frame::data(begun)) };
        Poll::Ready(last.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.begun.is_empty() && self.next.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, begun) = (self.body.size_hint(), self.begun.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + begun);
        }
        hint.set_lower(hint.lower() + begun);
        hint
    }
}
