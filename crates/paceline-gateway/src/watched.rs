//! An answer whose client is to take it: one that takes nothing holds no place.
//!
//! A connection asks for more only once its client has taken what there was. So the rest of an answer that is not read
//! is never asked for, and a watch drops it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::record::Record;
use crate::tap::{Tap, TapError};

/// An answer under a watch.
pub(crate) struct Watched {
    flow: Shared,
    /// From the first frame of an answer that has more.
    watch: Option<AbortHandle>,
    longest: Duration,
}

type Shared = Arc<Mutex<Option<Flow>>>;

struct Flow {
    tap: Tap,
    /// What came last waits for the client to take it.
    unread: bool,
    /// How often more was asked for.
    asked: u64,
}

impl Watched {
    /// An answer of which the client may take nothing for `longest`.
    pub(crate) fn new(tap: Tap, longest: Duration) -> Self {
        Self { flow: Arc::new(Mutex::new(Some(Flow { tap, unread: false, asked: 0 }))), watch: None, longest }
    }

    /// The request that it answers, which ends with it.
    pub(crate) fn tells(&mut self, record: Record) {
        if let Some(flow) = lock(&self.flow).as_mut() {
            flow.tap.tells(record);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watch.iter().for_each(AbortHandle::abort);
    }
}

fn lock(flow: &Mutex<Option<Flow>>) -> MutexGuard<'_, Option<Flow>> {
    flow.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops an answer of which nothing was taken for once to twice so long. One that has come whole holds no place.
async fn watch(flow: Weak<Mutex<Option<Flow>>>, longest: Duration) {
    let mut before = None;
    loop {
        sleep(longest).await;
        let Some(flow) = flow.upgrade() else { return };
        let mut flow = lock(&flow);
        let Some(Flow { unread, asked, .. }) = flow.as_ref().filter(|flow| !flow.tap.has_ended()) else { return };
        if *unread && before == Some(*asked) {
            tracing::info!("a call was cancelled: its client took nothing of the answer for {longest:?}");
            *flow = None;
            return;
        }
        before = Some(*asked);
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = TapError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, TapError>>> {
        let (polled, goes_on) = match lock(&self.flow).as_mut() {
            Some(flow) => {
                let polled = Pin::new(&mut flow.tap).poll_frame(context);
                (flow.asked, flow.unread) = (flow.asked + 1, polled.is_ready());
                let goes_on = flow.unread && !flow.tap.has_ended();
                (polled, goes_on)
            }
            None => return Poll::Ready(Some(Err(TapError::Unread(self.longest)))),
        };
        // Most answers have ended with their first frame.
        if goes_on && self.watch.is_none() {
            let watch = tokio::spawn(watch(Arc::downgrade(&self.flow), self.longest));
            self.watch = Some(watch.abort_handle());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.flow).as_ref().is_some_and(|flow| flow.tap.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.flow).as_ref().map_or_else(SizeHint::default, |flow| flow.tap.size_hint())
    }
}
