//! Which scopes have answered.

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;
use crate::work::answers::{MOST, NotedAnswers, code, of_code};

/// Notes them in the order of their names, so that two workers never wait for each other.
pub(super) async fn note(tx: &Tx<'_>, noted: &[NotedAnswers], now: Timestamp) -> Result<(), Error> {
    let mut rows: Vec<(&str, i64)> = noted.iter().map(|noted| (&*noted.scope, code(noted.answers))).collect();
    rows.sort_unstable();
    let (scopes, slowest): (Vec<&str>, Vec<i64>) = rows.into_iter().unzip();
    tx.execute(
        "INSERT INTO answers (scope, slowest_ms, noted_ms) SELECT scope, slowest, $3 FROM unnest($1::text[], $2::bigint[]) AS
             noted(scope, slowest)
         ON CONFLICT (scope) DO UPDATE SET slowest_ms = excluded.slowest_ms, noted_ms = excluded.noted_ms",
        &[&scopes, &slowest, &now.as_millis()],
    )
    .await?;
    tx.execute(
        "DELETE FROM answers WHERE noted_ms < (SELECT noted_ms FROM answers ORDER BY noted_ms DESC LIMIT 1 OFFSET $1)",
        &[&(MOST as i64 - 1)],
    )
    .await
    .map(drop)
}

pub(super) async fn since(tx: &Tx<'_>, since: Timestamp) -> Result<Vec<NotedAnswers>, Error> {
    let sql = "SELECT scope, slowest_ms, noted_ms FROM answers WHERE noted_ms >= $1 ORDER BY noted_ms";
    let rows = tx.query(sql, &[&since.as_millis()]).await?;
    let noted = rows.iter().map(|row| NotedAnswers {
        scope: row.get::<_, &str>(0).into(),
        answers: of_code(row.get(1)),
        noted: Timestamp::from_millis(row.get(2)),
    });
    Ok(noted.collect())
}
