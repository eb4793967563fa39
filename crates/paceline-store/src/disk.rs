//! What is asked of the file system besides reading and writing.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{JournalError, is_disk_full};

/// Makes a new name in a folder durable: without this a power cut may take the file with its name.
pub(crate) fn sync_folder_of(path: &Path) -> Result<(), JournalError> {
    let folder = folder_of(path);
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(JournalError::io("sync", folder))?;
    }
    Ok(())
}

/// Where a file is.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// How files are opened that hold prompts and answers: one that is made belongs to its user alone.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.write(true);
    options
}

/// Makes the file `fresh` that is to take the place of `target`: with its permissions, where it is there, else private.
///
/// # Errors
/// An error of the file system.
pub fn create_in_place_of(target: &Path, fresh: &Path) -> io::Result<File> {
    let file = private_file().create(true).truncate(true).open(fresh)?;
    if let Ok(there) = target.metadata() {
        file.set_permissions(there.permissions())?;
    }
    Ok(file)
}

/// Makes an empty file for a database that is not there yet: the log that SQLite puts beside it has its permissions. What keeps
/// the file from being made keeps SQLite from it too, and SQLite has the better message, but where the disk is full.
///
/// # Errors
/// The disk has no room for one more file.
pub(crate) fn make_private(database: &Path) -> Result<(), JournalError> {
    // One that is there is not opened: closing it would take SQLite's locks away.
    match private_file().create_new(true).open(database) {
        Err(error) if is_disk_full(&error) => Err(JournalError::io("make", database)(error)),
        _ => Ok(()),
    }
}

/// The bytes that a user may still write in a folder, if the system reports them.
#[cfg(unix)]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
pub(crate) const fn free_space(_: &Path) -> Option<u64> {
    None
}

/// Removes a file that may be there.
pub(crate) fn remove(path: &Path) -> Result<(), JournalError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(JournalError::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Which file a name leads to, to distinguish it from another one of that name. Where the system has no numbers for
/// files (it is not Unix) no process removes a file that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    #[cfg(unix)]
    numbers: (u64, u64),
}

impl FileIdentity {
    /// That of the file that stands at `path` now. The file is not opened: on Unix, closing it would take SQLite's locks away.
    pub(crate) fn at(path: &Path) -> std::io::Result<Self> {
        path.metadata().map(|file| Self::of(&file))
    }

    #[cfg(unix)]
    fn of(file: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self { numbers: (file.dev(), file.ino()) }
    }

    #[cfg(not(unix))]
    const fn of(_: &Metadata) -> Self {
        Self {}
    }
}

/// Whether two names lead to the same file, by links of either kind, or would once it is made.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    if canonical(one) == canonical(other) {
        return true;
    }
    // Devices may be shared, and elsewhere than on Unix no number tells files apart.
    let file = |path: &Path| path.metadata().ok().filter(Metadata::is_file).map(|file| FileIdentity::of(&file));
    cfg!(unix) && file(one).is_some_and(|known| file(other) == Some(known))
}

/// The path without symbolic links, also of a file that is not there yet.
fn canonical(path: &Path) -> PathBuf {
    let of_a_new_file = || Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(of_a_new_file).unwrap_or_else(|| path.to_owned())
}

/// Whether the file at `path` has other names, in this folder or elsewhere: hard links, or a place where it is mounted, as
/// containers do it. `path` is canonical.
pub(crate) fn has_other_names(path: &Path) -> bool {
    has_hard_links(path) || is_mounted_at(path)
}

#[cfg(unix)]
fn has_hard_links(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    path.metadata().is_ok_and(|file| file.is_file() && file.nlink() > 1)
}

#[cfg(not(unix))]
const fn has_hard_links(_: &Path) -> bool {
    false
}

/// Linux lists mounts; elsewhere files are not mounted. In its list blanks are written in octal.
fn is_mounted_at(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let written = path.to_string_lossy().replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(&*written.replace('\n', "\\012")))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[test]
fn what_is_mounted_is_known_by_its_place() {
    assert!(is_mounted_at(Path::new("/proc")));
    assert!(!is_mounted_at(Path::new("/proc/self")) && !is_mounted_at(Path::new("proc")));
}

/// Whether `path` leads to this very file.
pub(crate) fn is_still_at(file: &File, path: &Path) -> bool {
    let Ok(open) = file.metadata() else { return false };
    FileIdentity::at(path).is_ok_and(|named| named == FileIdentity::of(&open))
}
