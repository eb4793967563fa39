//! Tokens that the calls of a job used, by model, over all its runs; calls that failed count too.

use rusqlite::{Connection, Row, params};

use crate::error::JournalError;
use crate::item::ModelUsage;
use crate::query::{count, int};
use crate::schema::has_table;

/// The table. A journal of an older version gets it when its job goes on, filled from its items.
pub(crate) const TABLE: &str = "
    CREATE TABLE spent (
        model TEXT PRIMARY KEY,
        calls INTEGER NOT NULL,
        tokens_in INTEGER NOT NULL,
        tokens_out INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
";

/// Makes the table in a journal that has none, within the caller's transaction.
pub(crate) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    if has_table(conn, "spent")? {
        return Ok(());
    }
    conn.execute_batch(TABLE)?;
    conn.execute_batch(
        "INSERT INTO spent SELECT '', count(*), sum(tokens_in), sum(tokens_out) FROM item
         WHERE tokens_in + tokens_out > 0 HAVING count(*) > 0",
    )
}

/// Adds usage, within the caller's transaction.
pub(crate) fn add(conn: &Connection, usage: &ModelUsage) -> rusqlite::Result<()> {
    if usage.calls + usage.tokens_in + usage.tokens_out == 0 {
        return Ok(());
    }
    let sql = "INSERT INTO spent (model, calls, tokens_in, tokens_out) VALUES (?1, ?2, ?3, ?4)
               ON CONFLICT (model) DO UPDATE SET calls = calls + ?2, tokens_in = tokens_in + ?3, tokens_out = tokens_out + ?4";
    let ModelUsage { model, calls, tokens_in, tokens_out } = usage;
    conn.prepare_cached(sql)?.execute(params![model, int(*calls), int(*tokens_in), int(*tokens_out)])?;
    Ok(())
}

/// Usage as a row has it: the model, calls, tokens in and out.
pub(crate) fn of_row(row: &Row<'_>) -> rusqlite::Result<ModelUsage> {
    let number = |column: usize| row.get(column).map(count);
    let model = row.get::<_, String>(0)?.into();
    Ok(ModelUsage { model, calls: number(1)?, tokens_in: number(2)?, tokens_out: number(3)? })
}

/// The usage by model; empty in a journal of an older version whose job has not gone on.
pub(crate) fn all(conn: &Connection) -> Result<Vec<ModelUsage>, JournalError> {
    let read = || {
        if !has_table(conn, "spent")? {
            return Ok(Vec::new());
        }
        let mut select = conn.prepare("SELECT model, calls, tokens_in, tokens_out FROM spent ORDER BY model")?;
        let rows = select.query_map([], of_row)?;
        rows.collect::<rusqlite::Result<_>>()
    };
    read().map_err(JournalError::sqlite("read"))
}
