//! Graceful shutdown of a run: it runs, it drains (items in flight may end), it aborts them.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use paceline_store::work::WorkStore;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::signals::SignalCount;
use crate::stops::stop::StopReason;

/// How long items in flight may take when a run has to end; the same as in `paceline run`.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// How long a second signal leaves a run to end in order, whose store is a database that may not answer.
const HURRY: Duration = Duration::from_secs(5);

/// Waits for the second signal, and for so long then. The store is told of the first.
pub(super) async fn hurried(signals: &SignalCount, store: &dyn WorkStore) {
    signals.first().await;
    store.ending();
    signals.second().await;
    tokio::time::sleep(HURRY).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    Draining,
    Aborting,
}

/// The shutdown of one run. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Shutdown {
    phase: watch::Sender<Phase>,
    /// The first reason to stop, where there was one beside a signal.
    reason: Arc<OnceLock<StopReason>>,
    signals: SignalCount,
}

impl Shutdown {
    /// The shutdown of a run that begins now. Dropping the guard ends the task that listens for signals.
    pub(super) fn begin(signals: SignalCount) -> (Self, ShutdownGuard) {
        let shutdown = Self { phase: watch::Sender::new(Phase::Running), reason: Arc::default(), signals };
        let watcher = shutdown.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = watcher.signals.first() => watcher.begin_drain(),
                () = watcher.reaches(Phase::Draining) => {}
            }
            tokio::select! {
                () = watcher.signals.second() => {}
                () = tokio::time::sleep(GRACE) => {}
            }
            watcher.advance_to(Phase::Aborting);
        });
        (shutdown, ShutdownGuard(task))
    }

    /// No item begins any more, for that reason, which the log is told once.
    pub(super) fn stop(&self, reason: StopReason) {
        self.reason.get_or_init(|| {
            reason.announce(None);
            reason
        });
        self.begin_drain();
    }

    /// Why the run was stopped.
    pub(super) fn reason(&self) -> Option<&StopReason> {
        self.reason.get()
    }

    /// No item begins any more.
    pub(super) fn begin_drain(&self) {
        self.advance_to(Phase::Draining);
    }

    /// Waits until no item is to begin any more.
    pub(super) async fn draining(&self) {
        self.reaches(Phase::Draining).await;
    }

    /// Waits until items in flight are to be aborted.
    pub(super) async fn aborting(&self) {
        self.reaches(Phase::Aborting).await;
    }

    fn advance_to(&self, phase: Phase) {
        self.phase.send_modify(|now| *now = phase.max(*now));
    }

    async fn reaches(&self, phase: Phase) {
        // This sender outlives the wait.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}

/// Ends the task that listens for signals when it is dropped.
#[derive(Debug)]
pub(super) struct ShutdownGuard(JoinHandle<()>);

impl Drop for ShutdownGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}
