//! How a job is opened.

use paceline_core::Timestamp;

use crate::merge::AllowedChanges;
use crate::paths::{InputFingerprint, Paths};

/// The options of [`Journal::open`](crate::Journal::open).
#[derive(Clone, Debug)]
pub struct Options {
    /// The files of the job.
    pub paths: Paths,
    /// The input as it is now.
    pub input: InputFingerprint,
    /// The effective configuration as JSON, without keys, that a new job begins with. A resumed job keeps its own
    /// until [`Journal::set_config`](crate::Journal::set_config). Default `{}`.
    pub config_json: String,
    /// The id of a new job, of which its idempotency keys are made: letters and digits. None makes one that no other job has.
    pub id: Option<String>,
    /// The wall clock.
    pub now: Timestamp,
    /// Begin anew whatever is there: results, errors, report and journal are removed once the new input was taken. Default
    /// false.
    pub overwrite: bool,
    /// Go on with an input that is not the one the job began with; see
    /// [`Opened::Changed`](crate::Opened::Changed). Default false.
    pub accept_changed: bool,
    /// Go on with an input in which the lines of failed items changed: they stay failed until
    /// [`Journal::retry_failed`](crate::Journal::retry_failed), which sends them as they are now. Without `accept_changed`
    /// nothing else may have changed. Default false.
    pub repair_failed: bool,
    /// The run sends no call before it is [noted](crate::Journal::leaves), so that a kill loses no note; see
    /// [`JobCounts::calls_lost`](crate::JobCounts::calls_lost). Default false.
    pub awaits_notes: bool,
}

impl Options {
    /// Options with an empty configuration.
    pub fn new(paths: Paths, input: InputFingerprint, now: Timestamp) -> Self {
        let config_json = "{}".to_owned();
        Self {
            paths,
            input,
            config_json,
            id: None,
            now,
            overwrite: false,
            accept_changed: false,
            repair_failed: false,
            awaits_notes: false,
        }
    }

    /// What may have changed in the input.
    pub(crate) const fn may_change(&self) -> AllowedChanges {
        AllowedChanges::of(self.accept_changed, self.repair_failed)
    }
}
