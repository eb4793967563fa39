//! Who has which block, and for how long.

use std::collections::BTreeMap;

use tokio_postgres::Error;

use super::count;
use super::job::{Block, BlockClaim, Held, HostId};
use crate::work::postgres::connection::Tx;

pub(super) async fn register(tx: &Tx<'_>, job: i64, name: &str, lease_ms: i64) -> Result<Option<HostId>, Error> {
    end_leases(tx).await?;
    // The job's row is locked: it is removed before the worker comes, or not while that is there.
    let sql = "INSERT INTO worker (job, name, since_ms, lease_ms, lease_until_ms)
         SELECT id, $2, now_ms(), $3::bigint, now_ms() + $3::bigint FROM job WHERE id = $1 AND name IS NOT NULL FOR UPDATE RETURNING id";
    let rows = tx.query(sql, &[&job, &name, &lease_ms]).await?;
    Ok(rows.first().map(|row| HostId(row.get(0))))
}

pub(super) async fn heartbeat(tx: &Tx<'_>, worker: HostId) -> Result<Option<Vec<Held>>, Error> {
    let sql = "UPDATE worker SET lease_until_ms = now_ms() + lease_ms WHERE id = $1";
    let lives = tx.execute(sql, &[&worker.0]).await? > 0;
    end_leases(tx).await?;
    Ok(if lives { Some(held(tx, worker).await?) } else { None })
}

async fn held(tx: &Tx<'_>, worker: HostId) -> Result<Vec<Held>, Error> {
    let rows = tx.query("SELECT first, fence FROM block WHERE worker = $1 ORDER BY first", &[&worker.0]).await?;
    Ok(rows.iter().map(|row| Held { first: count(row, 0), fence: row.get(1) }).collect())
}

/// Frees the blocks of workers whose lease ran out. One that is renewing it just now is passed over: it lives. A lease that
/// begins in the future was given before the database's clock was set back, and begins now.
async fn end_leases(tx: &Tx<'_>) -> Result<(), Error> {
    let sql = "UPDATE worker SET lease_until_ms = now_ms() + lease_ms WHERE id = ANY (ARRAY(
         SELECT id FROM worker WHERE lease_until_ms - lease_ms > now_ms() + 1000 FOR UPDATE SKIP LOCKED))";
    tx.execute(sql, &[]).await?;
    let sql = "DELETE FROM worker WHERE id = ANY (ARRAY(
         SELECT id FROM worker WHERE lease_until_ms <= now_ms() FOR UPDATE SKIP LOCKED)) RETURNING id";
    let lost: Vec<i64> = tx.query(sql, &[]).await?.iter().map(|row| row.get(0)).collect();
    if !lost.is_empty() {
        let sql = "UPDATE block SET worker = NULL, lost = lost + 1 WHERE worker = ANY ($1)";
        tx.execute(sql, &[&lost]).await?;
    }
    Ok(())
}

/// The job of a worker that has its lease. Its row is locked, so that the lease does not end while blocks become the worker's:
/// no other worker could ever claim them.
async fn job_of(tx: &Tx<'_>, worker: HostId) -> Result<Option<i64>, Error> {
    let sql = "SELECT job FROM worker WHERE id = $1 AND lease_until_ms > now_ms() FOR SHARE";
    Ok(tx.query(sql, &[&worker.0]).await?.first().map(|row| row.get(0)))
}

/// `batch` numbers the claim: where the connection broke, what it took is the worker's already.
pub(super) async fn claim(
    tx: &Tx<'_>,
    worker: HostId,
    most: i64,
    batch: i64,
    retried: bool,
) -> Result<Option<BlockClaim>, Error> {
    let Some(job) = job_of(tx, worker).await? else { return Ok(None) };
    let taken = "SELECT count(*) FROM block WHERE worker = $1 AND batch = $2";
    if !retried || tx.query(taken, &[&worker.0, &batch]).await?.first().is_none_or(|row| count(row, 0) == 0) {
        let sql = "UPDATE block SET worker = $2, batch = $3, fence = fence + 1 WHERE job = $1 AND first = ANY (ARRAY(
             SELECT first FROM block WHERE job = $1 AND worker IS NULL AND ok + failed < lines
             ORDER BY first LIMIT $4 FOR UPDATE SKIP LOCKED))";
        tx.execute(sql, &[&job, &worker.0, &batch, &most]).await?;
    }
    let blocks = blocks(tx, worker, batch).await?;
    let ended = "SELECT complete AND NOT EXISTS (SELECT FROM block WHERE job = $1 AND ok + failed < lines)
         FROM job WHERE id = $1";
    let ended = tx.query(ended, &[&job]).await?.first().is_none_or(|row| row.get(0));
    Ok(Some(BlockClaim { blocks, ended }))
}

/// What a claim took, with the lines that have a result.
async fn blocks(tx: &Tx<'_>, worker: HostId, batch: i64) -> Result<Vec<Block>, Error> {
    let sql = "SELECT block.first, result.line FROM block JOIN result ON result.job = block.job
             AND result.line >= block.first AND result.line < block.first + block.lines
         WHERE worker = $1 AND batch = $2 AND block.ok + block.failed > 0 ORDER BY result.line";
    let mut have: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for row in tx.query(sql, &[&worker.0, &batch]).await? {
        have.entry(count(&row, 0)).or_default().push(count(&row, 1));
    }
    let sql = "SELECT first, fence, lines, body, lost FROM block WHERE worker = $1 AND batch = $2 ORDER BY first";
    let rows = tx.query(sql, &[&worker.0, &batch]).await?;
    let block = rows.iter().map(|row| Block {
        held: Held { first: count(row, 0), fence: row.get(1) },
        lines: count(row, 2),
        body: row.get(3),
        have: have.remove(&count(row, 0)).unwrap_or_default(),
        lost: count(row, 4),
    });
    Ok(block.collect())
}

pub(super) async fn resume(tx: &Tx<'_>, worker: HostId, held_before: &[Held]) -> Result<Vec<Held>, Error> {
    let firsts: Vec<i64> = held_before.iter().map(|held| held.first as i64).collect();
    let fences: Vec<i64> = held_before.iter().map(|held| held.fence).collect();
    let Some(job) = job_of(tx, worker).await? else { return Ok(Vec::new()) };
    // An unchanged fence: no worker claimed it since, so it is free, or still under the worker's former id.
    let sql = "UPDATE block SET worker = $2 FROM unnest($3::bigint[], $4::bigint[]) AS before(first, fence)
         WHERE block.job = $1 AND block.first = before.first AND block.fence = before.fence AND ok + failed < lines";
    tx.execute(sql, &[&job, &worker.0, &firsts, &fences]).await?;
    held(tx, worker).await
}

/// Of a claim that is not the worker's any more nothing happens.
pub(super) async fn release(tx: &Tx<'_>, worker: HostId, unwanted: &[Held]) -> Result<(), Error> {
    let firsts: Vec<i64> = unwanted.iter().map(|held| held.first as i64).collect();
    let fences: Vec<i64> = unwanted.iter().map(|held| held.fence).collect();
    let sql = "UPDATE block SET worker = NULL FROM unnest($2::bigint[], $3::bigint[]) AS unwanted(first, fence)
         WHERE worker = $1 AND block.first = unwanted.first AND block.fence = unwanted.fence";
    tx.execute(sql, &[&worker.0, &firsts, &fences]).await.map(drop)
}

pub(super) async fn deregister(tx: &Tx<'_>, worker: HostId) -> Result<(), Error> {
    tx.execute("DELETE FROM worker WHERE id = $1", &[&worker.0]).await?;
    tx.execute("UPDATE block SET worker = NULL WHERE worker = $1", &[&worker.0]).await.map(drop)
}
