//! Groups that are held or stopped. What has no row is open.

use std::sync::Arc;

use paceline_core::Timestamp;
use tokio_postgres::Error;

use super::connection::Tx;
use crate::schema::ACCOUNT;
use crate::scope::{ScopeRow, ScopeStatus};

/// Ends the holds that are over, unless it is only looked at, and reads the rest, by name.
pub(super) async fn list(tx: &Tx<'_>, now: Timestamp) -> Result<Vec<ScopeRow>, Error> {
    let (over, closed) = read(tx, now).await?;
    for row in over.iter().filter(|_| !tx.visits()) {
        open(tx, &row.name, now).await?;
    }
    Ok(closed)
}

/// The holds that are over, and the rest, by name. Nothing is written.
async fn read(tx: &Tx<'_>, now: Timestamp) -> Result<(Vec<ScopeRow>, Vec<ScopeRow>), Error> {
    let rows = tx.query("SELECT name, until_ms, reason FROM scope ORDER BY name COLLATE \"C\"", &[]).await?;
    let closed = rows.into_iter().map(|row| {
        let (name, reason): (Arc<str>, String) = (row.get::<_, &str>(0).into(), row.get(2));
        let state = match row.get::<_, Option<i64>>(1).map(Timestamp::from_millis) {
            Some(until) => ScopeStatus::Held { until, reason },
            None => ScopeStatus::Stopped { reason },
        };
        ScopeRow { name, state }
    });
    Ok(closed.partition(|row| matches!(row.state, ScopeStatus::Held { until, .. } if until <= now)))
}

/// When a group may send: `Some(None)` now, `Some(Some(t))` then, `None` not by itself.
pub(super) fn opens(closed: &[ScopeRow], group: &str) -> Option<Option<Timestamp>> {
    let mut opens = None;
    for row in closed.iter().filter(|row| *row.name == *group || &*row.name == ACCOUNT) {
        match row.state {
            ScopeStatus::Held { until, .. } => opens = opens.max(Some(until)),
            ScopeStatus::Stopped { .. } => return None,
            ScopeStatus::Open => {}
        }
    }
    Some(opens)
}

/// Sets the state of a group.
pub(super) async fn set(tx: &Tx<'_>, row: &ScopeRow, now: Timestamp) -> Result<(), Error> {
    let (until, reason) = match &row.state {
        ScopeStatus::Open => return open(tx, &row.name, now).await,
        ScopeStatus::Held { until, reason } => (Some(until.as_millis()), reason),
        ScopeStatus::Stopped { reason } => (None, reason),
    };
    tx.execute(
        "INSERT INTO scope (name, until_ms, reason, since_ms) VALUES ($1, $2, $3, $4)
         ON CONFLICT (name) DO UPDATE SET until_ms = $2, reason = $3",
        &[&&*row.name, &until, reason, &now.as_millis()],
    )
    .await?;
    Ok(())
}

/// Stopped groups are tried once more.
pub(super) async fn open_stopped(tx: &Tx<'_>, now: Timestamp) -> Result<(), Error> {
    for row in list(tx, now).await?.iter().filter(|row| matches!(row.state, ScopeStatus::Stopped { .. })) {
        open(tx, &row.name, now).await?;
    }
    Ok(())
}

/// Opens a group. The time that it was closed does not count against the deadlines of its items.
pub(super) async fn open(tx: &Tx<'_>, name: &str, now: Timestamp) -> Result<(), Error> {
    let since = tx.query("DELETE FROM scope WHERE name = $1 RETURNING since_ms", &[&name]).await?;
    let Some(since) = since.first().map(|row| Timestamp::from_millis(row.get(0))) else { return Ok(()) };
    let by = i64::try_from(now.saturating_since(since).as_millis()).unwrap_or(i64::MAX);
    tx.execute(
        "UPDATE item SET first_ms = first_ms + $1
         WHERE state = 0 AND first_ms > 0 AND lane IN (SELECT id FROM lane WHERE $2 = '*' OR grp = $2)",
        &[&by, &name],
    )
    .await?;
    Ok(())
}
