//! Lines that are taken into a job while it runs: a load that no caller waits for.

use std::sync::Arc;

use rusqlite::{Connection, params};

use crate::book::Book;
use crate::error::Error;
use crate::item::{NewItem, RefusedLine};
use crate::query::{count, int};
use crate::refused;
use crate::schema::{durably, hash};
use crate::scope::{ScopeRow, ScopeState};

/// Where the input is to be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Bytes that were read.
    pub offset: u64,
    /// Lines in them, blank ones too.
    pub lines: u64,
}

/// A further line of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Further {
    key: Option<[u8; 16]>,
    line: u64,
    src_off: u64,
    src_len: u64,
    hash: [u8; 16],
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Item { scope: Arc<str> },
    Refused { code: String, message: String },
}

/// What was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Lines.
    pub items: u64,
    /// Of those: lines that cannot be sent, repeated ids among them.
    pub refused: u64,
}

impl Further {
    /// A line that can be sent.
    pub fn item(item: &NewItem<'_>) -> Self {
        let NewItem { custom_id, line, src_off, src_len, body, scope } = *item;
        let what = What::Item { scope: scope.into() };
        Self { key: Some(custom_id.key()), line, src_off, src_len, hash: hash(body), what }
    }

    /// A line that cannot.
    pub fn refused(refused: &RefusedLine<'_>) -> Self {
        let RefusedLine { custom_id, line, src_off, src_len, bytes, code, message } = *refused;
        let what = What::Refused { code: code.to_owned(), message: message.to_owned() };
        Self { key: custom_id.map(|id| id.key()), line, src_off, src_len, hash: hash(bytes), what }
    }
}

/// Takes lines in, and notes how far the input is read, in one transaction that outlasts a power cut: results may be
/// recorded for these items from then on. An id that came before makes its line one that cannot be sent, for the reason
/// `repeated`.
pub(crate) fn append(
    book: &mut Book,
    lines: &[Further],
    unread: Option<Unread>,
    repeated: &str,
) -> Result<Taken, Error> {
    for line in lines {
        if let What::Item { scope } = &line.what
            && book.scope_id(scope).is_none()
        {
            book.set_scope(ScopeRow { name: Arc::clone(scope), state: ScopeState::Open })?;
        }
    }
    let book = &*book;
    durably(book.connection(), || {
        let append = || -> rusqlite::Result<Taken> {
            let conn = book.connection();
            let mut ordinal: u64 =
                conn.query_row("SELECT coalesce(max(id) + 1, 0) FROM item", [], |row| row.get(0).map(count))?;
            let mut taken = Taken::default();
            for line in lines {
                taken.refused += u64::from(!add(conn, book, ordinal, line, repeated)?);
                (ordinal, taken.items) = (ordinal + 1, taken.items + 1);
            }
            set_unread(conn, unread)?;
            Ok(taken)
        };
        append().map_err(Error::sqlite("load"))
    })
}

/// Notes how far the input is read.
pub(crate) fn set_unread(conn: &Connection, unread: Option<Unread>) -> rusqlite::Result<()> {
    let (offset, lines) = (unread.map(|unread| int(unread.offset)), unread.map(|unread| int(unread.lines)));
    conn.execute("UPDATE run SET unread_off = ?1, unread_lines = ?2", params![offset, lines])?;
    Ok(())
}

/// How far the input is read; none once it is read to its end.
pub(crate) fn unread(conn: &Connection) -> Result<Option<Unread>, Error> {
    let read = || {
        conn.query_row("SELECT unread_off, unread_lines FROM run", [], |row| {
            let (offset, lines): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
            Ok(offset.zip(lines).map(|(offset, lines)| Unread { offset: count(offset), lines: count(lines) }))
        })
    };
    read().map_err(Error::sqlite("read"))
}

/// Adds a line; false for one that cannot be sent.
fn add(conn: &Connection, book: &Book, ordinal: u64, line: &Further, repeated: &str) -> rusqlite::Result<bool> {
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
    match (&line.what, first) {
        (_, Some(first)) => {
            refused(None, repeated, &format!("the same custom_id as in line {first}"))?;
            Ok(false)
        }
        (What::Refused { code, message }, None) => {
            refused(line.key.as_ref(), code, message)?;
            Ok(false)
        }
        (What::Item { scope }, None) => {
            let sql = "INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope)
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
            conn.prepare_cached(sql)?.execute(params![
                int(ordinal),
                line.key,
                line.hash,
                int(line.line),
                int(line.src_off),
                int(line.src_len),
                book.scope_id(scope)
            ])?;
            Ok(true)
        }
    }
}
