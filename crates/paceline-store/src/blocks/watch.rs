//! Jobs and workers, as people are shown them.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::Timestamp;
use tokio_postgres::{Error, Row};

use super::claim::millis;
use super::count;
use super::job::{HostStatus, JobStatus};
use crate::work::postgres::connection::Tx;

/// All of them, or that one alone.
pub(super) async fn jobs(tx: &Tx<'_>, only: Option<i64>) -> Result<Vec<JobStatus>, Error> {
    let of_workers = "SELECT worker.job, worker.name, since_ms, lease_until_ms - now_ms(),
             (SELECT count(*) FROM block WHERE block.worker = worker.id AND ok + failed < lines), now_ms() - lease_until_ms + lease_ms
         FROM worker WHERE $1::bigint IS NULL OR job = $1 ORDER BY worker.id";
    let of_jobs = "SELECT id, name, created_ms, loaded, complete, n, open, ok, failed,
             (SELECT count(*) FROM again WHERE again.job = job.id)
         FROM job CROSS JOIN LATERAL (
             SELECT count(*) AS n, count(*) FILTER (WHERE ok + failed < lines) AS open,
                 coalesce(sum(ok), 0)::bigint AS ok, coalesce(sum(failed), 0)::bigint AS failed
             FROM block WHERE block.job = job.id) AS of_blocks
         WHERE name IS NOT NULL AND ($1::bigint IS NULL OR id = $1) ORDER BY name";
    let [at_work, rows] = tx.query_all([(of_workers, &[&only]), (of_jobs, &[&only])]).await?;
    let mut workers: BTreeMap<i64, Vec<HostStatus>> = BTreeMap::new();
    for row in at_work {
        workers.entry(row.get(0)).or_default().push(worker(&row));
    }
    let job = |row: &Row| JobStatus {
        name: row.get(1),
        created: Timestamp::from_millis(row.get(2)),
        lines: count(row, 3),
        complete: row.get(4),
        blocks: count(row, 5),
        open: count(row, 6),
        ok: count(row, 7),
        failed: count(row, 8),
        again: count(row, 9),
        workers: workers.remove(&row.get(0)).unwrap_or_default(),
    };
    Ok(rows.iter().map(job).collect())
}

fn worker(row: &Row) -> HostStatus {
    let left = u64::try_from(row.get::<_, i64>(3)).ok().filter(|left| *left > 0);
    HostStatus {
        name: row.get(1),
        since: Timestamp::from_millis(row.get(2)),
        lease: left.map(Duration::from_millis),
        blocks: count(row, 4),
        silence: millis(row.get(5)),
    }
}
