//! The results of a job: one of each line, the first success where there is one, else the first failure.

use tokio_postgres::Error;

use super::count;
use super::job::{KeptResult, Offer};
use crate::work::postgres::connection::Tx;

/// `offers` are in the order of their blocks.
pub(super) async fn offer(tx: &Tx<'_>, job: i64, offers: &[Offer]) -> Result<u64, Error> {
    let mut kept = 0;
    for of_block in offers.chunk_by(|one, next| one.held.first == next.held.first) {
        kept += offer_of_block(tx, job, of_block).await?;
    }
    Ok(kept)
}

/// The block is locked meanwhile: its counts are those of its results.
async fn offer_of_block(tx: &Tx<'_>, job: i64, offers: &[Offer]) -> Result<u64, Error> {
    let first = offers.first().map_or(0, |offer| offer.held.first as i64);
    let sql = "SELECT fence, first + lines FROM block WHERE job = $1 AND first = $2 FOR UPDATE";
    let rows = tx.query(sql, &[&job, &first]).await?;
    let Some(row) = rows.first() else { return Ok(0) };
    let (fence, end): (i64, i64) = (row.get(0), row.get(1));
    let counts =
        |offer: &&Offer| (first..end).contains(&(offer.line as i64)) && (offer.ok || offer.held.fence == fence);
    let mut taken: Vec<&Offer> = offers.iter().filter(counts).collect();
    // Of a line that is offered twice at once one is taken, a success before a failure.
    taken.sort_by_key(|offer| (offer.line, !offer.ok));
    taken.dedup_by_key(|offer| offer.line);
    let lines: Vec<i64> = taken.iter().map(|offer| offer.line as i64).collect();
    let oks: Vec<bool> = taken.iter().map(|offer| offer.ok).collect();
    let bodies: Vec<&[u8]> = taken.iter().map(|offer| &offer.body[..]).collect();
    let sql = "WITH new AS (
             INSERT INTO result (job, line, ok, body)
             SELECT $1, line, ok, body FROM unnest($2::bigint[], $3::boolean[], $4::bytea[]) AS offered(line, ok, body)
             ON CONFLICT (job, line) DO UPDATE SET ok = true, body = excluded.body WHERE excluded.ok AND NOT result.ok
             RETURNING ok, xmax = 0 AS first)
         SELECT count(*) FILTER (WHERE ok), count(*) FILTER (WHERE NOT ok), count(*) FILTER (WHERE NOT first) FROM new";
    let rows = tx.query(sql, &[&job, &lines, &oks, &bodies]).await?;
    let count = |row: &tokio_postgres::Row| (row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2));
    let (ok, failed, replaced) = rows.first().map_or((0, 0, 0), count);
    // A block that is done belongs to no worker.
    let sql = "UPDATE block SET ok = ok + $3, failed = failed + $4,
             worker = CASE WHEN ok + failed + $3 + $4 < lines THEN worker END
         WHERE job = $1 AND first = $2";
    tx.execute(sql, &[&job, &first, &ok, &(failed - replaced)]).await?;
    Ok((ok + failed).unsigned_abs())
}

/// Bytes of results after which a page ends: what is read at once is in memory whole.
const PAGE_BYTES: i64 = 8 << 20;

pub(super) async fn page(tx: &Tx<'_>, job: i64, from: i64, most: i64) -> Result<Vec<KeptResult>, Error> {
    let sql = "SELECT line, ok, body FROM (
             SELECT line, ok, body, sum(octet_length(body)) OVER (ORDER BY line) - octet_length(body) AS before FROM (
                 SELECT line, ok, body FROM result WHERE job = $1 AND line >= $2 ORDER BY line LIMIT $3) AS next) AS page
         WHERE before < $4 ORDER BY line";
    let rows = tx.query(sql, &[&job, &from, &most, &PAGE_BYTES]).await?;
    Ok(rows.iter().map(|row| KeptResult { line: count(row, 0), ok: row.get(1), body: row.get(2) }).collect())
}

/// A block that a worker has is taken from it: that would not learn which lines of it are to be sent again.
pub(super) async fn retry_failed(tx: &Tx<'_>, job: i64) -> Result<u64, Error> {
    let sql = "SELECT first FROM block WHERE job = $1 AND failed > 0 ORDER BY first FOR UPDATE";
    let blocks: Vec<i64> = tx.query(sql, &[&job]).await?.iter().map(|row| row.get(0)).collect();
    let sql = "DELETE FROM result USING block WHERE block.job = $1 AND block.first = ANY ($2) AND result.job = $1
             AND result.line >= block.first AND result.line < block.first + block.lines AND NOT result.ok";
    let dropped = tx.execute(sql, &[&job, &blocks]).await?;
    // Where all lines had ended, no call of a lost worker is in doubt any more but those that are to be made again.
    let sql = "UPDATE block SET failed = 0, worker = NULL, fence = fence + 1,
             lost = CASE WHEN ok + failed < lines THEN lost ELSE 0 END
         WHERE job = $1 AND first = ANY ($2)";
    tx.execute(sql, &[&job, &blocks]).await?;
    Ok(dropped)
}
