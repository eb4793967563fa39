//! How a gateway ends: what is in flight is answered, what is held waits a little longer and is then told to come back.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;

use crate::refusal::Refusal;

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

fn closing(upstream: &str) -> Refusal {
    let message =
        format!("the gateway ends while the request waits for its turn at the upstream {upstream}; send it again");
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "closing", message).after(COME_BACK)
}
