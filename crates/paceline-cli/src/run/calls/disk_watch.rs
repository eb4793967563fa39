//! How long a run waits for a full disk.

use std::time::Duration;

use paceline_core::Instant;
use paceline_store::DiskFull;

use super::stop::StopReason;
use crate::text;

/// What is known of the disk of a run's answers. While it is full nothing new starts, and answers that arrive wait in memory.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    /// None where the run waits for as long as it takes.
    max_wait: Option<Duration>,
    full_since: Option<Instant>,
}

impl DiskWatch {
    pub(crate) const fn new(max_wait: Option<Duration>) -> Self {
        Self { max_wait, full_since: None }
    }

    /// Tells the log when the disk fills up and when it has room again. The reason to end the run, once the disk was full for
    /// too long.
    pub(crate) fn check(&mut self, disk_full: Option<DiskFull>, now: Instant) -> Option<StopReason> {
        let Some(disk_full) = disk_full else {
            if self.full_since.take().is_some() {
                tracing::info!("the disk has room again: the run goes on");
            }
            return None;
        };
        let since = *self.full_since.get_or_insert_with(|| {
            let within = self.max_wait.map_or_else(String::new, |wait| format!(" within {}", text::duration(wait)));
            tracing::warn!(
                "{disk_full}; nothing new starts, and answers that arrive wait in memory: make room{within}"
            );
            now
        });
        self.max_wait.is_some_and(|wait| now - since >= wait).then_some(StopReason::DiskFull(disk_full))
    }
}
