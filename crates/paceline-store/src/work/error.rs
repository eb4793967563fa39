//! What can go wrong with a work store, and what to do about it.

use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "postgres")]
use std::time::Duration;

/// Why a store cannot be opened, read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// Another process works on the store, or one of its files cannot be made.
    #[error(transparent)]
    Files(Arc<crate::JournalError>),
    /// A file stands where the store should be, and it is none.
    #[error("{} is not a store of paceline; move it away or name another file", path.display())]
    NotAStore {
        /// The file.
        path: PathBuf,
    },
    /// The journal of a run stands where the store should be.
    #[error("{} is the journal of a run, not a store of tasks", path.display())]
    IsJournal {
        /// The file.
        path: PathBuf,
    },
    /// The file was removed, moved away or replaced while it was in use.
    #[error(
        "the store {} was moved away or deleted while it was in use; the results of items in flight are not recorded. Put it back, with \
         the files beside it that begin with its name",
        path.display()
    )]
    Gone {
        /// Where it was.
        path: PathBuf,
    },
    /// The file has a second name in some folder, or is mounted there. SQLite keeps a log and locks by the name, so that a
    /// process that used the other one would see another store and damage this one.
    #[error(
        "the store {} has a second name (a hard link, or a file mounted alone), and use under both names would damage it; \
         remove one of them, mount its folder instead, or make a copy",
        path.display()
    )]
    ManyNames {
        /// The name that was given.
        path: PathBuf,
    },
    /// A newer version of Paceline wrote the store.
    #[error("{store} has format {found}, this version knows up to {known}; use a newer version of paceline")]
    NewerVersion {
        /// The file or the database.
        store: String,
        /// Its format.
        found: i64,
        /// The newest format known here.
        known: i64,
    },
    /// An item cannot be kept.
    #[error("the {what} of item {key:?} is too long: {bytes} bytes, at most {most} are kept")]
    TooLong {
        /// The item, its key cut to 80 characters.
        key: String,
        /// `key`, `payload` or `group`.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest that is kept.
        most: usize,
    },
    /// An item cannot be kept.
    #[error(
        "the {what} of item {key:?} holds a NUL character, which neither Postgres nor an environment variable can hold; leave it \
         out"
    )]
    Nul {
        /// The item, its key cut to 80 characters.
        key: String,
        /// `key`, `payload` or `group`.
        what: &'static str,
    },
    /// SQLite could not read or write.
    #[error("cannot {action} the store: {source}{}", advice_on(source))]
    Sqlite {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: Arc<rusqlite::Error>,
    },
    /// The address of a database cannot be read.
    #[cfg(feature = "postgres")]
    #[error("{}", words_on_address(why))]
    Address {
        /// What is wrong with it.
        why: String,
    },
    /// A database has no store in it.
    #[cfg(feature = "postgres")]
    #[error("there is no store on {server}; `paceline tasks add` makes it")]
    NoStore {
        /// The server and the database.
        server: String,
    },
    /// No server answers at the address of a database, or none that has a place for us.
    #[cfg(feature = "postgres")]
    #[error(
        "cannot reach the store on {server}: {}; waited {} s for it. Check that the server runs, and the host and port \
         in the address",
        in_full(source), waited.as_secs()
    )]
    Unreachable {
        /// The server and the database.
        server: String,
        /// For how long it was tried.
        waited: Duration,
        /// Why the last try failed.
        source: Arc<tokio_postgres::Error>,
    },
    /// The server of a database has not answered.
    #[cfg(feature = "postgres")]
    #[error("cannot {action} the store on {server}: it has not answered for {} s", waited.as_secs())]
    Silent {
        /// What was tried.
        action: &'static str,
        /// The server and the database.
        server: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// Postgres could not be reached, or did not do what it was asked.
    #[cfg(feature = "postgres")]
    #[error("cannot {action} the store on {server}: {}{}", in_full(source), advice_on_server(source))]
    Postgres {
        /// What was tried.
        action: &'static str,
        /// The server and the database.
        server: String,
        /// Why it failed.
        source: Arc<tokio_postgres::Error>,
    },
    /// The store was closed, or its thread ended.
    #[error("the store is closed")]
    Closed,
}

/// The error with its causes: alone it is often no more than "db error".
#[cfg(feature = "postgres")]
pub(crate) fn in_full(error: &tokio_postgres::Error) -> String {
    let cause = std::error::Error::source(error);
    let words = cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"));
    // The words of the driver, which has no code for it.
    let where_it_belongs = if words.ends_with("password missing") { PASSWORD } else { "" };
    words + where_it_belongs
}

/// Where the password of a database may stand, beside its address.
#[cfg(feature = "postgres")]
const PASSWORD: &str =
    ": it may stand in PGPASSWORD, or in a line of ~/.pgpass or of the file that PGPASSFILE names, of mode 600";

/// What to do about a full disk.
const MAKE_ROOM: &str = "; make room on its disk, then run the same command again";

/// What to do about an error of SQLite, where that is known.
fn advice_on(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => MAKE_ROOM,
        Some(rusqlite::ErrorCode::DatabaseBusy) => {
            "; another program has kept it locked for a minute: end that one, then run again"
        }
        Some(rusqlite::ErrorCode::ReadOnly) => {
            "; a process that changes a store must be able to write it and its folder"
        }
        Some(rusqlite::ErrorCode::CannotOpen) => {
            "; the process must be able to write the store and its folder, and to open more files (ulimit -n)"
        }
        Some(rusqlite::ErrorCode::SystemIoFailure) => {
            "; check whether its disk is full or broken, then run again: the items that were in flight are tried again"
        }
        _ => "",
    }
}

/// The file with the password is none of the address.
#[cfg(feature = "postgres")]
fn words_on_address(why: &str) -> String {
    match why.contains("PGPASSFILE") {
        true => why.to_owned(),
        false => format!("that is no address of a Postgres database: {why}; expected postgres://user@host/database"),
    }
}

/// What to do about an error of Postgres, where that is known.
#[cfg(feature = "postgres")]
fn advice_on_server(error: &tokio_postgres::Error) -> &'static str {
    use tokio_postgres::error::SqlState;
    match error.code() {
        Some(&SqlState::DISK_FULL) => MAKE_ROOM,
        Some(&SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
            "; check the user and password in the address, or the password of PGPASSWORD, or of the file of PGPASSFILE"
        }
        Some(&SqlState::INVALID_CATALOG_NAME) => "; make that database, or name another one in the address",
        _ => "",
    }
}

impl WorkError {
    /// Whether SQLite found the disk full.
    pub(super) fn is_full(&self) -> bool {
        let full = Some(rusqlite::ErrorCode::DiskFull);
        matches!(self, Self::Sqlite { source, .. } if source.sqlite_error_code() == full)
    }

    /// Whether the disk of the store is full: once there is room, the same succeeds.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::Files(error) => error.is_disk_full(),
            #[cfg(feature = "postgres")]
            Self::Postgres { source, .. } => source.code() == Some(&tokio_postgres::error::SqlState::DISK_FULL),
            _ => self.is_full(),
        }
    }

    /// Whether the server of the store is not there: it may come back, and nothing else is wrong.
    pub fn is_unreachable(&self) -> bool {
        match self {
            #[cfg(feature = "postgres")]
            Self::Unreachable { .. } | Self::Silent { .. } => true,
            #[cfg(feature = "postgres")]
            Self::Postgres { source, .. } => super::postgres::is_away(source),
            _ => false,
        }
    }

    /// For `map_err` at an operation on SQLite.
    pub(crate) fn sqlite(action: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { action, source: Arc::new(source) }
    }

    /// For an address that cannot be read.
    #[cfg(feature = "postgres")]
    pub(crate) fn address(why: impl Into<String>) -> Self {
        Self::Address { why: why.into() }
    }
}

impl From<crate::JournalError> for WorkError {
    fn from(error: crate::JournalError) -> Self {
        Self::Files(Arc::new(error))
    }
}
