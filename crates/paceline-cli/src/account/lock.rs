//! A file that one process at a time holds, and in which it says who it is. The system lets go of it when the process ends,
//! however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::Duration;

/// The word behind the process id of one that shares its configured limits.
const SHARES: &str = "shares";

pub(super) enum Taken {
    Ours(File),
    Theirs { pid: Option<u32>, shares: bool },
}

/// Takes the file of that name, if no other process has it.
pub(super) fn take(folder: &Path, name: &str, shares: bool) -> io::Result<Taken> {
    let path = folder.join(name);
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path)?;
        match file.try_lock() {
            // Another process may have forgotten the account meanwhile, and this is no file any more.
            Ok(()) if !stands_at(&file, &path) => continue,
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(theirs(&file)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Who it is, is only told: on a full disk the file is held all the same.
        let me = format!("{} {}\n", std::process::id(), if shares { SHARES } else { "" });
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(me.as_bytes()));
        return Ok(Taken::Ours(file));
    }
}

/// Who has the file. One that has just taken it is about to say so.
fn theirs(mut file: &File) -> Taken {
    for _ in 0..50 {
        let mut text = String::new();
        let read = file.rewind().and_then(|()| file.take(32).read_to_string(&mut text));
        if read.is_ok() && text.ends_with('\n') {
            let mut words = text.split_whitespace();
            let pid = words.next().and_then(|pid| pid.parse().ok());
            return Taken::Theirs { pid, shares: words.next() == Some(SHARES) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Taken::Theirs { pid: None, shares: false }
}

/// The other process, in words.
pub(super) fn who(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(unix)]
fn stands_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let numbers = |file: std::fs::Metadata| (file.dev(), file.ino());
    file.metadata().map(numbers).ok() == path.metadata().map(numbers).ok()
}

#[cfg(not(unix))]
const fn stands_at(_: &File, _: &Path) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_the_first_one_is() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let folder = folder.path();
        let first = take(folder, "x", true).expect("a lock");
        assert!(matches!(
            take(folder, "x", false).expect("readable"),
            Taken::Theirs { pid, shares: true } if pid == Some(std::process::id())
        ));
        let _other = take(folder, "y", false).expect("a lock");
        assert!(matches!(take(folder, "y", false).expect("readable"), Taken::Theirs { shares: false, .. }));
        drop(first);
        assert!(matches!(take(folder, "x", false).expect("a lock"), Taken::Ours(_)));
    }
}
