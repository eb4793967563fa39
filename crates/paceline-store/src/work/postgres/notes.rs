//! Notes about scopes.

use std::sync::Arc;

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;
use crate::work::notes::{MOST, NoteChange, ScopeNote};

/// Changes them in the order of their names, so that two workers never wait for each other. Each row is made before it is
/// locked: of two workers that note a new scope the second changes what the first noted.
pub(super) async fn change(tx: &Tx<'_>, scopes: &[Arc<str>], change: &NoteChange, now: Timestamp) -> Result<(), Error> {
    let mut names: Vec<&str> = scopes.iter().map(|scope| &**scope).collect();
    names.sort_unstable();
    tx.execute(
        "INSERT INTO note (scope, body, noted_ms) SELECT scope, '', 0 FROM unnest($1::text[]) WITH ORDINALITY AS of(scope, n) ORDER BY n
         ON CONFLICT (scope) DO NOTHING",
        &[&names],
    )
    .await?;
    let sql = "SELECT scope, body FROM note WHERE scope = ANY ($1) ORDER BY scope COLLATE \"C\" FOR UPDATE";
    let rows = tx.query(sql, &[&names]).await?;
    let (scopes, bodies): (Vec<&str>, Vec<String>) = rows
        .iter()
        .map(|row| {
            let (scope, body) = (row.get::<_, &str>(0), row.get::<_, &str>(1));
            (scope, change(scope, body).replace('\0', "\u{FFFD}"))
        })
        .unzip();
    tx.execute(
        "UPDATE note SET body = of.body, noted_ms = $3 FROM unnest($1::text[], $2::text[]) AS of(scope, body) WHERE note.scope = of.scope",
        &[&scopes, &bodies, &now.as_millis()],
    )
    .await?;
    tx.execute(
        "DELETE FROM note WHERE noted_ms < (SELECT noted_ms FROM note ORDER BY noted_ms DESC LIMIT 1 OFFSET $1)",
        &[&(MOST as i64 - 1)],
    )
    .await
    .map(drop)
}

pub(super) async fn since(tx: &Tx<'_>, since: Timestamp) -> Result<Vec<ScopeNote>, Error> {
    let sql = "SELECT scope, body, noted_ms FROM note WHERE noted_ms >= $1 ORDER BY noted_ms";
    let rows = tx.query(sql, &[&since.as_millis()]).await?;
    let note = |row: &tokio_postgres::Row| ScopeNote {
        scope: row.get::<_, &str>(0).into(),
        text: row.get(1),
        noted: Timestamp::from_millis(row.get(2)),
    };
    Ok(rows.iter().map(note).collect())
}
