//! Workers: when one counts as lost, and what becomes of its items.

use std::time::Duration;

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;
use super::wake;
use crate::query::millis;
use crate::work::item::WorkerId;

/// A new worker, and how many items of lost ones wait again.
pub(super) async fn join(
    tx: &Tx<'_>,
    (name, channel): &(Box<str>, String),
    lease: Duration,
    now: Timestamp,
) -> Result<(WorkerId, u64), Error> {
    let taken_over = reclaim(tx, channel, now).await?;
    let (lease_ms, until) = (millis(lease), (now + lease).as_millis());
    let sql = "INSERT INTO worker (name, lease_ms, lease_until_ms) VALUES ($1, $2, $3) RETURNING id";
    let rows = tx.query(sql, &[&&**name, &lease_ms, &until]).await?;
    Ok((WorkerId(rows.first().map_or(0, |row| row.get(0))), taken_over))
}

/// The items of workers wait again, as they did before.
pub(super) const PUT_BACK: &str = "UPDATE item SET state = 0, worker = NULL, fence = fence + 1, crashes = crashes + $2,
         in_doubt = in_doubt OR sent = 1, abandoned = abandoned + CASE WHEN sent = 1 THEN 1 ELSE 0 END, sent = CASE WHEN sent = 1 THEN 2 ELSE sent END
     WHERE state = 1 AND worker = ANY ($1)";

/// Puts back the items of workers whose lease ran out, and returns how many those are. A worker that is claiming just now is
/// passed over: it lives.
pub(super) async fn reclaim(tx: &Tx<'_>, channel: &str, now: Timestamp) -> Result<u64, Error> {
    let sql = "DELETE FROM worker WHERE id = ANY (ARRAY(
         SELECT id FROM worker WHERE lease_until_ms <= $1 FOR UPDATE SKIP LOCKED)) RETURNING id";
    let rows = tx.query(sql, &[&now.as_millis()]).await?;
    let dead: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    if dead.is_empty() {
        return Ok(0);
    }
    wake(tx, channel).await?;
    tx.execute(PUT_BACK, &[&dead, &1_i64]).await
}
