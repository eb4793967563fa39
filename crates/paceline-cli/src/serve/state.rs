//! What the limiter of an upstream knows, kept over restarts of the gateway: limits, windows and holds, a file for each account.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline::{LevelState, Limiter, PacerState};

use super::whole_file::{self, WriteTrouble};
use crate::account::{self, Account, SharedLimits};
use crate::exit::Failure;
use crate::limiter_state;

/// How old the file is at most when the process is killed.
pub(super) const SAVED: Duration = Duration::from_millis(500);

/// The file of one account.
#[derive(Debug)]
pub(super) struct Saved {
    limiter: Limiter,
    /// None where the user's folder cannot be used.
    path: Option<PathBuf>,
    trouble: WriteTrouble,
    /// What the file says.
    written: Mutex<Option<PacerState>>,
}

impl Saved {
    /// The file in that folder.
    pub(super) fn open(folder: Option<&Path>, upstream: &str, account: &Account, limiter: Limiter) -> Self {
        let path = folder.map(|folder| folder.join(format!("{upstream}-{}.json", account.name())));
        Self { limiter, path, trouble: WriteTrouble::default(), written: Mutex::default() }
    }

    /// Takes up what an earlier gateway knew. A stop is not kept: a restart is how a person says that the cause is mended. Holds
    /// and pauses are, unless a person lifts them.
    pub(super) fn restore(&self, shared: &SharedLimits, lift_holds: bool) {
        let Some(path) = self.path.as_deref() else { return };
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            text => text.map_err(|error| error.to_string()),
        };
        let kept: fn(LevelState) -> LevelState = match lift_holds {
            true => limiter_state::without_holds,
            false => |level| LevelState { stopped: None, ..level },
        };
        let restored = text.and_then(|text| limiter_state::restore_as(&self.limiter, shared, [&*text], kept));
        if let Err(error) = restored {
            let kept = whole_file::set_aside(path);
            tracing::warn!(
                "{} cannot be used: what is known of the limits of its upstream begins anew, as if nothing had been sent; {kept}: \
                 {error}",
                path.display()
            );
        }
    }

    /// Saves what has changed, for as long as it is polled.
    pub(super) async fn keep(&self) {
        loop {
            tokio::time::sleep(SAVED).await;
            tokio::task::block_in_place(|| self.save());
        }
    }

    /// Saves it now. A file that cannot be written is no reason to end.
    pub(super) fn save(&self) {
        let Some(path) = &self.path else { return };
        let (state, mut written) = (self.limiter.export(), self.written.lock().unwrap_or_else(PoisonError::into_inner));
        // A gateway that is idle leaves the disk alone.
        if written.as_ref() == Some(&state.pacer) {
            return;
        }
        // Each half second: what a power cut brings back is at least as good as nothing.
        let replaced = whole_file::replace(path, limiter_state::encode(&state).as_bytes());
        if replaced.is_ok() {
            *written = Some(state.pacer);
        }
        self.trouble.tell(path, replaced, "a restart now would forget what counts against the limits");
    }
}

/// The folder for what outlives the process, which is made: that one, or the user's own; none where that cannot be used.
///
/// # Errors
/// A folder that was asked for and cannot be made or written.
pub(super) fn folder(asked: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    used(asked, account::make_private)
}

/// The same before a start: the folder need not be there, and is not made.
///
/// # Errors
/// A folder that was asked for and could not be made or written.
pub(super) fn check(asked: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    used(asked, |_| Ok(()))
}

/// Where that folder is, or would be.
pub(super) fn place(asked: Option<&Path>) -> io::Result<PathBuf> {
    asked.map_or_else(|| account::place().map(|folder| folder.join("serve")), |folder| Ok(folder.to_owned()))
}

fn used(asked: Option<&Path>, make: fn(&Path) -> io::Result<()>) -> Result<Option<PathBuf>, Failure> {
    let usable = |folder: &PathBuf| make(folder).and_then(|()| whole_file::can_be_in(folder));
    match (place(asked).and_then(|folder| usable(&folder).map(|()| folder)), asked) {
        (Ok(folder), _) => Ok(Some(folder)),
        (Err(error), Some(folder)) => Err(Failure::refused(format!(
            "--state {}: {error}; expected a folder that the user of the gateway may make and write",
            folder.display()
        ))),
        (Err(error), None) => {
            tracing::warn!(
                "a restart will forget what is known of the limits, and batches cannot be taken: {error}; name a folder that can \
                 be written with --state"
            );
            Ok(None)
        }
    }
}
