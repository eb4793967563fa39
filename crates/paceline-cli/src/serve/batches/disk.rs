//! Records on the disk: whole at every moment, and there after a power cut once written.

use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::serve::whole_file;

/// The name of a record in its folder.
const RECORD: &str = "record.json";

/// Writes the record of a folder.
pub(super) fn write(folder: &Path, record: &impl Serialize) -> io::Result<()> {
    whole_file::replace_durably(&folder.join(RECORD), &serde_json::to_vec(record)?)
}

/// Reads the record of a folder.
pub(super) fn read<T: DeserializeOwned>(folder: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&std::fs::read(folder.join(RECORD))?)?)
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
