//! What a worker says in one short statement, on a connection on which nothing else is said: that it lives, and which of its
//! lines are about to be sent.

use tokio_postgres::types::ToSql;

use super::claim::LIVES;
use super::count;
use super::job::{Departures, HostId};
use crate::work::WorkError;
use crate::work::postgres::connection::{Connection, Tx};

pub(super) async fn lives(words: &Connection, worker: HostId) -> Result<bool, WorkError> {
    Ok(!words.ask("write", LIVES, &[&worker.0]).await?.is_empty())
}

/// The block stays the worker's until this is committed: who has it next reads what is said here.
pub(super) async fn depart(
    words: &Connection,
    job: i64,
    worker: HostId,
    departures: &Departures,
) -> Result<Vec<u64>, WorkError> {
    let sql = "WITH stayed AS (
             DELETE FROM leaving USING unnest($6::bigint[], $7::bigint[]) AS stays(line, fence)
             WHERE job = $1 AND leaving.line = stays.line AND leaving.fence = stays.fence),
         mine AS (
             SELECT asked.line, block.fence FROM unnest($3::bigint[], $4::bigint[], $5::bigint[]) AS asked(line, first, fence)
             JOIN block ON block.job = $1 AND block.first = asked.first AND block.fence = asked.fence AND block.worker = $2
             FOR SHARE OF block)
         INSERT INTO leaving (job, line, fence) SELECT $1, line, fence FROM mine
         ON CONFLICT (job, line) DO UPDATE SET fence = excluded.fence RETURNING line";
    let Departures { leave, stay } = departures;
    let column = |of: fn(&(u64, super::Held)) -> i64| leave.iter().map(of).collect::<Vec<i64>>();
    let lines = column(|(line, _)| *line as i64);
    let firsts = column(|(_, held)| held.first as i64);
    let fences = column(|(_, held)| held.fence);
    let stays: Vec<i64> = stay.iter().map(|(line, _)| *line as i64).collect();
    let stay_fences: Vec<i64> = stay.iter().map(|(_, held)| held.fence).collect();
    let values: [&(dyn ToSql + Sync); 7] = [&job, &worker.0, &lines, &firsts, &fences, &stays, &stay_fences];
    let rows = words.ask("write", sql, &values).await?;
    Ok(rows.iter().map(|row| count(row, 0)).collect())
}

/// Lines of the worker's blocks that a former worker said it was about to send, and that have no result; of one claim, or of all.
pub(super) const IN_DOUBT: &str = "SELECT leaving.line FROM block JOIN leaving ON leaving.job = block.job
         AND leaving.line >= block.first AND leaving.line < block.first + block.lines AND leaving.fence < block.fence
     WHERE worker = $1 AND ($2::bigint IS NULL OR batch = $2)
         AND NOT EXISTS (SELECT FROM result WHERE result.job = block.job AND result.line = leaving.line)
     ORDER BY leaving.line";

pub(super) async fn in_doubt(tx: &Tx<'_>, worker: HostId) -> Result<Vec<u64>, tokio_postgres::Error> {
    let rows = tx.query(IN_DOUBT, &[&worker.0, &None::<i64>]).await?;
    Ok(rows.iter().map(|row| count(row, 0)).collect())
}

pub(super) async fn again(tx: &Tx<'_>, job: i64, lines: &[i64]) -> Result<(), tokio_postgres::Error> {
    let sql = "INSERT INTO again (job, line) SELECT $1, unnest($2::bigint[])
         WHERE EXISTS (SELECT FROM job WHERE id = $1 AND name IS NOT NULL) ON CONFLICT DO NOTHING";
    tx.execute(sql, &[&job, &lines]).await.map(drop)
}
