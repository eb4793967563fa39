//! Resuming a job whose input changed: its items are matched by id and body.
//!
//! The items as they were are set aside in a table of their own while the new input is loaded as for a new job. Then
//! each item takes over the state of the one with its id and body. Every place in the input, and with it every
//! ordinal, is that of the new input.
//!
//! Where failed items are repaired, each of them takes over its state with another body too: it stays failed until
//! it is made to wait again, which takes its line out of the errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rusqlite::{Connection, Row};

use crate::line::CustomId;
use crate::query::{count, int};
use crate::schema::{ITEM_TABLE, add_column, has_table};
use crate::scope::REFUSED;
use crate::unanswered;

/// Conflicts: items that prevent the job from continuing with the new input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conflicts {
    /// The first of them, by their former place, then those that are new.
    pub first: Vec<Conflict>,
    /// How many there are. An id that is gone and one that is new count as one: a line that moved has both.
    pub count: u64,
    /// Those of `first` have no ids but the numbers of their lines, `line-7`, which change where a line before them comes or
    /// goes.
    pub named_by_lines: bool,
    /// Each of them is of an item that has ended.
    pub all_ended: bool,
    /// One of them is of an item that failed, and no line of the new input can stand for it.
    pub failed_gone: bool,
}

/// An item that is missing or changed in the new input, or must not be in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The line in the new input, from 1, where its id stands with another body; none when the id is gone.
    pub line: Option<u64>,
    /// The line in the input as it was; none where it is new.
    pub before: Option<u64>,
}

/// Which items may differ in the new input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllowedChanges {
    /// No item may; only the file was written again.
    Nothing,
    /// All but items that have ended.
    NotEnded,
    /// The lines of items that failed.
    Failed,
    /// Both.
    FailedAndNotEnded,
}

impl AllowedChanges {
    /// Those of the options of the same names.
    pub(crate) const fn of(accept_changed: bool, repair_failed: bool) -> Self {
        match (repair_failed, accept_changed) {
            (false, false) => Self::Nothing,
            (false, true) => Self::NotEnded,
            (true, false) => Self::Failed,
            (true, true) => Self::FailedAndNotEnded,
        }
    }

    const fn repair(self) -> bool {
        matches!(self, Self::Failed | Self::FailedAndNotEnded)
    }

    /// Selects the items that may not differ: a result is kept for the request that it answers, or not at all.
    const fn conflicts(self) -> &'static str {
        match self {
            Self::Nothing => {
                "SELECT item.line, was.line AS was, was.key, was.state AS state FROM item_before AS was LEFT JOIN item ON item.key = was.key
                 WHERE item.id IS NULL OR item.body_hash <> was.body_hash"
            }
            Self::NotEnded => {
                "SELECT item.line, was.line AS was, was.key, was.state AS state FROM item_before AS was LEFT JOIN item ON item.key = was.key
                 WHERE was.state > 1 AND (item.id IS NULL OR item.body_hash <> was.body_hash)"
            }
            Self::FailedAndNotEnded => {
                "SELECT item.line, was.line AS was, was.key, was.state AS state FROM item_before AS was LEFT JOIN item ON item.key = was.key
                 WHERE was.state > 1 AND (item.id IS NULL OR (was.state <> 3 AND item.body_hash <> was.body_hash))"
            }
            Self::Failed => {
                "SELECT item.line, was.line AS was, was.key, was.state AS state FROM item_before AS was LEFT JOIN item ON item.key = was.key
                 WHERE item.id IS NULL OR (was.state <> 3 AND item.body_hash <> was.body_hash)
                 UNION ALL
                 SELECT item.line, NULL, item.key, NULL FROM item LEFT JOIN item_before AS was ON was.key = item.key WHERE was.id IS NULL"
            }
        }
    }
}

/// Failed items whose ids are gone are known by their places: repaired, each has the id of the new line there. So it is with
/// lines that could not be sent and had no ids; and where no item came or went, or some came behind all others, as where an
/// address is the id whose host moved, or where a row of a table got another line, and those behind it stand one lower.
///
/// Two statements: one join over either place would look at each item for each that failed.
const SAME_PLACE: &str = "
    UPDATE OR IGNORE item_before SET key = item.key FROM item
    WHERE item_before.state = 3 AND item.id = item_before.id
        AND ((SELECT count(*) FROM item) = (SELECT count(*) FROM item_before)
            OR (SELECT count(*) FROM item) > (SELECT count(*) FROM item_before) AND NOT EXISTS (
                SELECT 1 FROM item_before AS was JOIN item AS now ON now.key = was.key WHERE now.id <> was.id))
        AND NOT EXISTS (SELECT 1 FROM item AS same WHERE same.key = item_before.key)";
const SAME_LINE: &str = "
    UPDATE OR IGNORE item_before SET key = item.key FROM item
    WHERE item_before.state = 3 AND item_before.scope = ?1 AND item.line = item_before.line
        AND (SELECT count(*) FROM item) <> (SELECT count(*) FROM item_before)
        AND NOT EXISTS (SELECT 1 FROM item AS same WHERE same.key = item_before.key)";

/// The scopes that items had as they failed, where their lines were changed since.
pub(crate) const MOVED: &str = "CREATE TABLE IF NOT EXISTS moved (id INTEGER PRIMARY KEY, failed_in TEXT NOT NULL)";

/// Makes room for the new items, within the caller's transaction.
pub(crate) fn set_aside(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "DROP INDEX item_key; DROP INDEX item_due; ALTER TABLE item RENAME TO item_before;
         CREATE UNIQUE INDEX before_key ON item_before(key);
         CREATE TEMP TABLE scope_before AS SELECT id, name FROM scope;",
    )?;
    conn.execute_batch(ITEM_TABLE)
}

/// The same, for the job in another file, of which nothing changes. The connection takes names that are URIs.
pub(crate) fn set_beside(conn: &Connection, job: &Path) -> rusqlite::Result<()> {
    let path = job.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    conn.execute("ATTACH ?1 AS job", [format!("file:{path}?mode=ro")])?;
    conn.execute_batch(
        "CREATE TABLE item_before AS SELECT * FROM job.item; CREATE UNIQUE INDEX before_key ON item_before(key);
         CREATE TEMP TABLE scope_before AS SELECT id, name FROM job.scope;",
    )?;
    add_column(conn, "item_before", "key_no", "INTEGER")
}

/// Finds the conflicts; returns at most `limit` of them. After the index over the new ids was built.
pub(crate) fn conflicts(conn: &Connection, may: AllowedChanges, limit: usize) -> rusqlite::Result<Conflicts> {
    if may.repair() {
        conn.execute(SAME_PLACE, [])?;
        conn.execute(SAME_LINE, [REFUSED])?;
    }
    let conflicts = may.conflicts();
    let mut select = conn.prepare(&format!("SELECT * FROM ({conflicts}) ORDER BY was IS NULL, was, line LIMIT ?1"))?;
    let line = |row: &Row<'_>, column: usize| row.get::<_, Option<i64>>(column).map(|line| line.map(count));
    let mut named_by_lines = true;
    let mut rows = select.query([int(limit as u64)])?;
    let mut first = Vec::new();
    while let Some(row) = rows.next()? {
        let conflict = Conflict { line: line(row, 0)?, before: line(row, 1)? };
        let number = conflict.before.or(conflict.line).unwrap_or_default();
        named_by_lines &= row.get::<_, Vec<u8>>(2)? == CustomId::of_line(number).key();
        first.push(conflict);
    }
    let count_of = |condition: &str| {
        let sql = format!("SELECT count(*) FROM ({conflicts}) WHERE {condition}");
        conn.query_row(&sql, [], |row| row.get(0)).map(count)
    };
    let (all, gone, new) = (count_of("TRUE")?, count_of("line IS NULL")?, count_of("was IS NULL")?);
    named_by_lines &= !first.is_empty();
    let all_ended = count_of("state IS NULL OR state < 2")? == 0;
    // Those that may be repaired were looked for by their places.
    let has_fewer = "SELECT (SELECT count(*) FROM item) < (SELECT count(*) FROM item_before)";
    let failed_gone = count_of("state = 3 AND line IS NULL")? > 0
        && (may.repair() || conn.query_row(has_fewer, [], |row| row.get::<_, bool>(0))?);
    Ok(Conflicts { first, count: all - gone.min(new), named_by_lines, all_ended, failed_gone })
}

/// Gives every item its former state, and drops the former items: those that have not ended and are gone,
/// or have another body now. One with the body that it had keeps the number of its idempotency key; no other item gets one that
/// was an item's before.
pub(crate) fn take_over(conn: &Connection, may: AllowedChanges) -> rusqlite::Result<()> {
    unanswered::renumber(conn)?;
    // By their new numbers.
    conn.execute_batch(&format!(
        "{MOVED};
         CREATE TEMP TABLE was_moved AS SELECT * FROM moved; DELETE FROM moved;
         INSERT INTO moved SELECT item.id, coalesce(was.failed_in, scope.name)
             FROM item_before AS before JOIN item ON item.key = before.key
             JOIN scope_before AS scope ON scope.id = before.scope LEFT JOIN was_moved AS was ON was.id = before.id
             WHERE before.state = 3 AND (before.body_hash <> item.body_hash OR was.id IS NOT NULL);
         DROP TABLE was_moved; DROP TABLE scope_before"
    ))?;
    let columns = state_columns(conn)?;
    let known = if may.repair() { "before.state = 3 OR" } else { "" };
    conn.execute_batch(&format!(
        "UPDATE item SET ({columns}, key_no) =
             (SELECT {columns}, iif(before.body_hash = item.body_hash,
                                    coalesce(before.key_no, (SELECT key_base FROM run) + before.id), NULL)
              FROM item_before AS before WHERE before.key = item.key)
         WHERE EXISTS (SELECT 1 FROM item_before AS before
                       WHERE before.key = item.key AND ({known} before.body_hash = item.body_hash));
         UPDATE run SET key_base = key_base + (SELECT coalesce(max(id) + 1, 0) FROM item_before);
         DROP TABLE item_before;"
    ))
}

/// The scopes that items had as they failed, where their lines were changed since.
pub(crate) fn failed_in(conn: &Connection) -> rusqlite::Result<BTreeMap<u64, Arc<str>>> {
    if !has_table(conn, "moved")? {
        return Ok(BTreeMap::new());
    }
    let mut select = conn.prepare("SELECT id, failed_in FROM moved")?;
    let rows = select.query_map([], |row| Ok((count(row.get(0)?), row.get(1)?)))?;
    rows.collect()
}

/// All columns but those that a load fills, and the number of the key.
fn state_columns(conn: &Connection) -> rusqlite::Result<String> {
    let sql = "SELECT group_concat(name) FROM pragma_table_info('item')
               WHERE name NOT IN ('id', 'key', 'body_hash', 'line', 'src_off', 'src_len', 'scope', 'key_no')";
    conn.query_row(sql, [], |row| row.get(0))
}
