//! What clients have used of the limits of their keys, kept over restarts in one file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use paceline::{LimiterState, PacerState};
use paceline_gateway::{Clients, Gateway};

use super::state::SAVED;
use super::whole_file::{self, WriteTrouble};

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
        let Some(text) = self.path.as_deref().and_then(|path| std::fs::read_to_string(path).ok()) else { return };
        let restored = serde_json::from_str::<BTreeMap<String, LimiterState>>(&text).map_err(|error| error.to_string());
        let restored = restored.and_then(|known| {
            let mut used = clients.limiters().filter_map(|(key, limiter)| Some((limiter, known.get(&key)?)));
            used.try_for_each(|(limiter, state)| limiter.restore(state).map_err(|error| error.to_string()))
        });
        if let Err(error) = restored {
            tracing::warn!("the limits of clients start from zero, as if they had sent nothing before: {error}");
        }
    }

    /// Saves what has changed, for as long as it is polled.
    pub(super) async fn keep(&self, gateway: &Gateway) {
        loop {
            tokio::time::sleep(SAVED).await;
            tokio::task::block_in_place(|| self.save(&gateway.clients()));
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
