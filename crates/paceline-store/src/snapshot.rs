//! The snapshot of a run for other processes, and the limiter state for the next run: one text for the job and texts for each
//! scope, so that writing costs only what has changed.

use std::sync::Arc;

use rusqlite::Connection;

use crate::error::JournalError;
use crate::schema::has_table;

/// The scopes' texts. The first snapshot of a run makes the tables, also in a journal of an older version.
const BEGIN: &str = "
    CREATE TABLE IF NOT EXISTS scope_snapshot (
        scope TEXT PRIMARY KEY,
        json TEXT NOT NULL
    ) STRICT;
    DELETE FROM scope_snapshot;
    CREATE TABLE IF NOT EXISTS limiter_state (
        scope TEXT PRIMARY KEY,
        json TEXT NOT NULL
    ) STRICT;
    DELETE FROM limiter_state;
";

/// The stored snapshot of a run. The texts are JSON, opaque to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// The job.
    pub job: String,
    /// Each scope, in the order in which they appeared.
    pub scopes: Vec<String>,
}

/// An update of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUpdate {
    /// The job, as JSON.
    pub job: String,
    /// The name of each scope that has changed, and its text as JSON. The others stay as they are.
    pub scopes: Vec<(Arc<str>, String)>,
    /// The limiter state for the next run: by scope, or [`ACCOUNT`](crate::ACCOUNT), a text as JSON. The others stay.
    pub state: Vec<(Arc<str>, String)>,
    /// This is the run's first: the scopes of earlier runs are removed.
    pub first: bool,
}

impl SnapshotUpdate {
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.scopes.iter().chain(&self.state);
        self.job.len() + texts.map(|(name, text)| name.len() + text.len()).sum::<usize>()
    }
}

pub(crate) fn write(conn: &Connection, update: &SnapshotUpdate) -> Result<(), JournalError> {
    let write = || {
        conn.prepare_cached("UPDATE run SET snapshot_json = ?1")?.execute([&update.job])?;
        if update.first {
            conn.execute_batch(BEGIN)?;
        }
        for (table, texts) in [("scope_snapshot", &update.scopes), ("limiter_state", &update.state)] {
            let mut upsert = conn.prepare_cached(&format!(
                "INSERT INTO {table} (scope, json) VALUES (?1, ?2) ON CONFLICT (scope) DO UPDATE SET json = ?2"
            ))?;
            texts.iter().try_for_each(|(name, text)| upsert.execute([name, text.as_str()]).map(drop))?;
        }
        Ok(())
    };
    write().map_err(JournalError::sqlite("write"))
}

/// The last snapshot; none before the first.
pub(crate) fn read(conn: &Connection) -> Result<Option<StoredSnapshot>, JournalError> {
    let read = || {
        let job: Option<String> = conn.query_row("SELECT snapshot_json FROM run", [], |row| row.get(0))?;
        let Some(job) = job else { return Ok(None) };
        Ok(Some(StoredSnapshot { job, scopes: texts(conn, "scope_snapshot")? }))
    };
    read().map_err(JournalError::sqlite("read"))
}

/// The state of the limiter, in parts; none in a journal of an older version.
pub(crate) fn read_state(conn: &Connection) -> Result<Vec<String>, JournalError> {
    texts(conn, "limiter_state").map_err(JournalError::sqlite("read"))
}

fn texts(conn: &Connection, table: &str) -> rusqlite::Result<Vec<String>> {
    if !has_table(conn, table)? {
        return Ok(Vec::new());
    }
    let mut select = conn.prepare_cached(&format!("SELECT json FROM {table} ORDER BY rowid"))?;
    select.query_map([], |row| row.get(0))?.collect()
}
