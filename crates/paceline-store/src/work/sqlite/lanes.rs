//! A cache of the store's lanes in the working process: a claim does not read them all.

use paceline_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::version;
use crate::work::fair_share::Lane;
use crate::work::lanes::Lanes;

/// The lanes of the store, and the earliest time for which an item of each waits.
pub(super) const LANES: &str =
    "SELECT id, grp, priority, (SELECT min(not_before_ms) FROM item WHERE state = 0 AND item.lane = lane.id)
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
    /// Items changed without an update of the lanes.
    pub(super) fn forget(&mut self) {
        self.version = NEVER;
        self.lanes.clear();
    }

    /// The lanes as they are.
    pub(super) fn refresh(&mut self, conn: &Connection) -> rusqlite::Result<&mut Lanes> {
        let version = version(conn)?;
        if self.version != version {
            self.forget();
            self.read(conn)?;
            self.version = version;
        }
        Ok(&mut self.lanes)
    }

    /// A new item waits in a lane; returns that lane.
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
            .query_row([item], |row| Ok((row.get(0)?, row.get(1)?)))?;
        self.lanes.waits(lane, Timestamp::from_millis(first));
        Ok(())
    }

    fn read(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let mut select = conn.prepare_cached(LANES)?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let lane = Lane { id: row.get(0)?, group: row.get::<_, String>(1)?.into(), priority: row.get(2)? };
            self.lanes.add(lane, row.get::<_, Option<i64>>(3)?.map(Timestamp::from_millis));
        }
        Ok(())
    }
}
