//! Scopes: whether their work may be sent, and when it may again.

use std::sync::Arc;

use paceline_core::{Class, Timestamp};
use rusqlite::{Connection, OptionalExtension as _};

use crate::command::Command;
use crate::error::JournalError;
use crate::journal::Journal;
use crate::schema::ACCOUNT;

impl Journal {
    /// The scope, or with [`ACCOUNT`](crate::ACCOUNT) the account, is held `from` then `until` then: of the items that wait there
    /// no time counts against their deadlines meanwhile, but for what they wait for themselves.
    pub fn stands_still(&self, name: &Arc<str>, from: Timestamp, until: Timestamp) {
        self.writer.send(Command::StandsStill { name: Arc::clone(name), from, until });
    }
}

/// Whether work of a scope may be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ScopeStatus {
    /// It may.
    #[default]
    Open,
    /// Not before that time.
    Held {
        /// The end of the hold, by the wall clock.
        until: Timestamp,
        /// Why: the provider's message or ours.
        reason: String,
    },
    /// Not until a person acts.
    Stopped {
        /// Why: the provider's message or ours.
        reason: String,
    },
}

/// A scope and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRow {
    /// The name; [`ACCOUNT`](crate::ACCOUNT) for the account as a whole.
    pub name: Arc<str>,
    /// Whether its work may be sent.
    pub state: ScopeStatus,
}

/// A scope with its number in the tables.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    pub(crate) id: i64,
    pub(crate) row: ScopeRow,
}

impl Scope {
    /// Whether its work may be sent now, the account permitting.
    pub(crate) fn may_send(&self, now: Timestamp) -> bool {
        match &self.row.state {
            ScopeStatus::Open => true,
            ScopeStatus::Held { until, .. } => *until <= now,
            ScopeStatus::Stopped { .. } => false,
        }
    }
}

/// The scope of lines that cannot be sent: nothing is ever handed out from it, and no caller sees it.
pub(crate) const REFUSED: i64 = 0;

/// All scopes by number, but for that of refused lines.
pub(crate) fn scope_list(conn: &Connection) -> Result<Vec<Scope>, JournalError> {
    let list = || {
        let mut select =
            conn.prepare_cached("SELECT id, name, state, until_ms, reason FROM scope WHERE id > 0 ORDER BY id")?;
        let rows = select.query_map([], |row| {
            let reason = row.get::<_, Option<String>>(4)?.unwrap_or_default();
            let state = match row.get(2)? {
                HELD => ScopeStatus::Held { until: Timestamp::from_millis(row.get(3)?), reason },
                STOPPED => ScopeStatus::Stopped { reason },
                _ => ScopeStatus::Open,
            };
            Ok(Scope { id: row.get(0)?, row: ScopeRow { name: row.get(1)?, state } })
        })?;
        rows.collect::<rusqlite::Result<Vec<_>>>()
    };
    list().map_err(JournalError::sqlite("read"))
}

/// The scopes by name.
pub(crate) fn scopes(conn: &Connection) -> Result<Vec<ScopeRow>, JournalError> {
    let mut rows: Vec<_> = scope_list(conn)?.into_iter().map(|scope| scope.row).collect();
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(rows)
}

const OPEN: i64 = 0;
const HELD: i64 = 1;
const STOPPED: i64 = 2;

/// State, end of a hold and reason as columns.
pub(crate) fn scope_columns(state: &ScopeStatus) -> (i64, Option<i64>, Option<&str>) {
    match state {
        ScopeStatus::Open => (OPEN, None, None),
        ScopeStatus::Held { until, reason } => (HELD, Some(until.as_millis()), Some(reason)),
        ScopeStatus::Stopped { reason } => (STOPPED, None, Some(reason)),
    }
}

/// The state of the account; open until a caller sets it.
pub(crate) fn account(scopes: &[Scope]) -> &ScopeStatus {
    scopes.iter().find(|scope| &*scope.row.name == ACCOUNT).map_or(&ScopeStatus::Open, |scope| &scope.row.state)
}

/// The earliest due time of a scope's waiting items.
pub(crate) const NEXT_DUE: &str = "SELECT min(not_before_ms) FROM item WHERE state = 0 AND scope = ?1";

/// The scope ?1 is held from ?2 until ?3, which does not count against the deadlines of what waits there. What an item waits for
/// by itself it knows already. One that was never tried has no deadline and is due at 0: it is not looked at.
pub(crate) const STANDS_STILL: &str = "UPDATE item SET deadline_ms = deadline_ms + ?3 - max(?2, not_before_ms)
    WHERE state = 0 AND scope = ?1 AND not_before_ms > 0 AND not_before_ms < ?3 AND ?2 < ?3 AND deadline_ms IS NOT NULL";

/// Whether an item of the scope of that name waits.
pub(crate) fn waits_in(conn: &Connection, name: &str) -> Result<bool, JournalError> {
    const SOME: &str =
        "SELECT EXISTS (SELECT 1 FROM item WHERE state = 0 AND scope = (SELECT id FROM scope WHERE name = ?1))";
    let some = conn.prepare_cached(SOME).and_then(|mut select| select.query_row([name], |row| row.get(0)));
    some.map_err(JournalError::sqlite("read"))
}

/// The status of an answer, and its code.
pub(crate) type StatusAndCode = (Option<u16>, Option<String>);

/// The status and the code with which most of the scope's waiting items were refused last, or had an answer with one of the codes
/// in that array of JSON; none where none of them was.
pub(crate) fn refused_last(conn: &Connection, name: &str, codes: &str) -> Result<Option<StatusAndCode>, JournalError> {
    const MOST: &str = "SELECT last_status, last_code FROM item
        WHERE state = 0 AND scope = (SELECT id FROM scope WHERE name = ?1) AND attempts > 0
            AND (last_class IN (?2, ?3) OR last_code IN (SELECT value FROM json_each(?4)))
        GROUP BY last_status, last_code ORDER BY count(*) DESC LIMIT 1";
    let [invalid, filtered] = [Class::Invalid, Class::Filtered].map(Class::as_str);
    let most = || {
        let mut select = conn.prepare_cached(MOST)?;
        select.query_row([name, invalid, filtered, codes], |row| Ok((row.get(0)?, row.get(1)?))).optional()
    };
    most().map_err(JournalError::sqlite("read"))
}

/// The earliest that a waiting item may start, its scope and the account permitting.
pub(crate) fn next_due(conn: &Connection, scopes: &[Scope]) -> Result<Option<Timestamp>, JournalError> {
    let Some(account_due) = opens(account(scopes)) else { return Ok(None) };
    let mut earliest: Option<Timestamp> = None;
    for scope in scopes {
        let Some(scope_due) = opens(&scope.row.state) else { continue };
        let first: Option<i64> = conn
            .prepare_cached(NEXT_DUE)
            .and_then(|mut select| select.query_row([scope.id], |row| row.get(0)))
            .map_err(JournalError::sqlite("read"))?;
        let Some(first) = first else { continue };
        let due = Timestamp::from_millis(first).max(scope_due).max(account_due);
        earliest = Some(earliest.map_or(due, |known| known.min(due)));
    }
    Ok(earliest)
}

/// The scope of that number, among all of them in order.
pub(crate) fn by_id(scopes: &[Scope], id: i64) -> Option<&Scope> {
    scopes.binary_search_by_key(&id, |scope| scope.id).ok().map(|place| &scopes[place])
}

/// The state of the scope of that number; open until a caller sets it.
pub(crate) fn state_of(scopes: &[Scope], id: i64) -> &ScopeStatus {
    by_id(scopes, id).map_or(&ScopeStatus::Open, |scope| &scope.row.state)
}

/// When a scope in that state may send; none while it is stopped.
pub(crate) fn opens(state: &ScopeStatus) -> Option<Timestamp> {
    match state {
        ScopeStatus::Open => Some(Timestamp::from_millis(0)),
        ScopeStatus::Held { until, .. } => Some(*until),
        ScopeStatus::Stopped { .. } => None,
    }
}
