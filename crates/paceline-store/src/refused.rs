//! Lines that a load refuses: invalid lines, and repeated ids.

use paceline_core::Class;
use rusqlite::{Connection, params};

use crate::query::{count, int, shorten};
use crate::scope::REFUSED;

/// Repeated ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// The first of them, by place in the input.
    pub first: Vec<Duplicate>,
    /// How many there are.
    pub count: u64,
}

/// An item with a repeated id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The line, from 1.
    pub line: u64,
    /// The line that had the same id first.
    pub first_line: u64,
}

/// Finds repeated ids: neither grouping nor sorting takes memory by it.
const REPEATED_INDEX: &str = "CREATE INDEX IF NOT EXISTS repeated_key ON item(key)";

/// No other scope has its empty name: items are known as refused by it.
const REFUSED_SCOPE: &str = "INSERT OR IGNORE INTO scope (id, name) VALUES (?1, '')";

/// Finds the items with repeated ids; returns at most `limit` of them.
pub(crate) fn duplicates(conn: &Connection, limit: usize) -> rusqlite::Result<Duplicates> {
    conn.execute_batch(REPEATED_INDEX)?;
    let mut select = conn.prepare(
        "SELECT item.line, first.line FROM item
         JOIN item AS first ON first.id = (SELECT min(id) FROM item AS same WHERE same.key = item.key)
         WHERE item.id <> first.id ORDER BY item.id LIMIT ?1",
    )?;
    let rows = select.query_map([int(limit as u64)], |row| {
        Ok(Duplicate { line: count(row.get(0)?), first_line: count(row.get(1)?) })
    })?;
    let first = rows.collect::<rusqlite::Result<_>>()?;
    let sql = "SELECT count(*) - (SELECT count(*) FROM (SELECT 1 FROM item GROUP BY key)) FROM item";
    Ok(Duplicates { first, count: count(conn.query_row(sql, [], |row| row.get(0))?) })
}

/// Where an item stands in the input.
pub(crate) struct Place {
    pub(crate) ordinal: u64,
    pub(crate) line: u64,
    pub(crate) src_off: u64,
    pub(crate) src_len: u64,
}

/// Adds a line that cannot be sent. Without an id of its own it is known by its ordinal, whose digits are no hash.
pub(crate) fn add(
    conn: &Connection,
    place: &Place,
    key: Option<&[u8; 16]>,
    hash: &[u8; 16],
    code: &str,
    message: &str,
) -> rusqlite::Result<()> {
    conn.prepare_cached(REFUSED_SCOPE)?.execute([REFUSED])?;
    let sql = "INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope, last_class, last_code, last_error)
               VALUES (?1, coalesce(?2, CAST(?1 AS BLOB)), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
    conn.prepare_cached(sql)?.execute(params![
        int(place.ordinal),
        key,
        hash,
        int(place.line),
        int(place.src_off),
        int(place.src_len),
        REFUSED,
        Class::Invalid.as_str(),
        code,
        shorten(message),
    ])?;
    Ok(())
}

/// Refuses every item with a repeated id.
pub(crate) fn refuse_duplicates(conn: &Connection, code: &str) -> rusqlite::Result<()> {
    conn.execute_batch(REPEATED_INDEX)?;
    conn.execute(REFUSED_SCOPE, [REFUSED])?;
    conn.execute(
        "UPDATE item SET scope = ?1, key = CAST(id AS BLOB), last_class = ?2, last_code = ?3, last_error =
             'the same custom_id as in line ' ||
             (SELECT line FROM item AS same WHERE same.key = item.key ORDER BY id LIMIT 1)
         WHERE id <> (SELECT min(id) FROM item AS same WHERE same.key = item.key)",
        params![REFUSED, Class::Invalid.as_str(), code],
    )?;
    conn.execute_batch("DROP INDEX repeated_key")
}
