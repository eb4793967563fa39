//! Non-repeatable calls, recorded before they are sent: after a crash nothing else distinguishes them from waiting items.

use rusqlite::Connection;

use crate::query::{count, int};

/// The table. A journal of an older version gets it when the first such call leaves.
const TABLE: &str = "CREATE TABLE IF NOT EXISTS unanswered_call (id INTEGER PRIMARY KEY) STRICT";

fn exists(conn: &Connection) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'unanswered_call'", [], |row| row.get(0))
}

/// Makes the table in a journal that has none, within the caller's transaction.
pub(crate) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(TABLE)
}

/// Records that the call of an item is sent, within the caller's transaction, which must outlast a power cut.
pub(crate) fn add(conn: &Connection, item: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT OR IGNORE INTO unanswered_call VALUES (?1)")?.execute([int(item)])?;
    Ok(())
}

/// Removes the record once the outcome of the item's call is recorded.
pub(crate) fn remove(conn: &Connection, item: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM unanswered_call WHERE id = ?1")?.execute([int(item)])?;
    Ok(())
}

/// The items whose call was sent and that have no recorded outcome, without those that have ended.
pub(crate) fn all(conn: &Connection) -> rusqlite::Result<Vec<u64>> {
    if !exists(conn)? {
        return Ok(Vec::new());
    }
    conn.execute("DELETE FROM unanswered_call WHERE id IN (SELECT id FROM item WHERE state > 1)", [])?;
    let mut select = conn.prepare("SELECT id FROM unanswered_call")?;
    let rows = select.query_map([], |row| Ok(count(row.get(0)?)))?;
    rows.collect()
}

/// Items have other places in an input that changed: each is matched by its id and body, as by
/// [`take_over`](crate::merge::take_over), which is to follow.
pub(crate) fn renumber(conn: &Connection) -> rusqlite::Result<()> {
    if !exists(conn)? {
        return Ok(());
    }
    conn.execute_batch(
        "CREATE TEMP TABLE renumbered AS
             SELECT item.id FROM unanswered_call AS call
             JOIN item_before AS before ON before.id = call.id
             JOIN item ON item.key = before.key AND item.body_hash = before.body_hash;
         DELETE FROM unanswered_call;
         INSERT INTO unanswered_call SELECT id FROM renumbered;
         DROP TABLE renumbered;",
    )
}
