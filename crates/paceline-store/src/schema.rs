//! The tables of a journal, and how one is recognized.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::disk::make_private;
use crate::error::JournalError;

/// The name under which the state of the account as a whole is kept, beside those of its scopes.
pub const ACCOUNT: &str = "*";

/// The hash by which ids and bodies are known: XXH3 with 128 bits. It finds accidents, not attacks: the journal and the
/// input belong to the same person.
pub fn hash(bytes: &[u8]) -> [u8; 16] {
    xxhash_rust::xxh3::xxh3_128(bytes).to_be_bytes()
}

/// The format written here, in `PRAGMA user_version`.
pub(crate) const VERSION: i64 = 1;

/// "Pace" in ASCII, in `PRAGMA application_id`: distinguishes a journal from any other database.
pub(crate) const JOURNAL: i64 = 0x5061_6365;

/// "PaWk": the same for a store of durable work.
pub(crate) const STORE: i64 = 0x5061_576B;

/// `run` has one row. Bodies are in no table: they would make each claim and update several times slower.
pub(crate) const TABLES: &str = "
    CREATE TABLE run (
        id TEXT NOT NULL,
        created_ms INTEGER NOT NULL,
        input_path TEXT NOT NULL,
        input_len INTEGER NOT NULL,
        input_mtime_ms INTEGER NOT NULL,
        input_head_hash BLOB NOT NULL,
        config_json TEXT NOT NULL,
        out_len INTEGER NOT NULL DEFAULT 0,
        out_crc INTEGER NOT NULL DEFAULT 0,
        err_len INTEGER NOT NULL DEFAULT 0,
        err_crc INTEGER NOT NULL DEFAULT 0,
        calls INTEGER NOT NULL DEFAULT 0,
        resends INTEGER NOT NULL DEFAULT 0,
        retries INTEGER NOT NULL DEFAULT 0,
        throttled INTEGER NOT NULL DEFAULT 0,
        abandoned INTEGER NOT NULL DEFAULT 0,
        replacing TEXT,
        packed INTEGER NOT NULL DEFAULT 0,
        unread_off INTEGER,
        unread_lines INTEGER,
        snapshot_json TEXT,
        key_base INTEGER NOT NULL DEFAULT 0 -- keys of earlier inputs have numbers below
    ) STRICT;
    CREATE TABLE scope (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        state INTEGER NOT NULL DEFAULT 0,
        until_ms INTEGER,
        reason TEXT
    ) STRICT;
";

/// The items.
pub(crate) const ITEM_TABLE: &str = "
    CREATE TABLE item (
        id INTEGER PRIMARY KEY,
        key BLOB NOT NULL,
        body_hash BLOB NOT NULL,
        line INTEGER NOT NULL,
        src_off INTEGER NOT NULL,
        src_len INTEGER NOT NULL,
        scope INTEGER NOT NULL REFERENCES scope(id),
        state INTEGER NOT NULL DEFAULT 0,
        not_before_ms INTEGER NOT NULL DEFAULT 0,
        delay_ms INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        deferrals INTEGER NOT NULL DEFAULT 0,
        probes INTEGER NOT NULL DEFAULT 0, -- sends that no server took
        abandoned INTEGER NOT NULL DEFAULT 0,
        forgiven_attempts INTEGER NOT NULL DEFAULT 0,
        forgiven_deferrals INTEGER NOT NULL DEFAULT 0,
        crash_attempts INTEGER NOT NULL DEFAULT 0,
        first_ms INTEGER,
        deadline_ms INTEGER,
        last_class TEXT,
        last_status INTEGER,
        last_code TEXT,
        last_type TEXT,
        last_error TEXT,
        reason TEXT,
        tokens_in INTEGER NOT NULL DEFAULT 0,
        tokens_out INTEGER NOT NULL DEFAULT 0,
        out_off INTEGER,
        out_len INTEGER,
        key_no INTEGER -- from an earlier input; none: the base of the run and the id
    ) STRICT;
";

/// Finds a repeated id. Built after the load, which is faster.
pub(crate) const KEY_INDEX: &str = "CREATE UNIQUE INDEX item_key ON item(key)";

/// What is due. It ends in the row's id, so that equal due times keep their order; it starts with the scope, so that a held
/// scope costs a claim nothing however many items it has.
pub(crate) const DUE_INDEX: &str =
    "CREATE INDEX item_due ON item(scope, not_before_ms, crash_attempts) WHERE state = 0";

/// Whether a table is there, which a database of an older version may lack.
pub(crate) fn has_table(conn: &Connection, name: &str) -> rusqlite::Result<bool> {
    conn.query_row("SELECT count(*) FROM sqlite_schema WHERE name = ?1", [name], |row| row.get(0))
}

/// Adds a column that a journal of an older version lacks.
pub(crate) fn add_column(conn: &Connection, table: &str, name: &str, definition: &str) -> rusqlite::Result<()> {
    if has_column(conn, table, name)? {
        return Ok(());
    }
    conn.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {name} {definition}"))
}

/// Whether a table has that column.
pub(crate) fn has_column(conn: &Connection, table: &str, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM pragma_table_info(?1) WHERE name = ?2";
    conn.query_row(sql, [table, name], |row| row.get(0))
}

/// Marks the database as a complete journal; part of the transaction that loads it.
pub(crate) fn mark(conn: &Connection) -> rusqlite::Result<()> {
    conn.pragma_update(None, "application_id", JOURNAL)?;
    conn.pragma_update(None, "user_version", VERSION)
}

/// What a database turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing is in it: new, or a load that was interrupted.
    Empty,
    /// A journal in a format that can be read here.
    Journal,
}

/// Opens the database for the one process that writes it. Changes nothing in it.
pub(crate) fn connect(path: Option<&Path>) -> Result<(Connection, Found), JournalError> {
    let Some(path) = path else {
        return Ok((Connection::open_in_memory().map_err(JournalError::sqlite("open"))?, Found::Empty));
    };
    make_private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(JournalError::sqlite("open"))?;
    conn.busy_timeout(BUSY).map_err(JournalError::sqlite("open"))?;
    recognize(&conn, path).map(|found| (conn, found))
}

/// Makes ready to write, which marks the file: only once it is sure that nothing is refused any more. `NORMAL` does not
/// sync each commit: the results do, before it, and what a power cut takes is read back from them.
pub(crate) fn begin_writing(conn: &Connection) -> Result<(), JournalError> {
    conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY;")
        .and_then(|()| conn.pragma_update(None, "wal_autocheckpoint", LOG_PAGES))
        // The plans are pinned by tests. Without this a statement is planned anew whenever another scope or time is bound.
        .and_then(|()| conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true))
        .map(drop)
        .map_err(JournalError::sqlite("open"))
}

/// Begins a transaction; `durable`: it is to outlast a power cut. Others need not: what they record stands in the results.
pub(crate) fn begin(conn: &Connection, durable: bool) -> Result<(), JournalError> {
    let begin = if durable { "PRAGMA synchronous = FULL; BEGIN IMMEDIATE" } else { "BEGIN IMMEDIATE" };
    conn.execute_batch(begin).map_err(JournalError::sqlite("write"))
}

/// Ends one that [`begin`] began so.
pub(crate) fn commit(conn: &Connection, durable: bool) -> Result<(), JournalError> {
    let commit = if durable { "COMMIT; PRAGMA synchronous = NORMAL" } else { "COMMIT" };
    conn.execute_batch(commit).map_err(JournalError::sqlite("write"))
}

/// A transaction that outlasts a power cut once this returns.
pub(crate) fn durably<T>(conn: &Connection, work: impl FnOnce() -> Result<T, JournalError>) -> Result<T, JournalError> {
    begin(conn, true)?;
    let done = work().and_then(|done| commit(conn, true).map(|()| done));
    if done.is_err() {
        // The first error is the one to report. A transaction that failed to commit may have ended by itself.
        let _ = conn.execute_batch("ROLLBACK");
        let _ = conn.execute_batch("PRAGMA synchronous = NORMAL");
    }
    done
}

/// Moves the log into the database, unless a process reads it for long: then it stays, and loses nothing by that.
pub(crate) fn checkpoint(conn: &Connection) -> Result<(), JournalError> {
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(JournalError::sqlite("sync"))
}

/// Opens a journal only to look at it, while a run may be writing it.
pub(crate) fn connect_read_only(path: &Path) -> Result<Connection, JournalError> {
    // The database would not say why it cannot.
    std::fs::File::open(path).map_err(JournalError::io("open", path))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(JournalError::sqlite("open"))?;
    conn.busy_timeout(BUSY).map_err(JournalError::sqlite("open"))?;
    match recognize(&conn, path)? {
        Found::Journal => Ok(conn),
        Found::Empty => Err(JournalError::NotLoaded { path: path.to_owned() }),
    }
}

/// Pages of the log, 4 KiB each, at which it is moved into the database. That takes two syncs, which a caller that waits
/// for an acknowledgement waits for too, so it is done less often than by default (1,000).
const LOG_PAGES: i64 = 8_000;

/// Refuses what is no journal: another program's database must not be removed. A journal of any version may be.
pub(crate) fn refuse_foreign(path: Option<&Path>) -> Result<(), JournalError> {
    let Some(path) = path.filter(|path| path.exists()) else { return Ok(()) };
    // A process that may only read a journal leaves its log behind.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(JournalError::sqlite("open"))?;
    match recognize(&conn, path) {
        Ok(_) | Err(JournalError::NewerVersion { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// How long to wait for another process that holds the database for a moment (a checkpoint, a copy).
const BUSY: Duration = Duration::from_secs(10);

fn recognize(conn: &Connection, path: &Path) -> Result<Found, JournalError> {
    let foreign = || JournalError::NotAJournal { path: path.to_owned() };
    let number = |sql: &str| match conn.query_row(sql, [], |row| row.get::<_, i64>(0)) {
        Ok(number) => Ok(number),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => Err(foreign()),
        Err(error) => Err(JournalError::sqlite("open")(error)),
    };
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    match (application, version) {
        (JOURNAL, found) if found > VERSION => {
            Err(JournalError::NewerVersion { path: path.to_owned(), found, known: VERSION })
        }
        // A damaged journal is one too: nothing but its first bytes was read.
        (JOURNAL, 1..) => Ok(Found::Journal),
        (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(Found::Empty),
        (STORE, _) => Err(JournalError::IsStore { path: path.to_owned() }),
        _ => Err(foreign()),
    }
}
