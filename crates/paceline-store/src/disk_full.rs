//! A disk that is full, and what has to stay free.

use std::fmt;
use std::path::{Path, PathBuf};

/// Bytes that stay free while a run goes on. At its end the answers that waited may take them, and then the report.
pub(crate) const RESERVE: u64 = 1 << 20;

/// A disk that is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFull {
    /// The folder on that disk.
    pub folder: PathBuf,
    /// Free bytes.
    pub left: u64,
    /// Bytes that the next write needs.
    pub needed: u64,
}

impl DiskFull {
    /// What those wait for that cannot write.
    pub fn room(&self) -> String {
        format!("room on the disk of {}", self.whole_folder().display())
    }

    /// As it is called from everywhere: logs are read in other folders too, and "." is no place there.
    fn whole_folder(&self) -> PathBuf {
        std::path::absolute(Path::new(".").join(&self.folder)).unwrap_or_else(|_| self.folder.clone())
    }
}

impl fmt::Display for DiskFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = |bytes: u64| bytes.div_ceil(1 << 10);
        let (left, stays_free) = (kib(self.left), kib(RESERVE));
        let folder = self.whole_folder();
        write!(f, "the disk of {} is full: {left} KiB are left", folder.display())?;
        match self.needed.checked_sub(RESERVE) {
            Some(0) => write!(f, ", and {stays_free} KiB must stay free"),
            Some(more) => write!(f, "; {stays_free} KiB must stay free, and the next writes need {} KiB", kib(more)),
            // At the end of a run nothing has to stay free.
            None => write!(f, ", and the next writes need {} KiB", kib(self.needed)),
        }
    }
}
