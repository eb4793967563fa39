//! What the log says of groups that are held, stopped and open again.

use paceline::Limiter;
use paceline_core::ScopeState;
use paceline_store::{ScopeRow, ScopeStatus};

use super::Progress;
use crate::text;

impl Progress {
    /// The same with the limiter of the run.
    pub(in crate::tasks::run) fn limited_by(self, limiter: &Limiter) -> Self {
        self.figures().limiter = Some(limiter.clone());
        self
    }

    pub(super) fn tell_group(&self, row: &ScopeRow) {
        let group = &*row.name;
        match &row.state {
            ScopeStatus::Held { until, reason } => {
                let (until, reason) = (text::end(*until), text::printable(reason));
                tracing::warn!(group, "the group is held until {until}: {reason}");
            }
            ScopeStatus::Stopped { reason } if self.is_told(reason) => {
                tracing::debug!(group, "the group is stopped for the same cause as another");
            }
            ScopeStatus::Stopped { reason } if self.is_of_account(reason) => {
                tracing::error!("all groups are stopped, and their items wait: {}", text::printable(reason));
            }
            ScopeStatus::Stopped { reason } => {
                tracing::error!(group, "the group is stopped, and its items wait: {}", text::printable(reason));
            }
            ScopeStatus::Open => {
                // What stops it next is told again.
                self.figures().causes.clear();
                tracing::info!(group, "the group is open again");
            }
        }
    }

    /// Whether the log has this cause of a stop: a refused key stops every group for the same one.
    fn is_told(&self, reason: &str) -> bool {
        !self.figures().causes.insert(reason.to_owned())
    }

    /// Whether that stops the whole account, as a refused key does: the group that is told first need not be that of the answer.
    fn is_of_account(&self, reason: &str) -> bool {
        let limiter = self.figures().limiter.clone();
        let state = limiter.map(|limiter| limiter.account_state());
        matches!(state, Some(ScopeState::Stopped { reason: of_account }) if *of_account == *reason)
    }
}
