//! Handing out due items: a range of the partial index for each scope that may send.

use std::sync::Arc;

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::error::Error;
use crate::item::{Claim, Claimed};
use crate::query::{self, AFTER_ITEM, item_columns};
use crate::schema::ACCOUNT;
use crate::scope::{Scope, next_due};

/// Retries whose time has come. `state = 0` stands there as in the index, which is then sorted already.
pub(crate) const DUE_RETRIES: &str = "SELECT id, not_before_ms, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms > 0 AND not_before_ms <= ?2
     ORDER BY not_before_ms, crash_attempts, id LIMIT ?3";

/// Items that wait for nothing: never tried, then interrupted by crashes.
pub(crate) const DUE_FRESH: &str = "SELECT id, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms = 0
     ORDER BY crash_attempts, id LIMIT ?2";

/// Those of them that one crash interrupted: they keep their place in the input. From the second crash on an item may be what
/// kills the process, so it goes behind the others.
const INTERRUPTED: &str = "SELECT id, crash_attempts FROM item
     WHERE state = 0 AND scope = ?1 AND not_before_ms = 0 AND crash_attempts = 1
     ORDER BY id LIMIT ?2";

/// What is handed out.
const READ: &str = concat!("SELECT ", item_columns!(), ", body_hash FROM item WHERE id = ?1");

/// The place of an item in a claim: retries before fresh ones, then by due time, then behind after several crashes, then by
/// id.
type Place = (bool, i64, i64, i64);

/// Takes at most `limit` due items and marks them in flight, within the caller's transaction.
pub(crate) fn claim(
    conn: &Connection,
    scopes: &[Scope],
    now: Timestamp,
    limit: usize,
    except: &[Arc<str>],
) -> Result<Claim, Error> {
    let claim = || -> rusqlite::Result<Vec<Claimed>> {
        let mut places = Vec::new();
        let account_open = scopes.iter().all(|scope| &*scope.row.name != ACCOUNT || scope.may_send(now));
        if account_open && limit > 0 {
            for scope in scopes.iter().filter(|scope| scope.may_send(now) && !except.contains(&scope.row.name)) {
                due(conn, scope.id, now, limit, &mut places)?;
            }
        }
        places.sort_unstable();
        places.dedup();
        places.truncate(limit);
        take(conn, scopes, places.into_iter().map(|(_, _, _, id)| id))
    };
    let items = claim().map_err(Error::sqlite("read"))?;
    Ok(Claim { items, next_due: next_due(conn, scopes)? })
}

/// Takes those of the items that wait, in the order given.
pub(crate) fn claim_items(conn: &Connection, scopes: &[Scope], ordinals: &[u64]) -> Result<Claim, Error> {
    let items = take(conn, scopes, ordinals.iter().map(|ordinal| query::int(*ordinal)));
    Ok(Claim { items: items.map_err(Error::sqlite("read"))?, next_due: None })
}

/// Marks items in flight and reads them; leaves out those that do not wait.
fn take(conn: &Connection, scopes: &[Scope], ids: impl Iterator<Item = i64>) -> rusqlite::Result<Vec<Claimed>> {
    let mut take = conn.prepare_cached("UPDATE item SET state = 1 WHERE id = ?1 AND state = 0")?;
    let mut read = conn.prepare_cached(READ)?;
    let mut items = Vec::with_capacity(ids.size_hint().0);
    for id in ids {
        if take.execute([id])? == 0 {
            continue;
        }
        items.push(
            read.query_row([id], |row| {
                Ok(Claimed { item: query::item(row, scopes)?, body_hash: row.get(AFTER_ITEM)? })
            })?,
        );
    }
    Ok(items)
}

fn due(conn: &Connection, scope: i64, now: Timestamp, limit: usize, places: &mut Vec<Place>) -> rusqlite::Result<()> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut retries = conn.prepare_cached(DUE_RETRIES)?;
    let mut rows = retries.query(params![scope, now.as_millis(), limit])?;
    while let Some(row) = rows.next()? {
        places.push((false, row.get(1)?, row.get(2)?, row.get(0)?));
    }
    for fresh in [INTERRUPTED, DUE_FRESH] {
        let mut fresh = conn.prepare_cached(fresh)?;
        let mut rows = fresh.query(params![scope, limit])?;
        while let Some(row) = rows.next()? {
            places.push((true, 0, row.get::<_, i64>(1)?.saturating_sub(1).max(0), row.get(0)?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{DUE_INDEX, ITEM_TABLE, TABLES};

    fn plan(conn: &Connection, sql: &str) -> String {
        let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let bound = vec![0_i64; explain.parameter_count()];
        let rows = explain.query_map(rusqlite::params_from_iter(bound), |row| row.get::<_, String>(3)).unwrap();
        rows.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    }

    /// On no statistics and on those of a full table: a claim that sorts or scans costs a thousand times more.
    #[test]
    fn claims_walk_the_partial_index_and_sort_nothing() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        conn.execute_batch(ITEM_TABLE).unwrap();
        conn.execute_batch(DUE_INDEX).unwrap();
        conn.execute_batch(
            "INSERT INTO scope (id, name) VALUES (1, 'chat');
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
             INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope, state, not_before_ms)
             SELECT i, CAST(i AS BLOB), x'', i, 0, 0, 1, iif(i < 15000, 2, 0), iif(i < 18000, 0, i) FROM n;",
        )
        .unwrap();
        for statistics in ["", "ANALYZE"] {
            conn.execute_batch(statistics).unwrap();
            assert_eq!(
                plan(&conn, DUE_RETRIES),
                "SEARCH item USING COVERING INDEX item_due (scope=? AND not_before_ms>? AND not_before_ms<?)"
            );
            assert_eq!(
                plan(&conn, DUE_FRESH),
                "SEARCH item USING COVERING INDEX item_due (scope=? AND not_before_ms=?)"
            );
            assert_eq!(
                plan(&conn, INTERRUPTED),
                "SEARCH item USING COVERING INDEX item_due (scope=? AND not_before_ms=? AND crash_attempts=?)"
            );
            assert_eq!(plan(&conn, crate::scope::NEXT_DUE), "SEARCH item USING COVERING INDEX item_due (scope=?)");
            assert_eq!(plan(&conn, READ), "SEARCH item USING INTEGER PRIMARY KEY (rowid=?)");
        }
    }
}
