//! The limiter states of accounts. The table is made at its first use, so that an older version can still use the store.

use rusqlite::{Connection, OptionalExtension as _};

use crate::schema::has_table;

pub(super) fn save(conn: &Connection, account: &str, state: &str) -> rusqlite::Result<()> {
    conn.execute_batch("CREATE TABLE IF NOT EXISTS limiter (account TEXT PRIMARY KEY, state TEXT NOT NULL) STRICT")?;
    conn.prepare_cached(
        "INSERT INTO limiter (account, state) VALUES (?1, ?2) ON CONFLICT (account) DO UPDATE SET state = ?2",
    )?
    .execute([account, state])
    .map(drop)
}

pub(super) fn load(conn: &Connection, account: &str) -> rusqlite::Result<Option<String>> {
    if !has_table(conn, "limiter")? {
        return Ok(None);
    }
    conn.query_row("SELECT state FROM limiter WHERE account = ?1", [account], |row| row.get(0)).optional()
}

/// Saves it where it is still the one that was loaded before. Returns whether it was.
pub(super) fn replace(conn: &Connection, account: &str, before: Option<&str>, state: &str) -> rusqlite::Result<bool> {
    let is_same = load(conn, account)?.as_deref() == before;
    if is_same {
        save(conn, account, state)?;
    }
    Ok(is_same)
}
