//! Calls under way, each noted as it is sent: after a crash nothing else distinguishes them from items that wait for a permit.

use std::collections::BTreeSet;

use rusqlite::{Connection, params};

use crate::item::{CutOff, Departure, ModelUsage};
use crate::query::{count, int};
use crate::report::JobCounts;
use crate::schema::{has_column, has_table};
use crate::usage;

/// The tables. What is `counted` stands in the counters of the job and of its item, and stays until the item has an outcome.
pub(crate) const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS call_under_way (
        id INTEGER PRIMARY KEY,
        model TEXT NOT NULL,
        tokens_in INTEGER NOT NULL,
        tokens_out INTEGER NOT NULL,
        cache_price INTEGER NOT NULL DEFAULT 0, -- tokens of input more that its prompt may cost
        counted INTEGER NOT NULL DEFAULT 0,
        moved INTEGER NOT NULL DEFAULT 0 -- its item has the body that was sent, and another id
    ) STRICT;
    CREATE TABLE IF NOT EXISTS cut_off (
        calls INTEGER NOT NULL -- noted when a run was killed: they are counted, and each may not have left
    ) STRICT;
    CREATE TABLE IF NOT EXISTS note (
        awaited INTEGER NOT NULL, -- the last run sent no call before its note was written
        lost INTEGER NOT NULL -- an earlier run may have sent calls without one
    ) STRICT;
";

/// How the run that begins notes its calls. `begun`: items that the run before had begun, and neither ended nor noted as sent.
/// Returns whether that run may have sent calls without a note.
pub(crate) fn begin_run(conn: &Connection, awaited: bool, begun: u64) -> rusqlite::Result<bool> {
    let lost_now = loses(conn, begun)?;
    let lost = lost_now || is_lost(conn)?;
    conn.execute("DELETE FROM note", [])?;
    conn.execute("INSERT INTO note (awaited, lost) VALUES (?1, ?2)", params![awaited, lost])?;
    Ok(lost_now)
}

/// Whether the last run may have sent calls without a note. `begun`: as above.
fn loses(conn: &Connection, begun: u64) -> rusqlite::Result<bool> {
    let awaits = || conn.query_row("SELECT count(*) FROM note WHERE awaited", [], |row| row.get::<_, bool>(0));
    Ok(begun > 0 && !(has_table(conn, "note")? && awaits()?))
}

/// Whether an earlier run may have sent calls that nothing counts.
pub(crate) fn is_lost(conn: &Connection) -> rusqlite::Result<bool> {
    Ok(has_table(conn, "note")? && conn.query_row("SELECT count(*) FROM note WHERE lost", [], |row| row.get(0))?)
}

/// Notes a call that is sent, within the caller's transaction.
pub(crate) fn add(conn: &Connection, departure: &Departure) -> rusqlite::Result<()> {
    let ModelUsage { model, tokens_in, tokens_out, cache_price, .. } = &departure.reserved;
    let sql = "INSERT OR REPLACE INTO call_under_way (id, model, tokens_in, tokens_out, cache_price) VALUES (?1, ?2, ?3, ?4, ?5)";
    // Whole tokens, rounded up: it is an estimate.
    let cache_price = -(-cache_price).div_euclid(100);
    let values = params![int(departure.ordinal), model, int(*tokens_in), int(*tokens_out), cache_price];
    conn.prepare_cached(sql)?.execute(values).map(drop)
}

/// Removes the note once the outcome of the item's call is recorded.
pub(crate) fn remove(conn: &Connection, item: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM call_under_way WHERE id = ?1")?.execute([int(item)]).map(drop)
}

/// Removes the note of a call of this run that has not left after all; those of runs before are counted.
pub(crate) fn withdraw(conn: &Connection, item: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("DELETE FROM call_under_way WHERE id = ?1 AND NOT counted")?.execute([int(item)]).map(drop)
}

/// Which calls a crash cut off that nothing counts yet: those whose item has no outcome.
const CUT_OFF: &str =
    "FROM call_under_way AS call JOIN item ON item.id = call.id WHERE NOT call.counted AND item.state < 2";

/// How many they are, and how many of them sent their item again.
fn cut_off(conn: &Connection) -> rusqlite::Result<(u64, u64)> {
    let sql = format!(
        "SELECT count(*), count(*) FILTER (WHERE attempts + deferrals + probes + item.abandoned > 0) {CUT_OFF}"
    );
    conn.query_row(&sql, [], |row| Ok((count(row.get(0)?), count(row.get(1)?))))
}

/// Adds the calls that a crash, or a full disk, cut off to counters that lack them, and whether there may have been more.
pub(crate) fn add_cut_off(conn: &Connection, counts: &mut JobCounts) -> rusqlite::Result<()> {
    let mut noted = 0;
    if has_table(conn, "call_under_way")? {
        noted = begun(conn)?;
        let (calls, resends) = cut_off(conn)?;
        counts.totals.calls += calls;
        counts.totals.abandoned += calls;
        counts.totals.resends += resends;
        counts.calls_unsure += calls;
    }
    counts.calls_lost |= loses(conn, counts.in_flight.saturating_sub(noted))?;
    Ok(())
}

/// Counts the calls that a crash cut off, each once and as much as it had reserved: no process has their answers, and the
/// provider may bill them. Within the caller's transaction, after what stands in the results was recorded.
pub(crate) fn count_cut_off(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "DELETE FROM call_under_way WHERE (SELECT state > 1 FROM item WHERE item.id = call_under_way.id)",
    )?;
    let (calls, resends) = cut_off(conn)?;
    if calls > 0 {
        conn.execute("INSERT INTO cut_off VALUES (?1)", [int(calls)])?;
    }
    let sql = "UPDATE run SET calls = calls + ?1, abandoned = abandoned + ?1, resends = resends + ?2";
    conn.execute(sql, params![int(calls), int(resends)])?;
    conn.execute_batch(
        "UPDATE item SET abandoned = abandoned + 1 WHERE id IN (SELECT id FROM call_under_way WHERE NOT counted);",
    )?;
    for reserved in not_counted(conn)? {
        usage::add(conn, &reserved)?;
    }
    conn.execute_batch("UPDATE call_under_way SET counted = 1")
}

/// How many calls the counters have of which nothing tells whether they had left when their run was killed.
pub(crate) fn unsure(conn: &Connection) -> rusqlite::Result<u64> {
    if !has_table(conn, "cut_off")? {
        return Ok(0);
    }
    conn.query_row("SELECT coalesce(sum(calls), 0) FROM cut_off", [], |row| row.get(0)).map(count)
}

/// What the calls reserved that are under way, or that a crash cut off and no run has counted yet, by model.
pub(crate) fn not_counted(conn: &Connection) -> rusqlite::Result<Vec<ModelUsage>> {
    if !has_table(conn, "call_under_way")? {
        return Ok(Vec::new());
    }
    // A prompt that may be written into a cache counts as if all of it were.
    let (price, written) = match has_column(conn, "call_under_way", "cache_price")? {
        true => ("sum(call.cache_price)", "sum(iif(call.cache_price > 0, call.tokens_in, 0))"),
        false => ("0", "0"),
    };
    let mut select = conn.prepare(&format!(
        "SELECT call.model, count(*), sum(call.tokens_in), sum(call.tokens_out), {price}, 0, 0, 0, 0, 0, 0, {written}, {price}, 0, 0, 0, 0
         {CUT_OFF} GROUP BY call.model"
    ))?;
    let rows = select.query_map([], usage::of_row)?;
    rows.collect()
}

/// The items whose call was sent and that have no recorded outcome.
pub(crate) fn all(conn: &Connection) -> rusqlite::Result<Vec<CutOff>> {
    let mut select = conn.prepare("SELECT id, moved FROM call_under_way ORDER BY id")?;
    let rows = select.query_map([], |row| Ok(CutOff { ordinal: count(row.get(0)?), moved: row.get(1)? }))?;
    rows.collect()
}

/// The items whose call is in no counter yet: under way, or cut off by a crash that no run has found.
pub(crate) fn under_way(conn: &Connection) -> rusqlite::Result<BTreeSet<u64>> {
    if !has_table(conn, "call_under_way")? {
        return Ok(BTreeSet::new());
    }
    let mut select = conn.prepare("SELECT id FROM call_under_way WHERE NOT counted")?;
    let rows = select.query_map([], |row| Ok(count(row.get(0)?)))?;
    rows.collect()
}

/// How many of the items that a run had begun, and whose end it did not record, have a call that was sent.
pub(crate) fn begun(conn: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM call_under_way AS call JOIN item ON item.id = call.id WHERE item.state = 1";
    conn.query_row(sql, [], |row| Ok(count(row.get(0)?)))
}

/// Items have other places in an input that changed: each is matched by its id and body, as by
/// [`take_over`](crate::merge::take_over), which is to follow. Where that item is gone, its call is that of an item that is
/// new and has its body, such as a line without an id of its own that stands elsewhere now.
pub(crate) fn renumber(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch(
        "CREATE TEMP TABLE renumbered AS
             SELECT item.id, call.model, call.tokens_in, call.tokens_out, call.counted, call.moved
             FROM call_under_way AS call
             JOIN item_before AS before ON before.id = call.id
             JOIN item ON item.key = before.key AND item.body_hash = before.body_hash;
         INSERT INTO renumbered
             WITH gone AS (
                 SELECT call.*, before.body_hash, row_number() OVER (PARTITION BY before.body_hash ORDER BY before.id) AS nth
                 FROM call_under_way AS call
                 JOIN item_before AS before ON before.id = call.id
                 LEFT JOIN item ON item.key = before.key AND item.body_hash = before.body_hash
                 WHERE item.id IS NULL
             ), new AS (
                 SELECT item.id, item.body_hash, row_number() OVER (PARTITION BY item.body_hash ORDER BY item.id) AS nth
                 FROM item
                 LEFT JOIN item_before AS before ON before.key = item.key AND before.body_hash = item.body_hash
                 WHERE before.id IS NULL AND item.body_hash IN (SELECT body_hash FROM gone)
             )
             SELECT new.id, gone.model, gone.tokens_in, gone.tokens_out, gone.counted, 1
             FROM gone JOIN new ON new.body_hash = gone.body_hash AND new.nth = gone.nth;
         DELETE FROM call_under_way;
         INSERT INTO call_under_way (id, model, tokens_in, tokens_out, counted, moved) SELECT * FROM renumbered;
         DROP TABLE renumbered;",
    )
}
