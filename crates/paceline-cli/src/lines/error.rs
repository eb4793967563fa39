//! Errors of an input, with messages that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use paceline_store::is_disk_full;

use crate::exit::Failure;
use crate::lines::table::SAVE_AS;
use crate::lines::wrong::OTHER_INPUT;
use crate::text::printable;

/// What of it changed is not known.
const OF_REQUESTS: &str =
    "--prompt-template, --model, --max-output-tokens or --format changed (or --body, --system-prompt or --id-column)";

/// What follows where flags that make requests have other values than before.
pub(super) const ASKED_ANEW: &str = "and so the requests changed: use the former flags, or another output, for which all are asked and paid \
                                     for anew";

/// Why an input cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// An error of the file system.
    #[error("cannot read {}: {source}", name(path))]
    Unreadable {
        /// The input, or the copy of it.
        path: PathBuf,
        source: io::Error,
    },
    /// A folder.
    #[error("cannot read {}: it is a folder; name a file of requests, one JSON object a line", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// Columns, and no lines.
    #[error(
        "cannot read {}: it is a Parquet file; convert it to lines of JSON, and name that file: {}",
        name(path),
        as_lines(path)
    )]
    Parquet {
        /// The input.
        path: PathBuf,
    },
    /// A table that is no text.
    #[error("cannot read {}: it is {what}; {SAVE_AS} (lines as UTF-8), and name that file", name(path))]
    OtherTable {
        /// The input.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Compressed data that is none, or not all of it.
    #[error(
        "cannot unpack {}: it is not a gzip file, is cut off or damaged, or has other data behind it ({source}); \
         compress it again",
        path.display()
    )]
    Gzip {
        /// The input.
        path: PathBuf,
        source: io::Error,
    },
    /// Another input than that of the job, which is to be compared with it.
    #[error("--dry-run cannot compare {} with the job, because it can be read only once: name a file", name(path))]
    ReadOnce {
        /// The input.
        path: PathBuf,
    },
    /// The copy of an input that cannot be read twice.
    #[error("cannot write {}, the copy of the input: {source}", path.display())]
    Copy {
        /// The copy.
        path: PathBuf,
        source: io::Error,
    },
    /// A table of which no row can be read.
    #[error("{}: {message}", name(path))]
    Table {
        /// The input.
        path: PathBuf,
        /// What is wrong with it, and where.
        message: String,
    },
    /// The file that the job began with, under other flags.
    #[error(
        "{} is the input of this job, but {}, {}, and no budget counts what this job has spent",
        name(source_path),
        printable(changed.as_deref().unwrap_or(OF_REQUESTS)),
        ASKED_ANEW
    )]
    MadeOtherwise {
        /// The input.
        source_path: PathBuf,
        /// The flags, with their values then and now; none where the journal does not have them.
        changed: Option<String>,
    },
    /// Not what the job began with.
    #[error(
        "{} is not the input that this job began with, a copy of which is {}; {OTHER_INPUT}",
        name(source_path),
        spool.display()
    )]
    Differs {
        /// The input.
        source_path: PathBuf,
        /// The copy.
        spool: PathBuf,
    },
}

impl From<InputError> for Failure {
    fn from(error: InputError) -> Self {
        match &error {
            InputError::Copy { source, .. } if is_disk_full(source) => Self::DiskFull(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

impl InputError {
    /// Refuses what holds no lines of UTF-8, by its first bytes.
    ///
    /// # Errors
    /// [`InputError::Parquet`], [`InputError::OtherTable`].
    pub(crate) fn of_columns(path: &Path, head: &[u8]) -> Result<(), Self> {
        let path = path.to_owned();
        match head {
            b"PAR1" => Err(Self::Parquet { path }),
            b"PK\x03\x04" => Err(Self::OtherTable { path, what: "a workbook (.xlsx) or another zip archive" }),
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Err(Self::OtherTable { path, what: "a text in UTF-16" }),
            _ => Ok(()),
        }
    }

    /// Refuses what can be read only once, where a dry run has to read it again.
    ///
    /// # Errors
    /// [`InputError::ReadOnce`].
    pub(crate) fn of_pipe(path: &Path) -> Result<(), Self> {
        if path.is_file() { Ok(()) } else { Err(Self::ReadOnce { path: path.to_owned() }) }
    }

    /// For `map_err` where the input is read.
    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreadable { path: path.to_owned(), source }
    }
}

/// A command that makes lines of JSON of a Parquet file.
fn as_lines(path: &Path) -> String {
    let from = if path == Path::new("-") { Path::new("in.parquet") } else { path };
    let (from, to) = (from.display(), from.with_extension("jsonl"));
    let to = to.display();
    format!(
        "duckdb -c \"COPY (FROM '{from}') TO '{to}' (FORMAT json)\", or python -c \"import pandas; \
         pandas.read_parquet('{from}').to_json('{to}', orient='records', lines=True)\""
    )
}

/// An input as people call it.
pub(crate) fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}
