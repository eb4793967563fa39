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

use crate::bounds::Still;
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
    still: Still,
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
        known.push(Known { flow: Arc::downgrade(&flow), asked: None, still: Still::default() });
        Watched(flow)
    }

    /// Drops each answer of which nothing was taken for so long, for as long as it is polled.
    pub(crate) async fn watch(&self, longest: Duration) {
        loop {
            sleep(Still::next_look(longest)).await;
            lock(&self.0).retain_mut(|known| {
                let Some(flow) = known.flow.upgrade() else { return false };
                let mut flow = lock(&flow);
                let Some(Flow { unread, asked, .. }) = *flow else { return false };
                let is_stuck = known.still.stands(known.asked.replace(asked) == Some(asked) && unread);
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

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::timeout;

    use super::*;
    use crate::forward::whole_body;

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_dropped_an_eighth_after_its_bound_at_the_latest() {
        let (answers, unread, second) = (Answers::default(), Duration::from_secs(120), Duration::from_secs(1));
        let mut read = answers.begin(whole_body("read"), UnderWay::default());
        let mut stuck = answers.begin(whole_body("stuck"), UnderWay::default());
        let mut watch = std::pin::pin!(answers.watch(unread));
        for _ in 0..120 {
            assert!(timeout(second, watch.as_mut()).await.is_err(), "it goes on");
            drop(poll_fn(|context| Pin::new(&mut read).poll_frame(context)).await);
        }
        let is_there = |answer: &Watched| lock(&answer.0).is_some();
        assert!(is_there(&read) && is_there(&stuck));
        assert!(timeout(17 * second, watch).await.is_err(), "it goes on");
        assert!(is_there(&read) && !is_there(&stuck));
        let frame = poll_fn(|context| Pin::new(&mut stuck).poll_frame(context)).await;
        assert!(frame.is_some_and(|frame| frame.is_err()), "its client is told");
    }
}
