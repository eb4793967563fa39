//! A file that one process at a time holds. The system releases it when the process ends, however it ends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

use crate::files;

/// The word behind the process id of one that shares its configured limits.
const SHARES: &str = "shares";

/// Takes the file, unless another process has it.
pub(super) fn take(path: &Path) -> io::Result<Option<File>> {
    files::with_spare(|| paceline_store::lock_file(path).map_err(io::Error::other))
}

/// Writes into the file which process holds it, and whether that shares its configured limits: over what is there, for which a
/// disk that is full has room too.
pub(super) fn sign(mut file: &File, shares: bool) -> io::Result<()> {
    let me = format!("{} {}\n", std::process::id(), if shares { SHARES } else { "" });
    file.rewind()?;
    let written = file.write_all(me.as_bytes());
    // What another process signed is not true any more, though this one could not be written.
    let length = if written.is_ok() { me.len() } else { 0 };
    file.set_len(length as u64)?;
    written
}

/// The process that holds the file, and whether it shares its configured limits. It may be about to sign, or have no room for it.
pub(super) fn signed_by(path: &Path) -> (Option<u32>, bool) {
    for _ in 0..50 {
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(32).read_to_string(&mut text));
        // Behind it what an earlier one wrote may stand still.
        if let Some((signed, _)) = text.split_once('\n').filter(|_| read.is_ok()) {
            let mut words = signed.split_whitespace();
            let pid = words.next().and_then(|pid| pid.parse().ok());
            return (pid, words.next() == Some(SHARES));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (None, false)
}

/// That process, for people.
pub(super) fn named(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_knows_the_process_that_holds_the_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for shares in [true, false] {
            let path = folder.path().join(shares.to_string());
            let first = take(&path).expect("writable").expect("free");
            assert!(take(&path).expect("writable").is_none());
            std::fs::write(&path, format!("{}{} shares\n", u32::MAX, "0".repeat(5))).expect("writable");
            sign(&first, shares).expect("writable");
            assert_eq!(signed_by(&path), (Some(std::process::id()), shares));
            drop(first);
            assert!(take(&path).expect("writable").is_some());
        }
    }
}
