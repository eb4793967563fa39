//! Which scopes have answered. The table is made at its first use, so that an older version can still use the store.

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::schema::has_table;
use crate::work::answers::{MOST, NotedAnswers, code, of_code};

pub(super) fn note(conn: &Connection, noted: &[NotedAnswers], now: Timestamp) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS answers (scope TEXT PRIMARY KEY, slowest_ms INTEGER NOT NULL, noted_ms INTEGER NOT NULL) STRICT;
         CREATE INDEX IF NOT EXISTS answers_noted ON answers(noted_ms)",
    )?;
    let mut put = conn.prepare_cached(
        "INSERT INTO answers (scope, slowest_ms, noted_ms) VALUES (?1, ?2, ?3)
         ON CONFLICT (scope) DO UPDATE SET slowest_ms = ?2, noted_ms = ?3",
    )?;
    for NotedAnswers { scope, answers, .. } in noted {
        put.execute(params![scope, code(*answers), now.as_millis()])?;
    }
    conn.prepare_cached(
        "DELETE FROM answers WHERE noted_ms < (SELECT noted_ms FROM answers ORDER BY noted_ms DESC LIMIT 1 OFFSET ?1)",
    )?
    .execute([MOST as i64 - 1])
    .map(drop)
}

pub(super) fn since(conn: &Connection, since: Timestamp) -> rusqlite::Result<Vec<NotedAnswers>> {
    if !has_table(conn, "answers")? {
        return Ok(Vec::new());
    }
    let sql = "SELECT scope, slowest_ms, noted_ms FROM answers WHERE noted_ms >= ?1 ORDER BY noted_ms";
    let mut select = conn.prepare_cached(sql)?;
    let rows = select.query_map([since.as_millis()], |row| {
        Ok(NotedAnswers {
            scope: row.get::<_, String>(0)?.into(),
            answers: of_code(row.get(1)?),
            noted: Timestamp::from_millis(row.get(2)?),
        })
    })?;
    rows.collect()
}
