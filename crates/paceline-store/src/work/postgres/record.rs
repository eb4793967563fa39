//! Recording in batches: new items, outcomes of claimed ones, and changes by a person.

use crate::state::State;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use paceline_core::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::connection::Tx;
use super::scopes;
use crate::query::millis;
use crate::work::item::{
    AGAIN, Added, Amend, ClaimOutcome, EVENTS, Filter, LEFT, NewItem, PERSON, Pruned, PrunedKeys, RecordStatus,
    Transition,
};

/// The guard stands in the statement: the fence is that of the claim, or nothing is recorded. `kind` 1 is an item that goes
/// back as it was found. Where its end is not known the last try stays. What becomes of its time is `time`, an
/// [`ItemTime`](crate::work::ItemTime): 1 goes on, 0 does if something was sent since its bounds began.
pub(super) const RECORD: &str = "
    UPDATE item SET state = of.state, worker = NULL, fence = item.fence + 1,
        sent = CASE WHEN of.kind <> 1 THEN 0 WHEN item.sent = 1 THEN 2 ELSE item.sent END,
        not_before_ms = CASE WHEN of.kind = 1 THEN item.not_before_ms ELSE of.not_before_ms END,
        delay_ms = CASE WHEN of.kind = 1 THEN item.delay_ms ELSE of.delay_ms END,
        attempts = attempts + of.attempt, deferrals = deferrals + of.deferral, abandoned = item.abandoned + of.given_up,
        tests = item.tests + of.tests, in_doubt = coalesce(of.in_doubt, item.in_doubt OR item.sent = 1 AND of.kind = 1),
        ended_ms = CASE WHEN of.state IN (2, 3, 4, 5, 7) THEN $1::bigint END,
        reason = CASE WHEN of.kind = 1 THEN item.reason ELSE of.reason END,
        last_class = coalesce(of.class, last_class),
        last_status = CASE WHEN of.class IS NULL THEN last_status ELSE of.status END,
        last_code = CASE WHEN of.class IS NULL THEN last_code ELSE of.code END,
        last_words = CASE WHEN of.class IS NULL THEN last_words ELSE of.words END,
        first_ms = CASE WHEN of.time = 1 OR of.time = 0 AND attempts + deferrals + of.attempt + of.deferral + of.given_up
            > forgiven_attempts + forgiven_deferrals THEN first_ms END
    FROM unnest($2::bigint[], $3::bigint[], $4::smallint[], $5::smallint[], $6::bigint[], $7::bigint[], $8::bigint[],
        $9::bigint[], $10::bigint[], $11::text[], $12::bigint[], $13::text[], $14::text[], $15::text[], $16::smallint[], $17::bigint[],
        $18::boolean[])
        AS of(id, fence, state, kind, not_before_ms, delay_ms, attempt, deferral, given_up, class, status, code, words,
              reason, time, tests, in_doubt)
    WHERE item.id = of.id AND item.fence = of.fence
    RETURNING item.id, of.fence";

/// Outcomes that an earlier try of this batch may have recorded: ended just so, one hand further.
const RECORDED_BEFORE: &str = "
    SELECT item.id, of.fence FROM unnest($1::bigint[], $2::bigint[], $3::smallint[]) AS of(id, fence, state)
    JOIN item ON item.id = of.id AND item.fence = of.fence + 1 AND item.state = of.state
    WHERE of.state IN (2, 3, 4, 7)";

const EVENT: &str = "
    INSERT INTO event (item, n, decided_ms, send, class, status, code, words, action, reason, judge, not_before_ms)
    SELECT of.id, coalesce((SELECT max(n) FROM event WHERE event.item = of.id), 0) + 1, $1,
        item.attempts + item.deferrals + item.abandoned, of.class, of.status, of.code, of.words, of.action, of.reason,
        of.judge, of.not_before_ms
    FROM unnest($2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::bigint[]) AS of(id, class, status, code, words, action, reason, judge, not_before_ms)
    JOIN item ON item.id = of.id";

const FORGET_EVENTS: &str = "
    DELETE FROM event USING unnest($1::bigint[]) AS of(id)
    WHERE event.item = of.id AND event.n <= (SELECT max(n) FROM event AS other WHERE other.item = of.id) - $2";

/// Adds items, unless there are such of their keys.
pub(super) async fn insert(tx: &Tx<'_>, items: &[NewItem], now: Timestamp) -> Result<Vec<Added>, Error> {
    let keys: Vec<&str> = items.iter().map(|item| item.key.as_str()).collect();
    let rows = tx
        .query(
            "SELECT key, state FROM item WHERE key = ANY ($1)
         UNION ALL SELECT key, state FROM pruned WHERE key = ANY ($1)",
            &[&keys],
        )
        .await?;
    let mut known: HashMap<String, State> = HashMap::new();
    for row in rows {
        known.insert(row.get(0), State::from_code(row.get::<_, i16>(1).into()).unwrap_or(State::Waiting));
    }
    let differing = differing(tx, items.iter().filter(|item| known.contains_key(&item.key))).await?;
    let mut new: HashMap<&str, &NewItem> = HashMap::new();
    let mut in_order: Vec<&NewItem> = Vec::new();
    let mut added = Vec::with_capacity(items.len());
    for item in items {
        let as_added = (item.key.as_str(), item.payload.as_str());
        added.push(match (known.get(&item.key), new.get(item.key.as_str()).copied()) {
            (Some(state), _) => Added::known(*state, !differing.contains(&as_added)),
            (None, Some(first)) => Added::known(State::Waiting, first.payload == item.payload),
            (None, None) => {
                new.insert(&item.key, item);
                in_order.push(item);
                Added::New
            }
        });
    }
    if !in_order.is_empty() {
        insert_new(tx, &in_order, now).await?;
    }
    Ok(added)
}

/// Those of these items, by key and payload, whose keys are there with other payloads.
async fn differing<'a>(
    tx: &Tx<'_>,
    items: impl Iterator<Item = &'a NewItem>,
) -> Result<HashSet<(&'a str, &'a str)>, Error> {
    let items: Vec<_> = items.map(|item| (item.key.as_str(), item.payload.as_str())).collect();
    if items.is_empty() {
        return Ok(HashSet::new());
    }
    let (keys, bodies): (Vec<&str>, Vec<&str>) = items.iter().copied().unzip();
    let sql = "SELECT of.n FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS of(key, body, n)
         JOIN item ON item.key = of.key JOIN payload ON payload.item = item.id WHERE payload.body <> of.body";
    let rows = tx.query(sql, &[&keys, &bodies]).await?;
    let place = |row: &Row| usize::try_from(row.get::<_, i64>(0)).ok()?.checked_sub(1);
    Ok(rows.iter().filter_map(|row| items.get(place(row)?).copied()).collect())
}

async fn insert_new(tx: &Tx<'_>, new: &[&NewItem], now: Timestamp) -> Result<(), Error> {
    let groups: Vec<&str> = new.iter().map(|item| item.group.as_str()).collect();
    let priorities: Vec<i16> = new.iter().map(|item| item.priority).collect();
    tx.execute(
        "INSERT INTO lane (grp, priority)
         SELECT grp, priority FROM unnest($1::text[], $2::smallint[]) WITH ORDINALITY AS of(grp, priority, n)
         WHERE NOT EXISTS (SELECT 1 FROM lane WHERE lane.grp = of.grp AND lane.priority = of.priority)
         GROUP BY grp, priority ORDER BY min(n)
         ON CONFLICT DO NOTHING",
        &[&groups, &priorities],
    )
    .await?;
    let waits = |at: Timestamp| (at.as_millis(), millis(at.saturating_since(now)));
    let (due, delay): (Vec<i64>, Vec<i64>) = new.iter().map(|item| item.waits_until(now).map_or((0, 0), waits)).unzip();
    let keys: Vec<&str> = new.iter().map(|item| item.key.as_str()).collect();
    let deadlines: Vec<Option<i64>> = new.iter().map(|item| item.deadline.map(millis)).collect();
    let created: Vec<i64> = new.iter().map(|item| item.created.unwrap_or(now).as_millis()).collect();
    let sent_for: Vec<Option<i64>> = new.iter().map(|item| item.created.map(|_| now.as_millis())).collect();
    let sent: Vec<i16> = new.iter().map(|item| 2 * i16::from(item.may_be_done)).collect();
    // Another process may have added the same key just now: then its item stays, and its payload.
    let rows = tx
        .query(
            "INSERT INTO item (key, lane, not_before_ms, delay_ms, deadline_ms, created_ms, sent, in_doubt, sent_for_ms)
             SELECT of.key, lane.id, of.not_before_ms, of.delay_ms, of.deadline_ms, of.created_ms, of.sent, of.sent > 0, of.sent_for_ms
             FROM unnest($1::text[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::smallint[],
                 $9::bigint[])
                 WITH ORDINALITY
                 AS of(key, grp, priority, not_before_ms, delay_ms, deadline_ms, created_ms, sent, sent_for_ms, n)
             JOIN lane ON lane.grp = of.grp AND lane.priority = of.priority ORDER BY of.n
             ON CONFLICT (key) DO NOTHING RETURNING id, key",
            &[&keys, &groups, &priorities, &due, &delay, &deadlines, &created, &sent, &sent_for],
        )
        .await?;
    let payloads: HashMap<&str, &str> = new.iter().map(|item| (item.key.as_str(), item.payload.as_str())).collect();
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let bodies: Vec<Option<&str>> = rows.iter().map(|row| payloads.get(row.get::<_, &str>(1)).copied()).collect();
    let sql = "INSERT INTO payload (item, body) SELECT * FROM unnest($1::bigint[], $2::text[])";
    tx.execute(sql, &[&ids, &bodies]).await?;
    Ok(())
}

/// The columns of a batch of outcomes.
#[derive(Default)]
struct Columns<'a> {
    id: Vec<i64>,
    fence: Vec<i64>,
    state: Vec<i16>,
    kind: Vec<i16>,
    not_before: Vec<i64>,
    delay: Vec<i64>,
    attempt: Vec<i64>,
    deferral: Vec<i64>,
    given_up: Vec<i64>,
    class: Vec<Option<&'a str>>,
    status: Vec<Option<i64>>,
    code: Vec<Option<&'a str>>,
    words: Vec<Option<String>>,
    reason: Vec<Option<&'a str>>,
    time: Vec<i16>,
    tests: Vec<i64>,
    in_doubt: Vec<Option<bool>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, outcome: &'a ClaimOutcome, now: Timestamp) {
        let (not_before, delay) = due(outcome, now);
        let (attempts, deferrals, abandoned) = outcome.sends();
        let last = outcome.last();
        self.id.push(outcome.id as i64);
        self.fence.push(outcome.fence);
        self.state.push(outcome.next.state() as i16);
        self.kind.push(i16::from(outcome.next == Transition::Release));
        self.not_before.push(not_before);
        self.delay.push(delay);
        self.attempt.push(attempts.into());
        self.deferral.push(deferrals.into());
        self.given_up.push(abandoned.into());
        self.class.push(last.as_ref().map(|last| last.class.as_str()));
        self.status.push(last.as_ref().and_then(|last| last.status).map(i64::from));
        self.code.push(last.as_ref().and_then(|last| last.code));
        self.words.push(last.map(|last| last.message));
        self.reason.push(outcome.reason());
        self.time.push(outcome.time.code());
        self.tests.push(outcome.tests().into());
        self.in_doubt.push(outcome.in_doubt());
    }
}

fn due(outcome: &ClaimOutcome, now: Timestamp) -> (i64, i64) {
    match outcome.next {
        Transition::Retry(delay) => ((now + delay).as_millis(), millis(delay)),
        _ => (0, 0),
    }
}

/// Records outcomes, those of items that are still the ones of their claims. Of several with one fence the first counts.
pub(super) async fn record(
    tx: &Tx<'_>,
    outcomes: &[ClaimOutcome],
    retried: bool,
    now: Timestamp,
) -> Result<Vec<RecordStatus>, Error> {
    let mut first: HashMap<(u64, i64), usize> = HashMap::new();
    let mut columns = Columns::default();
    for (place, outcome) in outcomes.iter().enumerate() {
        if let Entry::Vacant(entry) = first.entry((outcome.id, outcome.fence)) {
            entry.insert(place);
            columns.push(outcome, now);
        }
    }
    let Columns { id, fence, state, kind, not_before, delay, attempt, deferral, given_up, .. } = &columns;
    let Columns { class, status, code, words, reason, time, tests, in_doubt, .. } = &columns;
    let now_ms = now.as_millis();
    let rows = tx
        .query(
            RECORD,
            &[
                &now_ms, id, fence, state, kind, not_before, delay, attempt, deferral, given_up, class, status, code,
                words, reason, time, tests, in_doubt,
            ],
        )
        .await?;
    let mut kept = vec![RecordStatus::Lost; outcomes.len()];
    let mut recorded = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(place) = first.get(&(row.get::<_, i64>(0).unsigned_abs(), row.get(1))) {
            kept[*place] = RecordStatus::Recorded;
            recorded.push(&outcomes[*place]);
        }
    }
    if retried {
        for row in tx.query(RECORDED_BEFORE, &[id, fence, state]).await? {
            if let Some(place) = first.get(&(row.get::<_, i64>(0).unsigned_abs(), row.get(1))) {
                kept[*place] = RecordStatus::Recorded;
            }
        }
    }
    events(tx, recorded, now).await?;
    let lost = first.values().filter(|place| kept[**place] == RecordStatus::Lost).map(|place| &outcomes[*place]);
    let mut columns = Columns::default();
    let mut may_be_done = Vec::new();
    lost.for_each(|outcome| {
        columns.push(outcome, now);
        may_be_done.push(outcome.may_be_done());
    });
    let Columns { id, fence, attempt, deferral, given_up, class, status, code, words, tests, .. } = &columns;
    if !id.is_empty() {
        tx.execute(
            THOUGH_CANCELLED,
            &[id, fence, &may_be_done, attempt, deferral, given_up, class, status, code, words, tests],
        )
        .await?;
    }
    Ok(kept)
}

/// The tries of items that were cancelled meanwhile, which still have their workers: they are counted, once. After a success a
/// retry would do them once more.
const THOUGH_CANCELLED: &str = "
    UPDATE item SET sent = CASE WHEN of.may THEN 2 WHEN item.sent = 3 THEN 0 ELSE item.sent END, in_doubt = item.in_doubt OR of.may,
        worker = NULL,
        attempts = attempts + of.attempt, deferrals = deferrals + of.deferral, abandoned = item.abandoned + of.given_up,
        tests = item.tests + of.tests,
        last_class = coalesce(of.class, last_class),
        last_status = CASE WHEN of.class IS NULL THEN last_status ELSE of.status END,
        last_code = CASE WHEN of.class IS NULL THEN last_code ELSE of.code END,
        last_words = CASE WHEN of.class IS NULL THEN last_words ELSE of.words END
    FROM unnest($1::bigint[], $2::bigint[], $3::boolean[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::bigint[],
        $9::text[], $10::text[], $11::bigint[])
        AS of(id, fence, may, attempt, deferral, given_up, class, status, code, words, tests)
    WHERE item.id = of.id AND item.fence = of.fence + 1 AND item.state = 5 AND item.worker IS NOT NULL";

async fn events(tx: &Tx<'_>, recorded: Vec<&ClaimOutcome>, now: Timestamp) -> Result<(), Error> {
    let mut columns = Columns::default();
    let (mut action, mut judge, mut not_before) = (Vec::new(), Vec::new(), Vec::new());
    for outcome in recorded {
        let Some(decided) = &outcome.decided else { continue };
        columns.push(outcome, now);
        action.push(decided.action);
        judge.push(decided.by.as_str());
        not_before.push(matches!(outcome.next, Transition::Retry(_)).then(|| due(outcome, now).0));
    }
    if action.is_empty() {
        return Ok(());
    }
    let Columns { id, class, status, code, words, reason, .. } = &columns;
    let now_ms = now.as_millis();
    tx.execute(EVENT, &[&now_ms, id, class, status, code, words, &action, reason, &judge, &not_before]).await?;
    tx.execute(FORGET_EVENTS, &[id, &(EVENTS as i64)]).await?;
    Ok(())
}

/// The condition of a filter: states `$1`, group `$2` and keys `$3`, each null where it is not asked for.
macro_rules! filtered {
    () => {
        "($1::smallint[] IS NULL OR item.state = ANY ($1)) \
         AND ($2::text IS NULL OR item.lane IN (SELECT id FROM lane WHERE grp = $2)) \
         AND ($3::text[] IS NULL OR item.key = ANY ($3))"
    };
}
pub(super) use filtered;

/// What becomes of an item that was left to a run and waits in it, before all others. Whose time goes on has it still.
macro_rules! begins {
    () => {
        "state = 0, in_doubt = in_doubt OR sent > 0, sent = 0, fence = fence + 1, not_before_ms = 1, delay_ms = 0, forgiven_attempts = attempts, \
         forgiven_deferrals = deferrals, crashes = 0, ended_ms = NULL, reason = NULL"
    };
}
pub(super) use begins;

const TAKE_UP: &str = concat!("UPDATE item SET ", begins!(), " WHERE state = ANY ($4) AND ", filtered!());

const DUE: &str = concat!(
    "UPDATE item SET fence = fence + 1, not_before_ms = 0, delay_ms = 0, reason = NULL WHERE state = ANY ($4) AND ",
    filtered!()
);

/// Of an item that was cancelled during a try no outcome may have come yet: that was cut off.
const RETRY: &str = concat!(
    "UPDATE item SET state = 0, in_doubt = in_doubt OR sent > 0, sent = 0, abandoned = abandoned + CASE WHEN worker IS NULL THEN 0 ELSE 1 END, \
     worker = NULL, fence = fence + 1, not_before_ms = 0, delay_ms = 0, forgiven_attempts = attempts, forgiven_deferrals = deferrals, crashes = 0, first_ms = NULL, ended_ms = NULL, \
     reason = NULL, sent_for_ms = $5 \
     WHERE state = ANY ($4) AND ",
    filtered!()
);

/// Likewise, and all of their calls are of the past, whatever became of them.
const SEND_AGAIN: &str = concat!(
    "UPDATE item SET state = 0, in_doubt = in_doubt OR sent > 0, sent = 0, worker = NULL, fence = fence + 1, not_before_ms = 0, delay_ms = 0, abandoned = 0, \
     attempts = attempts + abandoned + CASE WHEN worker IS NULL THEN 0 ELSE 1 END, \
     forgiven_attempts = attempts + abandoned + CASE WHEN worker IS NULL THEN 0 ELSE 1 END, \
     forgiven_deferrals = deferrals, crashes = 0, first_ms = NULL, ended_ms = NULL, reason = NULL, sent_for_ms = $5, \
     created_ms = CASE WHEN $6 THEN $5 ELSE created_ms END, \
     delivered_ms = CASE WHEN state = 2 THEN ended_ms ELSE delivered_ms END \
     WHERE state = ANY ($4) AND ",
    filtered!()
);

/// That items have succeeded is not forgotten, nor what their servers said then; of the others, when they were added, by which
/// their calls were known.
const KEEP_WHAT_WAS: &str = concat!(
    "INSERT INTO event (item, n, decided_ms, send, class, status, words, action, judge, created_ms) \
     SELECT item.id, coalesce((SELECT max(n) FROM event WHERE event.item = item.id), 0) + 1, coalesce(ended_ms, $4), \
         attempts + deferrals + abandoned, CASE WHEN state = 2 THEN 'success' ELSE 'abandoned' END, \
         CASE WHEN state = 2 AND last_class = 'success' THEN last_status END, \
         CASE WHEN state = 2 AND last_class = 'success' THEN coalesce(last_words, '') ELSE '' END, $5, $6, created_ms \
     FROM item WHERE (state = 2 OR ($7 AND state = ANY ($8) AND last_class IS NOT NULL)) AND ",
    filtered!(),
    " RETURNING item"
);

/// The stopped groups of the items that will be tried again; the account is the group of all.
const STOPPED: &str = concat!(
    "SELECT name FROM scope WHERE until_ms IS NULL AND (name = '*' OR name IN (SELECT grp FROM lane \
     WHERE id IN (SELECT lane FROM item WHERE state = ANY ($4) AND ",
    filtered!(),
    ")))"
);

const CANCEL: &str = concat!(
    "UPDATE item SET state = 5, sent = CASE WHEN state = 1 AND sent = 0 THEN 3 ELSE sent END, worker = CASE WHEN state = 1 THEN worker END, fence = fence + 1, not_before_ms = 0, \
     delay_ms = 0, ended_ms = $5, reason = 'cancelled' WHERE state = ANY ($4) AND ",
    filtered!()
);

const LEAVE_TO_NEXT_RUN: &str = concat!(
    "UPDATE item SET state = 6, in_doubt = in_doubt OR sent > 0, sent = 0, worker = NULL, fence = fence + 1, not_before_ms = 0, delay_ms = 0, \
     ended_ms = NULL, reason = $5 WHERE state = ANY ($4) AND ",
    filtered!()
);

/// The values of [`filtered`].
pub(super) fn values(filter: &Filter) -> (Option<Vec<i16>>, Option<String>, Option<Vec<String>>) {
    let states = (!filter.states.is_empty()).then(|| filter.states.iter().map(|state| *state as i16).collect());
    (states, filter.group.clone(), (!filter.keys.is_empty()).then(|| filter.keys.clone()))
}

/// What becomes of its call is to be told.
macro_rules! under_way {
    () => {
        "(state = 5 AND worker IS NOT NULL AND EXISTS (SELECT 1 FROM worker WHERE worker.id = item.worker AND lease_until_ms > now_ms()))"
    };
}

/// The items that go, so many at once.
const PRUNE: &str = concat!(
    "SELECT id FROM item WHERE state IN (2, 3, 4, 5, 7) AND ended_ms <= $4 AND ",
    filtered!(),
    " AND NOT ",
    under_way!(),
    " ORDER BY id LIMIT $5 FOR UPDATE SKIP LOCKED"
);

/// Those that stay: they were cancelled during a call of a worker that is there.
const UNDER_WAY: &str =
    concat!("SELECT count(*) FROM item WHERE ended_ms <= $4 AND ", filtered!(), " AND ", under_way!());

/// Removes at most `limit` items that ended before that.
pub(super) async fn prune(
    tx: &Tx<'_>,
    filter: &Filter,
    before_ms: i64,
    pruned: PrunedKeys,
    limit: i64,
) -> Result<Pruned, Error> {
    let (states, group, keys) = values(filter);
    let rows = tx.query(PRUNE, &[&states, &group, &keys, &before_ms, &limit]).await?;
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    let under_way = tx.query(UNDER_WAY, &[&states, &group, &keys, &before_ms]).await?;
    let under_way = under_way.first().map_or(0, |row| row.get::<_, i64>(0).unsigned_abs());
    let mut removed = Pruned { items: ids.len() as u64, keys: 0, under_way };
    if pruned == PrunedKeys::Keep {
        let keep = "INSERT INTO pruned SELECT key, state, ended_ms FROM item WHERE id = ANY ($1)
             ON CONFLICT (key) DO UPDATE SET state = excluded.state, ended_ms = excluded.ended_ms";
        tx.execute(keep, &[&ids]).await?;
    } else if pruned.forget_kept(filter) {
        let forget = "DELETE FROM pruned WHERE ended_ms <= $1 AND ($2::smallint[] IS NULL OR state = ANY ($2))";
        removed.keys = tx.execute(forget, &[&before_ms, &states]).await?;
    }
    for sql in [
        "DELETE FROM event WHERE item = ANY ($1)",
        "DELETE FROM payload WHERE item = ANY ($1)",
        "DELETE FROM item WHERE id = ANY ($1)",
    ] {
        tx.execute(sql, &[&ids]).await?;
    }
    Ok(removed)
}

/// Applies a person's change. A person who lets items wait again has resolved the stops of their groups.
pub(super) async fn amend(tx: &Tx<'_>, filter: &Filter, amend: Amend, now: Timestamp) -> Result<u64, Error> {
    let (states, group, keys) = values(filter);
    let from: Vec<i16> = amend.states().iter().map(|state| *state as i16).collect();
    match amend {
        Amend::Retry | Amend::Again { .. } => {
            let stopped = tx.query(STOPPED, &[&states, &group, &keys, &from]).await?;
            let at = now.as_millis();
            let changed = match amend {
                Amend::Again { as_new } => {
                    let of = [&states as &(dyn ToSql + Sync), &group, &keys, &at, &AGAIN, &PERSON, &as_new, &from];
                    let kept = tx.query(KEEP_WHAT_WAS, &of).await?;
                    let kept: Vec<i64> = kept.iter().map(|row| row.get(0)).collect();
                    tx.execute(FORGET_EVENTS, &[&kept, &(EVENTS as i64)]).await?;
                    tx.execute(SEND_AGAIN, &[&states, &group, &keys, &from, &at, &as_new]).await?
                }
                _ => tx.execute(RETRY, &[&states, &group, &keys, &from, &at]).await?,
            };
            for row in stopped.iter().filter(|_| changed > 0) {
                scopes::open(tx, row.get(0), now).await?;
            }
            Ok(changed)
        }
        Amend::Cancel => tx.execute(CANCEL, &[&states, &group, &keys, &from, &now.as_millis()]).await,
        Amend::LeaveToNextRun => tx.execute(LEAVE_TO_NEXT_RUN, &[&states, &group, &keys, &from, &LEFT]).await,
        Amend::TakeUp => tx.execute(TAKE_UP, &[&states, &group, &keys, &from]).await,
        Amend::Due => tx.execute(DUE, &[&states, &group, &keys, &from]).await,
    }
}

/// Notes that a call of a claim is under way; returns whether the claim still stands.
pub(super) async fn note_sent(tx: &Tx<'_>, item: i64, fence: i64) -> Result<bool, Error> {
    let sql = "UPDATE item SET sent = 1 WHERE id = $1 AND fence = $2 AND state = 1";
    Ok(tx.execute(sql, &[&item, &fence]).await? > 0)
}
