//! What the limiter of an upstream knows, kept over restarts of the gateway: limits, windows and holds, a file for each account.

use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use paceline::{LevelState, Limiter, LimiterState, PacerState};
use paceline_gateway::Conditions;
use serde::{Deserialize, Serialize};

use super::whole_file::{self, WriteTrouble};
use crate::account::{self, Account, SharedLimits};
use crate::exit::Failure;
use crate::limiter_state;

/// How old the file is at most when the process is killed.
pub(super) const SAVED: Duration = Duration::from_millis(500);

/// The folder for what outlives the process, and who is told which of its files cannot be written.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) place: PathBuf,
    pub(super) conditions: Conditions,
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.place
    }
}

/// The file of one account.
#[derive(Debug)]
pub(super) struct Saved {
    limiter: Limiter,
    upstream: String,
    host: String,
    /// None where the user's folder cannot be used.
    path: Option<PathBuf>,
    trouble: WriteTrouble,
    /// What the file says.
    written: Mutex<Option<PacerState>>,
}

impl Saved {
    /// The file in that folder.
    pub(super) fn open(folder: Option<&Folder>, upstream: &str, account: &Account, limiter: Limiter) -> Self {
        let path = folder.map(|folder| path_of(folder, upstream, account));
        let (upstream, host) = (upstream.to_owned(), account.host_name());
        Self { limiter, upstream, host, path, trouble: WriteTrouble::in_folder(folder), written: Mutex::default() }
    }

    /// Takes up what an earlier gateway knew. A stop is not kept: a restart is how a person says that the cause is mended. Holds
    /// and pauses are, unless a person lifts them.
    pub(super) fn restore(&self, shared: &SharedLimits, lift_holds: bool) {
        let Some(path) = self.path.as_deref() else { return };
        let is_of_former_key = self.take_former(path);
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            text => text.map_err(|error| error.to_string()),
        };
        let kept: fn(LevelState) -> LevelState = match lift_holds {
            true => limiter_state::without_holds,
            false => |level| LevelState { stopped: None, ..level },
        };
        // What runs with the new key have sent is beside what was sent with the former one.
        let windows_are_known = shared.is_fleet() || (!is_of_former_key && shared.know_earlier_runs());
        let restored =
            text.and_then(|text| limiter_state::restore_as(&self.limiter, windows_are_known, [&*text], kept));
        if let Err(error) = restored {
            let kept = whole_file::set_aside(path);
            tracing::warn!(
                "{} cannot be used: what is known of the limits of its upstream begins anew, as if nothing had been sent; {kept}: \
                 {error}",
                path.display()
            );
        }
    }

    /// Has the file of the upstream under another key become the one of its present key, where it was written later: a provider
    /// counts by the account, and a key of it may be exchanged while no gateway runs. Returns whether there was one.
    fn take_former(&self, path: &Path) -> bool {
        let own = written_at(path, &self.host).unwrap_or_default();
        let files = std::fs::read_dir(whole_file::folder_of(path)).into_iter().flatten().filter_map(Result::ok);
        let others = files.map(|file| file.path()).filter(|file| file != path && is_of(file, &self.upstream));
        let former = others.filter_map(|file| Some((written_at(&file, &self.host)?, file))).max();
        let Some((_, former)) = former.filter(|(at, _)| *at > own) else { return false };
        let upstream = &self.upstream;
        let moved = std::fs::rename(&former, path);
        match &moved {
            Ok(()) => tracing::info!(
                "upstream {upstream}: its key is another than that of the last gateway here; what counts against its limits, and what \
                 is known of them, goes on (an account of its own wants another --state)"
            ),
            Err(error) => tracing::warn!(
                "upstream {upstream}: its key is another than that of the last gateway here, and its limits begin anew, as if nothing \
                 had been sent: {}: {error}",
                former.display()
            ),
        }
        moved.is_ok()
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
        let text = serde_json::to_vec(&OfHost { host: &self.host, state: &state });
        let replaced = whole_file::replace(path, &text.expect("numbers and words"));
        if replaced.is_ok() {
            *written = Some(state.pacer);
        }
        self.trouble.tell(
            path,
            replaced,
            "a restart now may forget holds, what was learnt, and what counts against the limits",
        );
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        // It is served no more, or by another that writes it.
        self.path.iter().for_each(|path| self.trouble.forget(path));
    }
}

/// What the file has.
#[derive(Debug, Serialize)]
struct OfHost<'a> {
    host: &'a str,
    #[serde(flatten)]
    state: &'a LimiterState,
}

/// When a file was written that is for that host.
#[derive(Debug, Deserialize)]
struct WrittenAt {
    /// None where an earlier version wrote it.
    host: Option<String>,
    at_ms: i64,
}

/// None of a file that is for another host, or cannot be read.
fn written_at(path: &Path, host: &str) -> Option<i64> {
    let written: WrittenAt = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (written.host.as_deref() == Some(host)).then_some(written.at_ms)
}

fn path_of(folder: &Path, upstream: &str, account: &Account) -> PathBuf {
    folder.join(format!("{upstream}-{}.json", account.name()))
}

/// Whether it is a file of an upstream of that name, of whichever account.
fn is_of(path: &Path, upstream: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let account = name.strip_prefix(upstream).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".json"));
    account.is_some_and(|account| account.len() == 32 && account.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The key of an upstream is another one now, and so is the name of its file: no other start may take the former file for it.
pub(super) fn move_file(folder: Option<&Folder>, upstream: &str, [from, to]: [&Account; 2]) {
    let moved = folder.map(|folder| std::fs::rename(path_of(folder, upstream, from), path_of(folder, upstream, to)));
    // What it knows is in the limiter, and is written again.
    moved.and_then(Result::err).into_iter().for_each(|error| tracing::debug!("the file of {upstream}: {error}"));
}

/// The folder for what outlives the process, which is made: that one, or the user's own; none where that cannot be used.
///
/// # Errors
/// A folder that was asked for and cannot be made or written.
pub(super) fn folder(asked: Option<&Path>, conditions: &Conditions) -> Result<Option<Folder>, Failure> {
    let found = used(asked, account::make_private)?;
    if let (None, Ok(place)) = (&found, place(asked)) {
        conditions.wrote(&place, false);
    }
    Ok(found.map(|place| Folder { place, conditions: conditions.clone() }))
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
