//! An item that is tried again: a line of its own with `-v`, and now and then one that counts them all.

use std::time::Duration;

use paceline_core::{Class, Instant};
use paceline_store::work::{DecisionRecord, WorkItem};

use super::Progress;
use crate::progress::resends::Resends;
use crate::text;

/// A shorter wait is none to tell of.
const A_MOMENT: Duration = Duration::from_secs(1);

impl Progress {
    /// The same where items are worked on by a command.
    pub(in crate::tasks::run) fn of_commands(self, are_commands: bool) -> Self {
        if are_commands {
            let mut figures = self.figures();
            figures.resends = Resends::of_commands();
            figures.failures.are_of_commands();
            drop(figures);
        }
        self
    }

    /// Tells of all that are tried again, when it is time for that, or at the end.
    pub(super) fn tell_retried(&self, now: Instant, at_the_end: bool) {
        let mut figures = self.figures();
        let line = if at_the_end { figures.resends.last_line() } else { figures.resends.line(now) };
        drop(figures);
        if let Some(line) = line {
            tracing::warn!("{line}");
        }
    }

    /// The line of one that is tried again.
    pub(super) fn log_retry(
        &self,
        item: &WorkItem,
        decided: &DecisionRecord,
        wait: Duration,
        status: Option<u16>,
        cause: &str,
    ) {
        let class = decided.failure.class;
        let line = match decided.failure.probe {
            Some(_) => "(a test call to the failing server, which does not count as a try)".to_owned(),
            None if decided.failure.unsent => "(no server took the call, so it does not count as a try)".to_owned(),
            None => self.attempt(item, class),
        };
        // What keeps it back is a pause of its host or group, whose end the limiter knows.
        let next = match class {
            Class::Throttled | Class::QuotaExhausted if wait < A_MOMENT => match decided.failure.retry_after {
                Some(_) => "when the pause is over".to_owned(),
                None => "as soon as the limiter has learnt a rate".to_owned(),
            },
            _ => format!("in {}", text::duration(wait)),
        };
        tracing::debug!(
            item = item.key,
            class = class.as_str(),
            status,
            code = decided.failure.code.as_deref(),
            cause,
            not_before = (self.0.clock.wall() + wait).to_string(),
            "{} {line}, next try {next}",
            class.description()
        );
    }

    /// `(try 1 of at most 4)`: tries of that kind so far, of those that the bounds allow.
    fn attempt(&self, item: &WorkItem, class: Class) -> String {
        let deferred = matches!(class, Class::Throttled | Class::QuotaExhausted | Class::Partial | Class::Account);
        let (before, bound) = if deferred {
            (item.deferrals.saturating_sub(item.forgiven.deferrals), self.0.max_deferrals)
        } else {
            (item.attempts.saturating_sub(item.forgiven.attempts), Some(self.0.max_retries))
        };
        let of = bound.map_or_else(String::new, |bound| format!(" of at most {}", bound.saturating_add(1)));
        format!("(try {}{of})", before + 1)
    }
}
