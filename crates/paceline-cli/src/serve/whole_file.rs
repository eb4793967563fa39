//! Files that are whole at every moment: what is there is the old text or the new one.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

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
    file.write_all(text)?;
    Ok(file)
}

/// The folder of a file; that of a bare name is the present one.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
