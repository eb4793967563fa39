//! What clients have used of the limits of their keys, kept over restarts in one file.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline::{Clock, LimiterState, PacerState, Timestamp, clock};
use paceline_gateway::{Clients, Gateway};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use super::client_notes::with_notes;
use super::state::{Folder, SAVED};
use super::whole_file::{self, WriteTrouble};
use crate::account::TURN_LASTS;
use crate::call_notes::{CallNotes, Note};

/// The file in the state folder.
const FILE: &str = "client-limits.json";

/// What a client has used. It stays with its name: a new key of the name of a revoked one goes on with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Kept {
    /// None where an earlier version wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(flatten)]
    state: LimiterState,
}

impl Kept {
    /// Whether a window still has some of it.
    fn counts(&self) -> bool {
        let longest = self.state.pacer.account.windows.iter().map(|window| window.quota.window).max();
        longest.is_some_and(|longest| clock::wall().saturating_since(self.state.at) < longest)
    }
}

/// The file, by the hashes of keys.
pub(super) struct ClientUsage {
    /// None where there is no folder.
    path: Option<PathBuf>,
    notes: Option<Arc<CallNotes>>,
    written: Mutex<Written>,
    /// What clients had used that have no limits since this gateway began, or whose keys are revoked: they may have some again.
    resting: Mutex<BTreeMap<String, Kept>>,
    trouble: WriteTrouble,
}

#[derive(Debug, Default)]
struct Written {
    /// What the file says.
    states: BTreeMap<String, PacerState>,
    /// It could not be written the last time: notes of calls before that are needed.
    is_behind: bool,
}

impl ClientUsage {
    /// The file in that folder.
    pub(super) fn of(folder: Option<&Folder>) -> Self {
        let trouble = WriteTrouble::in_folder(folder);
        let path = folder.map(|folder| folder.join(FILE));
        let notes = path.as_deref().map(|path| Arc::new(CallNotes::beside(path)));
        Self { path, notes, written: Mutex::default(), resting: Mutex::default(), trouble }
    }

    /// Has these clients go on with what they had used when an earlier gateway ended, or was killed, and follows them.
    pub(super) fn restore(&self, clients: &Clients) {
        self.take_up(clients);
        self.follow(clients, &Clients::OfThisMachine);
    }

    fn take_up(&self, clients: &Clients) {
        let Some((path, notes)) = self.path.as_deref().zip(self.notes.as_deref()) else { return };
        let mut known = read(path).unwrap_or_else(|error| {
            start_from_zero(path, &error);
            BTreeMap::new()
        });
        for (key, kept) in &mut known {
            kept.name = clients.name_of(key).map(str::to_owned).or(kept.name.take());
        }
        let notes = notes.read();
        if let Err(error) = go_on(&mut known, &notes, clients) {
            start_from_zero(path, &error);
        }
        *self.resting() = known;
        if !notes.is_empty() {
            self.save(clients);
        }
    }

    /// Notes from now on what the calls of these clients take, before they leave. One that has limits again goes on with what it
    /// had used of the former ones, and so does one with the name of a key that was revoked. What the clients `before` these had
    /// used and no one goes on with is kept.
    pub(super) fn follow(&self, clients: &Clients, before: &Clients) {
        let mut resting = self.resting();
        for (key, state) in before.states() {
            let name = before.name_of(&key).filter(|name| clients.name_of(&key).is_none() && !clients.have(name));
            let kept = name.map(|name| Kept { name: Some(name.to_owned()), state });
            kept.into_iter().for_each(|kept| drop(resting.insert(key.clone(), kept)));
        }
        for (key, limiter) in clients.limiters() {
            // A later version wrote it, or it is none: it was told at the start.
            let state = taken(&mut resting, &key, clients).map(|(_, state)| state);
            state.into_iter().for_each(|state| drop(limiter.restore(&state)));
        }
        drop(resting);
        if let Some(notes) = self.notes.clone() {
            clients.note_uses(move |key, cost| notes.add(key, cost));
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

    fn resting(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.resting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Saves it now. A file that cannot be written is no reason to end.
    pub(super) fn save(&self, clients: &Clients) {
        let Some((path, notes)) = self.path.as_deref().zip(self.notes.as_deref()) else { return };
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        // What is noted in the former place is in the counts below.
        let former = if written.is_behind { None } else { notes.turn() };
        let named = |(key, state): (String, LimiterState)| {
            let name = clients.name_of(&key).map(str::to_owned);
            (key, Kept { name, state })
        };
        let mut states: BTreeMap<_, _> = clients.states().map(named).collect();
        let mut resting = self.resting();
        let is_there = |key: &str| clients.name_of(key).is_some();
        resting.retain(|key, kept| is_there(key) || kept.name.is_none() || kept.counts());
        let kept = resting.iter().filter(|(key, kept)| is_there(key) || kept.name.is_some());
        states.extend(kept.map(|(key, kept)| (key.clone(), kept.clone())));
        drop(resting);
        let used = states.iter().map(|(key, kept)| (key.clone(), kept.state.pacer.clone())).collect();
        if written.states == used && former.is_none() {
            return;
        }
        let text = serde_json::to_vec(&states).expect("numbers and words");
        let replaced = whole_file::replace_in_turn(path, &text);
        written.is_behind = replaced.is_err();
        if replaced.is_ok() {
            written.states = used;
            former.into_iter().for_each(|place| notes.forget(place));
        }
        self.trouble.tell(path, replaced, "a restart now may forget what clients have used of their limits");
    }
}

/// Has these clients go on with what they have used as far as is written in that folder, which stays as it is. Returns when
/// that was.
pub(super) fn look(folder: &Path, clients: &Clients) -> Option<Timestamp> {
    let path = folder.join(FILE);
    let (mut known, notes) = (read(&path).ok()?, CallNotes::beside(&path).read());
    let written = known.values().map(|kept| kept.state.at).chain(notes.iter().map(Note::at)).max();
    go_on(&mut known, &notes, clients).ok()?;
    written
}

/// What the file says.
fn read(path: &Path) -> Result<BTreeMap<String, Kept>, String> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error.to_string()),
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
    }
}

/// Has these clients go on with what they had used, which is taken out.
fn go_on(known: &mut BTreeMap<String, Kept>, notes: &[Note], clients: &Clients) -> Result<(), String> {
    let known_now = clients.limiters().filter_map(|(key, limiter)| {
        let (of, written) = taken(known, &key, clients).unzip();
        let keys = [&key, of.as_ref().unwrap_or(&key)];
        Some((limiter, with_notes(keys, limiter, written, notes)?))
    });
    let failed = known_now.filter_map(|(limiter, state)| limiter.restore(&state).err()).last();
    failed.map_or(Ok(()), |error| Err(error.to_string()))
}

/// Takes out what the client with that key had used: by this key, else by a former one of its name. Returns it with that key.
fn taken(kept: &mut BTreeMap<String, Kept>, key: &str, clients: &Clients) -> Option<(String, LimiterState)> {
    let name = clients.name_of(key)?;
    let is_former = |of: &str, kept: &Kept| kept.name.as_deref() == Some(name) && clients.name_of(of).is_none();
    let former = || kept.iter().find(|(of, kept)| is_former(of, kept)).map(|(of, _)| of.clone());
    let of = if kept.contains_key(key) { key.to_owned() } else { former()? };
    let state = kept.remove(&of)?.state;
    Some((of, state))
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
