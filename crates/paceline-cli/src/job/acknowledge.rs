//! The journal answers on its own thread; of its answers only a failure matters to a run.

use paceline_store::JournalError;
use tokio::sync::mpsc;

/// Receives what the journal acknowledges; only failures matter.
#[derive(Clone, Debug)]
pub(crate) struct Acknowledge(mpsc::UnboundedSender<JournalError>);

impl Acknowledge {
    /// Sends every failure of the journal to `broken`.
    pub(crate) const fn new(broken: mpsc::UnboundedSender<JournalError>) -> Self {
        Self(broken)
    }

    /// For one call of the journal.
    pub(crate) fn reply<T>(&self) -> impl FnOnce(Result<T, JournalError>) + Send + 'static + use<T> {
        let broken = self.0.clone();
        move |result| {
            // A full disk is known to the run, which decides how long to wait for room.
            if let Err(error) = result
                && !matches!(error, JournalError::DiskFull(_))
            {
                // Only the first failure is read; after it the run is over and the receiver is gone.
                let _ = broken.send(error);
            }
        }
    }
}
