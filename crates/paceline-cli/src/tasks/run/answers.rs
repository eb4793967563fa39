//! The file of answers: appended to, and on the disk before an item counts as done.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use paceline_store::{DiskSpace, LineFile};
use tokio::sync::{mpsc, oneshot};

use crate::exit::Failure;

/// A file that lines are appended to. What is asked for while the disk is busy goes in one write.
#[derive(Debug)]
pub(super) struct Answers {
    path: PathBuf,
    lines: mpsc::UnboundedSender<Line>,
    broken: OnceLock<String>,
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
        let refused = |error: &dyn Display| Failure::refused(format!("cannot append to {}: {error}", path.display()));
        if path.metadata().is_ok_and(|about| !about.is_file()) {
            return Err(refused(&"it is no file"));
        }
        let mut file = LineFile::open(path).map_err(|error| refused(&why(&error)))?;
        if !file.lock().map_err(|error| refused(&why(&error)))? {
            let path = path.display();
            return Err(Failure::refused(format!("another process appends to {path}: name another file")));
        }
        file.cut_torn_lines().map_err(|error| refused(&why(&error)))?;
        let (lines, asked) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("answers".to_owned())
            .spawn(move || write(file, &disk_space, asked))
            .map_err(|error| refused(&error))?;
        Ok(Self { path: path.to_owned(), lines, broken: OnceLock::new() })
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
            let message = format!("cannot append an answer to {}: {message}", self.path.display());
            self.broken.get_or_init(|| message.clone());
            message
        })
    }

    /// Why the first line was lost that could not be appended.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.get().cloned()
    }
}

fn write(mut file: LineFile, disk_space: &DiskSpace, mut asked: mpsc::UnboundedReceiver<Line>) {
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
        let written = file.append(&bytes);
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
        let long = "x".repeat(200_000);
        let cases = [
            ("", "new\n"),
            ("old\n", "old\nnew\n"),
            ("old\ncut", "old\nnew\n"),
            ("cut", "new\n"),
            (&format!("old\n{long}"), "old\nnew\n"),
            (&long, "new\n"),
        ];
        for (number, (before, after)) in cases.into_iter().enumerate() {
            let path = folder.path().join(number.to_string());
            std::fs::write(&path, before).unwrap();
            let answers = Answers::open(&path, DiskSpace::of([&*path])).unwrap();
            answers.append(b"new\n".to_vec()).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
            assert!(Answers::open(&path, DiskSpace::of([&*path])).is_err(), "one process appends");
        }
        for path in [folder.path(), Path::new("/dev/null")] {
            assert!(Answers::open(path, DiskSpace::of([path])).is_err() || (cfg!(not(unix)) && path.is_file()));
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told() {
        if !Path::new("/dev/full").exists() {
            return;
        }
        let file = LineFile::open(Path::new("/dev/full")).unwrap();
        let (lines, asked) = mpsc::unbounded_channel();
        std::thread::spawn(|| write(file, &DiskSpace::of([]), asked));
        let answers = Answers { path: "full".into(), lines, broken: OnceLock::new() };
        let message = answers.append(b"line\n".to_vec()).await.unwrap_err();
        assert!(message.starts_with("cannot append an answer to full: "), "{message}");
        assert_eq!(answers.broken(), Some(message));
    }
}
