//! Who has which block, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_postgres::{Error, Row};

use super::count;
use super::job::{Block, BlockClaim, Held, HostId};
use super::words::IN_DOUBT;
use crate::work::postgres::connection::Tx;

/// Begins a lease, in which no other worker's ends yet.
pub(super) async fn register(tx: &Tx<'_>, job: i64, name: &str, lease_ms: i64) -> Result<Option<HostId>, Error> {
    // The job's row is locked: it is removed before the worker comes, or not while that is there.
    let sql = "INSERT INTO worker (job, name, since_ms, lease_ms, lease_until_ms, speaks_since_ms)
         SELECT id, $2, now_ms(), $3::bigint, now_ms() + $3::bigint, now_ms() FROM job
         WHERE id = $1 AND name IS NOT NULL FOR UPDATE RETURNING id";
    let rows = tx.query(sql, &[&job, &name, &lease_ms]).await?;
    Ok(rows.first().map(|row| HostId(row.get(0))))
}

/// What a worker hears: its blocks, none when it has no lease; and whether the leases of others may be over.
pub(super) async fn heartbeat(tx: &Tx<'_>, worker: HostId) -> Result<(Option<Vec<Held>>, bool), Error> {
    let over = "SELECT EXISTS (SELECT FROM worker WHERE lease_until_ms <= now_ms() OR lease_until_ms - lease_ms > now_ms() + 1000)";
    let [lives, over, held] = tx.query_all([(LIVES, &[&worker.0]), (over, &[]), (HELD, &[&worker.0])]).await?;
    let is_over = over.first().is_some_and(|row| row.get(0));
    Ok(((!lives.is_empty()).then(|| claims(&held)), is_over))
}

/// A worker's word: its lease begins anew. Where its last one was long ago, none may have been able to speak, and the silence of
/// the others counts from now on.
pub(super) const LIVES: &str = "UPDATE worker SET lease_until_ms = now_ms() + lease_ms,
         speaks_since_ms = CASE WHEN now_ms() > lease_until_ms - lease_ms + lease_ms / 3 THEN now_ms()
             ELSE least(speaks_since_ms, now_ms()) END
     WHERE id = $1 RETURNING id";

const HELD: &str = "SELECT first, fence FROM block WHERE worker = $1 ORDER BY first";

fn claims(rows: &[Row]) -> Vec<Held> {
    rows.iter().map(|row| Held { first: count(row, 0), fence: row.get(1) }).collect()
}

/// Frees the blocks of workers that were silent for a lease in which this worker spoke all the time: what kept all of them from
/// the database says nothing of any. One that is renewing its lease just now is passed over: it lives. A lease that begins in
/// the future was given before the database's clock was set back, and begins now.
pub(super) async fn end_leases(tx: &Tx<'_>, worker: HostId) -> Result<(), Error> {
    let sql = "UPDATE worker SET lease_until_ms = now_ms() + lease_ms WHERE id = ANY (ARRAY(
         SELECT id FROM worker WHERE lease_until_ms - lease_ms > now_ms() + 1000 FOR NO KEY UPDATE SKIP LOCKED))";
    tx.execute(sql, &[]).await?;
    let sql = "DELETE FROM worker WHERE id = ANY (ARRAY(
         SELECT id FROM worker WHERE lease_until_ms <= now_ms() AND EXISTS (
             SELECT FROM worker AS heard WHERE heard.id = $1 AND heard.speaks_since_ms <= now_ms() - worker.lease_ms)
         FOR UPDATE SKIP LOCKED)) RETURNING id";
    let lost: Vec<i64> = tx.query(sql, &[&worker.0]).await?.iter().map(|row| row.get(0)).collect();
    if !lost.is_empty() {
        let sql = "UPDATE block SET worker = NULL, lost = lost + 1 WHERE worker = ANY ($1)";
        tx.execute(sql, &[&lost]).await?;
    }
    Ok(())
}

/// The job of a worker that has its lease. Its row is locked, so that the lease does not end while blocks become the worker's:
/// no other worker could ever claim them. It may be renewed meanwhile.
const JOB: &str = "SELECT job FROM worker WHERE id = $1 AND lease_until_ms > now_ms() FOR KEY SHARE";

/// `batch` numbers the claim: where the connection broke, what it took is the worker's already.
pub(super) async fn claim(
    tx: &Tx<'_>,
    worker: HostId,
    most: i64,
    batch: i64,
    retried: bool,
) -> Result<Option<BlockClaim>, Error> {
    let taken = "SELECT count(*) FROM block WHERE worker = $1 AND batch = $2";
    let is_taken = retried && tx.query(taken, &[&worker.0, &batch]).await?.first().is_some_and(|row| count(row, 0) > 0);
    let most = if is_taken { 0 } else { most };
    // The worker's row is locked first, so that its lease does not end while blocks become its own: no other could ever claim
    // them.
    let take = "WITH mine AS (SELECT job FROM worker WHERE id = $1 AND lease_until_ms > now_ms() FOR KEY SHARE)
         UPDATE block SET worker = $1, batch = $2, fence = fence + 1
         WHERE job = (SELECT job FROM mine) AND first = ANY (ARRAY(
             SELECT first FROM block WHERE job = (SELECT job FROM mine) AND worker IS NULL AND ok + failed < lines
             ORDER BY first LIMIT $3 FOR UPDATE SKIP LOCKED))";
    let lives = "SELECT FROM worker WHERE id = $1 AND lease_until_ms > now_ms()";
    let silence = "SELECT max(now_ms() - lease_until_ms + lease_ms) FROM worker AS other
         WHERE job = (SELECT job FROM worker WHERE id = $1) AND id <> $1
             AND EXISTS (SELECT FROM block WHERE worker = other.id AND ok + failed < lines)";
    let ended = "SELECT complete AND NOT EXISTS (SELECT FROM block WHERE job = job.id AND ok + failed < lines)
         FROM job WHERE id = (SELECT job FROM worker WHERE id = $1)";
    let worker = &worker.0;
    let [_, lives, have, taken, in_doubt, silence, ended] = tx
        .query_all([
            (take, &[worker, &batch, &most]),
            (lives, &[worker]),
            (HAVE, &[worker, &batch]),
            (TAKEN, &[worker, &batch]),
            (IN_DOUBT, &[worker, &Some(batch)]),
            (silence, &[worker]),
            (ended, &[worker]),
        ])
        .await?;
    let claim = BlockClaim {
        blocks: blocks(&have, &taken),
        in_doubt: in_doubt.iter().map(|row| count(row, 0)).collect(),
        silence: silence.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(millis).unwrap_or_default(),
        ended: ended.first().is_none_or(|row| row.get(0)),
    };
    Ok((!lives.is_empty()).then_some(claim))
}

/// A word that comes from the future, by a clock that was set back, is one of now.
pub(super) fn millis(silence: i64) -> Duration {
    Duration::from_millis(u64::try_from(silence).unwrap_or(0))
}

/// What a claim took, with the lines that have a result.
const HAVE: &str = "SELECT block.first, result.line FROM block JOIN result ON result.job = block.job
         AND result.line >= block.first AND result.line < block.first + block.lines
     WHERE worker = $1 AND batch = $2 AND block.ok + block.failed > 0 ORDER BY result.line";
const TAKEN: &str = "SELECT first, fence, lines, body, lost FROM block WHERE worker = $1 AND batch = $2 ORDER BY first";

fn blocks(lines: &[Row], taken: &[Row]) -> Vec<Block> {
    let mut have: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for row in lines {
        have.entry(count(row, 0)).or_default().push(count(row, 1));
    }
    let block = taken.iter().map(|row| Block {
        held: Held { first: count(row, 0), fence: row.get(1) },
        lines: count(row, 2),
        body: row.get(3),
        have: have.remove(&count(row, 0)).unwrap_or_default(),
        lost: count(row, 4),
    });
    block.collect()
}

pub(super) async fn resume(tx: &Tx<'_>, worker: HostId, held_before: &[Held]) -> Result<Vec<Held>, Error> {
    let firsts: Vec<i64> = held_before.iter().map(|held| held.first as i64).collect();
    let fences: Vec<i64> = held_before.iter().map(|held| held.fence).collect();
    let job = tx.query(JOB, &[&worker.0]).await?.first().map(|row| row.get::<_, i64>(0));
    let Some(job) = job else { return Ok(Vec::new()) };
    // An unchanged fence: no worker claimed it since, so it is free, or still under the worker's former id.
    let sql = "UPDATE block SET worker = $2 FROM unnest($3::bigint[], $4::bigint[]) AS before(first, fence)
         WHERE block.job = $1 AND block.first = before.first AND block.fence = before.fence AND ok + failed < lines";
    tx.execute(sql, &[&job, &worker.0, &firsts, &fences]).await?;
    Ok(claims(&tx.query(HELD, &[&worker.0]).await?))
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
