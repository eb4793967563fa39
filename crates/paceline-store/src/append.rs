//! Appends input lines to a job while it runs, so that the run does not wait for the whole input.

use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::error::JournalError;
use crate::item::{LoadedLine, RefusedLine};
use crate::journal_db::JournalDb;
use crate::query::{count, int};
use crate::refused;
use crate::schema::{durably, hash};
use crate::scope::{ScopeRow, ScopeStatus};

/// The position up to which the input is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputCursor {
    /// Bytes that are loaded.
    pub offset: u64,
    /// Lines in them, blank ones too.
    pub lines: u64,
}

/// A line of the input, to be appended to a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedLine {
    key: Option<[u8; 16]>,
    line: u64,
    src_off: u64,
    src_len: u64,
    hash: [u8; 16],
    kind: LineKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LineKind {
    Item { scope: Arc<str> },
    Refused { code: String, message: String },
}

/// How many lines were appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// All of them.
    pub items: u64,
    /// Of these: lines that cannot be sent, repeated ids among them.
    pub refused: u64,
}

impl AppendedLine {
    /// A line that can be sent.
    pub fn item(item: &LoadedLine<'_>) -> Self {
        let LoadedLine { custom_id, line, src_off, src_len, body, scope } = *item;
        let kind = LineKind::Item { scope: scope.into() };
        Self { key: Some(custom_id.key()), line, src_off, src_len, hash: hash(body), kind }
    }

    /// A line that cannot.
    pub fn refused(refused: &RefusedLine<'_>) -> Self {
        let RefusedLine { custom_id, line, src_off, src_len, bytes, code, message } = *refused;
        let kind = LineKind::Refused { code: code.to_owned(), message: message.to_owned() };
        Self { key: custom_id.map(|id| id.key()), line, src_off, src_len, hash: hash(bytes), kind }
    }
}

/// Appends lines and records the position of the input in one transaction that outlasts a power cut: results may be recorded for
/// these items from then on. A line that repeats an id cannot be sent, for the reason `repeated`.
pub(crate) fn append(
    db: &mut JournalDb,
    lines: &[AppendedLine],
    input_cursor: Option<InputCursor>,
    repeated: &str,
) -> Result<Appended, JournalError> {
    know_scopes(db, lines.iter())?;
    let db = &*db;
    durably(db.connection(), || {
        let append = || -> rusqlite::Result<Appended> {
            let conn = db.connection();
            let mut ordinal: u64 =
                conn.query_row("SELECT coalesce(max(id) + 1, 0) FROM item", [], |row| row.get(0).map(count))?;
            let mut appended = Appended::default();
            for line in lines {
                appended.refused += u64::from(!add(conn, db, ordinal, line, repeated)?);
                (ordinal, appended.items) = (ordinal + 1, appended.items + 1);
            }
            set_input_cursor(conn, input_cursor)?;
            Ok(appended)
        };
        append().map_err(JournalError::sqlite("load"))
    })
}

/// Makes the scopes of lines known that are to be added.
pub(crate) fn know_scopes<'a>(
    db: &mut JournalDb,
    lines: impl Iterator<Item = &'a AppendedLine>,
) -> Result<(), JournalError> {
    for line in lines {
        if let LineKind::Item { scope } = &line.kind
            && db.scope_id(scope).is_none()
        {
            db.set_scope(ScopeRow { name: Arc::clone(scope), state: ScopeStatus::Open })?;
        }
    }
    Ok(())
}

/// Records the position up to which the input is loaded.
pub(crate) fn set_input_cursor(conn: &Connection, input_cursor: Option<InputCursor>) -> rusqlite::Result<()> {
    let (offset, lines) = (
        input_cursor.map(|input_cursor| int(input_cursor.offset)),
        input_cursor.map(|input_cursor| int(input_cursor.lines)),
    );
    conn.execute("UPDATE run SET unread_off = ?1, unread_lines = ?2", params![offset, lines])?;
    Ok(())
}

/// The position up to which the input is loaded; none once that is its end.
pub(crate) fn input_cursor(conn: &Connection) -> Result<Option<InputCursor>, JournalError> {
    let read = || {
        conn.query_row("SELECT unread_off, unread_lines FROM run", [], |row| {
            let (offset, lines): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
            Ok(offset.zip(lines).map(|(offset, lines)| InputCursor { offset: count(offset), lines: count(lines) }))
        })
    };
    read().map_err(JournalError::sqlite("read"))
}

/// Adds a line; false for one that cannot be sent.
pub(crate) fn add(
    conn: &Connection,
    db: &JournalDb,
    ordinal: u64,
    line: &AppendedLine,
    repeated: &str,
) -> rusqlite::Result<bool> {
    let first: Option<i64> = match &line.key {
        Some(key) => conn
            .prepare_cached("SELECT line FROM item WHERE key = ?1")?
            .query_map([key], |row| row.get(0))?
            .next()
            .transpose()?,
        None => None,
    };
    let refused = |key, code: &str, message: &str| {
        let place = refused::Place { ordinal, line: line.line, src_off: line.src_off, src_len: line.src_len };
        refused::add(conn, &place, key, &line.hash, code, message)
    };
    match (&line.kind, first) {
        (_, Some(first)) => {
            refused(None, repeated, &format!("the same custom_id as in line {first}"))?;
            Ok(false)
        }
        (LineKind::Refused { code, message }, None) => {
            refused(line.key.as_ref(), code, message)?;
            Ok(false)
        }
        (LineKind::Item { scope }, None) => {
            let sql = "INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            conn.prepare_cached(sql)?.execute(params![
                int(ordinal),
                line.key,
                line.hash,
                int(line.line),
                int(line.src_off),
                int(line.src_len),
                db.scope_id(scope)
            ])?;
            Ok(true)
        }
    }
}
