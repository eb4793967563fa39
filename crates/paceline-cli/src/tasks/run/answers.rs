//! The file of answers: appended to, and on the disk before an item counts as done.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use paceline_store::work::{WorkError, WorkStore};
use paceline_store::{CustomId, DiskSpace, KnownResults, LineFile, may_hold_results};
use tokio::sync::{mpsc, oneshot};

use crate::database::not_begun;
use crate::exit::Failure;

/// A file that lines are appended to. What is asked for while the disk is busy goes in one write.
#[derive(Debug)]
pub(super) struct Answers {
    path: PathBuf,
    file: Arc<Mutex<LineFile>>,
    lines: mpsc::UnboundedSender<Line>,
    broken: OnceLock<String>,
    /// Those of a run that was cut off before the store knew of them.
    recalled: KnownResults,
}

#[derive(Debug)]
struct Line {
    bytes: Vec<u8>,
    kept: oneshot::Sender<Result<(), String>>,
}

impl Answers {
    /// Opens the file, or makes it. A last line that an interruption cut off is removed: its item is not done. Lines wait for
    /// room on the disk.
    ///
    /// # Errors
    /// Refuses what is no file, cannot be written, or is written by another process.
    pub(super) fn open(path: &Path, disk_space: DiskSpace) -> Result<Self, Failure> {
        refuse_other(path)?;
        let refused = |error: &dyn Display| cannot_append(path, error);
        let mut file = LineFile::open(path).map_err(|error| refused(&why(&error)))?;
        if !file.lock().map_err(|error| refused(&why(&error)))? {
            let path = path.display();
            return Err(Failure::refused(format!("another process appends to {path}: name another file")));
        }
        file.cut_torn_lines().map_err(|error| refused(&why(&error)))?;
        Self::of(path, file, disk_space).map_err(|error| refused(&error))
    }

    /// Starts the thread that writes the file.
    fn of(path: &Path, file: LineFile, disk_space: DiskSpace) -> io::Result<Self> {
        let (lines, asked) = mpsc::unbounded_channel();
        let file = Arc::new(Mutex::new(file));
        let written = Arc::clone(&file);
        std::thread::Builder::new().name("answers".to_owned()).spawn(move || write(&written, &disk_space, asked))?;
        Ok(Self { path: path.to_owned(), file, lines, broken: OnceLock::new(), recalled: KnownResults::default() })
    }

    /// Reads the answers that a run of this store appended before it was cut off: the store may not know of them.
    ///
    /// # Errors
    /// An error of the store or of the file system.
    pub(super) async fn recall(mut self, store: &dyn WorkStore) -> Result<Self, Failure> {
        let end = lock(&self.file).end();
        let begun = store.load_state(&self.name()).await.map_err(not_begun)?;
        let begun = begun.and_then(|begun| begun.parse().ok()).unwrap_or(end).min(end);
        let read = tokio::task::block_in_place(|| lock(&self.file).results_from(begun));
        self.recalled = read.map_err(Failure::refused)?;
        store.save_state(&self.name(), &begun.to_string()).await.map_err(not_begun)?;
        Ok(self)
    }

    /// The store knows all answers: the next run need not read them.
    ///
    /// # Errors
    /// An error of the store.
    pub(super) async fn settle(&self, store: &dyn WorkStore) -> Result<(), WorkError> {
        let end = lock(&self.file).end();
        store.save_state(&self.name(), &end.to_string()).await
    }

    /// Under this name the store keeps how far it knows the file.
    fn name(&self) -> String {
        format!("answers in {}", self.path.canonicalize().as_ref().unwrap_or(&self.path).display())
    }

    /// Whether the answer of an item to a call after so many stands there, as a run left it that was cut off.
    pub(super) fn has(&self, item: u64, custom_id: &CustomId, after: u32) -> bool {
        self.recalled.contains(item, custom_id, after)
    }

    /// Appends a line, and comes back when it is on the disk.
    ///
    /// # Errors
    /// A message, when it is not.
    pub(super) async fn append(&self, bytes: Vec<u8>) -> Result<(), String> {
        let (kept, reply) = oneshot::channel();
        let gone = || "the thread that writes it has ended".to_owned();
        let asked = self.lines.send(Line { bytes, kept }).map_err(|_| gone());
        let written = match asked {
            Ok(()) => reply.await.unwrap_or_else(|_| Err(gone())),
            Err(message) => Err(message),
        };
        written.map_err(|message| {
            let message = self.cannot_append(&message);
            self.broken.get_or_init(|| message.clone());
            message
        })
    }

    /// Why the first line was lost that could not be appended, or all of them: the file is not what was written.
    pub(super) fn broken(&self) -> Option<String> {
        let taken = || lock(&self.file).check_place().err().map(|error| self.cannot_append(&why(&error)));
        self.broken.get().cloned().or_else(taken)
    }

    fn cannot_append(&self, message: &str) -> String {
        format!("cannot append an answer to {}: {message}", self.path.display())
    }
}

/// Refuses what is no file of answers, such as a device or the file with the payloads, before anything waits for room on its
/// disk.
///
/// # Errors
/// Names it.
pub(super) fn refuse_other(path: &Path) -> Result<(), Failure> {
    match path.metadata() {
        Ok(about) if !about.is_file() => return Err(cannot_append(path, &"it is no file")),
        Ok(_) => {}
        // It is made, or opening it says why not.
        Err(_) => return Ok(()),
    }
    match may_hold_results(path) {
        Ok(true) => Ok(()),
        Ok(false) => Err(cannot_append(path, &"its first line is no answer; name another file")),
        Err(error) => Err(cannot_append(path, &error)),
    }
}

fn cannot_append(path: &Path, error: &dyn Display) -> Failure {
    Failure::refused(format!("cannot append to {}: {error}", path.display()))
}

fn lock(file: &Mutex<LineFile>) -> MutexGuard<'_, LineFile> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(file: &Mutex<LineFile>, disk_space: &DiskSpace, mut asked: mpsc::UnboundedReceiver<Line>) {
    while let Some(first) = asked.blocking_recv() {
        let mut lines = vec![first];
        lines.extend(std::iter::from_fn(|| asked.try_recv().ok()));
        let fitting = disk_space.wait_for_space(lines.iter().map(|line| line.bytes.len()));
        for line in lines.drain(fitting..) {
            let disk_full = disk_space.disk_full().map_or_else(String::new, |disk_full| disk_full.to_string());
            // The caller may have been cancelled meanwhile.
            let _ = line.kept.send(Err(disk_full));
        }
        let bytes: Vec<u8> = lines.iter().flat_map(|line| &line.bytes).copied().collect();
        let written = lock(file).append(&bytes);
        for line in lines {
            let _ = line.kept.send(written.as_ref().copied().map_err(why));
        }
    }
}

/// The system's error, without the file, which the caller adds.
fn why(error: &paceline_store::JournalError) -> String {
    match error {
        paceline_store::JournalError::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_appended_and_a_cut_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let old = "{\"id\":\"pl-0-1-801d8dff\"}\n";
        let long = format!("{}{}", &old[..12], "x".repeat(200_000));
        let cases = [
            (String::new(), "new\n".to_owned()),
            (old.to_owned(), format!("{old}new\n")),
            (format!("{old}cut"), format!("{old}new\n")),
            (old[..9].to_owned(), "new\n".to_owned()),
            (format!("{old}{long}"), format!("{old}new\n")),
            (long, "new\n".to_owned()),
        ];
        for (number, (before, after)) in cases.into_iter().enumerate() {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, before).unwrap();
            let answers = Answers::open(&path, DiskSpace::of([&*path])).unwrap();
            answers.append(b"new\n".to_vec()).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
            assert!(Answers::open(&path, DiskSpace::of([&*path])).is_err(), "one process appends");
        }
        let payloads = folder.path().join("payloads");
        std::fs::write(&payloads, "{\"payload\":1}").unwrap();
        let refused = Answers::open(&payloads, DiskSpace::of([&*payloads])).unwrap_err().to_string();
        assert!(refused.ends_with("payloads: its first line is no answer; name another file"), "{refused}");
        assert_eq!(std::fs::read_to_string(&payloads).unwrap(), "{\"payload\":1}");
        for path in [folder.path(), Path::new("/dev/null")] {
            assert!(Answers::open(path, DiskSpace::of([path])).is_err() || (cfg!(not(unix)) && path.is_file()));
        }
    }

    #[tokio::test]
    async fn answers_that_are_cut_off_or_moved_break_the_run() {
        let takings: [fn(&Path); 2] =
            [|path| std::fs::write(path, "").unwrap(), |path| std::fs::rename(path, path.with_extension("1")).unwrap()];
        for take in takings {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("answers");
            let answers = Answers::open(&path, DiskSpace::of([&*path])).unwrap();
            answers.append(b"one\n".to_vec()).await.unwrap();
            assert_eq!(answers.broken(), None);
            take(&path);
            let at_the_end = answers.broken().unwrap();
            assert!(at_the_end.contains("was removed, replaced or cut short"), "{at_the_end}");
            assert_eq!(answers.append(b"two\n".to_vec()).await.unwrap_err(), at_the_end);
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told() {
        if !Path::new("/dev/full").exists() {
            return;
        }
        let file = LineFile::open(Path::new("/dev/full")).unwrap();
        let answers = Answers::of(Path::new("full"), file, DiskSpace::of([])).unwrap();
        let message = answers.append(b"line\n".to_vec()).await.unwrap_err();
        assert!(message.starts_with("cannot append an answer to full: "), "{message}");
        assert_eq!(answers.broken(), Some(message));
    }
}
