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
        tokens_out INTEGER NOT NULL,
        cache_price INTEGER NOT NULL DEFAULT 0 -- tokens of input more, or fewer, that the prompts cost
    ) STRICT, WITHOUT ROWID;
";

/// Makes the table in a journal that has none, within the caller's transaction.
pub(crate) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    if has_table(conn, "spent")? {
        return match has_cache_price(conn)? {
            true => Ok(()),
            false => conn.execute_batch("ALTER TABLE spent ADD COLUMN cache_price INTEGER NOT NULL DEFAULT 0"),
        };
    }
    conn.execute_batch(TABLE)?;
    conn.execute_batch(
        "INSERT INTO spent (model, calls, tokens_in, tokens_out) SELECT '', count(*), sum(tokens_in), sum(tokens_out) FROM item
         WHERE tokens_in + tokens_out > 0 HAVING count(*) > 0",
    )
}

/// Whether the table has what caches made of prices; that of an older version has not.
fn has_cache_price(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_table_info('spent') WHERE name = 'cache_price'";
    conn.query_row(sql, [], |row| row.get(0))
}

/// Adds usage, within the caller's transaction.
pub(crate) fn add(conn: &Connection, usage: &ModelUsage) -> rusqlite::Result<()> {
    if usage.calls + usage.tokens_in + usage.tokens_out == 0 {
        return Ok(());
    }
    let sql = "INSERT INTO spent (model, calls, tokens_in, tokens_out, cache_price) VALUES (?1, ?2, ?3, ?4, ?5)
               ON CONFLICT (model) DO UPDATE SET calls = calls + ?2, tokens_in = tokens_in + ?3, tokens_out = tokens_out + ?4,
                   cache_price = cache_price + ?5";
    let ModelUsage { model, calls, tokens_in, tokens_out, cache_price } = usage;
    conn.prepare_cached(sql)?.execute(params![model, int(*calls), int(*tokens_in), int(*tokens_out), cache_price])?;
    Ok(())
}

/// Usage as a row has it: the model, calls, tokens in and out, and what a cache made of their price.
pub(crate) fn of_row(row: &Row<'_>) -> rusqlite::Result<ModelUsage> {
    let number = |column: usize| row.get(column).map(count);
    let model = row.get::<_, String>(0)?.into();
    Ok(ModelUsage { model, calls: number(1)?, tokens_in: number(2)?, tokens_out: number(3)?, cache_price: row.get(4)? })
}

/// The usage by model; empty in a journal of an older version whose job has not gone on.
pub(crate) fn all(conn: &Connection) -> Result<Vec<ModelUsage>, JournalError> {
    let read = || {
        if !has_table(conn, "spent")? {
            return Ok(Vec::new());
        }
        let cache_price = if has_cache_price(conn)? { "cache_price" } else { "0" };
        let sql = format!("SELECT model, calls, tokens_in, tokens_out, {cache_price} FROM spent ORDER BY model");
        let mut select = conn.prepare(&sql)?;
        let rows = select.query_map([], of_row)?;
        rows.collect::<rusqlite::Result<_>>()
    };
    read().map_err(JournalError::sqlite("read"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_of_an_older_version_learns_what_caches_make_of_prices() {
        let conn = Connection::open_in_memory().expect("a database");
        let older = TABLE.replace(",\n        cache_price INTEGER NOT NULL DEFAULT 0 -- tokens of input more, or fewer, that the prompts cost", "");
        conn.execute_batch(&older).expect("the table");
        assert!(!has_cache_price(&conn).expect("it reads"));
        conn.execute_batch("INSERT INTO spent VALUES ('m', 2, 30, 4)").expect("a row");
        let before = ModelUsage { model: "m".into(), calls: 2, tokens_in: 30, tokens_out: 4, cache_price: 0 };
        assert_eq!(all(&conn).expect("it reads"), std::slice::from_ref(&before), "as it stands");
        begin(&conn).expect("a column more");
        begin(&conn).expect("it has it");
        let call = ModelUsage { calls: 1, tokens_in: 20, tokens_out: 1, cache_price: -18, ..before.clone() };
        [&call, &call].into_iter().for_each(|call| add(&conn, call).expect("it counts"));
        let both = ModelUsage { calls: 4, tokens_in: 70, tokens_out: 6, cache_price: -36, ..before };
        assert_eq!((both.priced_in(), all(&conn).expect("it reads")), (34, vec![both]));
    }
}
