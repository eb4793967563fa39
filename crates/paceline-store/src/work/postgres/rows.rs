//! Rows as items and decisions.

use crate::state::{Forgiven, State};
use std::time::Duration;

use paceline_core::{Class, Timestamp, UnknownOutcome};
use tokio_postgres::Row;

use crate::work::item::{Failure, HistoryEntry, Said, WorkItem};

/// An item from a row of its columns. An unknown state counts as waiting: that misleads no reader, since nothing is done about
/// such an item.
pub(super) fn item(row: &Row) -> WorkItem {
    let time = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp::from_millis);
    let not_before: i64 = row.get(5);
    let last = row.get::<_, Option<&str>>(17).and_then(Class::from_name).map(|class| failure(row, class, 18));
    let (last, answered) = Said::apart(last);
    WorkItem {
        id: row.get::<_, i64>(0).unsigned_abs(),
        key: row.get(1),
        group: row.get::<_, &str>(2).into(),
        priority: row.get(3),
        state: State::from_code(row.get::<_, i16>(4).into()).unwrap_or(State::Waiting),
        not_before: (not_before > 0).then(|| Timestamp::from_millis(not_before)),
        delay: wait(row.get(6)),
        attempts: count(row.get(7)),
        deferrals: count(row.get(8)),
        abandoned: count(row.get(9)),
        tests: count(row.get(25)),
        forgiven: Forgiven { attempts: count(row.get(10)), deferrals: count(row.get(11)) },
        crashes: count(row.get(12)),
        may_be_done: row.get::<_, i16>(22) > 0,
        in_doubt: row.get(26),
        created: Timestamp::from_millis(row.get(13)),
        first: time(14),
        ended: time(15),
        sent_for: time(23),
        delivered: time(24),
        deadline: row.get::<_, Option<i64>>(16).map(wait),
        last,
        answered,
        reason: row.get(21),
    }
}

/// Status, code and message are adjacent columns from `column` on.
fn failure(row: &Row, class: Class, column: usize) -> Failure {
    let status = row.get::<_, Option<i64>>(column).and_then(|status| u16::try_from(status).ok());
    let message = row.get::<_, Option<String>>(column + 2).unwrap_or_default();
    Failure {
        class,
        status,
        code: row.get(column + 1),
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
    }
}

/// The last decisions about each of some items (`$1`), at most `$2` for each; the oldest first.
pub(super) const EVENTS: &str = "
    SELECT last.* FROM unnest($1::bigint[]) AS of(item) CROSS JOIN LATERAL (
        SELECT item, decided_ms, send, class, status, code, words, action, reason, judge, not_before_ms, waited_ms, n, created_ms
        FROM event WHERE event.item = of.item ORDER BY n DESC LIMIT $2) AS last
    ORDER BY last.item, last.n";

/// A decision from a row of [`EVENTS`], and whose it is.
pub(super) fn event(row: &Row) -> (u64, HistoryEntry) {
    let class = Class::from_name(row.get(3)).unwrap_or(Class::Transient);
    let event = HistoryEntry {
        decided: Timestamp::from_millis(row.get(1)),
        send: count(row.get(2)),
        failure: failure(row, class, 4),
        action: row.get(7),
        reason: row.get(8),
        by: row.get(9),
        not_before: row.get::<_, Option<i64>>(10).map(Timestamp::from_millis),
        waited: row.get::<_, Option<i64>>(11).map(wait),
        created: row.get::<_, Option<i64>>(13).map(Timestamp::from_millis),
    };
    (row.get::<_, i64>(0).unsigned_abs(), event)
}

fn wait(millis: i64) -> Duration {
    Duration::from_millis(millis.unsigned_abs())
}

fn count(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
