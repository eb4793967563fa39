//! Handing out what is due: a range of the partial index for each lane that may send.

use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use super::lanes::KnownLanes;
use super::{clock, rows, scopes};
use crate::work::columns::{after_item, item_columns};
use crate::work::item::{Claim, ClaimRequest, Claimed, HISTORY, WorkItem, WorkerId};
use crate::work::lanes::{Asked, EARLIEST, Given, Taking};

/// Tries whose time has come. `state = 0` stands there as in the index, which is then sorted already.
pub(super) const DUE_TRIES: &str = "SELECT id FROM item
     WHERE state = 0 AND lane = ?1 AND not_before_ms > 0 AND not_before_ms <= ?2
     ORDER BY not_before_ms, crashes, id LIMIT ?3";

/// Items that wait for nothing.
pub(super) const DUE_NEW: &str = "SELECT id FROM item
     WHERE state = 0 AND lane = ?1 AND not_before_ms = 0
     ORDER BY crashes, id LIMIT ?2";

/// The earliest time for which an item of a lane waits.
pub(super) const NEXT_DUE: &str = "SELECT min(not_before_ms) FROM item WHERE state = 0 AND lane = ?1";

/// Marks an item as taken.
pub(super) const TAKE: &str = "UPDATE item
     SET state = 1, worker = ?2, fence = fence + 1, first_ms = coalesce(first_ms, ?3) WHERE id = ?1";

/// What is handed out.
const READ: &str = concat!(
    "SELECT ",
    item_columns!(),
    ", payload.body, item.fence FROM item JOIN lane ON lane.id = item.lane JOIN payload ON payload.item = item.id \
     WHERE item.id = ?1"
);

/// How long an item waited since the last decision about it.
const WAITED: &str = "UPDATE event SET waited_ms = max(0, ?2 - decided_ms)
     WHERE item = ?1 AND n = (SELECT max(n) FROM event WHERE item = ?1)
       AND not_before_ms IS NOT NULL AND waited_ms IS NULL";

/// Whether other workers have items.
pub(super) const OTHERS: &str = "SELECT EXISTS (SELECT 1 FROM worker WHERE id <> ?1
     AND EXISTS (SELECT 1 FROM item WHERE state = 1 AND item.worker = worker.id))";

pub(super) fn claim(
    conn: &Connection,
    worker: WorkerId,
    request: ClaimRequest,
    known: &mut KnownLanes,
    now: Timestamp,
) -> rusqlite::Result<Claim> {
    let is_known = conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM worker WHERE id = ?1)")?
        .query_row([worker.0], |row| row.get::<_, bool>(0))?;
    if !is_known {
        return Ok(Claim { now, lost: true, ..Claim::default() });
    }
    let closed = scopes::closed(conn, now)?;
    let lanes = known.refresh(conn)?;
    let mut ids = Vec::new();
    let opens = |group: &str| closed.opens(group).map(|at| at.unwrap_or(EARLIEST));
    lanes.share(Taking::new(now, now + request.ahead, request.limit), opens, |asked| {
        let (taken, new) = due(conn, asked)?;
        for id in &taken {
            conn.prepare_cached(TAKE)?.execute(params![id, worker.0, now.as_millis()])?;
        }
        let first: Option<i64> = conn.prepare_cached(NEXT_DUE)?.query_row([asked.lane.id], |row| row.get(0))?;
        let given = Given { taken: taken.len(), new, first: first.map(Timestamp::from_millis) };
        ids.extend(taken);
        Ok::<_, rusqlite::Error>(given)
    })?;
    let items: Vec<Claimed> = ids.into_iter().map(|id| hand_out(conn, id, now)).collect::<rusqlite::Result<_>>()?;
    if !items.is_empty() {
        clock::note(conn, now)?;
    }
    let next_due = lanes.next_due(opens).map(|due| due.saturating_since(now));
    let others = conn.prepare_cached(OTHERS)?.query_row([worker.0], |row| row.get(0))?;
    Ok(Claim { items, next_due, others, now, lost: false })
}

/// The items, and how many of them are new. The places that neither tries nor new items need are for the others.
fn due(conn: &Connection, Asked { lane, until, limit, new }: &Asked) -> rusqlite::Result<(Vec<i64>, usize)> {
    let mut select = conn.prepare_cached(DUE_TRIES)?;
    let tries = select.query_map(params![lane.id, until.as_millis(), *limit as i64], |row| row.get(0))?;
    let mut ids: Vec<i64> = tries.collect::<rusqlite::Result<_>>()?;
    let places = (*new).max(limit - ids.len());
    let mut select = conn.prepare_cached(DUE_NEW)?;
    let new = select.query_map(params![lane.id, places as i64], |row| row.get(0))?;
    let new: Vec<i64> = new.collect::<rusqlite::Result<_>>()?;
    ids.truncate(limit - new.len());
    let count = new.len();
    ids.extend(new);
    Ok((ids, count))
}

fn hand_out(conn: &Connection, id: i64, now: Timestamp) -> rusqlite::Result<Claimed> {
    let (item, payload, fence): (WorkItem, String, i64) = conn
        .prepare_cached(READ)?
        .query_row([id], |row| Ok((rows::item(row)?, row.get(after_item(0))?, row.get(after_item(1))?)))?;
    let due_in = item.not_before.map_or(Duration::ZERO, |at| at.saturating_since(now));
    let mut history = Vec::new();
    if item.has_history() {
        conn.prepare_cached(WAITED)?.execute(params![id, (now + due_in).as_millis()])?;
        history = rows::events(conn, id, HISTORY)?;
    }
    let age = item.first.map_or(Duration::ZERO, |first| now.saturating_since(first));
    Ok(Claimed { item, payload, fence, at: now, due_in, age, history })
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::super::lanes::LANES;
    use super::super::{join, record, schema};
    use super::*;
    use crate::work::item::NewItem;

    /// How often statements ran, and the steps that they took.
    fn spent(conn: &Connection, sql: &str) -> (i32, i32) {
        let statement = conn.prepare_cached(sql).unwrap();
        (statement.get_status(StatementStatus::Run), statement.get_status(StatementStatus::VmStep))
    }

    #[test]
    fn ten_thousand_groups_are_read_once_and_a_claim_asks_those_that_it_takes_from() {
        let folder = tempfile::tempdir().unwrap();
        let conn = schema::open(&folder.path().join("work.db"), 0).unwrap();
        conn.set_prepared_statement_cache_capacity(64);
        let (mut known, now) = (KnownLanes::default(), Timestamp::from_millis(1_000));
        conn.execute_batch("BEGIN").unwrap();
        for n in 0..10_000 {
            let item = NewItem { group: format!("group-{n}"), ..NewItem::new(format!("item-{n}"), "{}") };
            record::insert(&conn, &item, &mut known, now).unwrap();
        }
        let worker = join(&conn, "w", Duration::from_secs(60), now).unwrap();
        let mut claim = |limit| {
            let request = ClaimRequest { limit, ahead: Duration::from_secs(1) };
            super::claim(&conn, worker, request, &mut known, now).unwrap()
        };
        assert_eq!(claim(5).items.len(), 5);
        let statements = [DUE_TRIES, DUE_NEW, NEXT_DUE];
        let before = statements.map(|sql| spent(&conn, sql));
        for _ in 0..100 {
            let found = claim(5);
            assert_eq!((found.items.len(), found.next_due), (5, Some(Duration::ZERO)));
        }
        assert_eq!(spent(&conn, LANES).0, 1, "all lanes were read again");
        for (sql, (runs, steps)) in statements.into_iter().zip(before) {
            let after = spent(&conn, sql);
            assert_eq!(after.0 - runs, 500, "{sql}");
            assert!(after.1 - steps <= 500 * 40, "{} steps: {sql}", after.1 - steps);
        }
    }
}
