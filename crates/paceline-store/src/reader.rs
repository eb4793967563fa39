//! Reading a journal from another process, while a run writes it or after it ended.

use std::path::Path;

use paceline_core::Timestamp;
use rusqlite::Connection;

use crate::append::{self, InputCursor};
use crate::error::JournalError;
use crate::history::{self, Minute};
use crate::item::ModelUsage;
use crate::paths::InputFingerprint;
use crate::query;
use crate::report::{self, JobCounts, ReportRow, Rows};
use crate::schema::connect_read_only;
use crate::scope::{self, ScopeRow};
use crate::snapshot::{self, StoredSnapshot};
use crate::{unanswered, usage};

/// A journal opened read-only. It needs no lock and disturbs no run.
#[derive(Debug)]
pub struct Reader {
    conn: Connection,
}

impl Reader {
    /// Opens the journal at `path`.
    ///
    /// # Errors
    /// [`JournalError::Io`] when there is no such file; [`JournalError::NotLoaded`] while the first load goes on, or when it was
    /// cut off; [`JournalError::NotAJournal`]; [`JournalError::NewerVersion`]; [`JournalError::Sqlite`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Ok(Self { conn: connect_read_only(path)? })
    }

    /// The input as it was at the beginning of the job.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn input(&self) -> Result<InputFingerprint, JournalError> {
        Ok(query::run(&self.conn)?.input)
    }

    /// The position up to which the input is loaded; none once it is loaded to its end.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn input_cursor(&self) -> Result<Option<InputCursor>, JournalError> {
        append::input_cursor(&self.conn)
    }

    /// The configuration of the last run, as JSON.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn config_json(&self) -> Result<String, JournalError> {
        query::config(&self.conn)
    }

    /// The last snapshot, as the runner wrote it; none before its first.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn snapshot(&self) -> Result<Option<StoredSnapshot>, JournalError> {
        snapshot::read(&self.conn)
    }

    /// The history: counts of each minute in which something happened, in order.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn history(&self) -> Result<Vec<Minute>, JournalError> {
        history::all(&self.conn)
    }

    /// The counts of items by state. Reads every row.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn counts(&self, now: Timestamp) -> Result<JobCounts, JournalError> {
        report::counts(&self.conn, now)
    }

    /// The usage of the calls of all runs, by model.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn usage(&self) -> Result<Vec<ModelUsage>, JournalError> {
        usage::all(&self.conn)
    }

    /// What the calls without a recorded answer reserved, by model, as far as [`usage`](Self::usage) does not count them: those
    /// under way, and those that a crash cut off.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn under_way(&self) -> Result<Vec<ModelUsage>, JournalError> {
        unanswered::not_counted(&self.conn).map_err(JournalError::sqlite("read"))
    }

    /// The scopes and their states, by name.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn scopes(&self) -> Result<Vec<ScopeRow>, JournalError> {
        scope::scopes(&self.conn)
    }

    /// Goes through the items by place in the input, page by page.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`], and the first error of `visit`.
    pub fn report<E: From<JournalError>>(
        &self,
        now: Timestamp,
        rows: Rows,
        visit: impl FnMut(ReportRow) -> Result<(), E>,
    ) -> Result<(), E> {
        report::pages(|after| report::report_page(&self.conn, now, rows, after), visit)
    }
}
