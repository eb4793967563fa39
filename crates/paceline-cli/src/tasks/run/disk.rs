//! The disk of the store and of the answers, while a run goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paceline_store::DiskSpace;
use paceline_store::work::{self, StartDelay, Task, WorkClock};

use super::shutdown::Shutdown;
use crate::calls::disk_watch::{self, DiskWatch};
use crate::exit::Failure;
use crate::signals::SignalCount;
use crate::stops::stop::StopReason;

/// How often a run looks whether its disk is full.
const TICK: Duration = Duration::from_millis(500);

/// Why a run ends that waits to begin. Where signals cannot be heard the system ends the process.
async fn told_to_end(signals: Option<SignalCount>, max_duration: Option<Duration>) -> StopReason {
    let told = async {
        match &signals {
            Some(signals) => signals.first().await,
            None => std::future::pending().await,
        }
    };
    let is_over = async {
        match max_duration {
            Some(longest) => tokio::time::sleep(longest).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = told => StopReason::Interrupted,
        () = is_over => StopReason::MaxDuration,
    }
}

/// A run has ended for that before its disk had room.
fn nothing_began(stop: &StopReason) -> Failure {
    let why = match stop {
        StopReason::MaxDuration => "--max-duration is over",
        _ => "the run was interrupted",
    };
    Failure::DiskFull(format!("{why}, and nothing began, for the disk was full"))
}

/// What an item waits for while the disk is full.
pub(super) fn waits_for_room(task: &Task) -> StartDelay {
    let (why, scope) = ("room on the disk, which is full".into(), Arc::clone(&task.item().group));
    StartDelay { after: None, why, scope, for_all: true, at_hand: true, in_this_run: false }
}

/// The space on that disk, and how long a run waits for it.
#[derive(Debug)]
pub(super) struct Disk {
    space: DiskSpace,
    max_wait: Option<Duration>,
    /// That of the store, where it is a file, and its lock.
    store: Option<(PathBuf, PathBuf)>,
}

impl Disk {
    /// The disk of those files. Without `max_wait` the run waits for as long as it takes.
    pub(super) fn of(store: Option<&Path>, output: Option<&Path>, max_wait: Option<Duration>) -> Self {
        let space = DiskSpace::of(store.into_iter().chain(output));
        let store = store.map(|file| (file.to_owned(), work::lock_of(file)));
        Self { space, max_wait, store }
    }

    /// Waits until there is room to begin: for as long as the run may take, and until it is told to end. With why it ends, where
    /// there is none.
    pub(super) async fn wait_to_begin(&self, max_duration: Option<Duration>) -> (Result<(), Failure>, StopReason) {
        let is_full = self.space.too_full_to_begin().is_some();
        if let Some((store, _)) = self.store.as_ref().filter(|_| is_full) {
            work::make_room_beside(store);
        }
        // Before the log says that it waits.
        let signals = if is_full { SignalCount::listen().ok() } else { None };
        tokio::select! {
            biased;
            waited = disk_watch::wait_to_begin(&self.space, self.max_wait, None) => {
                (waited, StopReason::DiskFull { message: String::new() })
            }
            stop = told_to_end(signals, max_duration) => (Err(nothing_began(&stop)), stop),
        }
    }

    pub(super) const fn space(&self) -> &DiskSpace {
        &self.space
    }

    /// The run ends: what is still to be written takes the space that is left.
    pub(super) fn waits_no_more(&self) {
        self.space.fail_when_full();
    }

    /// Ends a run whose disk stays full. Once the run ends, answers that wait in memory take the space that is left.
    pub(super) async fn watch(&self, shutdown: &Shutdown, clock: &WorkClock) {
        self.space.wait_when_full();
        let mut watch = DiskWatch::new(self.max_wait, self.store.as_ref().map(|(_, lock)| &**lock));
        loop {
            tokio::select! {
                () = shutdown.draining() => break,
                () = tokio::time::sleep(TICK) => {}
            }
            if let Some(disk_full) = watch.check(self.space.disk_full(), clock.now()) {
                shutdown.stop(disk_full.into());
            }
        }
        self.waits_no_more();
        std::future::pending().await
    }
}
