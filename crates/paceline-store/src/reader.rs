//! Reading a journal from another process, while a run writes it or after it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use paceline_core::Timestamp;
use rusqlite::{Connection, OpenFlags};

use crate::append::{self, InputCursor};
use crate::error::JournalError;
use crate::history::{self, Minute};
use crate::item::ModelUsage;
use crate::merge::{self, AllowedChanges, Conflicts};
use crate::paths::InputFingerprint;
use crate::query;
use crate::report::{self, JobCounts, ReportRow, Rows, ScopeItems};
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

    /// What a job would be with another input, which was loaded as a new job into the journal at `fresh`: its items take over the
    /// states of those of the journal at `job`, which stays as it is. Returns at most `limit` conflicts; with any, nothing is
    /// taken over.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn with_other_input(
        fresh: &Path,
        job: &Path,
        accept_changed: bool,
        repair_failed: bool,
        limit: usize,
    ) -> Result<Conflicts, JournalError> {
        let may = AllowedChanges::of(accept_changed, repair_failed);
        let taken_over = || -> rusqlite::Result<Conflicts> {
            let flags =
                OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
            let conn = Connection::open_with_flags(fresh, flags)?;
            merge::set_beside(&conn, job)?;
            let conflicts = merge::conflicts(&conn, may, limit)?;
            if conflicts.count == 0 {
                merge::take_over(&conn, may)?;
            }
            Ok(conflicts)
        };
        taken_over().map_err(JournalError::sqlite("compare"))
    }

    /// The scopes that items had as they failed, where their lines were changed since, by the items.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn failed_in(&self) -> Result<BTreeMap<u64, Arc<str>>, JournalError> {
        merge::failed_in(&self.conn).map_err(JournalError::sqlite("read"))
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
        report::counts(&self.conn, now, false)
    }

    /// The items whose call was sent and has no recorded outcome yet, by the run that works on the job.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn in_flight(&self) -> Result<BTreeSet<u64>, JournalError> {
        unanswered::under_way(&self.conn).map_err(JournalError::sqlite("read"))
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

    /// What the calls of all runs used, by model, as the next run will count it: those without a recorded answer with what they
    /// reserved. Where a run works on the job, its calls under way are among them.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn spent(&self) -> Result<Vec<ModelUsage>, JournalError> {
        let mut spent = self.usage()?;
        for reserved in self.under_way()? {
            usage::add_to(&mut spent, reserved);
        }
        Ok(spent)
    }

    /// The counts of a job that no run works on, with the calls that a kill cut off, as the next run will count them, and
    /// whether it will say that some may be lost.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn counts_at_rest(&self, now: Timestamp) -> Result<JobCounts, JournalError> {
        let mut counts = report::counts(&self.conn, now, true)?;
        unanswered::add_cut_off(&self.conn, &mut counts).map_err(JournalError::sqlite("read"))?;
        Ok(counts)
    }

    /// The scopes and their states, by name.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn scopes(&self) -> Result<Vec<ScopeRow>, JournalError> {
        scope::scopes(&self.conn)
    }

    /// The items of each scope, by name.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn by_scope(&self) -> Result<Vec<ScopeItems>, JournalError> {
        report::by_scope(&self.conn)
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
