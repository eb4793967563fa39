//! Informational answers (1xx): a server may send some before the answer of a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use http::Request;
use hyper::ext::on_informational;
use paceline_http::NoAnswer;
use tokio::sync::Notify;
use tokio::task::coop::poll_proceed;

/// So many are read for one call. A server that sends one a second, so that its client waits on, sends fewer.
const MOST: u32 = 1_000;

/// Counts those of one call.
#[derive(Default)]
pub(crate) struct Informational {
    count: AtomicU32,
    too_many: Notify,
}

impl Informational {
    /// Counts those that come for that request, by HTTP/1.
    pub(crate) fn count<Body>(self: &Arc<Self>, request: &mut Request<Body>) {
        let counts = Arc::clone(self);
        on_informational(request, move |_| counts.came());
    }

    fn came(&self) {
        // A connection reads on while it finds some: each is a step of its task, and after some steps others have their turn.
        if let Poll::Ready(step) = poll_proceed(&mut Context::from_waker(Waker::noop())) {
            step.made_progress();
        }
        if self.count.fetch_add(1, Ordering::Relaxed) == MOST {
            self.too_many.notify_one();
        }
    }

    /// What a call ends with: where too many come, it is given up, and its connection is closed.
    pub(crate) async fn bound<T>(&self, call: impl Future<Output = Result<T, NoAnswer>>) -> Result<T, NoAnswer> {
        tokio::select! {
            biased;
            ended = call => ended,
            () = self.too_many.notified() => Err(NoAnswer::Informational(MOST)),
        }
    }
}
