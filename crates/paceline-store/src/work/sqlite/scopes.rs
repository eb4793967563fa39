//! Groups that are held or stopped. What has no row is open.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, MAIN_DB, OptionalExtension as _, params, params_from_iter};

use crate::schema::ACCOUNT;
use crate::scope::{ScopeRow, ScopeStatus};

/// Groups that may not send, and until when; none = until a person acts.
pub(super) struct ClosedScopes(BTreeMap<Arc<str>, Option<Timestamp>>);

impl ClosedScopes {
    /// When a group may send: `Some(None)` now, `Some(Some(t))` then, `None` not by itself.
    pub(super) fn opens(&self, group: &str) -> Option<Option<Timestamp>> {
        let mut opens = None;
        for scope in [group, ACCOUNT] {
            if let Some(until) = self.0.get(scope) {
                opens = opens.max(Some((*until)?));
            }
        }
        Some(opens)
    }
}

/// Ends the holds that are over, and reads the rest.
pub(super) fn closed(conn: &Connection, now: Timestamp) -> rusqlite::Result<ClosedScopes> {
    let rows = list(conn, now)?.into_iter().map(|row| match row.state {
        ScopeStatus::Held { until, .. } => (row.name, Some(until)),
        ScopeStatus::Open | ScopeStatus::Stopped { .. } => (row.name, None),
    });
    Ok(ClosedScopes(rows.collect()))
}

/// The groups that are held or stopped at present, by name.
pub(super) fn list(conn: &Connection, now: Timestamp) -> rusqlite::Result<Vec<ScopeRow>> {
    let mut select = conn.prepare_cached("SELECT name, until_ms, reason FROM scope ORDER BY name")?;
    let rows = select.query_map([], |row| {
        let reason = row.get(2)?;
        let state = match row.get::<_, Option<i64>>(1)? {
            Some(until) => ScopeStatus::Held { until: Timestamp::from_millis(until), reason },
            None => ScopeStatus::Stopped { reason },
        };
        Ok(ScopeRow { name: row.get::<_, String>(0)?.into(), state })
    })?;
    let mut closed = Vec::new();
    for row in rows {
        let row = row?;
        match row.state {
            ScopeStatus::Held { until, .. } if until <= now => open(conn, &row.name, now)?,
            _ => closed.push(row),
        }
    }
    Ok(closed)
}

/// Sets the state of a group.
pub(super) fn set(conn: &Connection, row: &ScopeRow, now: Timestamp) -> rusqlite::Result<()> {
    let (until, reason) = match &row.state {
        ScopeStatus::Open => return open(conn, &row.name, now),
        ScopeStatus::Held { until, reason } => (Some(until.as_millis()), reason),
        ScopeStatus::Stopped { reason } => (None, reason),
    };
    conn.prepare_cached(
        "INSERT INTO scope (name, until_ms, reason, since_ms) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (name) DO UPDATE SET until_ms = ?2, reason = ?3",
    )?
    .execute(params![row.name, until, reason, now.as_millis()])?;
    Ok(())
}

/// Stopped groups are tried once more.
pub(super) fn open_stopped(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    for row in list(conn, now)?.iter().filter(|row| matches!(row.state, ScopeStatus::Stopped { .. })) {
        open(conn, &row.name, now)?;
    }
    Ok(())
}

/// The stopped groups of the items that a condition on `item` means; the account is the group of all.
pub(super) fn stopped_of(conn: &Connection, condition: &str, values: &[Value]) -> rusqlite::Result<Vec<String>> {
    let sql = format!(
        "SELECT name FROM scope WHERE until_ms IS NULL AND (name = '{ACCOUNT}' OR name IN (SELECT grp FROM lane \
         WHERE id IN (SELECT lane FROM item WHERE {condition})))"
    );
    conn.prepare(&sql)?.query_map(params_from_iter(values), |row| row.get(0))?.collect()
}

/// Opens a group. The time that it was closed does not count against the deadlines of its items.
pub(super) fn open(conn: &Connection, name: &str, now: Timestamp) -> rusqlite::Result<()> {
    if conn.is_readonly(MAIN_DB)? {
        // The next process that may write does it.
        return Ok(());
    }
    let since: Option<i64> = conn
        .prepare_cached("DELETE FROM scope WHERE name = ?1 RETURNING since_ms")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    let Some(since) = since else { return Ok(()) };
    let closed: Duration = now.saturating_since(Timestamp::from_millis(since));
    let lanes = if name == ACCOUNT { "SELECT id FROM lane" } else { "SELECT id FROM lane WHERE grp = ?2" };
    let sql =
        format!("UPDATE item SET first_ms = first_ms + ?1 WHERE state = 0 AND first_ms > 0 AND lane IN ({lanes})");
    let by = i64::try_from(closed.as_millis()).unwrap_or(i64::MAX);
    let mut update = conn.prepare_cached(&sql)?;
    if name == ACCOUNT {
        update.execute([by])?
    } else {
        update.execute(params![by, name])?
    };
    Ok(())
}
