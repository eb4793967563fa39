//! How long a run waits for a full disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline::Clock;
use paceline_core::Instant;
use paceline_store::{DiskFull, DiskSpace, RunLock};

use crate::exit::Failure;
use crate::text;

/// How often a run that has not begun looks whether there is room.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Waits until the disk has room for a run to begin.
///
/// # Errors
/// Ends a run whose disk stayed full for `max_wait`: nothing is wrong with what the user gave.
pub(crate) async fn wait_to_begin(
    space: &DiskSpace,
    max_wait: Option<Duration>,
    lock: Option<&Path>,
) -> Result<(), Failure> {
    let (mut watch, clock) = (DiskWatch::new(max_wait, lock), Clock::new());
    loop {
        let disk_full = space.too_full_to_begin();
        let has_room = disk_full.is_none();
        match watch.check(disk_full, clock.now()) {
            Some(disk_full) => return Err(Failure::DiskFull(disk_full.to_string())),
            None if has_room => return Ok(()),
            None => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// What is known of the disk of a run's answers. While it is full nothing new starts, and answers that arrive wait in memory.
#[derive(Debug)]
pub(crate) struct DiskWatch {
    /// None where the run waits for as long as it takes.
    max_wait: Option<Duration>,
    full_since: Option<Instant>,
    /// The lock file of the run, where others read that it waits.
    lock: Option<PathBuf>,
}

impl DiskWatch {
    pub(crate) fn new(max_wait: Option<Duration>, lock: Option<&Path>) -> Self {
        Self { max_wait, full_since: None, lock: lock.map(Path::to_owned) }
    }

    /// Tells the log, and who looks at the job, when the disk fills up and when it has room again. The disk that ends the run,
    /// once it was full for too long.
    pub(crate) fn check(&mut self, disk_full: Option<DiskFull>, now: Instant) -> Option<DiskFull> {
        let Some(disk_full) = disk_full else {
            if self.full_since.take().is_some() {
                self.tell(None);
                tracing::info!("the disk has space again: the run continues");
            }
            return None;
        };
        let since = match self.full_since {
            Some(since) => since,
            None => {
                let within = self.max_wait.map_or_else(String::new, |wait| format!(" within {}", text::duration(wait)));
                self.tell(Some(&disk_full.room()));
                tracing::warn!(
                    "{disk_full}; nothing new starts, and what arrives waits in memory: free some space{within}"
                );
                *self.full_since.insert(now)
            }
        };
        self.max_wait.is_some_and(|wait| now - since >= wait).then_some(disk_full)
    }

    fn tell(&self, wait: Option<&str>) {
        self.lock.iter().for_each(|lock| RunLock::tell_wait(lock, wait));
    }
}
