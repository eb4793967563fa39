//! The plans of the queries that run all the time, pinned: a scan would only show once there are a million items.

use paceline_core::Timestamp;
use rusqlite::Connection;

use super::lanes::{self, KnownLanes};
use super::{PUT_BACK, claim, record, schema};
use crate::work::item::NewItem;

/// Each query, and the index that it has to use.
const PLANS: [(&str, &str); 8] = [
    (lanes::LANES, "USING COVERING INDEX item_due (lane=?)"),
    (claim::DUE_TRIES, "USING COVERING INDEX item_due (lane=? AND not_before_ms>? AND not_before_ms<?)"),
    (claim::DUE_NEW, "USING COVERING INDEX item_due (lane=? AND not_before_ms=?)"),
    (claim::NEXT_DUE, "USING COVERING INDEX item_due (lane=?)"),
    (claim::TAKE, "USING INTEGER PRIMARY KEY (rowid=?)"),
    (record::RECORD, "USING INTEGER PRIMARY KEY (rowid=?)"),
    (record::BACK, "USING INTEGER PRIMARY KEY (rowid=?)"),
    (PUT_BACK, "USING INDEX item_worker (worker=?)"),
];

#[test]
fn no_query_depends_on_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let conn = schema::open(&folder.path().join("work.db"), 0).unwrap();
    check(&conn, "an empty store");
    let now = Timestamp::from_millis(1_700_000_000_000);
    conn.execute_batch("BEGIN").unwrap();
    for n in 0..5_000 {
        record::insert(&conn, &NewItem::new(format!("item-{n}"), "{}"), &mut KnownLanes::default(), now).unwrap();
    }
    conn.execute_batch("COMMIT").unwrap();
    check(&conn, "no statistics");
    conn.execute_batch("ANALYZE").unwrap();
    check(&conn, "statistics of new items");
    // All items in the state that a query looks for, and all due at one time: the worst advice that statistics can give.
    for (state, due) in [(0, 0), (0, 5), (1, 0), (2, 0), (6, 0)] {
        conn.execute("UPDATE item SET state = ?1, not_before_ms = ?2, worker = 1", [state, due]).unwrap();
        conn.execute_batch("ANALYZE").unwrap();
        check(&conn, &format!("statistics of items in state {state}"));
    }
}

fn check(conn: &Connection, on: &str) {
    for (sql, expected) in PLANS {
        let mut select = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let unbound = vec![rusqlite::types::Value::Null; select.parameter_count()];
        let steps = select.query_map(rusqlite::params_from_iter(unbound), |row| row.get::<_, String>(3)).unwrap();
        let mut steps: Vec<String> = steps.collect::<rusqlite::Result<_>>().unwrap();
        // What remains are lanes, of which there are few, and that something is asked for each of them.
        steps.retain(|step| step.contains(" item "));
        assert_eq!(steps, [format!("SEARCH item {expected}")], "{on}: {sql}");
    }
}
