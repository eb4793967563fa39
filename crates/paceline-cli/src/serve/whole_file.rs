//! Files that are whole at every moment: what is there is the old text or the new one.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

/// A longer file is no configuration, no key and no certificate, and would take the memory of the gateway that reads it.
const LONGEST: u64 = 16 << 20;

/// Whether a file can be read to its end at once. A pipe or a device that took its place would be waited for, or never end.
pub(super) fn check(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("this is a folder, a pipe or a device; expected a file"));
    }
    if found.len() > LONGEST {
        return Err(io::Error::other(format!("{} bytes; expected at most {LONGEST}", found.len())));
    }
    Ok(())
}

/// Puts a file there, for its user alone. A power cut may bring back what was there before.
pub(super) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    fresh(path, text)?.persist(path)?;
    Ok(())
}

/// Puts a file there, for its user alone, which is there after a power cut too.
pub(super) fn replace_durably(path: &Path, text: &[u8]) -> io::Result<()> {
    let file = fresh(path, text)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_names(folder_of(path))
}

/// Makes the names in a folder durable.
pub(super) fn sync_names(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

fn fresh(path: &Path, text: &[u8]) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(folder_of(path))?;
    hand_over(file.as_file(), folder_of(path))?;
    file.write_all(text)?;
    Ok(file)
}

/// What root puts into the folder of another user is for that user: the gateway of a service reads the keys that root makes.
#[cfg(unix)]
fn hand_over(file: &File, folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let owner = folder.metadata()?;
    if file.metadata()?.uid() != 0 || owner.uid() == 0 {
        return Ok(());
    }
    std::os::unix::fs::fchown(file, Some(owner.uid()), Some(owner.gid()))
}

#[cfg(not(unix))]
fn hand_over(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// The folder of a file; that of a bare name is the present one.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
