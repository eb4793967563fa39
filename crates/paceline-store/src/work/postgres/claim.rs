//! Handing out what is due. Workers that claim at the same time pass over each other's rows.

use std::collections::HashMap;
use std::time::Duration;

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;
use super::rows;
use super::scopes;
use crate::work::columns::{after_item, item_columns};
use crate::work::fair_share::Lane;
use crate::work::item::{Claim, ClaimRequest, Claimed, HISTORY, HistoryEntry, WorkItem, WorkerId};
use crate::work::lanes::{Asked, EARLIEST, Given, Lanes, Taking};

/// Takes the first `$3` items of lane `$1` that are due at `$2` for worker `$4`: tries whose time has come, then new ones, of
/// which there are `$7` at least. Places that neither need are for the others.
/// The row without an item says the earliest time for which one of the others waits: asking for it by itself would cost
/// as much as taking one.
pub(super) const TAKE: &str = "
    WITH tries AS MATERIALIZED (
        SELECT id, not_before_ms, crashes FROM item
        WHERE state = 0 AND lane = $1 AND not_before_ms > 0 AND not_before_ms <= $2
        ORDER BY not_before_ms, crashes, id LIMIT $3 FOR UPDATE SKIP LOCKED),
    new AS MATERIALIZED (
        SELECT id FROM item WHERE state = 0 AND lane = $1 AND not_before_ms = 0
        ORDER BY not_before_ms, crashes, id LIMIT greatest($7, $3 - (SELECT count(*) FROM tries)) FOR UPDATE SKIP LOCKED),
    first AS MATERIALIZED (
        (SELECT id FROM tries ORDER BY not_before_ms, crashes, id LIMIT $3 - (SELECT count(*) FROM new))
        UNION ALL SELECT id FROM new),
    taken AS (
        UPDATE item SET state = 1, worker = $4, batch = $5, fence = fence + 1, first_ms = coalesce(first_ms, $6)
        WHERE id = ANY (ARRAY(SELECT id FROM first))
        RETURNING id, not_before_ms, crashes)
    SELECT id, not_before_ms, crashes FROM taken
    UNION ALL SELECT NULL, (
        SELECT not_before_ms FROM item WHERE state = 0 AND lane = $1
            AND id <> ALL (ARRAY(SELECT id FROM first))
        ORDER BY not_before_ms, crashes, id LIMIT 1), NULL";

/// The lanes by falling priority, the earliest time for which an item of each waits,
/// and whether workers other than `$1` have items.
pub(super) const LANES: &str = "
    SELECT lane.id, lane.grp, lane.priority, first.not_before_ms, (SELECT EXISTS (
        SELECT 1 FROM worker WHERE id <> $1 AND EXISTS (SELECT 1 FROM item WHERE state = 1 AND item.worker = worker.id)))
    FROM lane LEFT JOIN LATERAL (
        SELECT not_before_ms FROM item WHERE item.state = 0 AND item.lane = lane.id
        ORDER BY not_before_ms, crashes, id LIMIT 1) AS first ON true
    ORDER BY lane.priority DESC, lane.id";

/// What is handed out.
const READ: &str = concat!(
    "SELECT ",
    item_columns!(),
    ", payload.body, item.fence FROM item JOIN lane ON lane.id = item.lane JOIN payload ON payload.item = item.id \
     WHERE item.id = ANY ($1)"
);

/// How long items waited since the last decision about each.
const WAITED: &str = "
    UPDATE event SET waited_ms = greatest(0, of.until - decided_ms)
    FROM unnest($1::bigint[], $2::bigint[]) AS of(item, until)
    WHERE event.item = of.item AND event.n = (SELECT max(n) FROM event AS other WHERE other.item = of.item)
      AND not_before_ms IS NOT NULL AND waited_ms IS NULL";

/// Whether other workers have items.
const OTHERS: &str = "SELECT EXISTS (SELECT 1 FROM worker WHERE id <> $1
     AND EXISTS (SELECT 1 FROM item WHERE state = 1 AND item.worker = worker.id))";

/// Items that an earlier try of this very claim took, whose answer was lost with its connection.
const TAKEN_BEFORE: &str = "SELECT id, not_before_ms, crashes FROM item WHERE state = 1 AND worker = $1 AND batch = $2";

/// The lanes as this process knows them: a claim reads them all only where it must.
///
/// They may be trusted as long as no items of theirs were made to wait, which every worker hears of, and as long as they
/// fill a claim at once: then at worst lanes have less than they seem to, since other workers take from them too.
#[derive(Debug, Default)]
pub(super) struct KnownLanes {
    lanes: Lanes,
    /// The claim that left them so, and how many changes had been heard of by then.
    left_by: Option<(i64, u64)>,
}

impl KnownLanes {
    /// The lanes, and whether all of them have been read for this claim. `committed` is the latest claim that was.
    async fn begin(&mut self, tx: &Tx<'_>, worker: WorkerId, committed: i64, retried: bool) -> Result<bool, Error> {
        let left_by = self.left_by.take();
        let read = retried || left_by != Some((committed, tx.notified()));
        if read {
            self.read(tx, worker).await?;
        }
        Ok(read)
    }

    /// Reads all lanes. Returns whether other workers have items at that moment.
    async fn read(&mut self, tx: &Tx<'_>, worker: WorkerId) -> Result<bool, Error> {
        self.lanes.clear();
        let mut others = false;
        for row in tx.query(LANES, &[&worker.0]).await? {
            others = row.get(4);
            let lane = Lane { id: row.get(0), group: row.get::<_, &str>(1).into(), priority: row.get(2) };
            self.lanes.add(lane, row.get::<_, Option<i64>>(3).map(Timestamp::from_millis));
        }
        Ok(others)
    }
}

/// Which claim of this process this is.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) number: i64,
    /// An earlier try of it may have been committed.
    pub(super) retried: bool,
    /// The number of the latest claim that was committed.
    pub(super) committed: i64,
}

/// Claims for a worker.
pub(super) async fn claim(
    tx: &Tx<'_>,
    worker: WorkerId,
    request: ClaimRequest,
    batch: Batch,
    known: &mut KnownLanes,
    now: Timestamp,
) -> Result<Claim, Error> {
    // The row is locked, so that no other worker takes this one for dead before its items are its own.
    if tx.query("SELECT 1 FROM worker WHERE id = $1 FOR SHARE", &[&worker.0]).await?.is_empty() {
        return Ok(Claim { now, lost: true, ..Claim::default() });
    }
    let closed = scopes::list(tx, now).await?;
    let opens = |group: &str| scopes::opens(&closed, group).map(|at| at.unwrap_or(EARLIEST));
    // Read after the first answer of this transaction: notifications of earlier commits have arrived by now.
    let notified = tx.notified();
    let mut read = known.begin(tx, worker, batch.committed, batch.retried).await?;
    let mut ids = Vec::new();
    if batch.retried {
        let rows = tx.query(TAKEN_BEFORE, &[&worker.0, &batch.number]).await?;
        ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
    }
    if ids.is_empty() {
        ids = take(tx, worker, request, (batch.number, now), known, &mut read, opens).await?;
    }
    let items = hand_out(tx, ids, now).await?;
    // Each query sees what was committed before it. Where the run may end, what waits and what others
    // have must be of one moment: an item that comes back to the store, or leaves it, between two
    // queries would be in neither. A worker with items asks again.
    let others = match items.is_empty() {
        true => known.read(tx, worker).await?,
        false => tx.query(OTHERS, &[&worker.0]).await?.first().is_some_and(|row| row.get(0)),
    };
    let next_due = known.lanes.next_due(opens).map(|due| due.saturating_since(now));
    known.left_by = Some((batch.number, notified));
    Ok(Claim { items, next_due, others, now, lost: false })
}

/// Takes what is due. Where what is known of the lanes does not fill the claim, or says that nothing more is due, all of
/// them are read: a claim never ends with less than there is, nor with a wait that is too long.
async fn take(
    tx: &Tx<'_>,
    worker: WorkerId,
    request: ClaimRequest,
    (batch, now): (i64, Timestamp),
    known: &mut KnownLanes,
    read: &mut bool,
    opens: impl Fn(&str) -> Option<Timestamp>,
) -> Result<Vec<i64>, Error> {
    let mut ids = Vec::new();
    loop {
        let KnownLanes { lanes, .. } = known;
        let mut taking = Taking::new(now, now + request.ahead, request.limit - ids.len());
        let mut in_vain = false;
        while !in_vain && let Some(asked) = lanes.ask(&mut taking, &opens) {
            let (taken, given) = take_from(tx, &asked, (worker, batch, now)).await?;
            lanes.took(&mut taking, &asked, given);
            in_vain = taken.is_empty() && !*read;
            ids.extend(taken);
        }
        let is_sure = ids.len() >= request.limit && lanes.next_due(&opens).is_some_and(|due| due <= now);
        if *read || is_sure {
            return Ok(ids);
        }
        known.read(tx, worker).await?;
        *read = true;
    }
}

/// Takes the first items of a lane that are due, in their order.
async fn take_from(
    tx: &Tx<'_>,
    Asked { lane, until, limit, new }: &Asked,
    (worker, batch, now): (WorkerId, i64, Timestamp),
) -> Result<(Vec<i64>, Given), Error> {
    let places = [limit, new].map(|places| i64::try_from(*places).unwrap_or(i64::MAX));
    let (until, now) = (until.as_millis(), now.as_millis());
    let rows = tx.query(TAKE, &[&lane.id, &until, &places[0], &worker.0, &batch, &now, &places[1]]).await?;
    let (mut taken, mut first) = (Vec::new(), None);
    for row in &rows {
        let not_before: Option<i64> = row.get(1);
        match (row.get::<_, Option<i64>>(0), not_before) {
            (Some(id), Some(not_before)) => taken.push((not_before == 0, not_before, row.get::<_, i64>(2), id)),
            (_, left) => first = left.map(Timestamp::from_millis),
        }
    }
    taken.sort_unstable();
    let new = taken.iter().filter(|place| place.0).count();
    let given = Given { taken: taken.len(), new, first };
    Ok((taken.into_iter().map(|place| place.3).collect(), given))
}

async fn hand_out(tx: &Tx<'_>, ids: Vec<i64>, now: Timestamp) -> Result<Vec<Claimed>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut read: HashMap<u64, (WorkItem, String, i64)> = HashMap::new();
    for row in tx.query(READ, &[&ids]).await? {
        let item = rows::item(&row);
        read.insert(item.id, (item, row.get(after_item(0)), row.get(after_item(1))));
    }
    let due_in = |item: &WorkItem| item.not_before.map_or(Duration::ZERO, |at| at.saturating_since(now));
    let (mut failed, mut until) = (Vec::new(), Vec::new());
    for id in &ids {
        if let Some((item, ..)) = read.get(&id.unsigned_abs()).filter(|(item, ..)| item.has_history()) {
            failed.push(*id);
            until.push((now + due_in(item)).as_millis());
        }
    }
    let mut history: HashMap<u64, Vec<HistoryEntry>> = HashMap::new();
    if !failed.is_empty() {
        tx.execute(WAITED, &[&failed, &until]).await?;
        for row in tx.query(rows::EVENTS, &[&failed, &(HISTORY as i64)]).await? {
            let (item, event) = rows::event(&row);
            history.entry(item).or_default().push(event);
        }
    }
    let claimed = ids.iter().filter_map(|id| {
        let (item, payload, fence) = read.remove(&id.unsigned_abs())?;
        let age = item.first.map_or(Duration::ZERO, |first| now.saturating_since(first));
        let history = history.remove(&item.id).unwrap_or_default();
        Some(Claimed { due_in: due_in(&item), item, payload, fence, at: now, age, history })
    });
    Ok(claimed.collect())
}
