//! Filling a new journal from the input: one transaction, so that a load that is killed leaves nothing behind.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::error::Error;
use crate::item::NewItem;
use crate::journal::{Journal, Options, sync_folder_of};
use crate::lock::RunLock;
use crate::output::Outputs;
use crate::paths::with_suffix;
use crate::query::{count, int};
use crate::schema::{DUE_INDEX, KEY_INDEX, TABLES, hash, mark};
use crate::turn::{Book, checkpoint};

/// Takes the items of a new job. Memory stays the same however many they are. Dropped without
/// [`finish`](Self::finish), it removes the journal: an input that was refused leaves nothing behind.
#[derive(Debug)]
pub struct Loader {
    /// None only between the end of `finish` and the drop.
    open: Option<Box<Open>>,
    scopes: BTreeMap<String, i64>,
    items: u64,
    /// The index over the ids stands: none repeats.
    unique: bool,
}

#[derive(Debug)]
struct Open {
    conn: Connection,
    lock: RunLock,
    options: Options,
}

impl Loader {
    pub(crate) fn begin(conn: Connection, lock: RunLock, options: Options) -> Result<Self, Error> {
        // The results prove what was done, but not what there is to do: that is on disk before the first call. The
        // index over the ids is sorted on disk too: in memory it would grow with the input.
        conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = FILE; BEGIN IMMEDIATE;")
            .and_then(|()| conn.execute_batch(TABLES))
            .map_err(Error::sqlite("load"))?;
        Ok(Self {
            open: Some(Box::new(Open { conn, lock, options })),
            scopes: BTreeMap::new(),
            items: 0,
            unique: false,
        })
    }

    /// Adds the next item of the input; returns its ordinal, counted from 0. Repeated ids are found by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn add(&mut self, item: &NewItem<'_>) -> Result<u64, Error> {
        let conn = &self.open.as_ref().expect("open until finished").conn;
        let scope = match self.scopes.get(item.scope) {
            Some(id) => *id,
            None => {
                conn.execute("INSERT INTO scope (name) VALUES (?1)", [item.scope]).map_err(Error::sqlite("load"))?;
                self.scopes.insert(item.scope.to_owned(), conn.last_insert_rowid());
                conn.last_insert_rowid()
            }
        };
        let ordinal = self.items;
        let sql =
            "INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        conn.prepare_cached(sql)
            .and_then(|mut insert| {
                let (line, src_off, src_len) = (int(item.line), int(item.src_off), int(item.src_len));
                let (key, body_hash) = (item.custom_id.key(), hash(item.body));
                insert.execute(params![int(ordinal), key, body_hash, line, src_off, src_len, scope])
            })
            .map_err(Error::sqlite("load"))?;
        self.items += 1;
        Ok(ordinal)
    }

    /// Items added so far.
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// Looks for items whose id came before. Of those only the first `limit` by place in the input are told, but all
    /// are counted.
    ///
    /// # Errors
    /// [`Error::Sqlite`].
    pub fn duplicates(&mut self, limit: usize) -> Result<Duplicates, Error> {
        let Open { conn, .. } = self.open.as_deref().expect("open until finished");
        match conn.execute_batch(KEY_INDEX) {
            Ok(()) => {
                self.unique = true;
                Ok(Duplicates::default())
            }
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                duplicates(conn, limit).map_err(Error::sqlite("load"))
            }
            Err(source) => Err(Error::Sqlite { action: "load", source }),
        }
    }

    /// Completes the journal, makes it durable and creates the results file.
    ///
    /// # Errors
    /// [`Error::Duplicates`] when ids repeat; [`Error::Io`], [`Error::Sqlite`]. The journal is then removed.
    pub fn finish(mut self) -> Result<Journal, Error> {
        if !self.unique {
            let found = self.duplicates(1)?;
            if let Some(first) = found.first.first() {
                return Err(Error::Duplicates { line: first.line, first_line: first.first_line, count: found.count });
            }
        }
        let Open { conn, options, .. } = self.open.as_deref().expect("open until finished");
        conn.execute_batch(DUE_INDEX).map_err(Error::sqlite("load"))?;
        let id = run_id(options.now);
        write_run(conn, &id, options).and_then(|()| mark(conn)).map_err(Error::sqlite("load"))?;
        conn.execute_batch("COMMIT; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY;")
            .map_err(Error::sqlite("load"))?;
        if let Some(journal) = &options.paths.journal {
            checkpoint(conn)?;
            sync_folder_of(journal)?;
        }
        let outputs = Outputs::create(&options.paths)?;
        let Open { conn, lock, .. } = *self.open.take().expect("open until finished");
        Journal::start(Book::new(conn, outputs, lock)?, id)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { conn, lock, options } = *open;
        drop(conn);
        if let Some(journal) = options.paths.journal {
            for suffix in ["", "-wal", "-shm"] {
                // What cannot be removed is recognized as an unfinished load and started over.
                let _ = std::fs::remove_file(PathBuf::from(with_suffix(journal.clone().into_os_string(), suffix)));
            }
        }
        drop(lock);
    }
}

fn write_run(conn: &Connection, id: &str, options: &Options) -> rusqlite::Result<()> {
    let Options { input, config_json, now, .. } = options;
    conn.execute(
        "INSERT INTO run (id, created_ms, input_path, input_len, input_mtime_ms, input_head_hash, config_json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            id,
            now.as_millis(),
            input.path.to_string_lossy(),
            int(input.len),
            input.mtime_ms,
            input.head_hash,
            config_json
        ],
    )?;
    Ok(())
}

/// Different for each job, so that its calls' idempotency keys are nobody else's. The seed of the standard hash maps is
/// the operating system's randomness.
fn run_id(now: Timestamp) -> String {
    let random = RandomState::new();
    format!("{:016x}", random.hash_one((now, std::process::id())))
}

/// Items whose id came before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    /// The first of them, by place in the input.
    pub first: Vec<Duplicate>,
    /// How many there are.
    pub count: u64,
}

/// An item whose id came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The line, from 1.
    pub line: u64,
    /// The line that had the same id first.
    pub first_line: u64,
}

/// By an index that allows them: neither grouping nor sorting takes memory then.
fn duplicates(conn: &Connection, limit: usize) -> rusqlite::Result<Duplicates> {
    conn.execute_batch("CREATE INDEX IF NOT EXISTS repeated_key ON item(key)")?;
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
