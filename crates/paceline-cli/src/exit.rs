//! The result of a command: one status, one exit code.

use std::fmt;
use std::process::ExitCode;

/// The end of a command that did what it was asked. Bad usage, configuration or input is a [`Failure`] instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Everything succeeded: exit 0.
    Success,
    /// Finished, some items failed or were skipped: exit 1.
    Partial,
    /// Finished, every item failed or was skipped: exit 1.
    Failed,
    /// Stopped early, or items were put off; the same command goes on: exit 3. It wins over 1.
    Deferred,
    /// Signals ended it in the middle, the last of which has this number: exit 128 and that number, as where it kills.
    Killed(u8),
}

impl Status {
    /// That of a job: whether there is something to do, how many items ended otherwise than by success, and how many have a
    /// result.
    pub(crate) const fn of(is_left: bool, otherwise: u64, results: u64) -> Self {
        match (is_left, otherwise, results) {
            (true, ..) => Self::Deferred,
            (false, 0, _) => Self::Success,
            (false, _, 0) => Self::Failed,
            (false, ..) => Self::Partial,
        }
    }

    /// The name that is printed and written for this status.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Partial => "PARTIAL",
            Self::Failed => "FAILED",
            Self::Deferred => "DEFERRED",
            Self::Killed(_) => "KILLED",
        }
    }

    /// Whether `-q` hides the summary of a job that ends so: not where something failed or is left, but for a bound that the user
    /// set on the run.
    pub(crate) const fn is_hidden(self, bounded: bool) -> bool {
        bounded || matches!(self, Self::Success)
    }

    /// The exit code of the process.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Partial | Self::Failed => 1,
            Self::Deferred => 3,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.code())
    }
}

/// Why a command could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Usage, configuration or input is wrong and nothing was sent: exit 2.
    #[error("{0}")]
    Refused(String),
    /// Something broke under way (a full disk, a lost journal); what was acknowledged is safe: exit 3.
    #[error("{0}")]
    Interrupted(String),
    /// The journal or the results of a job are gone: exit 3. No run can go on without them.
    #[error("{0}")]
    Lost(String),
    /// A job is done, and what tells so could not be written: exit 3, for the same command does that alone.
    #[error("{0}")]
    Unsaid(String),
    /// The disk was full before anything was sent: exit 3.
    #[error("{0}; free some space, then run the same command again")]
    DiskFull(String),
}

impl Failure {
    /// Nothing was sent, because of `error`.
    pub(crate) fn refused(error: impl fmt::Display) -> Self {
        Self::Refused(error.to_string())
    }

    /// The work stopped in the middle, because of `error`.
    pub(crate) fn interrupted(error: impl fmt::Display) -> Self {
        Self::Interrupted(error.to_string())
    }

    /// The same, with what to do when a job broke in the middle.
    pub(crate) fn resumable(self) -> Self {
        match self {
            Self::Interrupted(message) => Self::Interrupted(format!(
                "{message}; the results so far are kept: fix the cause, then run the same command again"
            )),
            other => other,
        }
    }

    /// The exit code of the process.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 2,
            Self::Interrupted(_) | Self::Lost(_) | Self::Unsaid(_) | Self::DiskFull(_) => 3,
        }
    }
}
