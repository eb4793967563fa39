//! Other scopes for items that wait: what decides them may change between two runs.

use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::error::JournalError;
use crate::item::JournalItem;
use crate::query::{self, int, item_columns};
use crate::scope::scope_list;

/// Items read at a time when their scopes are looked at again.
const PAGE: i64 = 1_000;

/// The next items after an ordinal that have not ended.
pub(crate) fn pending_page(conn: &Connection, after: Option<u64>) -> Result<Vec<JournalItem>, JournalError> {
    let scopes = scope_list(conn)?;
    let page = || {
        let mut select = conn.prepare_cached(concat!(
            "SELECT ",
            item_columns!(),
            " FROM item WHERE id > ?1 AND state IN (0, 1) AND scope > 0 ORDER BY id LIMIT ?2"
        ))?;
        let rows = select.query_map(params![after.map_or(-1, int), PAGE], |row| query::item(row, &scopes))?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    page().map_err(JournalError::sqlite("read"))
}

/// Moves items to other scopes, which are known.
pub(crate) fn reassign(conn: &Connection, moves: &[(u64, Arc<str>)]) -> Result<(), JournalError> {
    let reassign = || {
        let change = conn.unchecked_transaction()?;
        let mut update =
            change.prepare_cached("UPDATE item SET scope = (SELECT id FROM scope WHERE name = ?2) WHERE id = ?1")?;
        for (ordinal, scope) in moves {
            update.execute(params![int(*ordinal), scope])?;
        }
        drop(update);
        change.commit()
    };
    reassign().map_err(JournalError::sqlite("write"))
}
