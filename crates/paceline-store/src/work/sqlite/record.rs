//! Recording: new items, outcomes of claimed ones, and changes by a person.

use crate::state::State;
use paceline_core::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params, params_from_iter, types::Value};

use super::lanes::KnownLanes;
use super::{clock, scopes};
use crate::query::millis;
use crate::work::item::{
    AGAIN, Added, Amend, ClaimOutcome, DecisionRecord, EVENTS, Filter, LEFT, NewItem, PERSON, Pruned, PrunedKeys,
    RecordStatus, Transition, shortened,
};

/// The guard stands in the statement: the fence is that of the claim, or nothing is recorded. Who records hands the item on, so
/// the fence goes up. Where its end is not known (`?10` is its class) the last try stays. What becomes of its time is `?15`, an
/// [`ItemTime`](crate::work::ItemTime): 1 goes on, 0 does if something was sent since its bounds began.
pub(super) const RECORD: &str = "UPDATE item
     SET state = ?3, sent = 0, worker = NULL, fence = fence + 1, not_before_ms = ?4, delay_ms = ?5, attempts = attempts + ?6,
         deferrals = deferrals + ?7, abandoned = abandoned + ?8, tests = tests + ?16, ended_ms = ?9, reason = ?14,
         in_doubt = coalesce(?17, in_doubt),
         last_class = coalesce(?10, last_class), last_status = iif(?10 IS NULL, last_status, ?11),
         last_code = iif(?10 IS NULL, last_code, ?12), last_words = iif(?10 IS NULL, last_words, ?13),
         first_ms = iif(?15 = 1 OR ?15 = 0 AND attempts + deferrals + ?6 + ?7 + ?8 > forgiven_attempts + forgiven_deferrals,
             first_ms, NULL)
     WHERE id = ?1 AND fence = ?2";

/// As it was found; only the sends are counted.
pub(super) const BACK: &str = "UPDATE item
     SET state = 0, sent = iif(sent = 1, 2, sent), worker = NULL, fence = fence + 1, attempts = attempts + ?3, deferrals = deferrals + ?4,
         abandoned = abandoned + ?5, in_doubt = coalesce(?7, in_doubt OR sent = 1),
         first_ms = iif(?6 = 1 OR ?6 = 0 AND attempts + deferrals + ?3 + ?4 + ?5 > forgiven_attempts + forgiven_deferrals,
             first_ms, NULL)
     WHERE id = ?1 AND fence = ?2";

const EVENT: &str = "INSERT INTO event (item, n, decided_ms, send, class, status, code, words, action, reason, judge,
         not_before_ms)
     SELECT ?1, coalesce((SELECT max(n) FROM event WHERE item = ?1), 0) + 1, ?2, attempts + deferrals + abandoned,
         ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
     FROM item WHERE id = ?1 RETURNING n";

/// Adds an item, unless there is one of its key.
pub(super) fn insert(
    conn: &Connection,
    new: &NewItem,
    lanes: &mut KnownLanes,
    now: Timestamp,
) -> rusqlite::Result<Added> {
    let known: Option<(i64, bool)> = conn
        .prepare_cached(
            "SELECT state, EXISTS (SELECT 1 FROM payload WHERE payload.item = item.id AND body <> ?2) FROM item WHERE key = ?1
             UNION ALL SELECT state, 0 FROM pruned WHERE key = ?1",
        )?
        .query_row([&new.key, &new.payload], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((state, differs)) = known {
        let state = State::from_code(state).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, state))?;
        return Ok(Added::known(state, !differs));
    }
    let (not_before, delay) =
        new.waits_until(now).map_or((0, 0), |at| (at.as_millis(), millis(at.saturating_since(now))));
    let sent_for = new.created.map(|_| clock::of_person(conn, now)).transpose()?;
    conn.prepare_cached(
        // A removed item's number is given again. Its fence is above all that a worker may still hold of the one before.
        "INSERT INTO item (key, lane, not_before_ms, delay_ms, created_ms, deadline_ms, sent, in_doubt, fence, sent_for_ms)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7 > 0, ?8, ?9)",
    )?
    .execute(params![
        new.key,
        lanes.enter(conn, (&new.group, new.priority), not_before)?,
        not_before,
        delay,
        new.created.unwrap_or(now).as_millis(),
        new.deadline.map(millis),
        2 * i64::from(new.may_be_done),
        now.as_millis(),
        sent_for.map(Timestamp::as_millis),
    ])?;
    conn.prepare_cached("INSERT INTO payload (item, body) VALUES (?1, ?2)")?
        .execute(params![conn.last_insert_rowid(), new.payload])?;
    Ok(Added::New)
}

/// Records an outcome, if the item is still the one of that claim.
pub(super) fn record(
    conn: &Connection,
    outcome: &ClaimOutcome,
    lanes: &mut KnownLanes,
    now: Timestamp,
) -> rusqlite::Result<RecordStatus> {
    let id = outcome.id as i64;
    let (sends, time, last) = (outcome.sends(), outcome.time.code(), outcome.last());
    let (not_before, delay) = match outcome.next {
        Transition::Retry(delay) => ((now + delay).as_millis(), millis(delay)),
        _ => (0, 0),
    };
    let in_doubt = outcome.in_doubt();
    let changed = if outcome.next == Transition::Release {
        conn.prepare_cached(BACK)?.execute(params![id, outcome.fence, sends.0, sends.1, sends.2, time, in_doubt])?
    } else {
        let state = outcome.next.state();
        conn.prepare_cached(RECORD)?.execute(params![
            id,
            outcome.fence,
            state.code(),
            not_before,
            delay,
            sends.0,
            sends.1,
            sends.2,
            state.is_final().then_some(now.as_millis()),
            last.as_ref().map(|last| last.class.as_str()),
            last.as_ref().and_then(|last| last.status),
            last.as_ref().and_then(|last| last.code),
            last.as_ref().map(|last| &last.message),
            outcome.reason(),
            time,
            outcome.tests(),
            in_doubt,
        ])?
    };
    if changed == 0 {
        conn.prepare_cached(THOUGH_CANCELLED)?.execute(params![
            id,
            outcome.fence,
            outcome.may_be_done(),
            sends.0,
            sends.1,
            sends.2,
            last.as_ref().map(|last| last.class.as_str()),
            last.as_ref().and_then(|last| last.status),
            last.as_ref().and_then(|last| last.code),
            last.as_ref().map(|last| &last.message),
            outcome.tests(),
        ])?;
        return Ok(RecordStatus::Lost);
    }
    if outcome.next.state() == State::Waiting {
        lanes.back(conn, id)?;
    }
    if let Some(decided) = &outcome.decided {
        event(conn, id, decided, now, matches!(outcome.next, Transition::Retry(_)).then_some(not_before))?;
    }
    Ok(RecordStatus::Recorded)
}

/// The try of an item that was cancelled meanwhile, which still has its worker: it is counted, once. After a success a retry
/// would do it once more.
const THOUGH_CANCELLED: &str = "UPDATE item
     SET sent = CASE WHEN ?3 THEN 2 WHEN sent = 3 THEN 0 ELSE sent END, in_doubt = in_doubt OR ?3, worker = NULL, attempts = attempts + ?4, deferrals = deferrals + ?5, abandoned = abandoned + ?6, tests = tests + ?11,
         last_class = coalesce(?7, last_class), last_status = iif(?7 IS NULL, last_status, ?8),
         last_code = iif(?7 IS NULL, last_code, ?9), last_words = iif(?7 IS NULL, last_words, ?10)
     WHERE id = ?1 AND fence = ?2 + 1 AND state = 5 AND worker IS NOT NULL";

fn event(
    conn: &Connection,
    id: i64,
    decided: &DecisionRecord,
    now: Timestamp,
    not_before: Option<i64>,
) -> rusqlite::Result<()> {
    let DecisionRecord { failure, action, reason, by, .. } = decided;
    let n: i64 = conn.prepare_cached(EVENT)?.query_row(
        params![
            id,
            now.as_millis(),
            failure.class.as_str(),
            failure.status,
            failure.code,
            shortened(&failure.message),
            action,
            reason,
            by,
            not_before
        ],
        |row| row.get(0),
    )?;
    if n > EVENTS as i64 {
        conn.prepare_cached("DELETE FROM event WHERE item = ?1 AND n <= ?2")?.execute([id, n - EVENTS as i64])?;
    }
    Ok(())
}

/// Items whose bounds begin anew. Of one that was cancelled during a try no outcome may have come yet: that was cut off.
fn retry(now: Timestamp) -> String {
    format!("{BEGIN_ANEW}, abandoned = {CUT_OFF}, forgiven_attempts = attempts, sent_for_ms = {}", now.as_millis())
}

/// Likewise, and all of their calls are of the past, whatever became of them.
fn again(as_new: bool, now: Timestamp) -> String {
    let (now, calls) = (now.as_millis(), format!("attempts + {CUT_OFF}"));
    let created = if as_new { format!(", created_ms = {now}") } else { String::new() };
    format!(
        "{BEGIN_ANEW}, abandoned = 0, attempts = {calls}, forgiven_attempts = {calls}, sent_for_ms = {now}{created}, \
         delivered_ms = iif(state = 2, ended_ms, delivered_ms)"
    )
}

/// That items have succeeded is not forgotten, nor what their servers said then; of the others, when they were added, by which
/// their calls were known.
fn keep_what_was(
    conn: &Connection,
    condition: &str,
    values: &[Value],
    as_new: bool,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let now = now.as_millis();
    let others = if as_new { "item.last_class IS NOT NULL" } else { "0" };
    let keep = format!(
        "INSERT INTO event (item, n, decided_ms, send, class, status, words, action, judge, created_ms)
         SELECT item.id, coalesce((SELECT max(n) FROM event WHERE event.item = item.id), 0) + 1, coalesce(ended_ms, {now}),
             attempts + deferrals + abandoned, iif(state = 2, 'success', 'abandoned'),
             iif(state = 2 AND last_class = 'success', last_status, NULL),
             iif(state = 2 AND last_class = 'success', coalesce(last_words, ''), ''), '{AGAIN}', '{PERSON}', created_ms
         FROM item WHERE {condition} AND (item.state = 2 OR {others})"
    );
    conn.execute(&keep, params_from_iter(values))?;
    let forget = format!(
        "DELETE FROM event WHERE item IN (SELECT item.id FROM item WHERE {condition})
             AND n <= (SELECT max(n) FROM event AS other WHERE other.item = event.item) - {EVENTS}"
    );
    conn.execute(&forget, params_from_iter(values)).map(drop)
}

const BEGIN_ANEW: &str = "state = 0, in_doubt = in_doubt OR sent > 0, sent = 0, worker = NULL, fence = fence + 1, not_before_ms = 0, delay_ms = 0,
     forgiven_deferrals = deferrals, crashes = 0, first_ms = NULL, ended_ms = NULL, reason = NULL";

const CUT_OFF: &str = "abandoned + (worker IS NOT NULL)";

/// Items that were left to a run and wait in it, before all others. Whose time goes on has it still.
const BEGIN: &str =
    "state = 0, in_doubt = in_doubt OR sent > 0, sent = 0, fence = fence + 1, not_before_ms = 1, delay_ms = 0, forgiven_attempts = attempts,
     forgiven_deferrals = deferrals, crashes = 0, ended_ms = NULL, reason = NULL";

/// A run begins: all that was left to it waits again.
pub(super) fn begin_deferred(conn: &Connection) -> rusqlite::Result<usize> {
    conn.execute(&format!("UPDATE item SET {BEGIN} WHERE state = 6"), [])
}

/// Applies a person's change. A person who lets items wait again has resolved the stops of their groups.
pub(super) fn amend(conn: &Connection, filter: &Filter, amend: Amend, now: Timestamp) -> rusqlite::Result<u64> {
    let set = match amend {
        Amend::Retry => retry(clock::of_person(conn, now)?),
        Amend::Again { as_new } => again(as_new, clock::of_person(conn, now)?),
        Amend::TakeUp => BEGIN.to_owned(),
        Amend::Due => "fence = fence + 1, not_before_ms = 0, delay_ms = 0, reason = NULL".to_owned(),
        Amend::Cancel => format!(
            "state = 5, sent = iif(state = 1 AND sent = 0, 3, sent), worker = iif(state = 1, worker, NULL), fence = fence + 1, not_before_ms = 0, delay_ms = 0, ended_ms = {}, \
             reason = 'cancelled'",
            now.as_millis()
        ),
        Amend::LeaveToNextRun => format!(
            "state = 6, in_doubt = in_doubt OR sent > 0, sent = 0, worker = NULL, fence = fence + 1, not_before_ms = 0, delay_ms = 0, ended_ms = NULL, reason = '{LEFT}'"
        ),
    };
    let (mut condition, values) = condition(filter);
    let states: Vec<String> = amend.states().iter().map(|state| state.code().to_string()).collect();
    condition.push_str(&format!(" AND item.state IN ({})", states.join(", ")));
    let stopped = if amend.retries() { scopes::stopped_of(conn, &condition, &values)? } else { Vec::new() };
    if let Amend::Again { as_new } = amend {
        keep_what_was(conn, &condition, &values, as_new, now)?;
    }
    let sql = format!("UPDATE item SET {set} WHERE {condition}");
    let changed = conn.execute(&sql, params_from_iter(values))? as u64;
    if changed > 0 {
        stopped.iter().try_for_each(|group| scopes::open(conn, group, now))?;
    }
    Ok(changed)
}

/// Removes at most `limit` items that ended before that.
pub(super) fn prune(
    conn: &Connection,
    filter: &Filter,
    (before_ms, now_ms): (i64, i64),
    keys: PrunedKeys,
    limit: usize,
) -> rusqlite::Result<Pruned> {
    let (condition, mut values) = condition(filter);
    let under_way = format!("{UNDER_WAY} AND lease_until_ms > {now_ms}))");
    let sql = format!(
        "SELECT item.id FROM item WHERE item.state IN (2, 3, 4, 5, 7) AND item.ended_ms <= ? AND {condition} AND NOT {under_way}
         LIMIT {limit}"
    );
    values.insert(0, Value::Integer(before_ms));
    let stay = format!("SELECT count(*) FROM item WHERE item.ended_ms <= ? AND {condition} AND {under_way}");
    let under_way: i64 = conn.query_row(&stay, params_from_iter(values.iter()), |row| row.get(0))?;
    let mut select = conn.prepare(&sql)?;
    let ids: Vec<i64> =
        select.query_map(params_from_iter(values), |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    let mut pruned = Pruned { items: ids.len() as u64, keys: 0, under_way: under_way.unsigned_abs() };
    if keys == PrunedKeys::Keep {
        let keep = "INSERT OR REPLACE INTO pruned SELECT key, state, ended_ms FROM item WHERE id = ?1";
        let mut keep = conn.prepare_cached(keep)?;
        ids.iter().try_for_each(|id| keep.execute([id]).map(drop))?;
    } else if keys.forget_kept(filter) {
        let states = if filter.states.is_empty() { &State::ALL[..] } else { &filter.states };
        let states: Vec<String> = states.iter().map(|state| state.code().to_string()).collect();
        let sql = format!("DELETE FROM pruned WHERE ended_ms <= ?1 AND state IN ({})", states.join(", "));
        pruned.keys = conn.execute(&sql, [before_ms])? as u64;
    }
    for sql in
        ["DELETE FROM event WHERE item = ?1", "DELETE FROM payload WHERE item = ?1", "DELETE FROM item WHERE id = ?1"]
    {
        let mut delete = conn.prepare_cached(sql)?;
        ids.iter().try_for_each(|id| delete.execute([id]).map(drop))?;
    }
    Ok(pruned)
}

/// It was cancelled during a call of a worker that is there: what becomes of it is to be told.
const UNDER_WAY: &str =
    "(item.state = 5 AND item.worker IS NOT NULL AND EXISTS (SELECT 1 FROM worker WHERE worker.id = item.worker";

/// A filter as a condition on `item` and its values.
pub(super) fn condition(filter: &Filter) -> (String, Vec<Value>) {
    let mut parts = vec!["1".to_owned()];
    let mut values = Vec::new();
    if !filter.states.is_empty() {
        let states: Vec<String> = filter.states.iter().map(|state| state.code().to_string()).collect();
        parts.push(format!("item.state IN ({})", states.join(", ")));
    }
    if let Some(group) = &filter.group {
        parts.push("item.lane IN (SELECT id FROM lane WHERE grp = ?)".to_owned());
        values.push(Value::Text(group.clone()));
    }
    if !filter.keys.is_empty() {
        parts.push("item.key IN (SELECT value FROM json_each(?))".to_owned());
        values.push(Value::Text(serde_json::Value::from(filter.keys.clone()).to_string()));
    }
    (parts.join(" AND "), values)
}
