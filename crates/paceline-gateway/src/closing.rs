//! How a gateway ends: what is in flight is answered, what is held waits a little longer and is then told to come back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;

use crate::refusal::Refusal;
use crate::server::Gateway;

/// A client comes back after so long: to its successor, or to another gateway.
const COME_BACK: Duration = Duration::from_secs(1);

/// How far the end of a gateway has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It serves.
    #[default]
    Serves,
    /// It accepts no connection any more; requests that are held go on waiting.
    Drains,
    /// Requests that are held are refused.
    Closes,
}

/// The phase of a gateway, which only goes on.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    phase: watch::Sender<Phase>,
}

impl Closing {
    /// The present phase.
    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Goes on to that phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|now| phase > std::mem::replace(now, phase.max(*now)));
    }

    /// Returns once that phase has begun.
    pub(crate) async fn reaches(&self, phase: Phase) {
        let reached = self.phase.subscribe().wait_for(|now| *now >= phase).await.is_ok();
        debug_assert!(reached, "the sender lives as long as self");
    }

    /// A wait of a request, which a gateway that closes ends.
    pub(crate) async fn bounds<T, E: From<Refusal>>(
        &self,
        upstream: &str,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        tokio::select! {
            biased;
            ended = wait => ended,
            () = self.reaches(Phase::Closes) => Err(closing(upstream).into()),
        }
    }
}

impl Gateway {
    /// Whether an end at once cuts something off: a request of a client, or a call, which may be one of a batch.
    pub fn is_at_work(&self) -> bool {
        let upstreams = self.upstreams();
        let mut calls = upstreams.iter().map(|upstream| upstream.limiter().snapshot().account.concurrency.in_flight);
        self.under_way.load(Ordering::Relaxed) > 0 || calls.any(|in_flight| in_flight > 0)
    }

    /// The time for what is in flight is over: tells how many requests are cut off, and returns that.
    pub(crate) fn cuts_off(&self) -> u64 {
        let (requests, longest) = (self.under_way.load(Ordering::Relaxed), self.bounds.drain);
        if requests > 0 {
            tracing::warn!("requests that were cut off: {requests}, whose answers took longer than {longest:?}");
        } else {
            tracing::info!("connections without a request are closed, which had not ended after {longest:?}");
        }
        requests
    }

    /// Tells how many calls are in flight and how many requests wait.
    pub(crate) fn tell_what_is_left(&self) {
        let (mut in_flight, mut waiting) = (0, 0);
        for upstream in self.upstreams().iter() {
            let account = upstream.limiter().snapshot().account;
            in_flight += account.concurrency.in_flight;
            waiting += account.waiting + upstream.notes().spending.held().iter().map(|(_, held)| held).sum::<u64>();
        }
        if in_flight > 0 || waiting > 0 {
            tracing::info!(
                "the gateway ends: calls in flight: {in_flight}, which are answered for up to {:?}; requests that wait: {waiting}, \
                 which are refused after {:?}",
                self.bounds.drain,
                self.bounds.drain_held
            );
        } else {
            tracing::info!("the gateway ends: no call is in flight, and none waits");
        }
    }
}

fn closing(upstream: &str) -> Refusal {
    let message =
        format!("the gateway ends while the request waits for its turn at the upstream {upstream}; send it again");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closing", message).after(COME_BACK)
}
