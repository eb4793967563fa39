//! Taking up a job whose input changed: its items are known again by id and body.
//!
//! The items as they were are set aside in a table of their own while the new input is loaded as for a new job. Then
//! each item takes over what was known of the one with its id and body. Every place in the input, and with it every
//! ordinal, is that of the new input.

use rusqlite::Connection;

use crate::query::{count, int};
use crate::schema::ITEM_TABLE;

/// Items that have ended, and that the new input has not as they were.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The first of them, by their former place.
    pub first: Vec<Conflict>,
    /// How many there are.
    pub count: u64,
}

/// An item that has ended, and that the new input has not as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The line in the new input, from 1, where its id stands with another body; none when the id is gone.
    pub line: Option<u64>,
    /// The line in the input as it was.
    pub before: u64,
}

/// Makes room for the new items, within the caller's transaction.
pub(crate) fn set_aside(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "DROP INDEX item_key; DROP INDEX item_due; ALTER TABLE item RENAME TO item_before;
         CREATE UNIQUE INDEX before_key ON item_before(key);",
    )?;
    conn.execute_batch(ITEM_TABLE)
}

/// A result is kept for the request that it answers, or not at all.
const CONFLICTS: &str = "
    SELECT item.line, before.line AS was FROM item_before AS before LEFT JOIN item ON item.key = before.key
    WHERE before.state > 1 AND (item.id IS NULL OR item.body_hash <> before.body_hash)";

/// Finds the conflicts; `limit` of them are told.
pub(crate) fn conflicts(conn: &Connection, limit: usize) -> rusqlite::Result<Conflicts> {
    let mut select = conn.prepare(&format!("{CONFLICTS} ORDER BY was LIMIT ?1"))?;
    let rows = select.query_map([int(limit as u64)], |row| {
        Ok(Conflict { line: row.get::<_, Option<i64>>(0)?.map(count), before: count(row.get(1)?) })
    })?;
    let first = rows.collect::<rusqlite::Result<_>>()?;
    let all = conn.query_row(&format!("SELECT count(*) FROM ({CONFLICTS})"), [], |row| row.get(0))?;
    Ok(Conflicts { first, count: count(all) })
}

/// Gives every item what was known of it, and forgets the items as they were: those that have not ended and are gone,
/// or have another body now.
pub(crate) fn take_over(conn: &Connection) -> rusqlite::Result<()> {
    let columns = state_columns(conn)?;
    conn.execute_batch(&format!(
        "UPDATE item SET ({columns}) =
             (SELECT {columns} FROM item_before AS before WHERE before.key = item.key)
         WHERE EXISTS (SELECT 1 FROM item_before AS before
                       WHERE before.key = item.key AND before.body_hash = item.body_hash);
         DROP TABLE item_before;"
    ))
}

/// All columns but those that a load fills.
fn state_columns(conn: &Connection) -> rusqlite::Result<String> {
    let sql = "SELECT group_concat(name) FROM pragma_table_info('item')
               WHERE name NOT IN ('id', 'key', 'body_hash', 'line', 'src_off', 'src_len', 'scope')";
    conn.query_row(sql, [], |row| row.get(0))
}
