//! Looking at a journal from another process, while a run writes it or after it ended.

use std::path::Path;

use paceline_core::Timestamp;
use rusqlite::Connection;

use crate::error::Error;
use crate::further::{self, Unread};
use crate::history::{self, Minute};
use crate::paths::InputMark;
use crate::query;
use crate::report::{self, Counts, ReportRow, Rows};
use crate::schema::connect_read_only;
use crate::scope::{self, ScopeRow};
use crate::snapshot::{self, Snapshot};
use crate::spent::{self, Spent};

/// A journal opened read-only. It needs no lock and disturbs no run.
#[derive(Debug)]
pub struct Reader {
    conn: Connection,
}

impl Reader {
    /// Opens the journal at `path`.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such file; [`Error::NotLoaded`] while the first load goes on, or when it was cut
    /// off; [`Error::NotAJournal`]; [`Error::NewerVersion`]; [`Error::Sqlite`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { conn: connect_read_only(path)? })
    }

    /// The input as it was at the beginning of the job.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn input(&self) -> Result<InputMark, Error> {
        Ok(query::run(&self.conn)?.input)
    }

    /// How far the input is read; none once it is read to its end.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn unread(&self) -> Result<Option<Unread>, Error> {
        further::unread(&self.conn)
    }

    /// The configuration of the last run, as JSON.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn config_json(&self) -> Result<String, Error> {
        query::config(&self.conn)
    }

    /// The last snapshot, as the runner wrote it; none before its first.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn snapshot(&self) -> Result<Option<Snapshot>, Error> {
        snapshot::read(&self.conn)
    }

    /// What happened in each minute in which something did, in order.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn history(&self) -> Result<Vec<Minute>, Error> {
        history::all(&self.conn)
    }

    /// Where the items stand. Reads every row.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn counts(&self, now: Timestamp) -> Result<Counts, Error> {
        report::counts(&self.conn, now)
    }

    /// What the calls of all runs used, by model.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn spent(&self) -> Result<Vec<Spent>, Error> {
        spent::all(&self.conn)
    }

    /// The scopes and their states, by name.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn scopes(&self) -> Result<Vec<ScopeRow>, Error> {
        scope::scopes(&self.conn)
    }

    /// Goes through the items by place in the input, page by page.
    ///
    /// # Errors
    /// [`Error::Sqlite`], and the first error of `visit`.
    pub fn report<E: From<Error>>(
        &self,
        now: Timestamp,
        rows: Rows,
        visit: impl FnMut(ReportRow) -> Result<(), E>,
    ) -> Result<(), E> {
        report::pages(|after| report::report_page(&self.conn, now, rows, after), visit)
    }
}
