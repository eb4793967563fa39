//! Notes about scopes. The table is made at its first use, so that an older version can still use the store.

use std::sync::Arc;

use paceline_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::schema::has_table;
use crate::work::notes::{MOST, NoteChange, ScopeNote};

pub(super) fn change(
    conn: &Connection,
    scopes: &[Arc<str>],
    change: &NoteChange,
    now: Timestamp,
) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS note (scope TEXT PRIMARY KEY, body TEXT NOT NULL, noted_ms INTEGER NOT NULL) STRICT;
         CREATE INDEX IF NOT EXISTS note_noted ON note(noted_ms)",
    )?;
    let mut get = conn.prepare_cached("SELECT body FROM note WHERE scope = ?1")?;
    let mut put = conn.prepare_cached(
        "INSERT INTO note (scope, body, noted_ms) VALUES (?1, ?2, ?3) ON CONFLICT (scope) DO UPDATE SET body = ?2, noted_ms = ?3",
    )?;
    for scope in scopes {
        let body: Option<String> = get.query_row([scope], |row| row.get(0)).optional()?;
        put.execute(params![scope, change(scope, &body.unwrap_or_default()), now.as_millis()])?;
    }
    conn.prepare_cached(
        "DELETE FROM note WHERE noted_ms < (SELECT noted_ms FROM note ORDER BY noted_ms DESC LIMIT 1 OFFSET ?1)",
    )?
    .execute([MOST as i64 - 1])
    .map(drop)
}

pub(super) fn since(conn: &Connection, since: Timestamp) -> rusqlite::Result<Vec<ScopeNote>> {
    if !has_table(conn, "note")? {
        return Ok(Vec::new());
    }
    let mut select =
        conn.prepare_cached("SELECT scope, body, noted_ms FROM note WHERE noted_ms >= ?1 ORDER BY noted_ms")?;
    let rows = select.query_map([since.as_millis()], |row| {
        let scope = row.get::<_, String>(0)?.into();
        Ok(ScopeNote { scope, text: row.get(1)?, noted: Timestamp::from_millis(row.get(2)?) })
    })?;
    rows.collect()
}
