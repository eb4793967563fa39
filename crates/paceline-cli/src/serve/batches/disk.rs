//! Records on the disk: whole at every moment, and there after a power cut once written.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tempfile::NamedTempFile;

/// The name of a record in its folder.
const RECORD: &str = "record.json";

/// Writes the record of a folder.
pub(super) fn write(folder: &Path, record: &impl Serialize) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(RECORD))?;
    sync_names(folder)
}

/// Reads the record of a folder.
pub(super) fn read<T: DeserializeOwned>(folder: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join(RECORD))?)?)
}

/// Makes the names in a folder durable.
pub(super) fn sync_names(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// Deletes all that a folder holds but its record.
pub(super) fn leave_only_record(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != RECORD {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
