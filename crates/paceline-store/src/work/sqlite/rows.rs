//! Rows as items and decisions.

use crate::state::{Forgiven, State};
use std::time::Duration;

use paceline_core::{Class, Timestamp, UnknownOutcome};
use rusqlite::{Connection, Row, params};

use crate::work::item::{Failure, HistoryEntry, Said, WorkItem};

/// An item from a row of its columns.
pub(super) fn item(row: &Row<'_>) -> rusqlite::Result<WorkItem> {
    let time = |column: usize| row.get::<_, Option<i64>>(column).map(|millis| millis.map(Timestamp::from_millis));
    let state = row.get(4)?;
    let state = State::from_code(state).ok_or(rusqlite::Error::IntegralValueOutOfRange(4, state))?;
    let last = match row.get_ref(17)?.as_str_or_null()?.and_then(Class::from_name) {
        Some(class) => Some(failure(row, class, 18)?),
        None => None,
    };
    let (last, answered) = Said::apart(last);
    Ok(WorkItem {
        id: row.get::<_, i64>(0)?.unsigned_abs(),
        key: row.get(1)?,
        group: row.get::<_, String>(2)?.into(),
        priority: row.get(3)?,
        state,
        not_before: time(5)?.filter(|at| at.as_millis() > 0),
        delay: Duration::from_millis(row.get::<_, i64>(6)?.unsigned_abs()),
        attempts: row.get(7)?,
        deferrals: row.get(8)?,
        abandoned: row.get(9)?,
        tests: row.get(25)?,
        forgiven: Forgiven { attempts: row.get(10)?, deferrals: row.get(11)? },
        crashes: row.get(12)?,
        may_be_done: row.get::<_, i64>(22)? > 0,
        in_doubt: row.get::<_, i64>(26)? > 0,
        created: Timestamp::from_millis(row.get(13)?),
        first: time(14)?,
        ended: time(15)?,
        sent_for: time(23)?,
        delivered: time(24)?,
        deadline: row.get::<_, Option<i64>>(16)?.map(|millis| Duration::from_millis(millis.unsigned_abs())),
        last,
        answered,
        reason: row.get(21)?,
    })
}

/// Status, code and message are adjacent columns from `column` on.
fn failure(row: &Row<'_>, class: Class, column: usize) -> rusqlite::Result<Failure> {
    let message = row.get::<_, Option<String>>(column + 2)?.unwrap_or_default();
    Ok(Failure {
        class,
        status: row.get(column)?,
        code: row.get(column + 1)?,
        message,
        retry_after: None,
        probe: None,
        unsent: false,
        retried: 0,
        unknown: UnknownOutcome::Resend,
        unanswered: None,
        is_for_group: false,
        spares_group: false,
        unexpected: false,
    })
}

/// The last `limit` decisions about an item, the oldest first.
pub(super) fn events(conn: &Connection, item: i64, limit: usize) -> rusqlite::Result<Vec<HistoryEntry>> {
    let mut select = conn.prepare_cached(
        "SELECT decided_ms, send, class, status, code, words, action, reason, judge, not_before_ms, waited_ms, created_ms
         FROM event WHERE item = ?1 ORDER BY n DESC LIMIT ?2",
    )?;
    let rows = select.query_map(params![item, limit as i64], |row| {
        let class: String = row.get(2)?;
        let waited: Option<i64> = row.get(10)?;
        Ok(HistoryEntry {
            decided: Timestamp::from_millis(row.get(0)?),
            send: row.get(1)?,
            failure: failure(row, Class::from_name(&class).unwrap_or(Class::Transient), 3)?,
            action: row.get(6)?,
            reason: row.get(7)?,
            by: row.get(8)?,
            not_before: row.get::<_, Option<i64>>(9)?.map(Timestamp::from_millis),
            waited: waited.map(|millis| Duration::from_millis(millis.unsigned_abs())),
            created: row.get::<_, Option<i64>>(11)?.map(Timestamp::from_millis),
        })
    })?;
    let mut events: Vec<HistoryEntry> = rows.collect::<rusqlite::Result<_>>()?;
    events.reverse();
    Ok(events)
}
