//! What calls took since counts of them were written last: a line for each call, which is there before the call leaves. So a
//! kill forgets nothing; a power cut may forget the last seconds.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use paceline::{Cost, Dimension, Timestamp, clock};
use paceline_store::private_file;
use serde::{Deserialize, Serialize};

use crate::files;

/// The extensions of the two files of notes.
pub(crate) const FILES: [&str; 2] = ["notes-1", "notes-2"];

/// No file of notes becomes longer: it does where the counts cannot be written.
const MOST_BYTES: u64 = 64 << 20;

/// A line.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Note {
    /// Whose call it was.
    pub(crate) key: String,
    at_ms: i64,
    units: BTreeMap<String, u64>,
}

impl Note {
    fn of(key: &str, cost: &Cost) -> Self {
        // All of them: the limits of the process that reads it may be others.
        let units = cost.units().map(|(dimension, units)| (dimension.as_str().to_owned(), units)).collect();
        Self { key: key.to_owned(), at_ms: clock::wall().as_millis(), units }
    }

    /// When it was written.
    pub(crate) const fn at(&self) -> Timestamp {
        Timestamp::from_millis(self.at_ms)
    }

    /// What the call takes of a limit on that.
    pub(crate) fn units(&self, dimension: &Dimension) -> Option<u64> {
        self.units.get(dimension.as_str()).copied()
    }
}

/// Two files: while the counts are written that know all of one, calls are noted in the other.
#[derive(Debug)]
pub(crate) struct CallNotes {
    paths: [PathBuf; 2],
    current: Mutex<Current>,
}

#[derive(Debug, Default)]
struct Current {
    /// Which of the two files it is.
    place: usize,
    /// None before the first line.
    file: Option<File>,
    /// Its length.
    bytes: u64,
    /// It was told that no more is noted.
    is_told: bool,
    /// Nothing is noted.
    rests: bool,
}

impl CallNotes {
    /// The notes beside the file of the counts.
    pub(crate) fn beside(counts: &Path) -> Self {
        let paths = FILES.map(|extension| counts.with_extension(extension));
        Self { paths, current: Mutex::default() }
    }

    /// Notes no call from now on. What is noted stays.
    pub(crate) fn rest(&self) {
        let mut current = self.current();
        (current.rests, current.file) = (true, None);
    }

    /// Notes calls again.
    pub(crate) fn go_on(&self) {
        self.current().rests = false;
    }

    /// Notes a call. A disk that takes no line holds up none: that it takes no counts is told.
    pub(crate) fn add(&self, key: &str, cost: &Cost) {
        let mut current = self.current();
        let Current { place, file, bytes, is_told, rests } = &mut *current;
        if *rests {
            return;
        }
        let mut line = serde_json::to_vec(&Note::of(key, cost)).expect("numbers and words");
        line.push(b'\n');
        if file.is_none() {
            *file = files::with_spare(|| file_of_notes(&self.paths[*place])).ok();
            *bytes = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |known| known.len());
        }
        if *bytes + line.len() as u64 > MOST_BYTES {
            if !std::mem::replace(is_told, true) {
                let path = self.paths[*place].display();
                tracing::warn!(
                    "{path} is full, and calls are noted no more: a kill forgets them until counts are saved again"
                );
            }
            return;
        }
        *bytes += line.len() as u64;
        file.iter_mut().for_each(|file| drop(file.write_all(&line)));
    }

    /// Has calls noted in the other file from now on. Returns the place of the former one, if anything was noted there.
    pub(crate) fn turn(&self) -> Option<usize> {
        let mut current = self.current();
        current.file.take()?;
        let former = current.place;
        current.place = 1 - former;
        Some(former)
    }

    /// Removes the notes of that place: the counts know them.
    pub(crate) fn forget(&self, place: usize) {
        match std::fs::remove_file(&self.paths[place]) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!("{} cannot be removed: {error}", self.paths[place].display());
            }
            _ => {}
        }
    }

    /// Removes all notes: the counts know them.
    pub(crate) fn clear(&self) {
        let mut current = self.current();
        current.file = None;
        [0, 1].into_iter().for_each(|place| self.forget(place));
    }

    /// All that is noted. A line that is none was cut off by a crash.
    pub(crate) fn read(&self) -> Vec<Note> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_notes_has_a_greatest_length() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let notes = CallNotes::beside(&folder.path().join("counts.json"));
        let file = File::create(&notes.paths[0]).expect("writable");
        file.set_len(MOST_BYTES - 10).expect("a file with a hole");
        notes.add("k", &Cost::request());
        assert_eq!(file.metadata().expect("it is there").len(), MOST_BYTES - 10);
        assert_eq!(notes.turn(), Some(0));
        notes.add("k", &Cost::request());
        assert!(notes.paths[1].exists(), "the other one has room");
    }

    #[cfg(unix)]
    #[test]
    fn notes_are_not_written_where_a_link_leads() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (counts, other) = (folder.path().join("client-limits.json"), folder.path().join("other"));
        std::fs::write(&other, "as it was").expect("writable");
        std::os::unix::fs::symlink(&other, counts.with_extension("notes-1")).expect("a link");
        let notes = CallNotes::beside(&counts);
        notes.add("k", &Cost::request());
        assert_eq!(std::fs::read_to_string(&other).expect("it is there"), "as it was");
        assert_eq!(notes.read().len(), 1);
    }
}
