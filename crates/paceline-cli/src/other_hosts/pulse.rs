//! The sign of life of a host, and the calls that it is about to make: short statements on a connection of their own, so that no
//! result and no claim goes before them.

use std::sync::Arc;
use std::time::Duration;

use paceline::Clock;
use paceline_store::blocks::{BlockStore, HostId};
use paceline_store::work::WorkError;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::other_hosts::others::Others;

/// How long the blocks of a host stay its own after its last word. A machine that is busy, or a database that is slow, is late
/// by some seconds and not by so many; the others wait for so long for the lines of a host that was killed.
pub(crate) const LEASE: Duration = Duration::from_secs(45);

/// How often a host gives word.
pub(crate) const BEAT: Duration = Duration::from_secs(5);

/// No call leaves later than so long before the lease ends.
pub(crate) const SAFETY: Duration = Duration::from_secs(1);

/// Between two words, where the first had no answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Gives word until it is dropped.
pub(crate) struct Pulse(JoinHandle<()>);

impl Drop for Pulse {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pulse {
    /// Begins with the first word.
    pub(crate) fn begin(store: Arc<BlockStore>, job: i64, host: watch::Receiver<HostId>, others: Arc<Others>) -> Self {
        let clock = Clock::new();
        Self(tokio::spawn(async move {
            let mut beat_at = clock.now();
            loop {
                let is_due = beat_at <= clock.now();
                let host = *host.borrow();
                let pause = match word(&store, job, host, &others, is_due).await {
                    Ok(true) => {
                        beat_at = if is_due { clock.now() + BEAT } else { beat_at };
                        beat_at.saturating_since(clock.now())
                    }
                    Ok(false) => {
                        others.question();
                        AGAIN
                    }
                    Err(error) => {
                        tracing::debug!("the store has not answered a sign of life: {error}");
                        others.unheard();
                        beat_at = clock.now();
                        AGAIN
                    }
                };
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = others.spoken(), if pause != AGAIN => {}
                }
            }
        }))
    }
}

/// Tells of calls that are about to leave, and that the host lives where that is due. Returns whether all is this host's that it
/// takes for its own.
async fn word(store: &BlockStore, job: i64, host: HostId, others: &Others, is_due: bool) -> Result<bool, WorkError> {
    let asked = others.now();
    if let Some(spoken) = others.speak() {
        let may_leave = store.depart(job, host, &spoken.departures).await?;
        if !spoken.answered(&may_leave) {
            return Ok(false);
        }
    }
    if is_due {
        if !store.lives(host).await? {
            return Ok(false);
        }
        others.renewed_until(asked + (LEASE - SAFETY));
    }
    Ok(true)
}
