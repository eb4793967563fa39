//! One run per job: a lock file that names its holder.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::error::Error;

/// Held until dropped. The operating system releases it when the process dies, so no lock is ever stale; the file itself
/// stays, because deleting it could hand two runs a lock each.
#[derive(Debug)]
pub(crate) struct RunLock {
    _file: File,
}

impl RunLock {
    /// Takes the lock, or says who has it.
    pub(crate) fn take(path: &Path) -> Result<Self, Error> {
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(path).map_err(Error::io("open", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked { path: path.to_owned(), pid: holder(&mut file) });
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::Io { action: "lock", path: path.to_owned(), source });
            }
        }
        let pid = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.rewind()).map_err(Error::io("write", path))?;
        file.write_all(pid.as_bytes()).map_err(Error::io("write", path))?;
        Ok(Self { _file: file })
    }
}

/// The process that wrote its id into the file; none where it has not yet, or where locked files cannot be read.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_the_first_ones_pid_and_the_third_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.journal.lock");
        // A longer number of an earlier holder must not shine through.
        std::fs::write(&path, "4294967295\n").unwrap();
        let first = RunLock::take(&path).unwrap();
        let Err(Error::Locked { pid, .. }) = RunLock::take(&path) else { panic!("the lock was given twice") };
        assert_eq!(pid, Some(std::process::id()));
        drop(first);
        RunLock::take(&path).unwrap();
    }
}
