//! The log of the database takes room on the disk beside it: every page that was changed since it was moved into the database
//! last, some of them often. Where room is short it is moved at once.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::schema::BUSY;
use super::worker_lock::beside_target;
use crate::schema;

/// How long another process that reads the log is waited for.
const A_MOMENT: Duration = Duration::from_millis(100);

/// Moves the log into the database. Another process that reads the log keeps it where it is; then a later batch moves it.
pub(super) fn make_room(conn: &Connection) {
    let _ = conn.busy_timeout(A_MOMENT).map(|()| schema::checkpoint(conn));
    let _ = conn.busy_timeout(BUSY);
}

/// The same of a store that is not open: a worker that was killed leaves its log behind. What cannot be done stays undone.
pub fn make_room_beside(store: &Path) {
    let log = beside_target(store, "-wal");
    if log.metadata().is_ok_and(|log| log.len() > 0) {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let _ = Connection::open_with_flags(store, flags).map(|conn| make_room(&conn));
    }
}
