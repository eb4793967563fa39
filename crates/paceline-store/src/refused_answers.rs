//! Answers that the user's expectation refused: paid for, no result, and kept in a file of their own. None of them ends an item.

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::query::{RecordedPrefix, count, int};
use crate::schema::has_table;

/// The table, of one row. A journal of an older version gets it when its job goes on.
pub(crate) const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS refused_answer (
        answers INTEGER NOT NULL,
        len INTEGER NOT NULL,
        crc INTEGER NOT NULL
    ) STRICT;
    INSERT INTO refused_answer SELECT 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM refused_answer);
";

/// What is recorded of the file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recorded {
    /// Its lines.
    pub(crate) answers: u64,
    /// Its beginning that they are.
    pub(crate) file: RecordedPrefix,
}

/// None in a journal of an older version whose job has not gone on.
pub(crate) fn recorded(conn: &Connection) -> rusqlite::Result<Option<Recorded>> {
    if !has_table(conn, "refused_answer")? {
        return Ok(None);
    }
    conn.query_row("SELECT answers, len, crc FROM refused_answer", [], |row| {
        let file = RecordedPrefix { len: count(row.get(1)?), crc: row.get(2)? };
        Ok(Recorded { answers: count(row.get(0)?), file })
    })
    .optional()
}

/// Counts another line, within the caller's transaction.
pub(crate) fn add(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE refused_answer SET answers = answers + 1")?.execute([]).map(drop)
}

/// Records how much of the file is covered, within the caller's transaction.
pub(crate) fn set_covered(conn: &Connection, covered: RecordedPrefix) -> rusqlite::Result<()> {
    let sql = "UPDATE refused_answer SET len = ?1, crc = ?2 WHERE len <> ?1";
    conn.prepare_cached(sql)?.execute(params![int(covered.len), covered.crc]).map(drop)
}
