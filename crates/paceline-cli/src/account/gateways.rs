//! The gateways that a user has at work on this machine, for jobs that go through none and want to be on their pages.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::{folder, make_private};

/// Where they are, in the state folder of the user; made by the first gateway.
const FOLDER: &str = "gateways";

/// Of the file of a gateway, which it holds for as long as it lives.
const EXTENSION: &str = "gateway";

/// No address is longer, in bytes.
const LONGEST: usize = 200;

/// A gateway that jobs find, until this is dropped.
#[derive(Debug)]
pub(crate) struct Found {
    path: PathBuf,
    _held: File,
}

impl Drop for Found {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Lets jobs of this user find the gateway at that address.
///
/// # Errors
/// A folder that cannot be written.
pub(crate) fn announce(url: &str) -> io::Result<Found> {
    let folder = folder()?.join(FOLDER);
    make_private(&folder)?;
    announce_in(&folder, url)
}

/// The addresses of those that are at work.
pub(crate) fn running() -> Vec<String> {
    folder().map(|folder| running_in(&folder.join(FOLDER))).unwrap_or_default()
}

fn announce_in(folder: &Path, url: &str) -> io::Result<Found> {
    let mut file = tempfile::Builder::new().suffix(&format!(".{EXTENSION}.new")).tempfile_in(folder)?;
    file.as_file().lock()?;
    file.write_all(url.as_bytes())?;
    // It has its name once it is held and written.
    let path = file.path().with_extension("");
    Ok(Found { _held: file.persist(&path)?, path })
}

fn running_in(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION))
        .filter_map(running_at)
        .collect()
}

/// The address in the file of a gateway; one that was killed has left its file, which goes.
fn running_at(path: PathBuf) -> Option<String> {
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Ok(()) => {
            let _ = std::fs::remove_file(&path);
            None
        }
        Err(_) => std::fs::read_to_string(&path).ok().filter(|url| !url.is_empty() && url.len() <= LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_found_while_it_lives_and_its_file_goes_after_a_kill_too() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = || std::fs::read_dir(folder.path()).expect("a folder").count();
        let first = announce_in(folder.path(), "http://127.0.0.1:1").expect("writable");
        let second = announce_in(folder.path(), "http://127.0.0.1:2").expect("writable");
        let mut found = running_in(folder.path());
        found.sort_unstable();
        assert_eq!(found, ["http://127.0.0.1:1", "http://127.0.0.1:2"]);
        drop(second);
        assert_eq!((running_in(folder.path()), files()), (vec!["http://127.0.0.1:1".to_owned()], 1));
        // As after a kill: the file stays, and no process holds it.
        std::fs::copy(&first.path, folder.path().join("killed.gateway")).expect("writable");
        assert_eq!((running_in(folder.path()).len(), files()), (1, 1));
    }
}
