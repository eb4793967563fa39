//! Handing out what is due: a range of the partial index for each lane that may send.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use super::{rows, scopes, version};
use crate::work::columns::{after_item, item_columns};
use crate::work::due::{Due, HORIZON, read_due};
use crate::work::item::{Ask, Claim, Claimed, HISTORY, Item, WorkerId};
use crate::work::share::{Lane, share_out};

/// Tries whose time has come. `state = 0` stands there as in the index, which is then sorted already.
pub(super) const DUE_TRIES: &str = "SELECT id FROM item
     WHERE state = 0 AND lane = ?1 AND not_before_ms > 0 AND not_before_ms <= ?2
     ORDER BY not_before_ms, crashes, id LIMIT ?3";

/// Items that wait for nothing.
pub(super) const DUE_NEW: &str = "SELECT id FROM item
     WHERE state = 0 AND lane = ?1 AND not_before_ms = 0
     ORDER BY crashes, id LIMIT ?2";

/// The earliest time for which an item of a lane waits.
pub(super) const NEXT_DUE: &str =
    "SELECT min(not_before_ms) FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms >= 0";

/// What stands in the index before all times: null and negative numbers.
pub(super) const BEFORE_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms < 0 LIMIT 64";

/// Null has a place of its own in the index.
pub(super) const NULL_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms IS NULL LIMIT 64";

/// What stands behind all times: infinity, text and bytes. Finite numbers beyond the last year stay.
pub(super) const BEHIND_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms >= 9e999 LIMIT 64";

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

/// The lanes of the store, by falling priority, and the earliest time for which an item of each waits. One statement for all
/// of them: there may be a group for each customer.
pub(super) const LANES: &str = "SELECT id, grp, priority, (SELECT min(not_before_ms) FROM item
         WHERE state = 0 AND item.lane = lane.id AND not_before_ms >= 0)
     FROM lane ORDER BY priority DESC, id";

/// Whether other workers have items.
pub(super) const OTHERS: &str = "SELECT EXISTS (SELECT 1 FROM worker WHERE id <> ?1
     AND EXISTS (SELECT 1 FROM item WHERE state = 1 AND item.worker = worker.id))";

pub(super) fn claim(
    conn: &Connection,
    worker: WorkerId,
    ask: Ask,
    turn: usize,
    healed: &AtomicI64,
    now: Timestamp,
) -> rusqlite::Result<Claim> {
    let known = conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM worker WHERE id = ?1)")?
        .query_row([worker.0], |row| row.get::<_, bool>(0))?;
    if !known {
        return Ok(Claim { now, lost: true, ..Claim::default() });
    }
    let closed = scopes::closed(conn, now)?;
    heal(conn, healed, now)?;
    let (mut lanes, mut firsts) = (Vec::new(), HashMap::new());
    let mut select = conn.prepare_cached(LANES)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let lane = Lane { id: row.get(0)?, group: row.get::<_, String>(1)?.into(), priority: row.get(2)? };
        firsts.insert(lane.id, rows::whole_at(row, 3)?.map(Timestamp::from_millis));
        lanes.push(lane);
    }
    let open: Vec<Lane> = lanes.iter().filter(|lane| closed.opens(&lane.group) == Some(None)).cloned().collect();
    let (mut ids, mut taken_from) = (Vec::new(), BTreeSet::new());
    for until in [now, now + ask.ahead] {
        share_out(&open, ask.limit - ids.len(), turn, |lane, n| {
            if firsts[&lane.id].is_none_or(|first| first > until) {
                return Ok(0);
            }
            taken_from.insert(lane.id);
            let taken = due(conn, lane, until, n)?;
            for id in &taken {
                conn.prepare_cached(TAKE)?.execute(params![id, worker.0, now.as_millis()])?;
            }
            let count = taken.len();
            ids.extend(taken);
            Ok::<_, rusqlite::Error>(count)
        })?;
    }
    let items = ids.into_iter().map(|id| hand_out(conn, id, now)).collect::<rusqlite::Result<_>>()?;
    for lane in taken_from {
        let first: Option<i64> = conn.prepare_cached(NEXT_DUE)?.query_row([lane], |row| rows::whole_at(row, 0))?;
        firsts.insert(lane, first.map(Timestamp::from_millis));
    }
    let mut next: Option<Timestamp> = None;
    for lane in &lanes {
        let Some(opens) = closed.opens(&lane.group) else { continue };
        let Some(first) = firsts[&lane.id].filter(|first| *first <= HORIZON) else { continue };
        let first = opens.map_or(first, |opens| opens.max(first));
        next = Some(next.map_or(first, |known| known.min(first)));
    }
    let others = conn.prepare_cached(OTHERS)?.query_row([worker.0], |row| row.get(0))?;
    Ok(Claim { items, next_due: next.map(|due| due.saturating_since(now)), others, now, lost: false })
}

fn due(conn: &Connection, lane: &Lane, until: Timestamp, limit: usize) -> rusqlite::Result<Vec<i64>> {
    let mut select = conn.prepare_cached(DUE_TRIES)?;
    let tries = select.query_map(params![lane.id, until.as_millis(), limit as i64], |row| row.get(0))?;
    let mut ids: Vec<i64> = tries.collect::<rusqlite::Result<_>>()?;
    if ids.len() < limit {
        let mut select = conn.prepare_cached(DUE_NEW)?;
        let new = select.query_map(params![lane.id, (limit - ids.len()) as i64], |row| row.get(0))?;
        for id in new {
            ids.push(id?);
        }
    }
    Ok(ids)
}

fn hand_out(conn: &Connection, id: i64, now: Timestamp) -> rusqlite::Result<Claimed> {
    let (item, payload, fence): (Item, String, i64) = conn
        .prepare_cached(READ)?
        .query_row([id], |row| Ok((rows::item(row)?, row.get(after_item(0))?, row.get(after_item(1))?)))?;
    let due_in = item.not_before.map_or(Duration::ZERO, |at| at.saturating_since(now));
    let mut history = Vec::new();
    if item.last.is_some() {
        conn.prepare_cached(WAITED)?.execute(params![id, (now + due_in).as_millis()])?;
        history = rows::events(conn, id, HISTORY)?;
    }
    let age = item.first.map_or(Duration::ZERO, |first| now.saturating_since(first));
    Ok(Claimed { item, payload, fence, due_in, age, history })
}

/// Clears due times that are none, so that their items are not forgotten. Only other hands write such a thing, so it is
/// looked for at first, and when somebody else has written since.
fn heal(conn: &Connection, healed: &AtomicI64, now: Timestamp) -> rusqlite::Result<()> {
    let version = version(conn)?;
    if healed.load(Ordering::Relaxed) == version {
        return Ok(());
    }
    let mut select = conn.prepare_cached("SELECT id FROM lane")?;
    let lanes: Vec<i64> = select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut found = 0;
    for lane in lanes {
        found += heal_lane(conn, lane, now)?;
    }
    if found == 0 {
        healed.store(version, Ordering::Relaxed);
    }
    Ok(())
}

/// Says how many there were; there may be more.
fn heal_lane(conn: &Connection, lane: i64, now: Timestamp) -> rusqlite::Result<usize> {
    let mut healed = 0;
    for sql in [NULL_TIMES, BEFORE_TIMES, BEHIND_TIMES] {
        let mut select = conn.prepare_cached(sql)?;
        let mut found = select.query([lane])?;
        let mut ids: Vec<i64> = Vec::new();
        while let Some(row) = found.next()? {
            let id = row.get(0)?;
            match read_due(rows::stored(row.get_ref(1)?), now) {
                Due::Nonsense => {
                    tracing::warn!(item = id, found = ?row.get_ref(1)?, "a due time that is none; the item is due now");
                }
                Due::Now => {}
                Due::At(_) | Due::Beyond => continue,
            }
            ids.push(id);
        }
        healed += ids.len();
        for id in ids {
            conn.prepare_cached("UPDATE item SET not_before_ms = 0 WHERE id = ?1")?.execute([id])?;
        }
    }
    Ok(healed)
}
