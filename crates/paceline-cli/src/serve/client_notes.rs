//! What clients have used since their counts were written last: a line for each call, which is there before the call leaves. So a
//! kill forgets nothing; a power cut may forget the last seconds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline::{Cost, Dimension, Limiter, LimiterState, Quota, TakenState, Timestamp, WindowState, clock};
use paceline_store::private_file;
use serde::{Deserialize, Serialize};

use crate::files;

/// What is noted of a call.
const COUNTED: [Dimension; 6] = [
    Dimension::Requests,
    Dimension::Tokens,
    Dimension::InputTokens,
    Dimension::OutputTokens,
    Dimension::Bytes,
    Dimension::Money,
];

/// A line.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Note {
    /// The hash of the client's key.
    key: String,
    at_ms: i64,
    units: BTreeMap<String, u64>,
}

impl Note {
    fn of(key: &str, cost: &Cost) -> Self {
        let units = COUNTED.iter().map(|dimension| (dimension.as_str().to_owned(), cost.get(dimension)));
        let units = units.filter(|(_, units)| *units > 0).collect();
        Self { key: key.to_owned(), at_ms: clock::wall().as_millis(), units }
    }

    /// When it was written.
    pub(super) const fn at(&self) -> Timestamp {
        Timestamp::from_millis(self.at_ms)
    }
}

/// Two files: while the counts are written that know all of one, calls are noted in the other.
#[derive(Debug)]
pub(super) struct ClientNotes {
    paths: [PathBuf; 2],
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    /// Which of the two files it is.
    place: usize,
    /// None before the first line.
    file: Option<File>,
}

impl ClientNotes {
    /// The notes beside the file of the counts.
    pub(super) fn beside(counts: &Path) -> Self {
        let paths = ["notes-1", "notes-2"].map(|extension| counts.with_extension(extension));
        Self { paths, current: Mutex::default() }
    }

    /// Notes a call. A disk that takes no line holds up none: that it takes no counts is told.
    pub(super) fn add(&self, key: &str, cost: &Cost) {
        let mut line = serde_json::to_vec(&Note::of(key, cost)).expect("numbers and words");
        line.push(b'\n');
        let mut current = self.current();
        let Current { place, file } = &mut *current;
        if file.is_none() {
            *file = files::with_spare(|| file_of_notes(&self.paths[*place])).ok();
        }
        file.iter_mut().for_each(|file| drop(file.write_all(&line)));
    }

    /// Has calls noted in the other file from now on. Returns the place of the former one, if anything was noted there.
    pub(super) fn turn(&self) -> Option<usize> {
        let mut current = self.current();
        current.file.take()?;
        let former = current.place;
        current.place = 1 - former;
        Some(former)
    }

    /// Removes the notes of that place: the counts know them.
    pub(super) fn forget(&self, place: usize) {
        match std::fs::remove_file(&self.paths[place]) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!("{} cannot be removed: {error}", self.paths[place].display());
            }
            _ => {}
        }
    }

    /// All that is noted. A line that is none was cut off by a crash.
    pub(super) fn read(&self) -> Vec<Note> {
        let texts = self.paths.iter().filter_map(|path| std::fs::read(path).ok());
        let lines = texts.flat_map(|text| text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>());
        lines.filter_map(|line| serde_json::from_slice(&line).ok()).collect()
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a file for notes. A link there is none of ours, and what it leads to stays as it is: the notes take its place.
fn file_of_notes(path: &Path) -> io::Result<File> {
    let mut options = private_file();
    #[cfg(unix)]
    {
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, no_link.cast_signed());
    }
    options.create(true).append(true);
    options.open(path).or_else(|error| match path.is_symlink() {
        true => std::fs::remove_file(path).and_then(|()| options.open(path)),
        false => Err(error),
    })
}

/// The counts of a client, by its keys, with what was noted after they were written; none where there is neither.
pub(super) fn with_notes(
    keys: [&String; 2],
    limiter: &Limiter,
    written: Option<LimiterState>,
    notes: &[Note],
) -> Option<LimiterState> {
    let written_at = written.as_ref().map(|state| state.at);
    let is_later = |note: &&Note| written_at.is_none_or(|at| note.at_ms >= at.as_millis());
    let notes: Vec<_> = notes.iter().filter(|note| keys.contains(&&note.key)).filter(is_later).collect();
    if notes.is_empty() {
        return written;
    }
    let now = clock::wall();
    let mut state = written.unwrap_or_else(|| LimiterState { at: now, pacer: limiter.export().pacer });
    let since = now.saturating_since(state.at);
    state.at = now;
    let windows = &mut state.pacer.account.windows;
    windows
        .iter_mut()
        .flat_map(|window| &mut window.taken)
        .for_each(|taken| taken.ago = taken.ago.saturating_add(since));
    // A window that counted nothing is not written.
    for quota in limiter.snapshot().account.quotas {
        if let (true, Some(length)) =
            (windows.iter().all(|known| known.quota.dimension != quota.dimension), quota.window)
        {
            let quota = Quota::sliding(quota.dimension, quota.limit, length);
            windows.push(WindowState { quota, taken: Vec::new() });
        }
    }
    for window in windows {
        let units = |note: &&Note| note.units.get(window.quota.dimension.as_str()).copied();
        let ago = |note: &Note| now.saturating_since(Timestamp::from_millis(note.at_ms));
        let noted = notes.iter().filter_map(|note| Some(TakenState { ago: ago(note), units: units(note)? }));
        window.taken.extend(noted);
    }
    Some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn notes_are_not_written_where_a_link_leads() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (counts, other) = (folder.path().join("client-limits.json"), folder.path().join("other"));
        std::fs::write(&other, "as it was").expect("writable");
        std::os::unix::fs::symlink(&other, counts.with_extension("notes-1")).expect("a link");
        let notes = ClientNotes::beside(&counts);
        notes.add("k", &Cost::request());
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "as it was");
        assert_eq!(notes.read().len(), 1);
    }
}
