//! Answers whose clients are to take them: one of which nothing is taken holds no place.
//!
//! A connection asks for more only once its client has taken what there was, and by HTTP/2 not even for the first byte before the
//! client has room for it. So an answer that is not read is never asked for, and a watch over the connection drops it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::sleep;

use crate::connection::UnderWay;
use crate::forward::AnswerBody;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The answers of one connection.
#[derive(Clone, Default)]
pub(crate) struct Answers(Arc<Mutex<Vec<Known>>>);

struct Known {
    flow: Weak<Mutex<Option<Flow>>>,
    /// How often more of it was asked for when it was looked at last.
    asked: Option<u64>,
}

/// An answer under the watch of its connection.
pub(crate) struct Watched(Arc<Mutex<Option<Flow>>>);

struct Flow {
    body: AnswerBody,
    /// What comes next waits for the client to take it.
    unread: bool,
    /// How often more was asked for.
    asked: u64,
    _under_way: UnderWay,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers {
    pub(crate) fn begin(&self, body: AnswerBody, under_way: UnderWay) -> Watched {
        let flow = Arc::new(Mutex::new(Some(Flow { body, unread: true, asked: 0, _under_way: under_way })));
        let mut known = lock(&self.0);
        // By HTTP/1 there is one at a time.
        if known.len() == known.capacity() {
            known.retain(|known| known.flow.strong_count() > 0);
        }
        known.push(Known { flow: Arc::downgrade(&flow), asked: None });
        Watched(flow)
    }

    /// Drops each answer of which nothing was taken for once to twice so long, for as long as it is polled.
    pub(crate) async fn watch(&self, longest: Duration) {
        loop {
            sleep(longest).await;
            lock(&self.0).retain_mut(|known| {
                let Some(flow) = known.flow.upgrade() else { return false };
                let mut flow = lock(&flow);
                let Some(Flow { unread, asked, .. }) = *flow else { return false };
                let is_stuck = unread && known.asked.replace(asked) == Some(asked);
                if is_stuck {
                    tracing::info!("an answer was dropped: its client took nothing of it for {longest:?}");
                    *flow = None;
                }
                !is_stuck
            });
        }
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *lock(&self.0) {
            Some(flow) => {
                let polled = Pin::new(&mut flow.body).poll_frame(context);
                (flow.asked, flow.unread) = (flow.asked + 1, polled.is_ready());
                polled
            }
            None => Poll::Ready(Some(Err("the client took nothing of the answer for too long".into()))),
        }
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).as_ref().is_some_and(|flow| flow.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).as_ref().map_or_else(SizeHint::default, |flow| flow.body.size_hint())
    }
}
