//! The results of a job: one of each line, the first success where there is one, else the first failure.

use tokio_postgres::Error;

use super::count;
use super::job::{KeptResult, Offer};
use crate::work::postgres::connection::Tx;

/// Each line stands once in `offers`. Their blocks are locked meanwhile: their counts are those of their results. A block that is
/// done belongs to no worker.
pub(super) async fn offer(tx: &Tx<'_>, job: i64, offers: &[Offer]) -> Result<u64, Error> {
    let sql = "WITH offered AS (
             SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::boolean[], $6::bytea[])
                 AS offered(line, of_block, fence, ok, body)),
         locked AS (
             SELECT first, fence AS now, first + lines AS beyond FROM block
             WHERE job = $1 AND first = ANY ($7) ORDER BY first FOR UPDATE),
         new AS (
             INSERT INTO result (job, line, ok, body)
             SELECT $1, line, ok, body FROM locked JOIN offered ON of_block = first
             WHERE line >= first AND line < beyond AND (ok OR fence = now)
             ON CONFLICT (job, line) DO UPDATE SET ok = true, body = excluded.body WHERE excluded.ok AND NOT result.ok
             RETURNING line, ok, xmax = 0 AS fresh),
         counted AS (
             SELECT first AS of_block, count(*) FILTER (WHERE ok) AS new_ok,
                 count(*) FILTER (WHERE NOT ok) - count(*) FILTER (WHERE NOT fresh) AS new_failed
             FROM new JOIN locked ON line >= first AND line < beyond GROUP BY first),
         done AS (
             UPDATE block SET ok = ok + new_ok, failed = failed + new_failed,
                 worker = CASE WHEN ok + failed + new_ok + new_failed < lines THEN worker END
             FROM counted WHERE job = $1 AND first = of_block)
         SELECT count(*) FROM new";
    let lines: Vec<i64> = offers.iter().map(|offer| offer.line as i64).collect();
    let firsts: Vec<i64> = offers.iter().map(|offer| offer.held.first as i64).collect();
    let fences: Vec<i64> = offers.iter().map(|offer| offer.held.fence).collect();
    let oks: Vec<bool> = offers.iter().map(|offer| offer.ok).collect();
    let bodies: Vec<&[u8]> = offers.iter().map(|offer| &offer.body[..]).collect();
    let mut blocks = firsts.clone();
    blocks.sort_unstable();
    blocks.dedup();
    let rows = tx.query(sql, &[&job, &lines, &firsts, &fences, &oks, &bodies, &blocks]).await?;
    Ok(rows.first().map_or(0, |row| count(row, 0)))
}

/// Bytes of results after which a page ends: what is read at once is in memory whole.
const PAGE_BYTES: i64 = 8 << 20;

pub(super) async fn page(
    tx: &Tx<'_>,
    job: i64,
    from: i64,
    most: i64,
    failures: bool,
) -> Result<Vec<KeptResult>, Error> {
    let sql = "SELECT line, ok, body FROM (
             SELECT line, ok, body, sum(octet_length(body)) OVER (ORDER BY line) - octet_length(body) AS before FROM (
                 SELECT line, ok, body FROM result WHERE job = $1 AND line >= $2 AND NOT (ok AND $5) ORDER BY line LIMIT $3) AS next) AS page
         WHERE before < $4 ORDER BY line";
    let rows = tx.query(sql, &[&job, &from, &most, &PAGE_BYTES, &failures]).await?;
    Ok(rows.iter().map(|row| KeptResult { line: count(row, 0), ok: row.get(1), body: row.get(2) }).collect())
}

/// A block that a worker has is taken from it: that would not learn which lines of it are to be sent again. Who says that they
/// are knows what became of their calls. `only`: of all failures these.
pub(super) async fn retry_failed(tx: &Tx<'_>, job: i64, only: Option<&[i64]>) -> Result<u64, Error> {
    let sql = "SELECT first FROM block WHERE job = $1 AND failed > 0 AND ($2::bigint[] IS NULL OR EXISTS (
             SELECT FROM unnest($2::bigint[]) AS line WHERE line >= first AND line < first + lines))
         ORDER BY first FOR UPDATE";
    let blocks: Vec<i64> = tx.query(sql, &[&job, &only]).await?.iter().map(|row| row.get(0)).collect();
    let sql = "WITH dropped AS (
             DELETE FROM result USING block WHERE block.job = $1 AND block.first = ANY ($2) AND result.job = $1
                 AND result.line >= block.first AND result.line < block.first + block.lines AND NOT result.ok
                 AND ($3::bigint[] IS NULL OR result.line = ANY ($3)) RETURNING block.first, result.line),
         known AS (DELETE FROM leaving USING dropped WHERE leaving.job = $1 AND leaving.line = dropped.line)
         SELECT first, count(*) FROM dropped GROUP BY first";
    let dropped = tx.query(sql, &[&job, &blocks, &only]).await?;
    let [firsts, counts] = [0, 1].map(|column| dropped.iter().map(|row| row.get(column)).collect::<Vec<i64>>());
    // Where all lines had ended, no call of a lost worker is in doubt any more but those that are to be made again.
    let sql = "UPDATE block SET failed = failed - n, worker = NULL, fence = fence + 1,
             lost = CASE WHEN ok + failed < lines THEN lost ELSE 0 END
         FROM unnest($2::bigint[], $3::bigint[]) AS dropped(of_block, n) WHERE job = $1 AND first = of_block";
    tx.execute(sql, &[&job, &firsts, &counts]).await?;
    Ok(counts.iter().sum::<i64>().unsigned_abs())
}
