//! The states of the items: counts, and one by one.

use crate::state::State;
use std::collections::BTreeMap;

use paceline_core::{Class, GiveUp, Timestamp};
use rusqlite::{Connection, params};

use crate::error::JournalError;
use crate::item::{CallTotals, JournalItem};
use crate::query::{AFTER_ITEM, ITEM_SCOPE, count, int, item, item_columns, state};
use crate::refused_answers;
use crate::schema::has_table;
use crate::scope::{ScopeRow, ScopeStatus, account, scope_list, state_of};
use crate::unanswered;

/// Why an item is still waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeferReason {
    /// Its scope or account is stopped.
    ScopeStopped,
    /// Its scope or account is held.
    ScopeHeld,
    /// Its own due time lies ahead.
    NotBefore,
    /// It was never sent.
    NotStarted,
    /// The run ended before it came again.
    RunBound,
}

impl DeferReason {
    /// The name used in files and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ScopeStopped => "scope_stopped",
            Self::ScopeHeld => "scope_held",
            Self::NotBefore => "not_before",
            Self::NotStarted => "not_started",
            Self::RunBound => "run_bound",
        }
    }
}

/// How many items wait for the same reason, after the same class of answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deferred {
    /// The reason.
    pub reason: DeferReason,
    /// The class of their last answer; none if there was no answer.
    pub class: Option<Class>,
    /// Its code, where it had one.
    pub code: Option<String>,
    /// Its status; none if there was no answer.
    pub status: Option<u16>,
    /// How many.
    pub items: u64,
}

/// The counts of items by state. Their sum is the input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Waiting items.
    pub waiting: u64,
    /// Claimed items.
    pub in_flight: u64,
    /// Items with a usable answer.
    pub succeeded: u64,
    /// Items without an answer, for which a fallback stands in.
    pub fallback: u64,
    /// Items given up.
    pub failed: u64,
    /// Those of them that may have been done, and about which a person decides.
    pub held: u64,
    /// Items never sent by decision.
    pub skipped: u64,
    /// Items ended by a person.
    pub cancelled: u64,
    /// Answers that the user's expectation refused, and that are kept beside the results, of all runs.
    pub refused_answers: u64,
    /// Tokens of the prompts of all calls, as their answers reported.
    pub tokens_in: u64,
    /// Tokens of those answers.
    pub tokens_out: u64,
    /// Bytes in the input of the lines of waiting and claimed items.
    pub bytes_left: u64,
    /// The same of the items that were sent and have ended.
    pub bytes_ended: u64,
    /// Waiting and claimed items by reason and class.
    pub deferred: Vec<Deferred>,
    /// The job's counters over all its runs.
    pub totals: CallTotals,
    /// Calls that were noted as they left and whose outcome is not recorded, so that the counters lack them. Where no run works
    /// on the job, the next one counts them.
    pub under_way: u64,
    /// The counters may lack calls: a run ended, by a kill or on a full disk, before it had noted the last that it sent.
    pub calls_lost: bool,
    /// Of `totals.calls` and `totals.abandoned` those that were noted as they left, and whose run was killed before they were
    /// answered: each may not have left.
    pub calls_unsure: u64,
}

impl JobCounts {
    /// All items of the input.
    pub const fn input(&self) -> u64 {
        self.waiting + self.in_flight + self.succeeded + self.fallback + self.failed + self.skipped + self.cancelled
    }
}

/// Which items a report includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Every item.
    All,
    /// Every item but those that succeeded at their first call.
    NotSimplySucceeded,
}

/// What a report says about an item. Its `custom_id` is read from the input at [`JournalItem::src_off`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportRow {
    /// The item.
    pub item: JournalItem,
    /// Where it stands.
    pub state: State,
    /// Why it waits; none unless it is waiting or in flight.
    pub deferred: Option<DeferReason>,
    /// Why it was given up or fell back, in one word.
    pub reason: Option<String>,
}

impl std::ops::Deref for ReportRow {
    type Target = JournalItem;

    fn deref(&self) -> &JournalItem {
        &self.item
    }
}

impl ReportRow {
    /// Whether a fallback's result stands in place of an answer.
    pub fn fell_back(&self) -> bool {
        self.state == State::Succeeded && self.reason.is_some()
    }

    /// Whether it failed because it may have been done, and waits for a person.
    pub fn is_held(&self) -> bool {
        self.state == State::Failed && self.reason.as_deref() == Some(GiveUp::Held.as_str())
    }

    /// When it may be sent again; none unless it waits for a time that lies ahead.
    pub fn retry_not_before(&self, now: Timestamp) -> Option<Timestamp> {
        let waits = matches!(self.state, State::Waiting | State::InFlight);
        (waits && self.item.not_before > now).then_some(self.item.not_before)
    }
}

/// Why an item waits, the weightiest reason first.
fn defer_reason(scope: &ScopeStatus, account: &ScopeStatus, now: Timestamp, waits: bool, sent: bool) -> DeferReason {
    let stopped = |state: &ScopeStatus| matches!(state, ScopeStatus::Stopped { .. });
    let held = |state: &ScopeStatus| matches!(state, ScopeStatus::Held { until, .. } if *until > now);
    if stopped(scope) || stopped(account) {
        DeferReason::ScopeStopped
    } else if held(scope) || held(account) {
        DeferReason::ScopeHeld
    } else if waits {
        DeferReason::NotBefore
    } else if !sent {
        DeferReason::NotStarted
    } else {
        DeferReason::RunBound
    }
}

/// How many items stand where, and why those that wait do. `at_rest`: no run works on the job, so that a call under way was cut
/// off.
pub(crate) fn counts(conn: &Connection, now: Timestamp, at_rest: bool) -> Result<JobCounts, JournalError> {
    let mut counts = sums(conn)?;
    if counts.waiting + counts.in_flight > 0 {
        counts.deferred = deferred(conn, now, at_rest)?;
    }
    Ok(counts)
}

/// How many items stand where. One pass without sorting: a million items take a tenth of a second.
pub(crate) fn sums(conn: &Connection) -> Result<JobCounts, JournalError> {
    let read = || -> rusqlite::Result<JobCounts> {
        let sql = "SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1),
                          count(*) FILTER (WHERE state = 2 AND reason IS NULL), count(*) FILTER (WHERE state = 3),
                          count(*) FILTER (WHERE state = 4), count(*) FILTER (WHERE state = 5),
                          total(tokens_in), total(tokens_out),
                          count(*) FILTER (WHERE state = 3 AND reason = ?1),
                          count(*) FILTER (WHERE state = 2 AND reason IS NOT NULL),
                          total(src_len) FILTER (WHERE state < 2),
                          total(src_len) FILTER (WHERE state > 1 AND attempts + deferrals + probes > 0)
                   FROM item";
        let (totals, calls_lost) = (totals(conn)?, unanswered::is_lost(conn)?);
        let under_way = unanswered::under_way(conn)?.len() as u64;
        let calls_unsure = unanswered::unsure(conn)?;
        let refused_answers = refused_answers::recorded(conn)?.unwrap_or_default().answers;
        conn.query_row(sql, [GiveUp::Held.as_str()], |row| {
            let items = |column: usize| row.get(column).map(count);
            let sum = |column: usize| row.get::<_, f64>(column).map(|sum| sum as u64);
            Ok(JobCounts {
                waiting: items(0)?,
                in_flight: items(1)?,
                succeeded: items(2)?,
                failed: items(3)?,
                held: items(8)?,
                fallback: items(9)?,
                skipped: items(4)?,
                cancelled: items(5)?,
                refused_answers,
                tokens_in: sum(6)?,
                tokens_out: sum(7)?,
                bytes_left: sum(10)?,
                bytes_ended: sum(11)?,
                deferred: Vec::new(),
                totals,
                under_way,
                calls_lost,
                calls_unsure,
            })
        })
    };
    read().map_err(JournalError::sqlite("read"))
}

/// The items of a scope, by where they stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeItems {
    /// The scope, and whether its work may be sent.
    pub scope: ScopeRow,
    /// Waiting and claimed items.
    pub left: u64,
    /// Items with a usable answer, or a fallback's.
    pub done: u64,
    /// Items given up.
    pub failed: u64,
    /// Items never sent by decision, or ended by a person.
    pub never_sent: u64,
    /// Calls, in all runs.
    pub calls: u64,
    /// Of an item that waits or was given up: the status of its last answer, and what that said.
    pub last_failure: Option<(Option<u16>, String)>,
}

/// The items of each scope, by name. One pass over the items.
pub(crate) fn by_scope(conn: &Connection) -> Result<Vec<ScopeItems>, JournalError> {
    let scopes: BTreeMap<i64, ScopeRow> = scope_list(conn)?.into_iter().map(|scope| (scope.id, scope.row)).collect();
    let read = || -> rusqlite::Result<Vec<ScopeItems>> {
        // The last columns are of the item for which there is a maximum, the latest in the input that failed.
        let mut select = conn.prepare(
            "SELECT scope, count(*) FILTER (WHERE state IN (0, 1)), count(*) FILTER (WHERE state = 2),
                    count(*) FILTER (WHERE state = 3), count(*) FILTER (WHERE state IN (4, 5)),
                    total(attempts + deferrals + probes + abandoned),
                    max(CASE WHEN state IN (0, 1, 3) AND last_error IS NOT NULL THEN id END), last_status, last_error
             FROM item GROUP BY scope",
        )?;
        let mut rows = select.query([])?;
        let mut items = Vec::new();
        while let Some(row) = rows.next()? {
            let Some(scope) = scopes.get(&row.get::<_, i64>(0)?) else { continue };
            let has_failed = row.get::<_, Option<i64>>(6)?.is_some();
            let last_failure = match has_failed {
                true => Some((row.get(7)?, row.get(8)?)),
                false => None,
            };
            items.push(ScopeItems {
                scope: scope.clone(),
                left: count(row.get(1)?),
                done: count(row.get(2)?),
                failed: count(row.get(3)?),
                never_sent: count(row.get(4)?),
                calls: row.get::<_, f64>(5)? as u64,
                last_failure,
            });
        }
        Ok(items)
    };
    let mut items = read().map_err(JournalError::sqlite("read"))?;
    items.sort_by(|a, b| a.scope.name.cmp(&b.scope.name));
    Ok(items)
}

/// The items that wait, by reason, class, code and status.
fn deferred(conn: &Connection, now: Timestamp, at_rest: bool) -> Result<Vec<Deferred>, JournalError> {
    let scopes = scope_list(conn)?;
    let account = account(&scopes);
    let read = || -> rusqlite::Result<_> {
        let cut_off = match at_rest && has_table(conn, "call_under_way")? {
            true => " OR id IN (SELECT id FROM call_under_way WHERE NOT counted)",
            false => "",
        };
        let mut select = conn.prepare_cached(&format!(
            "SELECT scope, not_before_ms > ?1, attempts + deferrals + probes + abandoned > 0{cut_off}, last_class, last_code,
                 last_status FROM item WHERE state IN (0, 1)"
        ))?;
        let mut rows = select.query([now.as_millis()])?;
        let mut items = BTreeMap::<_, u64>::new();
        while let Some(row) = rows.next()? {
            let reason = defer_reason(state_of(&scopes, row.get(0)?), account, now, row.get(1)?, row.get(2)?);
            let last = row.get_ref(3)?.as_str_or_null()?.and_then(Class::from_name);
            let code: Option<String> = row.get(4)?;
            *items.entry((reason, last, code, row.get(5)?)).or_default() += 1;
        }
        Ok(items)
    };
    let items = read().map_err(JournalError::sqlite("read"))?;
    let deferred = |((reason, class, code, status), items)| Deferred { reason, class, code, status, items };
    Ok(items.into_iter().map(deferred).collect())
}

fn totals(conn: &Connection) -> rusqlite::Result<CallTotals> {
    conn.query_row("SELECT calls, resends, retries, throttled, abandoned FROM run", [], |row| {
        Ok(CallTotals {
            calls: count(row.get(0)?),
            resends: count(row.get(1)?),
            retries: count(row.get(2)?),
            throttled: count(row.get(3)?),
            abandoned: count(row.get(4)?),
        })
    })
}

/// Rows read at a time for a report.
const PAGE: i64 = 1_000;

/// Calls `page` with the last ordinal seen until nothing comes back, and `visit` for each row.
pub(crate) fn pages<E: From<JournalError>>(
    page: impl Fn(Option<u64>) -> Result<Vec<ReportRow>, JournalError>,
    mut visit: impl FnMut(ReportRow) -> Result<(), E>,
) -> Result<(), E> {
    let mut after = None;
    loop {
        let rows = page(after)?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = Some(last.item.ordinal);
        for row in rows {
            visit(row)?;
        }
    }
}

/// The next rows after an ordinal.
pub(crate) fn report_page(
    conn: &Connection,
    now: Timestamp,
    rows: Rows,
    after: Option<u64>,
) -> Result<Vec<ReportRow>, JournalError> {
    let scopes = scope_list(conn)?;
    let account = account(&scopes);
    let page = || -> rusqlite::Result<Vec<ReportRow>> {
        let mut select = conn.prepare_cached(concat!(
            "SELECT ",
            item_columns!(),
            ", state, reason FROM item
             WHERE id > ?1 AND (?2 OR state <> 2 OR reason IS NOT NULL OR attempts + deferrals + probes + abandoned > 1)
             ORDER BY id LIMIT ?3"
        ))?;
        let mut found = select.query(params![after.map_or(-1, int), rows == Rows::All, PAGE])?;
        let mut page = Vec::new();
        while let Some(row) = found.next()? {
            let (item, state) = (item(row, &scopes)?, state(row.get(AFTER_ITEM)?)?);
            // By number: looked for by name, a report of ten thousand items in as many scopes took seconds.
            let scope = state_of(&scopes, row.get(ITEM_SCOPE)?);
            let deferred = matches!(state, State::Waiting | State::InFlight).then(|| {
                let sent = item.tally.sends() > 0;
                defer_reason(scope, account, now, item.not_before > now, sent)
            });
            page.push(ReportRow { item, state, deferred, reason: row.get(AFTER_ITEM + 1)? });
        }
        Ok(page)
    };
    page().map_err(JournalError::sqlite("read"))
}
