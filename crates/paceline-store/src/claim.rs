//! Handing out due items: a range of the partial index for each scope that may send.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use paceline_core::Timestamp;
use rusqlite::Connection;

use crate::error::JournalError;
use crate::heads::{Heads, Place, due};
use crate::item::{ClaimExcept, ClaimedItem, ClaimedItems};
use crate::query::{self, AFTER_ITEM, item_columns};
use crate::scope::{Scope, account, by_id, opens};

/// What is handed out.
const READ: &str = concat!(
    "SELECT ",
    item_columns!(),
    ", body_hash, coalesce(key_no, (SELECT key_base FROM run) + id, id) FROM item WHERE id = ?1"
);

/// Takes at most `limit` due items and marks them in flight, within the caller's transaction.
pub(crate) fn claim(
    conn: &Connection,
    scopes: &[Scope],
    heads: &mut Heads,
    now: Timestamp,
    limit: usize,
    except: &ClaimExcept,
) -> Result<ClaimedItems, JournalError> {
    let is_among = |names: &[Arc<str>], id| by_id(scopes, id).is_some_and(|scope| names.contains(&scope.row.name));
    let may_send = |id| by_id(scopes, id).is_some_and(|scope| scope.may_send(now)) && !is_among(&except.all, id);
    let may_begin = |id| may_send(id) && !is_among(&except.new, id);
    let mut claim = || -> rusqlite::Result<Vec<ClaimedItem>> {
        heads.read(conn, scopes)?;
        let account_open = opens(account(scopes)).is_some_and(|at| at <= now);
        let mut items = Vec::new();
        while account_open && items.len() < limit {
            let left = limit - items.len();
            let retries = heads.retries.iter().take_while(|(due, _)| *due <= now.as_millis()).map(|(_, scope)| scope);
            let fresh = heads.fresh.iter().map(|(_, scope)| scope);
            // The first items of so many scopes come before those of all others.
            let asked: BTreeSet<i64> = retries
                .filter(|id| may_send(*id))
                .take(left)
                .chain(fresh.filter(|id| may_begin(*id)).take(left))
                .collect();
            if asked.is_empty() {
                break;
            }
            let asked = asked.into_iter().map(|id| (id, may_begin(id)));
            items.extend(merge(conn, scopes, heads, now, left, asked.collect())?);
        }
        Ok(items)
    };
    let items = claim().map_err(JournalError::sqlite("read"))?;
    let next = heads.next_due(scopes);
    let next_scope = next.and_then(|(_, scope)| by_id(scopes, scope)).map(|scope| Arc::clone(&scope.row.name));
    Ok(ClaimedItems { items, next_due: next.map(|(due, _)| due), next_scope })
}

/// Takes the first of what is due in some scopes, each with whether what is new counts, and notes what they have left.
fn merge(
    conn: &Connection,
    scopes: &[Scope],
    heads: &mut Heads,
    now: Timestamp,
    limit: usize,
    asked: Vec<(i64, bool)>,
) -> rusqlite::Result<Vec<ClaimedItem>> {
    let portion = limit.div_ceil(asked.len()) + 1;
    let mut sources = Vec::with_capacity(asked.len());
    let mut order = BTreeSet::new();
    for (scope, may_begin) in asked {
        let has_retries = heads.retries.of(scope).is_some_and(|due| due <= now.as_millis());
        let until = has_retries.then_some(now);
        let mut source = Source { scope, until, may_begin, found: VecDeque::new(), read: 0 };
        source.read(conn, portion)?;
        order.extend(source.found.front().map(|place| (*place, sources.len())));
        sources.push(source);
    }
    let mut ids = Vec::with_capacity(limit);
    while ids.len() < limit
        && let Some((place, index)) = order.pop_first()
    {
        let source = &mut sources[index];
        ids.push(place.3);
        source.found.pop_front();
        if source.found.is_empty() {
            source.read(conn, source.read)?;
        }
        order.extend(source.found.front().map(|place| (*place, index)));
    }
    let items = take(conn, scopes, ids.into_iter())?;
    for source in sources {
        if source.may_begin {
            heads.claimed(source.scope, source.found.front().copied());
        }
        if source.until.is_some() {
            heads.read_retries(conn, source.scope)?;
        }
    }
    Ok(items)
}

/// What is due in a scope, read in portions, each as large as all before.
struct Source {
    scope: i64,
    /// Retries that are due then; none where there are none.
    until: Option<Timestamp>,
    /// Items that wait for nothing are due too.
    may_begin: bool,
    found: VecDeque<Place>,
    read: usize,
}

impl Source {
    /// Reads so many more, if there are any.
    fn read(&mut self, conn: &Connection, more: usize) -> rusqlite::Result<()> {
        let places = due(conn, self.scope, self.until, self.may_begin, self.read + more)?;
        self.found.extend(places.into_iter().skip(self.read));
        self.read += more;
        Ok(())
    }
}

/// Takes those of the items that wait, in the order given.
pub(crate) fn claim_items(conn: &Connection, scopes: &[Scope], ordinals: &[u64]) -> Result<ClaimedItems, JournalError> {
    let items = take(conn, scopes, ordinals.iter().map(|ordinal| query::int(*ordinal)));
    let items = items.map_err(JournalError::sqlite("read"))?;
    Ok(ClaimedItems { items, next_due: None, next_scope: None })
}

/// Marks items in flight and reads them; leaves out those that do not wait.
fn take(conn: &Connection, scopes: &[Scope], ids: impl Iterator<Item = i64>) -> rusqlite::Result<Vec<ClaimedItem>> {
    let mut take = conn.prepare_cached("UPDATE item SET state = 1 WHERE id = ?1 AND state = 0")?;
    let mut read = conn.prepare_cached(READ)?;
    let mut items = Vec::with_capacity(ids.size_hint().0);
    for id in ids {
        if take.execute([id])? == 0 {
            continue;
        }
        items.push(read.query_row([id], |row| {
            let key_number = query::count(row.get(AFTER_ITEM + 1)?);
            Ok(ClaimedItem { item: query::item(row, scopes)?, body_hash: row.get(AFTER_ITEM)?, key_number })
        })?);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::{DUE_FRESH, DUE_RETRIES, INTERRUPTED};
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
            assert_eq!(
                plan(&conn, READ),
                "SEARCH item USING INTEGER PRIMARY KEY (rowid=?); SCALAR SUBQUERY 1; SCAN run",
                "of which there is one row"
            );
        }
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// A journal with so many scopes, and items in all of them in turn.
    fn journal(scopes: usize, items: usize) -> (Connection, Vec<Scope>) {
        let conn = Connection::open_in_memory().unwrap();
        for sql in [TABLES, ITEM_TABLE, DUE_INDEX] {
            conn.execute_batch(sql).unwrap();
        }
        conn.execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {scopes})
             INSERT INTO scope (id, name) SELECT i, 'scope-' || i FROM n;
             WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {items} - 1)
             INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope)
             SELECT i, CAST(i AS BLOB), zeroblob(16), i, 0, 0, i % {scopes} + 1 FROM n;"
        ))
        .unwrap();
        let scopes = crate::scope::scope_list(&conn).unwrap();
        (conn, scopes)
    }

    #[test]
    fn a_claim_asks_the_scopes_that_it_takes_from_and_no_others() {
        let (conn, scopes) = journal(5_000, 20_000);
        let runs = |sql| conn.prepare_cached(sql).unwrap().get_status(rusqlite::StatementStatus::Run);
        let mut heads = Heads::default();
        let mut claim = || super::claim(&conn, &scopes, &mut heads, at(1), 10, &ClaimExcept::default()).unwrap();
        assert_eq!(claim().items.len(), 10);
        let before = runs(DUE_FRESH);
        for _ in 0..100 {
            assert_eq!(claim().items.len(), 10);
        }
        assert_eq!(runs(DUE_FRESH) - before, 100 * 10);
        assert_eq!(runs(DUE_RETRIES), 0, "no retry was due");
        assert_eq!(claim().items[0].item.ordinal, 1_010, "in the order of the input");
    }

    /// What was claimed when every scope was asked at each claim.
    fn asked_of_all(
        conn: &Connection,
        scopes: &[Scope],
        now: Timestamp,
        limit: usize,
        except: &ClaimExcept,
    ) -> Vec<u64> {
        let may_send = |scope: &&Scope| scope.may_send(now) && !except.all.contains(&scope.row.name);
        let of = |scope: &Scope| due(conn, scope.id, Some(now), !except.new.contains(&scope.row.name), limit).unwrap();
        let mut places: Vec<Place> = scopes.iter().filter(may_send).flat_map(of).collect();
        places.sort_unstable();
        places.into_iter().take(limit).map(|place| place.3 as u64).collect()
    }

    #[test]
    fn claims_are_what_they_were_when_every_scope_was_asked() {
        let mut seed = 1_u64;
        let mut draw = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (conn, mut scopes) = journal(12, 400);
        conn.execute("UPDATE item SET crash_attempts = id % 4 WHERE id % 7 = 0", []).unwrap();
        let (mut heads, mut in_flight, mut claims) = (Heads::default(), Vec::new(), 0);
        for step in 0..1_500_i64 {
            let now = at(1_000 + step);
            let place = draw(in_flight.len().max(1) as u64) as usize;
            match draw(4) {
                0 if !in_flight.is_empty() => {
                    // Some end, some wait again: at once, as they did, or until a time.
                    let id: u64 = in_flight.swap_remove(place);
                    let due = [None, Some(0), Some(now.as_millis() + draw(90) as i64)][draw(3) as usize];
                    // One that crashes had put behind the others may come before them once it waits again at once.
                    if let Some(due) = due.filter(|due| *due > 0 || !id.is_multiple_of(7)) {
                        let sql = "UPDATE item SET state = 0, not_before_ms = ?2 WHERE id = ?1 RETURNING scope";
                        let scope = conn.query_row(sql, [id as i64, due], |row| row.get(0)).unwrap();
                        heads.add(scope, due, id as i64);
                    }
                }
                1 => {
                    let until = now + std::time::Duration::from_millis(draw(40));
                    let held = crate::scope::ScopeStatus::Held { until, reason: String::new() };
                    let place = draw(12) as usize;
                    scopes[place].row.state = [held, crate::scope::ScopeStatus::Open][draw(2) as usize].clone();
                }
                _ => {
                    let limit = draw(9) as usize;
                    let [all, new] = [(); 2].map(|()| vec![scopes[draw(12) as usize].row.name.clone()]);
                    let except = ClaimExcept { all, new };
                    let expected = asked_of_all(&conn, &scopes, now, limit, &except);
                    let claim = super::claim(&conn, &scopes, &mut heads, now, limit, &except).unwrap();
                    let found: Vec<u64> = claim.items.iter().map(|claimed| claimed.item.ordinal).collect();
                    assert_eq!(found, expected, "step {step}");
                    assert_eq!(claim.next_due, crate::scope::next_due(&conn, &scopes).unwrap(), "step {step}");
                    in_flight.extend(found);
                    claims += claim.items.len();
                }
            }
        }
        assert!(claims > 500, "{claims}");
    }
}
