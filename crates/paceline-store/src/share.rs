//! A journal that has a share of a job on many hosts: some blocks of its lines, whose items have the ordinals that they have in
//! the whole job.
//!
//! Who has a block is decided elsewhere. Here stands which blocks this host took, under which claim: a kill loses none.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::append::{self, Appended, AppendedLine};
use crate::error::JournalError;
use crate::journal::Journal;
use crate::journal_db::JournalDb;
use crate::query::{count, int};
use crate::schema::{durably, has_table};
use crate::state::State;

/// The table, made with the first block. What is `over` needs nothing of this host any more.
const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS taken_block (
        first INTEGER PRIMARY KEY,
        lines INTEGER NOT NULL,
        fence INTEGER NOT NULL,
        lost INTEGER NOT NULL,
        over INTEGER NOT NULL DEFAULT 0
    ) STRICT;
";

/// A block that this host took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenBlock {
    /// The ordinal of its first line.
    pub first: u64,
    /// How many lines it has.
    pub lines: u64,
    /// The fence of the claim.
    pub fence: i64,
    /// Another host was lost with it, and may have sent any line that had no result.
    pub lost: bool,
}

/// A line that has ended here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLine {
    /// Its ordinal.
    pub ordinal: u64,
    /// Whether it stands in the results; in the errors else.
    pub ok: bool,
    /// The line there, with its line end.
    pub body: Vec<u8>,
}

/// What has ended of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedLines {
    /// The block.
    pub block: TakenBlock,
    /// Lines that were asked for.
    pub lines: Vec<EndedLine>,
    /// How many lines of it are here and have not ended.
    pub open: u64,
    /// Of those, how many wait in scopes that are held or stopped.
    pub kept: u64,
}

/// What is left of a block that this host has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftBlock {
    /// Items that waited, and are gone.
    pub gone: u64,
    /// Items that have been begun and have not ended.
    pub open: u64,
}

impl Journal {
    /// Takes blocks, or new claims of such as were here before. Of the lines of each, with their ordinals, those wait from now on
    /// that the journal has not, or has as failed; the line of such a failure stays in the errors. One that repeats an id of
    /// another is refused, for the reason `repeated`. On disk once this returns.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn take_blocks(
        &self,
        blocks: Vec<(TakenBlock, Vec<(u64, AppendedLine)>)>,
        repeated: &'static str,
    ) -> Result<Appended, JournalError> {
        self.writer.between_batches(move |db| take(db, &blocks, repeated))
    }

    /// The blocks that are not over, in the order of the input.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn taken_blocks(&self) -> Result<Vec<TakenBlock>, JournalError> {
        self.writer.query(|conn| taken(conn).map_err(JournalError::sqlite("read")))
    }

    /// The lines of blocks that have ended here and are not among those known of each, in order; no more of all than have `most`
    /// bytes together, but one at least. `now`: a hold that has ended keeps nothing back.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts); [`JournalError::Io`].
    pub fn ended_lines(
        &self,
        blocks: Vec<(TakenBlock, BTreeSet<u64>)>,
        most: u64,
        now: Timestamp,
    ) -> Result<Vec<EndedLines>, JournalError> {
        self.writer.between_batches(move |db| ended(db, &blocks, most, now))
    }

    /// This host has the block no more: its items that wait are not sent from here. To be repeated while some are open.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn leave_block(&self, block: TakenBlock) -> Result<LeftBlock, JournalError> {
        self.writer.between_batches(move |db| {
            durably(db.connection(), || leave(db.connection(), &block).map_err(JournalError::sqlite("write")))
        })
    }

    /// The lines of the block that wait here.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn waiting_in(&self, block: TakenBlock) -> Result<Vec<u64>, JournalError> {
        self.writer.query(move |conn| waiting(conn, &block).map_err(JournalError::sqlite("read")))
    }

    /// Nothing of the block is to be done here any more.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn end_block(&self, block: TakenBlock) -> Result<(), JournalError> {
        let sql = "UPDATE taken_block SET over = 1 WHERE first = ?1 AND fence = ?2";
        self.writer.query(move |conn| {
            let ended = conn.execute(sql, params![int(block.first), block.fence]);
            ended.map(drop).map_err(JournalError::sqlite("write"))
        })
    }
}

fn take(
    db: &mut JournalDb,
    blocks: &[(TakenBlock, Vec<(u64, AppendedLine)>)],
    repeated: &str,
) -> Result<Appended, JournalError> {
    append::know_scopes(db, blocks.iter().flat_map(|(_, lines)| lines).map(|(_, line)| line))?;
    let (db, conn) = (&*db, db.connection());
    let take = || -> rusqlite::Result<Appended> {
        conn.execute_batch(TABLE)?;
        let mut appended = Appended::default();
        for (block, lines) in blocks {
            let sql = "INSERT INTO taken_block (first, lines, fence, lost) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (first) DO UPDATE SET fence = ?3, lost = ?4, over = 0";
            let values = params![int(block.first), int(block.lines), block.fence, block.lost];
            conn.prepare_cached(sql)?.execute(values)?;
            for (ordinal, line) in lines {
                // One that failed here and has no result is tried anew: its failure was dropped, or came too late.
                conn.prepare_cached("DELETE FROM item WHERE id = ?1 AND state = 3")?.execute([int(*ordinal)])?;
                let known = conn.prepare_cached("SELECT 1 FROM item WHERE id = ?1")?.exists([int(*ordinal)])?;
                if !known {
                    appended.refused += u64::from(!append::add(conn, db, *ordinal, line, repeated)?);
                    appended.items += 1;
                }
            }
        }
        Ok(appended)
    };
    durably(conn, || take().map_err(JournalError::sqlite("load")))
}

fn taken(conn: &Connection) -> rusqlite::Result<Vec<TakenBlock>> {
    if !has_table(conn, "taken_block")? {
        return Ok(Vec::new());
    }
    let mut select = conn.prepare("SELECT first, lines, fence, lost FROM taken_block WHERE NOT over ORDER BY first")?;
    let rows = select.query_map([], |row| {
        let (first, lines) = (count(row.get(0)?), count(row.get(1)?));
        Ok(TakenBlock { first, lines, fence: row.get(2)?, lost: row.get(3)? })
    })?;
    rows.collect()
}

/// Where the line of an item is.
struct Placed {
    ordinal: u64,
    ok: bool,
    offset: u64,
    len: u64,
}

fn ended(
    db: &JournalDb,
    blocks: &[(TakenBlock, BTreeSet<u64>)],
    most: u64,
    now: Timestamp,
) -> Result<Vec<EndedLines>, JournalError> {
    let (conn, paths) = (db.connection(), db.paths());
    let closed = db.closed_scopes(now);
    let (mut results, mut errors) = (None, None);
    let (mut found, mut bytes) = (Vec::new(), 0);
    for (block, known) in blocks {
        let (places, open) = placed(conn, block).map_err(JournalError::sqlite("read"))?;
        let mut lines = Vec::new();
        for place in places.into_iter().filter(|place| !known.contains(&place.ordinal)) {
            if bytes > 0 && bytes + place.len > most {
                break;
            }
            bytes += place.len;
            let (file, path) = if place.ok { (&mut results, &paths.output) } else { (&mut errors, &paths.errors) };
            let body = read(file, path, &place).map_err(JournalError::io("read", path))?;
            lines.push(EndedLine { ordinal: place.ordinal, ok: place.ok, body });
        }
        let kept = kept(conn, block, &closed).map_err(JournalError::sqlite("read"))?;
        found.push(EndedLines { block: *block, lines, open, kept });
    }
    Ok(found)
}

fn placed(conn: &Connection, block: &TakenBlock) -> rusqlite::Result<(Vec<Placed>, u64)> {
    let (from, to) = (int(block.first), int(block.first + block.lines));
    let sql = "SELECT id, state = ?3, out_off, out_len FROM item
         WHERE id >= ?1 AND id < ?2 AND state IN (2, 3) AND out_off IS NOT NULL ORDER BY id";
    let mut select = conn.prepare_cached(sql)?;
    let rows = select.query_map(params![from, to, State::Succeeded.code()], |row| {
        let (ordinal, offset, len) = (count(row.get(0)?), count(row.get(2)?), count(row.get(3)?));
        Ok(Placed { ordinal, ok: row.get(1)?, offset, len })
    })?;
    let places = rows.collect::<rusqlite::Result<_>>()?;
    Ok((places, open(conn, block)?))
}

fn open(conn: &Connection, block: &TakenBlock) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM item WHERE id >= ?1 AND id < ?2 AND state IN (0, 1)";
    let range = params![int(block.first), int(block.first + block.lines)];
    conn.prepare_cached(sql)?.query_row(range, |row| row.get(0)).map(count)
}

/// The lines that wait in one of these scopes.
fn kept(conn: &Connection, block: &TakenBlock, scopes: &BTreeSet<i64>) -> rusqlite::Result<u64> {
    if scopes.is_empty() {
        return Ok(0);
    }
    let sql = "SELECT scope, count(*) FROM item WHERE id >= ?1 AND id < ?2 AND state = 0 GROUP BY scope";
    let range = params![int(block.first), int(block.first + block.lines)];
    let mut select = conn.prepare_cached(sql)?;
    let of_scopes = select.query_map(range, |row| Ok((row.get(0)?, count(row.get(1)?))))?;
    of_scopes.filter_map(|row| row.map(|(scope, lines)| scopes.contains(&scope).then_some(lines)).transpose()).sum()
}

fn waiting(conn: &Connection, block: &TakenBlock) -> rusqlite::Result<Vec<u64>> {
    let range = params![int(block.first), int(block.first + block.lines)];
    let mut select = conn.prepare_cached("SELECT id FROM item WHERE id >= ?1 AND id < ?2 AND state = 0")?;
    let rows = select.query_map(range, |row| row.get(0).map(count))?;
    rows.collect()
}

fn read(file: &mut Option<File>, path: &Path, place: &Placed) -> std::io::Result<Vec<u8>> {
    let file = match file {
        Some(file) => file,
        None => file.insert(File::open(path)?),
    };
    file.seek(SeekFrom::Start(place.offset))?;
    let mut body = vec![0; usize::try_from(place.len).map_err(std::io::Error::other)?];
    file.read_exact(&mut body)?;
    Ok(body)
}

fn leave(conn: &Connection, block: &TakenBlock) -> rusqlite::Result<LeftBlock> {
    let range = params![int(block.first), int(block.first + block.lines)];
    let gone = conn.execute("DELETE FROM item WHERE id >= ?1 AND id < ?2 AND state = 0", range)?;
    Ok(LeftBlock { gone: gone as u64, open: open(conn, block)? })
}
