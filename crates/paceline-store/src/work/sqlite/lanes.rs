//! The lanes of the store, as the process that works on it knows them: a claim does not read them all.

use paceline_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::{rows, version};
use crate::work::due::{Due, read_due};
use crate::work::fair_share::Lane;
use crate::work::lanes::Lanes;

/// What stands in the index before all times: null and negative numbers.
pub(super) const BEFORE_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms < 0 LIMIT 64";

/// Null has a place of its own in the index.
pub(super) const NULL_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms IS NULL LIMIT 64";

/// What stands behind all times: infinity, text and bytes. Finite numbers beyond the last year stay.
pub(super) const BEHIND_TIMES: &str =
    "SELECT id, not_before_ms FROM item WHERE state = 0 AND lane = ?1 AND not_before_ms >= 9e999 LIMIT 64";

/// The lanes of the store, and the earliest time for which an item of each waits.
pub(super) const LANES: &str = "SELECT id, grp, priority, (SELECT min(not_before_ms) FROM item
         WHERE state = 0 AND item.lane = lane.id AND not_before_ms >= 0)
     FROM lane";

/// Read when the process begins to work and when another one has written since. What this process changes goes through
/// here, or makes it forget; so does a transaction that failed.
#[derive(Debug)]
pub(super) struct KnownLanes {
    lanes: Lanes,
    /// The number of the last change of another process that the lanes know of.
    version: i64,
}

/// Before every change.
const NEVER: i64 = -1;

impl Default for KnownLanes {
    fn default() -> Self {
        Self { lanes: Lanes::default(), version: NEVER }
    }
}

impl KnownLanes {
    /// Items changed in a way that the lanes were not told of.
    pub(super) fn forget(&mut self) {
        self.version = NEVER;
        self.lanes.clear();
    }

    /// The lanes as they are.
    pub(super) fn refresh(&mut self, conn: &Connection, now: Timestamp) -> rusqlite::Result<&mut Lanes> {
        let version = version(conn)?;
        if self.version != version {
            self.forget();
            let healed = self.read(conn, now)?;
            self.version = if healed == 0 { version } else { NEVER };
        }
        Ok(&mut self.lanes)
    }

    /// A new item waits in a lane; says which one that is.
    pub(super) fn enter(
        &mut self,
        conn: &Connection,
        (group, priority): (&str, i16),
        first: i64,
    ) -> rusqlite::Result<i64> {
        let known = conn
            .prepare_cached("SELECT id FROM lane WHERE grp = ?1 AND priority = ?2")?
            .query_row(params![group, priority], |row| row.get(0))
            .optional()?;
        let id = match known {
            Some(id) => id,
            None => {
                conn.prepare_cached("INSERT INTO lane (grp, priority) VALUES (?1, ?2)")?
                    .execute(params![group, priority])?;
                conn.last_insert_rowid()
            }
        };
        if self.version != NEVER {
            if !self.lanes.knows(id) {
                self.lanes.add(Lane { id, group: group.into(), priority }, None);
            }
            self.lanes.waits(id, Timestamp::from_millis(first));
        }
        Ok(id)
    }

    /// An item waits again, in the lane in which it was.
    pub(super) fn back(&mut self, conn: &Connection, item: i64) -> rusqlite::Result<()> {
        if self.version == NEVER {
            return Ok(());
        }
        let (lane, first) = conn
            .prepare_cached("SELECT lane, not_before_ms FROM item WHERE id = ?1")?
            .query_row([item], |row| Ok((row.get(0)?, rows::whole_at(row, 1)?)))?;
        self.lanes.waits(lane, Timestamp::from_millis(first.unwrap_or(0)));
        Ok(())
    }

    /// Reads all lanes, and clears due times that are none, so that their items are not forgotten: only other hands write
    /// such a thing. Says how many there were.
    fn read(&mut self, conn: &Connection, now: Timestamp) -> rusqlite::Result<usize> {
        let mut healed = 0;
        let mut select = conn.prepare_cached("SELECT id FROM lane")?;
        for lane in select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()? {
            healed += heal(conn, lane, now)?;
        }
        let mut select = conn.prepare_cached(LANES)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let lane = Lane { id: row.get(0)?, group: row.get::<_, String>(1)?.into(), priority: row.get(2)? };
            self.lanes.add(lane, rows::whole_at(row, 3)?.map(Timestamp::from_millis));
        }
        Ok(healed)
    }
}

/// Says how many there were; there may be more.
fn heal(conn: &Connection, lane: i64, now: Timestamp) -> rusqlite::Result<usize> {
    let mut healed = 0;
    for sql in [NULL_TIMES, BEFORE_TIMES, BEHIND_TIMES] {
        let mut select = conn.prepare_cached(sql)?;
        let mut found = select.query([lane])?;
        let mut ids: Vec<i64> = Vec::new();
        while let Some(row) = found.next()? {
            let id = row.get(0)?;
            match read_due(rows::stored(row.get_ref(1)?), now) {
                Due::Invalid => {
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
