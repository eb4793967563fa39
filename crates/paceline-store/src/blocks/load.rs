//! How the lines of a job come into the store: many blocks in one statement, for the server may be far away.

use tokio_postgres::Error;
use tokio_postgres::types::ToSql;

use super::count;
use super::job::NewBlock;
use crate::work::postgres::connection::Tx;

/// Returns the line that is next; none when the job is gone. Of two hosts that append the same lines one waits for the other, and
/// finds them there.
pub(super) async fn append(tx: &Tx<'_>, job: i64, first: u64, blocks: &[NewBlock]) -> Result<Option<u64>, Error> {
    let sql = "WITH grown AS (
             UPDATE job SET loaded = loaded + $3 WHERE id = $1 AND loaded = $2 AND NOT complete AND name IS NOT NULL RETURNING id)
         INSERT INTO block (job, first, lines, body)
         SELECT id, $2 + before, lines, body FROM grown, unnest($4::bigint[], $5::bigint[], $6::bytea[]) AS new(before, lines, body)";
    let (mut befores, mut next) = (Vec::new(), 0_u64);
    for block in blocks {
        befores.push(next as i64);
        next += block.lines;
    }
    let lines: Vec<i64> = blocks.iter().map(|block| block.lines as i64).collect();
    let bodies: Vec<&[u8]> = blocks.iter().map(|block| &block.body[..]).collect();
    let loaded = "SELECT loaded FROM job WHERE id = $1 AND name IS NOT NULL";
    let (first, next) = (first as i64, next as i64);
    let values: [&(dyn ToSql + Sync); 6] = [&job, &first, &next, &befores, &lines, &bodies];
    let [_, rows] = tx.query_all([(sql, &values), (loaded, &[&job])]).await?;
    Ok(rows.first().map(|row| count(row, 0)))
}
