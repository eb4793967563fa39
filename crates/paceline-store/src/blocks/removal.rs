//! A job is removed in steps; from the first one on no worker finds it.

use tokio_postgres::Error;

use crate::work::postgres::connection::Tx;

/// Results, or blocks, removed in one transaction.
const AT_ONCE: i64 = 10_000;

/// Takes the job's name, unless workers are on it. `retried`: that may have been done before.
pub(super) async fn begin(tx: &Tx<'_>, name: &str, retried: bool) -> Result<bool, Error> {
    // A worker that registers locks this row too.
    let rows = tx.query("SELECT id FROM job WHERE name = $1 FOR UPDATE", &[&name]).await?;
    let Some(job) = rows.first().map(|row| row.get::<_, i64>(0)) else {
        let begun = tx.query("SELECT FROM job WHERE name IS NULL LIMIT 1", &[]).await?;
        return Ok(retried && !begun.is_empty());
    };
    let sql = "UPDATE job SET name = NULL WHERE id = $1
         AND NOT EXISTS (SELECT FROM worker WHERE job = $1 AND lease_until_ms > now_ms())";
    Ok(tx.execute(sql, &[&job]).await? > 0)
}

/// Removes some of what jobs without a name still have; returns whether there may be more.
pub(super) async fn step(tx: &Tx<'_>) -> Result<bool, Error> {
    let rows = tx.query("SELECT id FROM job WHERE name IS NULL ORDER BY id LIMIT 1 FOR UPDATE", &[]).await?;
    let Some(job) = rows.first().map(|row| row.get::<_, i64>(0)) else { return Ok(false) };
    for sql in [
        "DELETE FROM result WHERE job = $1 AND line = ANY (ARRAY(
             SELECT line FROM result WHERE job = $1 ORDER BY line LIMIT $2))",
        "DELETE FROM leaving WHERE job = $1 AND line = ANY (ARRAY(
             SELECT line FROM leaving WHERE job = $1 ORDER BY line LIMIT $2))",
        "DELETE FROM again WHERE job = $1 AND line = ANY (ARRAY(
             SELECT line FROM again WHERE job = $1 ORDER BY line LIMIT $2))",
        "DELETE FROM block WHERE job = $1 AND first = ANY (ARRAY(
             SELECT first FROM block WHERE job = $1 ORDER BY first LIMIT $2))",
    ] {
        if tx.execute(sql, &[&job, &AT_ONCE]).await? > 0 {
            return Ok(true);
        }
    }
    tx.execute("DELETE FROM job WHERE id = $1", &[&job]).await?;
    Ok(true)
}
