//! What a run shows of itself to other processes: the job as one text, and a text for each scope, so that writing costs what
//! has changed and not what exists.

use std::sync::Arc;

use rusqlite::Connection;

use crate::error::Error;

/// The scopes' texts. The first snapshot of a run makes the table, also in a journal of an older version.
const BEGIN: &str = "
    CREATE TABLE IF NOT EXISTS scope_snapshot (
        scope TEXT PRIMARY KEY,
        json TEXT NOT NULL
    ) STRICT;
    DELETE FROM scope_snapshot;
";

/// What a run has written of itself. The texts are JSON; the journal does not look into them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The job.
    pub job: String,
    /// Each scope, in the order in which they appeared.
    pub scopes: Vec<String>,
}

/// What a run writes of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUpdate {
    /// The job, as JSON.
    pub job: String,
    /// The name of each scope that has changed, and its text as JSON. The others stay as they are.
    pub scopes: Vec<(Arc<str>, String)>,
    /// This is the run's first: what earlier runs wrote of their scopes goes.
    pub first: bool,
}

impl SnapshotUpdate {
    pub(crate) fn bytes(&self) -> usize {
        self.job.len() + self.scopes.iter().map(|(name, text)| name.len() + text.len()).sum::<usize>()
    }
}

pub(crate) fn write(conn: &Connection, update: &SnapshotUpdate) -> Result<(), Error> {
    let write = || {
        conn.prepare_cached("UPDATE run SET snapshot_json = ?1")?.execute([&update.job])?;
        if update.first {
            conn.execute_batch(BEGIN)?;
        }
        let mut upsert = conn.prepare_cached(
            "INSERT INTO scope_snapshot (scope, json) VALUES (?1, ?2) ON CONFLICT (scope) DO UPDATE SET json = ?2",
        )?;
        update.scopes.iter().try_for_each(|(name, text)| upsert.execute([name, text.as_str()]).map(drop))
    };
    write().map_err(Error::sqlite("write"))
}

/// What was written last; none before the first time.
pub(crate) fn read(conn: &Connection) -> Result<Option<Snapshot>, Error> {
    let read = || {
        let job: Option<String> = conn.query_row("SELECT snapshot_json FROM run", [], |row| row.get(0))?;
        let Some(job) = job else { return Ok(None) };
        let known = "SELECT count(*) FROM sqlite_schema WHERE name = 'scope_snapshot'";
        let mut scopes = Vec::new();
        if conn.query_row(known, [], |row| row.get::<_, i64>(0))? > 0 {
            let mut select = conn.prepare_cached("SELECT json FROM scope_snapshot ORDER BY rowid")?;
            scopes = select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        }
        Ok(Some(Snapshot { job, scopes }))
    };
    read().map_err(Error::sqlite("read"))
}
