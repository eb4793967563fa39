//! Rows of the journal as values: the run, an item, and how numbers stand in columns.

use crate::state::{Forgiven, State};
use std::sync::Arc;
use std::time::Duration;

use paceline_core::{Class, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use crate::error::JournalError;
use crate::item::{JournalItem, LastAnswer, ModelUsage, Tally};
use crate::paths::InputFingerprint;
use crate::refused_answers;
use crate::scope::{REFUSED, Scope, by_id};
use crate::usage;

/// The beginning of an output file, up to which the journal has recorded it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordedPrefix {
    /// Bytes from the beginning.
    pub(crate) len: u64,
    /// Their checksum.
    pub(crate) crc: u32,
}

/// The row of a job.
pub(crate) struct Run {
    pub(crate) id: String,
    pub(crate) input: InputFingerprint,
    pub(crate) results: RecordedPrefix,
    pub(crate) errors: RecordedPrefix,
    /// None in a journal of an older version whose job has not gone on.
    pub(crate) refused_answers: Option<RecordedPrefix>,
    /// The results stand compressed, the recorded part being what they unpack to.
    pub(crate) packed: bool,
}

pub(crate) fn run(conn: &Connection) -> Result<Run, JournalError> {
    let sql = "SELECT id, input_path, input_len, input_mtime_ms, input_head_hash, out_len, out_crc, err_len, err_crc,
                      packed
               FROM run";
    let refused_answers = refused_answers::recorded(conn).map_err(JournalError::sqlite("read"))?;
    conn.query_row(sql, [], |row| {
        let path: String = row.get(1)?;
        let input = InputFingerprint {
            path: path.into(),
            len: count(row.get(2)?),
            mtime_ms: row.get(3)?,
            head_hash: row.get(4)?,
        };
        let results = RecordedPrefix { len: count(row.get(5)?), crc: row.get(6)? };
        let errors = RecordedPrefix { len: count(row.get(7)?), crc: row.get(8)? };
        let refused_answers = refused_answers.map(|known| known.file);
        Ok(Run { id: row.get(0)?, input, results, errors, refused_answers, packed: row.get(9)? })
    })
    .map_err(JournalError::sqlite("read"))
}

pub(crate) fn set_config(
    conn: &Connection,
    config_json: &str,
    used: Option<&[ModelUsage]>,
) -> Result<(), JournalError> {
    let write = || {
        let transaction = conn.unchecked_transaction()?;
        if let Some(used) = used {
            usage::replace(&transaction, used)?;
        }
        transaction.execute("UPDATE run SET config_json = ?1", [config_json])?;
        transaction.commit()
    };
    write().map_err(JournalError::sqlite("write"))
}

pub(crate) fn config(conn: &Connection) -> Result<String, JournalError> {
    conn.query_row("SELECT config_json FROM run", [], |row| row.get(0)).map_err(JournalError::sqlite("read"))
}

pub(crate) fn forget_waits(conn: &Connection) -> Result<(), JournalError> {
    let sql = "UPDATE item SET not_before_ms = 0, delay_ms = 0 WHERE state = 0 AND not_before_ms > 0";
    conn.execute(sql, []).map_err(JournalError::sqlite("write"))?;
    Ok(())
}

/// The columns of an [`item`], in its order; what a statement reads besides begins at [`AFTER_ITEM`]. By name they would be
/// searched for in each row, which takes longer than to read them.
macro_rules! item_columns {
    () => {
        "id, line, src_off, src_len, scope, not_before_ms, delay_ms, attempts, deferrals, probes, abandoned, \
         forgiven_attempts, forgiven_deferrals, crash_attempts, first_ms, deadline_ms, last_class, last_status, \
         last_code, last_type, last_error, tokens_in, tokens_out"
    };
}
pub(crate) use item_columns;

/// The place of the first column behind those of an item.
pub(crate) const AFTER_ITEM: usize = 23;

/// The column of an item's scope, by its number.
pub(crate) const ITEM_SCOPE: usize = 4;

/// An item from a row of [`item_columns`].
pub(crate) fn item(row: &Row<'_>, scopes: &[Scope]) -> rusqlite::Result<JournalItem> {
    let time = |column: usize| row.get::<_, Option<i64>>(column).map(|millis| millis.map(Timestamp::from_millis));
    let scope: i64 = row.get(ITEM_SCOPE)?;
    let name = by_id(scopes, scope).map_or_else(|| Arc::from(""), |found| found.row.name.clone());
    let last = match row.get_ref(16)?.as_str_or_null()?.and_then(Class::from_name) {
        Some(class) => Some(LastAnswer {
            class,
            status: row.get(17)?,
            code: row.get(18)?,
            error_type: row.get(19)?,
            message: row.get(20)?,
        }),
        None => None,
    };
    let tally = Tally {
        attempts: row.get(7)?,
        deferrals: row.get(8)?,
        unsent: row.get(9)?,
        abandoned: row.get(10)?,
        tokens_in: count(row.get(21)?),
        tokens_out: count(row.get(22)?),
        first: time(14)?,
        deadline: time(15)?,
        last,
    };
    Ok(JournalItem {
        ordinal: count(row.get(0)?),
        line: count(row.get(1)?),
        src_off: count(row.get(2)?),
        src_len: count(row.get(3)?),
        scope: name,
        tally,
        forgiven: Forgiven { attempts: row.get(11)?, deferrals: row.get(12)? },
        crash_attempts: row.get(13)?,
        not_before: Timestamp::from_millis(row.get(5)?),
        delay: Duration::from_millis(count(row.get(6)?)),
    })
}

/// The item with that key, and where it stands.
pub(crate) fn find(
    conn: &Connection,
    scopes: &[Scope],
    key: &[u8; 16],
) -> Result<Option<(JournalItem, State)>, JournalError> {
    conn.prepare_cached(concat!("SELECT ", item_columns!(), ", state FROM item WHERE key = ?1"))
        .and_then(|mut select| {
            select.query_row([key], |row| Ok((item(row, scopes)?, state(row.get(AFTER_ITEM)?)?))).optional()
        })
        .map_err(JournalError::sqlite("read"))
}

/// Refused lines that wait for their end, by place in the input.
pub(crate) fn refused(conn: &Connection, limit: usize) -> Result<Vec<JournalItem>, JournalError> {
    let page = || {
        let sql = concat!(
            "SELECT ",
            item_columns!(),
            " FROM item WHERE state = 0 AND scope = ?1 ORDER BY not_before_ms, crash_attempts, id LIMIT ?2"
        );
        let mut select = conn.prepare_cached(sql)?;
        let rows = select.query_map(rusqlite::params![REFUSED, int(limit as u64)], |row| item(row, &[]))?;
        rows.collect::<rusqlite::Result<_>>()
    };
    page().map_err(JournalError::sqlite("read"))
}

pub(crate) fn state(code: i64) -> rusqlite::Result<State> {
    State::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code))
}

/// A count as SQLite keeps it. No file or job is large enough for the difference to show.
pub(crate) fn int(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A count as SQLite kept it.
pub(crate) fn count(int: i64) -> u64 {
    u64::try_from(int).unwrap_or(0)
}

/// Whole milliseconds, rounded up so that a wait is never short.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// The longest error message kept per item, in characters: a line in a report, not the answer.
const MESSAGE_CHARS: usize = 400;

pub(crate) fn shorten(message: &str) -> &str {
    message.char_indices().nth(MESSAGE_CHARS).map_or(message, |(end, _)| &message[..end])
}
