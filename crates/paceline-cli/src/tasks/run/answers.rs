//! The file of answers: appended to, and on the disk before an item counts as done.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

/// As much is looked at to find the beginning of a last line that was cut off.
const BLOCK: u64 = 64 << 10;

impl Answers {
    /// Opens the file, or makes it. A last line that an interruption cut off is removed: its item is not done.
    ///
    /// # Errors
    /// Refuses what is no file, cannot be written, or is written by another process.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let refused = |error: io::Error| Failure::refused(format!("cannot append to {}: {error}", path.display()));
        let made = !path.exists();
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(refused)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::refused(format!(
                    "another process appends to {}: name another file",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(refused(error)),
        }
        remove_cut_line(&mut file).map_err(refused)?;
        if made && cfg!(unix) {
            // Without this a power cut may take the file with its name.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(refused)?;
        }
        let (lines, asked) = mpsc::unbounded_channel();
        std::thread::Builder::new().name("answers".to_owned()).spawn(|| write(file, asked)).map_err(refused)?;
        Ok(Self { path: path.to_owned(), lines, broken: OnceLock::new() })
    }

    /// Appends a line, and comes back when it is on the disk.
    ///
    /// # Errors
    /// In words, when it is not.
    pub(super) async fn append(&self, bytes: Vec<u8>) -> Result<(), String> {
        let (kept, told) = oneshot::channel();
        let gone = || "the thread that writes it has ended".to_owned();
        let asked = self.lines.send(Line { bytes, kept }).map_err(|_| gone());
        let written = match asked {
            Ok(()) => told.await.unwrap_or_else(|_| Err(gone())),
            Err(words) => Err(words),
        };
        written.map_err(|words| {
            let words = format!("cannot append an answer to {}: {words}", self.path.display());
            self.broken.get_or_init(|| words.clone());
            words
        })
    }

    /// Why the first line was lost that could not be appended.
    pub(super) fn broken(&self) -> Option<String> {
        self.broken.get().cloned()
    }
}

fn write(mut file: File, mut asked: mpsc::UnboundedReceiver<Line>) {
    while let Some(first) = asked.blocking_recv() {
        let mut lines = vec![first];
        lines.extend(std::iter::from_fn(|| asked.try_recv().ok()));
        let bytes: Vec<u8> = lines.iter().flat_map(|line| &line.bytes).copied().collect();
        let written = file.write_all(&bytes).and_then(|()| file.sync_data());
        for line in lines {
            // Whoever asked may have been given up meanwhile.
            let _ = line.kept.send(written.as_ref().map(|_| ()).map_err(ToString::to_string));
        }
    }
}

fn remove_cut_line(file: &mut File) -> io::Result<()> {
    let mut end = file.metadata()?.len();
    let mut block = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        io::Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(last) = block.iter().rposition(|byte| *byte == b'\n') {
            return file.set_len(start + last as u64 + 1);
        }
        end = start;
    }
    file.set_len(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_appended_and_a_cut_one_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(3 * BLOCK as usize);
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
            let answers = Answers::open(&path).unwrap();
            answers.append(b"new\n".to_vec()).await.unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
            assert!(Answers::open(&path).is_err(), "one process appends");
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told() {
        if !Path::new("/dev/full").exists() {
            return;
        }
        let file = OpenOptions::new().append(true).open("/dev/full").unwrap();
        let (lines, asked) = mpsc::unbounded_channel();
        std::thread::spawn(|| write(file, asked));
        let answers = Answers { path: "full".into(), lines, broken: OnceLock::new() };
        let words = answers.append(b"line\n".to_vec()).await.unwrap_err();
        assert!(words.starts_with("cannot append an answer to full: "), "{words}");
        assert_eq!(answers.broken(), Some(words));
    }
}
