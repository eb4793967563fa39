//! The clock of a file, which is its worker's, and what is done when that was set back.

use paceline_core::Timestamp;
use rusqlite::Connection;

/// Notes the worker's time: with each claim that hands something out, and as often as leases are renewed.
pub(super) fn note(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE store SET last_ms = max(last_ms, ?1)")?.execute([now.as_millis()]).map(drop)
}

/// When a person acts, whose process shows `now`. Where the clock was set back since, that is after all that was handed out so
/// far: the worker goes on by the time that it had, and would take it for something of the past.
pub(super) fn of_person(conn: &Connection, now: Timestamp) -> rusqlite::Result<Timestamp> {
    let last = last(conn)?;
    Ok(if now.as_millis() < last { Timestamp::from_millis(last + 1) } else { now })
}

/// A clock that was set back since its worker noted it last lengthens no wait.
pub(super) fn repair(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    if now.as_millis() >= last(conn)? {
        return Ok(());
    }
    for sql in [
        "UPDATE item SET not_before_ms = ?1 + delay_ms WHERE state = 0 AND delay_ms > 0 AND not_before_ms > ?1 + delay_ms",
        "UPDATE item SET sent_for_ms = ?1 WHERE sent_for_ms > ?1",
        "UPDATE scope SET until_ms = until_ms - since_ms + ?1, since_ms = ?1 WHERE since_ms > ?1",
    ] {
        conn.execute(sql, [now.as_millis()])?;
    }
    Ok(())
}

fn last(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("SELECT last_ms FROM store", [], |row| row.get(0))
}
