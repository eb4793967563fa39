//! What clients have used of the limits of their keys, kept over restarts in one file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline::{Clock, LimiterState, PacerState};
use paceline_gateway::{Clients, Gateway};
use tokio::time::{sleep, timeout};

use super::state::SAVED;
use super::whole_file::{self, WriteTrouble};
use crate::account::TURN_LASTS;

/// The file in the state folder.
const FILE: &str = "client-limits.json";

/// The file, by the hashes of keys.
pub(super) struct ClientUsage {
    /// None where there is no folder.
    path: Option<PathBuf>,
    /// What the file says.
    written: Mutex<BTreeMap<String, PacerState>>,
    trouble: WriteTrouble,
}

impl ClientUsage {
    /// The file in that folder.
    pub(super) fn of(folder: Option<&Path>) -> Self {
        let trouble = WriteTrouble::default();
        Self { path: folder.map(|folder| folder.join(FILE)), written: Mutex::default(), trouble }
    }

    /// Has these clients go on with what they had used when an earlier gateway ended.
    pub(super) fn restore(&self, clients: &Clients) {
        let Some(path) = self.path.as_deref() else { return };
        let known = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => Err(error.to_string()),
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        };
        let known: BTreeMap<String, LimiterState> = match known {
            Ok(known) => known,
            Err(error) => return start_from_zero(path, &error),
        };
        let known = clients.limiters().filter_map(|(key, limiter)| Some((limiter, known.get(&key)?)));
        let failed = known.filter_map(|(limiter, state)| limiter.restore(state).err()).last();
        if let Some(error) = failed {
            start_from_zero(path, &error.to_string());
        }
    }

    /// Saves what has changed, for as long as it is polled: as soon as a client has used more, and then as often as what counts
    /// under the limits of upstreams is written. With very many clients that takes a tenth of the time at most.
    pub(super) async fn keep(&self, gateway: &Gateway) {
        let clock = Clock::new();
        loop {
            // The clients may be others by then.
            let _ = timeout(SAVED, gateway.clients().limits_change()).await;
            let began = clock.now();
            tokio::task::block_in_place(|| self.save(&gateway.clients()));
            sleep(TURN_LASTS.max(10 * (clock.now() - began))).await;
        }
    }

    /// Saves it now. A file that cannot be written is no reason to end.
    pub(super) fn save(&self, clients: &Clients) {
        let Some(path) = &self.path else { return };
        let states: BTreeMap<_, _> = clients.limiters().map(|(key, limiter)| (key, limiter.export())).collect();
        let used = states.iter().map(|(key, state)| (key.clone(), state.pacer.clone())).collect();
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if *written == used {
            return;
        }
        let text = serde_json::to_vec(&states).expect("numbers and words");
        let replaced = whole_file::replace(path, &text);
        if replaced.is_ok() {
            *written = used;
        }
        self.trouble.tell(path, replaced, "a restart now would forget what clients have used of their limits");
    }
}

/// Says what is lost with a file that cannot be used, and keeps it for a person: the next one takes its place.
fn start_from_zero(path: &Path, error: &str) {
    let file = path.display();
    let is_kept = whole_file::set_aside(path);
    tracing::warn!(
        "{file} is damaged, and what clients have used of the limits of their keys is lost: their windows begin anew, as if they had \
         sent nothing; {is_kept}: {error}"
    );
}
