//! What is asked of the file system besides reading and writing.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use crate::error::Error;

/// Makes a new name in a folder durable: without this a power cut may take the file with its name.
pub(crate) fn sync_folder_of(path: &Path) -> Result<(), Error> {
    let folder = folder_of(path);
    if cfg!(unix) {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(Error::io("sync", folder))?;
    }
    Ok(())
}

/// Where a file is.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Removes a file that may be there.
pub(crate) fn remove(path: &Path) -> Result<(), Error> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Whether `path` leads to this very file.
#[cfg(unix)]
pub(crate) fn stands_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(open), Ok(named)) = (file.metadata(), path.metadata()) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Nobody removes a file here that is open.
#[cfg(not(unix))]
pub(crate) const fn stands_at(_: &File, _: &Path) -> bool {
    true
}
