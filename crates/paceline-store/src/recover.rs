//! Recovery after a crash: whole lines that are missing in the journal are recorded, a torn tail is cut off.

use crate::item::ModelUsage;
use crate::state::State;
use std::path::Path;

use paceline_core::{Class, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::error::JournalError;
use crate::line::{VerifiedLine, verify_line};
use crate::output::{OutputFile, Outputs};
use crate::paths::Paths;
use crate::query::{RecordedPrefix, Run, int, shorten};
use crate::refused_answers;
use crate::schema;
use crate::unanswered;
use crate::usage;

/// What was repaired when a job was resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Lines that stood in the files but not yet in the journal.
    pub recorded: u64,
    /// Bytes of unfinished lines that were cut off the files.
    pub cut: u64,
    /// Items that the last run had begun, and whose end it did not record. They wait again.
    pub interrupted: u64,
    /// Those of them whose call was noted as sent, and may be billed twice.
    pub in_flight: u64,
    /// More of them may have been sent: no call of that run waited for its note.
    pub calls_lost: bool,
}

/// Opens the files of a job and brings the journal up to them. When they do not fit together, nothing is changed.
pub(crate) fn recover(
    conn: &Connection,
    paths: &Paths,
    run: &Run,
    now: Timestamp,
    awaits_notes: bool,
) -> Result<(Outputs, Recovery), JournalError> {
    let journal = paths.journal.as_deref().unwrap_or(Path::new(""));
    let mut outputs = Outputs::reopen(paths, journal, run)?;
    schema::begin_writing(conn)?;
    conn.execute_batch("BEGIN IMMEDIATE").map_err(JournalError::sqlite("write"))?;
    let mut recovery = Recovery::default();
    usage::begin(conn)
        .and_then(|()| conn.execute_batch(unanswered::TABLES))
        .and_then(|()| schema::add_column(conn, "item", "key_no", "INTEGER"))
        .and_then(|()| schema::add_column(conn, "run", "key_base", "INTEGER NOT NULL DEFAULT 0"))
        .and_then(|()| schema::add_column(conn, "call_under_way", "moved", "INTEGER NOT NULL DEFAULT 0"))
        .and_then(|()| schema::add_column(conn, "call_under_way", "cache_price", "INTEGER NOT NULL DEFAULT 0"))
        .and_then(|()| conn.execute_batch(refused_answers::TABLE))
        .map_err(JournalError::sqlite("write"))?;
    // First: a line of the others is that of a later call of its item, or of the same.
    record_tail(&mut outputs.refused_answers, |verified, _, _| record_refused(conn, verified))?;
    recovery.recorded += record_tail(&mut outputs.results, |verified, offset, len| {
        record(conn, verified, State::Succeeded, offset, len)
    })?;
    recovery.recorded += record_tail(&mut outputs.errors, |verified, offset, len| {
        record(conn, verified, verified.unsuccessful, offset, len)
    })?;
    unanswered::count_cut_off(conn).map_err(JournalError::sqlite("write"))?;
    recovery.in_flight = unanswered::begun(conn).map_err(JournalError::sqlite("read"))?;
    recovery.interrupted = requeue(conn)?;
    let begun = recovery.interrupted - recovery.in_flight;
    recovery.calls_lost = unanswered::begin_run(conn, awaits_notes, begun).map_err(JournalError::sqlite("write"))?;
    bound_waits(conn, now)?;
    set_covered(conn, outputs.results.covered(), outputs.errors.covered())?;
    refused_answers::set_covered(conn, outputs.refused_answers.covered()).map_err(JournalError::sqlite("write"))?;
    conn.execute_batch("COMMIT").map_err(JournalError::sqlite("write"))?;
    // Last, because only now the journal covers everything that is worth keeping.
    recovery.cut = outputs.results.cut()? + outputs.errors.cut()? + outputs.refused_answers.cut()?;
    Ok((outputs, recovery))
}

/// Records lines until the first that is not whole, or that `record` does not take: it is given the line, its offset and its
/// length.
fn record_tail(
    output: &mut OutputFile,
    record: impl Fn(&VerifiedLine, u64, usize) -> rusqlite::Result<bool>,
) -> Result<u64, JournalError> {
    let mut tail = output.tail()?;
    let (mut recorded, mut line) = (0, Vec::new());
    while tail.next(&mut line)? {
        let Some(verified) = verify_line(&line) else { break };
        if !record(&verified, output.covered().len, line.len()).map_err(JournalError::sqlite("write"))? {
            break;
        }
        output.cover(&line);
        recorded += 1;
    }
    Ok(recorded)
}

/// Takes a refused answer of one of the items. Its call counts, where the journal has not counted it: its note stays, for a call
/// that must not be made twice has been made.
fn record_refused(conn: &Connection, verified: &VerifiedLine) -> rusqlite::Result<bool> {
    let VerifiedLine { ordinal, call, key, status, code, message, tokens_in, tokens_out, .. } = verified;
    let (item, counted) = (int(*ordinal), sends(conn, verified)?);
    let known = "SELECT count(*) FROM item WHERE id = ?1 AND key = ?2 AND scope <> 0";
    if !conn.prepare_cached(known)?.query_row(params![item, key], |row| row.get::<_, bool>(0))? {
        return Ok(false);
    }
    refused_answers::add(conn)?;
    if is_counted(verified, counted) {
        return Ok(true);
    }
    conn.prepare_cached(
        "UPDATE item SET attempts = ?2 - deferrals - probes - abandoned, last_class = ?3, last_status = ?4, last_code = ?5,
             last_type = NULL, last_error = ?6, tokens_in = tokens_in + ?7, tokens_out = tokens_out + ?8 WHERE id = ?1",
    )?
    .execute(params![
        item,
        call,
        Class::Transient.as_str(),
        status,
        code,
        message.as_deref().map(shorten),
        int(*tokens_in),
        int(*tokens_out)
    ])?;
    conn.prepare_cached("UPDATE call_under_way SET counted = 1 WHERE id = ?1")?.execute([item])?;
    add_call(conn, verified, counted)?;
    Ok(true)
}

/// Whether the line was the first to end its item. Its send counts as an attempt: throttles and what no server took end no item.
fn record(conn: &Connection, verified: &VerifiedLine, state: State, offset: u64, len: usize) -> rusqlite::Result<bool> {
    let counted = sends(conn, verified)?;
    let has_answer = state == State::Succeeded && !verified.fell_back;
    let class = has_answer.then_some(Class::Success.as_str());
    let reason = verified.code.as_deref().filter(|_| verified.fell_back);
    // What the same call used may be counted already, by the line of a refused answer.
    let used = |tokens: u64| int(if is_counted(verified, counted) { 0 } else { tokens });
    let changed = conn
        .prepare_cached(
            "UPDATE item SET state = ?3, out_off = ?4, out_len = ?5, not_before_ms = 0, delay_ms = 0,
                 attempts = max(attempts, ?6 - deferrals - probes - abandoned),
                 last_class = iif(scope = 0 OR ?14 IS NOT NULL OR ?15, last_class, ?7), last_status = ?8,
                 last_code = ?9, last_type = ?10, last_error = ?11, tokens_in = tokens_in + ?12, tokens_out = tokens_out + ?13,
                 reason = ?14
             WHERE id = ?1 AND (key = ?2 OR (scope = 0 AND ?2 = zeroblob(16))) AND state NOT IN (2, 3, 4, 5)",
        )?
        .execute(params![
            int(verified.ordinal),
            verified.key,
            state.code(),
            int(offset),
            int(len as u64),
            verified.call,
            class,
            verified.status,
            verified.code,
            verified.error_type,
            verified.message.as_deref().map(shorten),
            used(verified.tokens_in),
            used(verified.tokens_out),
            reason,
            is_counted(verified, counted)
        ])?;
    if changed == 1 {
        add_call(conn, verified, counted)?;
    }
    Ok(changed == 1)
}

/// Whether the call that a line answers is among those that the journal counts. An answer of `--done` is of none.
const fn is_counted(verified: &VerifiedLine, counted: u32) -> bool {
    verified.call > 0 && verified.call <= counted
}

/// Counts the call that a line answers, with what it used, and those before it: they are missing where a power cut took their
/// record. Nothing, if the line's call is among those `counted`.
fn add_call(conn: &Connection, verified: &VerifiedLine, counted: u32) -> rusqlite::Result<()> {
    add_calls(conn, verified.call, counted)?;
    if is_counted(verified, counted) {
        return Ok(());
    }
    let (tokens_in, tokens_out) = (verified.tokens_in, verified.tokens_out);
    let calls = u64::from(tokens_in + tokens_out > 0);
    usage::add(conn, &ModelUsage { calls, tokens_in, tokens_out, ..ModelUsage::default() })
}

/// The sends of an item that the journal counts; none for an item that it does not know.
fn sends(conn: &Connection, verified: &VerifiedLine) -> rusqlite::Result<u32> {
    let sql = "SELECT attempts + deferrals + probes + abandoned FROM item WHERE id = ?1";
    let found = conn.prepare_cached(sql)?.query_row([int(verified.ordinal)], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or(0))
}

/// Counts the calls up to the one that a line answers. Those before it are missing where a power cut took their record.
fn add_calls(conn: &Connection, call: u32, counted: u32) -> rusqlite::Result<()> {
    let calls = call.saturating_sub(counted);
    let resends = calls.min(call.saturating_sub(1));
    conn.prepare_cached("UPDATE run SET calls = calls + ?1, resends = resends + ?2")?.execute([calls, resends])?;
    Ok(())
}

/// Items whose answer no process will deliver any more wait again, in their old places, and from the second time on behind
/// the others: if one of them is what kills the process, those still get through.
fn requeue(conn: &Connection) -> Result<u64, JournalError> {
    let requeued = conn
        .execute(
            "UPDATE item SET state = 0, crash_attempts = crash_attempts + 1, not_before_ms = 0, delay_ms = 0
             WHERE state = 1",
            [],
        )
        .map_err(JournalError::sqlite("write"))?;
    Ok(requeued as u64)
}

/// A wall clock that was set back must not lengthen a wait: no item waits longer from now on than the delay that was
/// chosen.
fn bound_waits(conn: &Connection, now: Timestamp) -> Result<(), JournalError> {
    let sql = "UPDATE item SET not_before_ms = ?1 + delay_ms WHERE state = 0 AND not_before_ms > ?1 + delay_ms";
    conn.execute(sql, [now.as_millis()]).map_err(JournalError::sqlite("write"))?;
    Ok(())
}

pub(crate) fn set_covered(
    conn: &Connection,
    results: RecordedPrefix,
    errors: RecordedPrefix,
) -> Result<(), JournalError> {
    let sql = "UPDATE run SET out_len = ?1, out_crc = ?2, err_len = ?3, err_crc = ?4";
    conn.execute(sql, params![int(results.len), results.crc, int(errors.len), errors.crc])
        .map_err(JournalError::sqlite("write"))?;
    Ok(())
}
