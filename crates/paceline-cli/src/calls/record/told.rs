//! What the log is told of calls that failed: those that are sent again are counted, and so are items that failed after the first
//! few of their kind.

use paceline::Instant;

use super::Recorder;
use crate::stops::fail_fast::Failed;
use crate::text;

impl Recorder {
    /// Tells of the calls that are sent again, and of the items that failed without a line, when it is time for that.
    pub(crate) fn tell_failures(&mut self, now: Instant) {
        if let Some(line) = self.failures.line(now) {
            tracing::error!("{line}");
        }
        if let Some(line) = self.resends.line(now) {
            tracing::warn!("{line}");
        }
    }

    /// Tells of those that no line has told of, at the end.
    pub(crate) fn tell_last_failures(&mut self) {
        if let Some(line) = self.failures.last_line() {
            tracing::error!("{line}");
        }
        if let Some(line) = self.resends.last_line() {
            tracing::warn!("{line}");
        }
    }

    /// The line of an item that failed.
    pub(super) fn tell_failure(&mut self, failed: &Failed) {
        let Failed { finished, item, scope, class, status, code, message, .. } = failed;
        let (reason, message, scope) = (finished.reason.as_deref(), text::printable(message), &**scope);
        let (class_name, code) = (class.as_str(), code.as_deref());
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(scope, item, class = class_name, status, code, reason, "item failed: {message}")
            };
        }
        match &self.guest {
            // A matter of its client, which has the file of errors.
            Some(guest) if guest.may_tell_failure() => tell!(warn),
            Some(_) => {}
            None if self.failures.add(*class, *status, &message) => tell!(error),
            None => tell!(debug),
        }
    }
}
