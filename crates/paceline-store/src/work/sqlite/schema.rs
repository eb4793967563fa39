//! The tables of a store, their versions, and how a store is recognized.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use super::beside;
use crate::disk::make_private;
use crate::schema::{JOURNAL, STORE};
use crate::work::error::WorkError;

/// What leads from each version to the next, the first from an empty file. Only ever added to.
const MIGRATIONS: [&str; 8] = [V1, V2, V3, V4, V5, V6, V7, V8];

/// Payloads stand apart from the items: beside them they would make each claim several times slower. 0 in `not_before_ms` is an
/// item that waits for nothing.
const V1: &str = "
    CREATE TABLE store (created_ms INTEGER NOT NULL, last_ms INTEGER NOT NULL) STRICT;
    CREATE TABLE worker (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        lease_ms INTEGER NOT NULL,
        lease_until_ms INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE scope (
        name TEXT PRIMARY KEY,
        until_ms INTEGER,
        reason TEXT NOT NULL,
        since_ms INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE lane (
        id INTEGER PRIMARY KEY,
        grp TEXT NOT NULL,
        priority INTEGER NOT NULL,
        UNIQUE (grp, priority)
    ) STRICT;
    CREATE TABLE item (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        lane INTEGER NOT NULL REFERENCES lane(id),
        state INTEGER NOT NULL DEFAULT 0,
        not_before_ms ANY DEFAULT 0,
        delay_ms INTEGER NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        deferrals INTEGER NOT NULL DEFAULT 0,
        abandoned INTEGER NOT NULL DEFAULT 0,
        forgiven_attempts INTEGER NOT NULL DEFAULT 0,
        forgiven_deferrals INTEGER NOT NULL DEFAULT 0,
        crashes INTEGER NOT NULL DEFAULT 0,
        fence INTEGER NOT NULL DEFAULT 0,
        worker INTEGER,
        created_ms INTEGER NOT NULL,
        first_ms INTEGER,
        ended_ms INTEGER,
        deadline_ms INTEGER,
        last_class TEXT,
        last_status INTEGER,
        last_code TEXT,
        last_words TEXT,
        reason TEXT
    ) STRICT;
    CREATE TABLE payload (item INTEGER PRIMARY KEY REFERENCES item(id), body TEXT NOT NULL) STRICT;
    CREATE TABLE event (
        item INTEGER NOT NULL REFERENCES item(id),
        n INTEGER NOT NULL,
        decided_ms INTEGER NOT NULL,
        send INTEGER NOT NULL,
        class TEXT NOT NULL,
        status INTEGER,
        code TEXT,
        words TEXT NOT NULL,
        action TEXT NOT NULL,
        reason TEXT,
        judge TEXT NOT NULL,
        not_before_ms INTEGER,
        waited_ms INTEGER,
        PRIMARY KEY (item, n)
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX item_key ON item(key);
    CREATE INDEX item_due ON item(lane, not_before_ms, crashes) WHERE state = 0;
    CREATE INDEX item_worker ON item(worker) WHERE state = 1;
    CREATE INDEX item_next_run ON item(lane) WHERE state = 6;
";

/// A due time that is none is refused by the file, whatever program writes it. What stood there before is due now: an item is
/// rather tried once too early than never.
const V2: &str = "
    DROP INDEX item_due;
    ALTER TABLE item RENAME COLUMN not_before_ms TO any_due;
    ALTER TABLE item ADD COLUMN not_before_ms INTEGER NOT NULL DEFAULT 0 CHECK (not_before_ms >= 0);
    UPDATE item SET not_before_ms = any_due WHERE typeof(any_due) = 'integer' AND any_due > 0;
    ALTER TABLE item DROP COLUMN any_due;
    CREATE INDEX item_due ON item(lane, not_before_ms, crashes) WHERE state = 0;
";

/// `sent`: 1 while a call is under way that must not be made twice, 2 once it was cut off. What was in flight in an older version
/// may have been sent.
const V3: &str = "
    ALTER TABLE item ADD COLUMN sent INTEGER NOT NULL DEFAULT 0;
    UPDATE item SET sent = 2 WHERE state = 1 OR (state = 0 AND crashes > 0);
";

/// The keys of items that were removed, which are not added again.
const V4: &str = "
    CREATE TABLE pruned (key TEXT PRIMARY KEY, state INTEGER NOT NULL, ended_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// When a person sent for an item last.
const V5: &str = "
    ALTER TABLE item ADD COLUMN sent_for_ms INTEGER;
";

/// When an item succeeded that a person sends for once more, and as what it was known then.
const V6: &str = "
    ALTER TABLE item ADD COLUMN delivered_ms INTEGER;
    ALTER TABLE event ADD COLUMN created_ms INTEGER;
";

/// Calls that only tested a failing server.
const V7: &str = "
    ALTER TABLE item ADD COLUMN tests INTEGER NOT NULL DEFAULT 0;
";

/// A call of an item may have been done, whatever became of later ones.
const V8: &str = "
    ALTER TABLE item ADD COLUMN in_doubt INTEGER NOT NULL DEFAULT 0;
    UPDATE item SET in_doubt = 1 WHERE sent > 0;
";

/// How long to wait for another process that writes: as long as for a database that cannot be reached.
pub(super) const BUSY: Duration = Duration::from_secs(60);

/// Opens or makes a store, and brings its tables up to this version. A commit outlasts a power cut. What may not be written, or
/// is on a full disk, can be looked at.
pub(super) fn open(path: &Path, now_ms: i64) -> Result<Connection, WorkError> {
    make_private(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(WorkError::sqlite("open"))?;
    match prepare(&conn, path, now_ms) {
        Err(WorkError::Sqlite { source, .. }) if has_no_room_for_index(&source) => {
            drop(conn);
            open_alone(path, flags, now_ms)
        }
        Err(WorkError::Sqlite { source, .. }) if cannot_write(&source) && !is_in_use(path) => {
            open_at_rest(path, now_ms)
        }
        prepared => prepared.map(|()| conn),
    }
}

fn cannot_write(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::CannotOpen | rusqlite::ErrorCode::ReadOnly))
}

/// Whether the disk is too full for the index of the log, a file that the first process to open a store makes beside it.
fn has_no_room_for_index(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

/// A store for one process alone, which keeps that index in memory.
fn open_alone(path: &Path, flags: OpenFlags, now_ms: i64) -> Result<Connection, WorkError> {
    let conn = Connection::open_with_flags(path, flags).map_err(WorkError::sqlite("open"))?;
    conn.pragma_update(None, "locking_mode", "EXCLUSIVE").map_err(WorkError::sqlite("open"))?;
    prepare(&conn, path, now_ms).map(|()| conn)
}

/// While a store is in use, what is newest is in the log beside it.
fn is_in_use(path: &Path) -> bool {
    beside(path, "-wal").exists()
}

/// A store that no process uses, in a folder in which nothing may be made: SQLite would make a log there just to look.
fn open_at_rest(path: &Path, now_ms: i64) -> Result<Connection, WorkError> {
    let mut address = "file:".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        // Writing to a string cannot fail.
        let _ = if byte.is_ascii_alphanumeric() || b"/._-".contains(byte) {
            write!(address, "{}", char::from(*byte))
        } else {
            write!(address, "%{byte:02X}")
        };
    }
    address += "?immutable=1";
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(address, flags).map_err(WorkError::sqlite("open"))?;
    prepare(&conn, path, now_ms).map(|()| conn)
}

fn prepare(conn: &Connection, path: &Path, now_ms: i64) -> Result<(), WorkError> {
    conn.busy_timeout(BUSY).map_err(WorkError::sqlite("open"))?;
    // Within one transaction, because another process may be making the store just now.
    conn.execute_batch("BEGIN").map_err(WorkError::sqlite("open"))?;
    let recognized = recognize(conn, path, MIGRATIONS.len());
    // An error may have ended it already, and is the one to tell.
    let ended = conn.execute_batch("COMMIT").map_err(WorkError::sqlite("open"));
    let recognized = recognized?;
    ended?;
    if !conn.is_readonly(MAIN_DB).map_err(WorkError::sqlite("open"))? {
        keep_a_log(conn)?;
    }
    conn.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;")
        // The plans are pinned by tests. Without this a statement is planned anew whenever another time is bound.
        .and_then(|()| conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true))
        .map_err(WorkError::sqlite("open"))?;
    conn.set_prepared_statement_cache_capacity(64);
    // A process that only looks at a store need not wait for one that writes.
    if recognized == MIGRATIONS.len() { Ok(()) } else { migrate(conn, path, now_ms, &MIGRATIONS) }
}

/// Switches to the write-ahead log, once in the life of a store. SQLite does not wait by itself for another process that
/// looks at the file just then.
fn keep_a_log(conn: &Connection) -> Result<(), WorkError> {
    for _ in 0..BUSY.as_millis() / PAUSE.as_millis() {
        match conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())) {
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => {}
            other => return other.map_err(WorkError::sqlite("open")),
        }
        std::thread::sleep(PAUSE);
    }
    conn.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).map_err(WorkError::sqlite("open"))
}

/// Between two tries to switch.
const PAUSE: Duration = Duration::from_millis(10);

/// Does the steps that a store has not seen, all or none. Two processes may find the same empty file: the second one
/// finds the work done.
fn migrate(conn: &Connection, path: &Path, now_ms: i64, migrations: &[&str]) -> Result<(), WorkError> {
    conn.execute_batch("BEGIN IMMEDIATE").map_err(WorkError::sqlite("write"))?;
    let done = recognize(conn, path, migrations.len()).and_then(|version| {
        let work = || -> rusqlite::Result<()> {
            for migration in &migrations[version..] {
                conn.execute_batch(migration)?;
            }
            if version == 0 {
                conn.execute("INSERT INTO store VALUES (?1, ?1)", [now_ms])?;
            }
            conn.pragma_update(None, "application_id", STORE)?;
            conn.pragma_update(None, "user_version", migrations.len() as i64)?;
            conn.execute_batch("COMMIT")
        };
        work().map_err(WorkError::sqlite("write"))
    });
    if done.is_err() {
        let _ = conn.execute_batch("ROLLBACK");
    }
    done
}

/// The version of a store, at most `known`; 0 for an empty file.
fn recognize(conn: &Connection, path: &Path, known: usize) -> Result<usize, WorkError> {
    let foreign = || WorkError::NotAStore { path: path.to_owned() };
    let number = |sql: &str| match conn.query_row(sql, [], |row| row.get::<_, i64>(0)) {
        Ok(number) => Ok(number),
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => Err(foreign()),
        Err(error) => Err(WorkError::sqlite("open")(error)),
    };
    let (application, version) = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
    match (application, usize::try_from(version)) {
        (STORE, Ok(version)) if version <= known => Ok(version),
        (STORE, Ok(_)) => {
            let (store, known) = (path.display().to_string(), known as i64);
            Err(WorkError::NewerVersion { store, found: version, known })
        }
        (0, Ok(0)) if number("SELECT count(*) FROM sqlite_schema")? == 0 => Ok(0),
        (JOURNAL, _) => Err(WorkError::IsJournal { path: path.to_owned() }),
        _ => Err(foreign()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::KnownLanes;
    use super::super::record;
    use super::*;
    use crate::work::item::NewItem;
    use paceline_core::Timestamp;

    fn number(conn: &Connection, sql: &str) -> i64 {
        conn.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// What a version to come would do.
    const NEXT: &str = "ALTER TABLE item ADD COLUMN note TEXT; UPDATE item SET note = 'from version 2'";

    /// A store as the first version made it, with an item for each due time that stood there.
    fn first_version(path: &Path, due: &[&str]) {
        let conn = Connection::open(path).unwrap();
        migrate(&conn, path, 5, &[V1]).unwrap();
        conn.execute_batch("INSERT INTO lane VALUES (1, 'default', 0)").unwrap();
        for (n, due) in due.iter().enumerate() {
            let sql = "INSERT INTO item (key, lane, created_ms, not_before_ms) VALUES";
            conn.execute_batch(&format!("{sql} ('{n}', 1, 5, {due})")).unwrap();
        }
    }

    #[test]
    fn an_older_store_is_brought_up_to_date_and_a_newer_one_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        first_version(&path, &["7", "0", "-1", "NULL", "12.5", "'tomorrow'", "9e999"]);
        for _ in 0..2 {
            let conn = open(&path, 9).unwrap();
            assert_eq!(number(&conn, "PRAGMA user_version"), 8);
            assert_eq!(
                number(&conn, "SELECT count(*) FROM item WHERE not_before_ms = 0"),
                6,
                "what was no time is none"
            );
            assert_eq!(number(&conn, "SELECT not_before_ms FROM item WHERE key = '0'"), 7);
            assert_eq!(number(&conn, "SELECT created_ms FROM store"), 5);
        }
        migrate(&open(&path, 9).unwrap(), &path, 9, &[V1, V2, V3, V4, V5, V6, V7, V8, NEXT]).unwrap();
        let message = open(&path, 9).expect_err("a newer store").to_string();
        assert!(
            message.ends_with("has format 9, this version knows up to 8; use a newer version of paceline"),
            "{message}"
        );
    }

    #[test]
    fn a_step_that_fails_leaves_the_store_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("work.db");
        let conn = open(&path, 5).unwrap();
        let refused = migrate(&conn, &path, 9, &[V1, V2, V3, V4, V5, V6, V7, NEXT, "INSERT INTO nowhere VALUES (1)"]);
        assert!(matches!(refused, Err(WorkError::Sqlite { action: "write", .. })), "{refused:?}");
        assert_eq!(number(&conn, "PRAGMA user_version"), 8);
        assert_eq!(number(&conn, "SELECT count(*) FROM pragma_table_info('item') WHERE name = 'note'"), 0);
        drop(conn);
        open(&path, 9).unwrap();
    }

    #[test]
    fn a_store_at_rest_can_be_looked_at_whatever_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w?o#r %41k.db");
        let conn = open(&path, 5).unwrap();
        record::insert(&conn, &NewItem::new("a", "{}"), &mut KnownLanes::default(), Timestamp::from_millis(5)).unwrap();
        assert!(is_in_use(&path));
        drop(conn);
        assert!(!is_in_use(&path));
        let conn = open_at_rest(&path, 9).unwrap();
        assert_eq!(number(&conn, "SELECT count(*) FROM item WHERE key = 'a'"), 1);
        assert!(
            record::insert(&conn, &NewItem::new("b", "{}"), &mut KnownLanes::default(), Timestamp::from_millis(5))
                .is_err()
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was made beside it");
    }
}
