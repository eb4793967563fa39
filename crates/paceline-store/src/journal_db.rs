//! The journal's database and output files as the writer thread owns them, and each operation on them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use paceline_core::Timestamp;
use rusqlite::ffi::SQLITE_READONLY_DBMOVED;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::claim;
use crate::disk::FileIdentity;
use crate::error::JournalError;
use crate::heads::Heads;
use crate::history::{self, Minute};
use crate::item::{
    CallTotals, ClaimExcept, ClaimedItems, Departure, FinishStatus, Finished, LastAnswer, ModelUsage, Rescheduled,
    Tally,
};
use crate::lock::RunLock;
use crate::output::Outputs;
use crate::paths::Paths;
use crate::query::{int, millis, shorten};
use crate::refused_answers;
use crate::replace::{self, IsMeant};
use crate::schema::{self, ACCOUNT, checkpoint};
use crate::scope::{STANDS_STILL, Scope, ScopeRow, ScopeStatus, scope_columns, scope_list};
use crate::snapshot::{self, SnapshotUpdate};
use crate::state::State;
use crate::unanswered;
use crate::usage;

/// The end of an item in one statement, because this is what the thread does most. Without a last answer (`?14` is its
/// class) the one before stays.
const FINISH: &str = "UPDATE item SET state = ?2, reason = ?3, tokens_in = ?4, tokens_out = ?5, out_off = ?6,
         out_len = ?7, not_before_ms = 0, delay_ms = 0, attempts = ?8, deferrals = ?9, probes = ?10, abandoned = ?11,
         first_ms = ?12, deadline_ms = ?13, last_class = coalesce(?14, last_class),
         last_status = iif(?14 IS NULL, last_status, ?15), last_code = iif(?14 IS NULL, last_code, ?16),
         last_type = iif(?14 IS NULL, last_type, ?17), last_error = iif(?14 IS NULL, last_error, ?18)
     WHERE id = ?1 AND state NOT IN (2, 3, 4, 5)";

/// Everything that the writer thread owns.
pub(crate) struct JournalDb {
    conn: Connection,
    outputs: Outputs,
    paths: Paths,
    /// Sorted by id.
    scopes: Vec<Scope>,
    heads: Heads,
    /// The items whose call is noted as under way, once read.
    under_way: Option<BTreeSet<u64>>,
    /// The journal as it was opened.
    place: Option<FileIdentity>,
    _lock: RunLock,
}

impl JournalDb {
    /// Takes over an open journal and its files.
    pub(crate) fn new(conn: Connection, outputs: Outputs, paths: Paths, lock: RunLock) -> Result<Self, JournalError> {
        let scopes = scope_list(&conn)?;
        let at = |path: &PathBuf| FileIdentity::at(path).map_err(JournalError::io("open", path));
        let place = paths.journal.as_ref().map(at).transpose()?;
        Ok(Self { conn, outputs, paths, scopes, heads: Heads::default(), under_way: None, place, _lock: lock })
    }

    /// The files of the job.
    pub(crate) const fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The database, for queries.
    pub(crate) const fn connection(&self) -> &Connection {
        &self.conn
    }

    /// The id of a known scope.
    pub(crate) fn scope_id(&self, name: &str) -> Option<i64> {
        self.scopes.iter().find(|scope| &*scope.row.name == name).map(|scope| scope.id)
    }

    /// Rewrites the files in the order of the input.
    pub(crate) fn order(&mut self) -> Result<(), JournalError> {
        replace::in_order(&self.conn, &self.paths, &mut self.outputs)
    }

    /// Requeues items that failed or fell back, and are meant; returns how many.
    pub(crate) fn retry_failed(&mut self, is_meant: IsMeant<'_>) -> Result<u64, JournalError> {
        let failed = replace::without_answer(&self.conn, &self.paths, &mut self.outputs, is_meant)?;
        if failed > 0 {
            replace::unpack_to_go_on(&self.conn, &self.paths, &mut self.outputs)?;
        }
        Ok(failed)
    }

    /// Begins a transaction for [`commit`](Self::commit); `durable`: it has to survive a power cut by itself.
    pub(crate) fn begin(&mut self, durable: bool) -> Result<(), JournalError> {
        schema::begin(&self.conn, durable)
    }

    /// Hands out due items.
    pub(crate) fn claim(
        &mut self,
        now: Timestamp,
        limit: usize,
        except: &ClaimExcept,
    ) -> Result<ClaimedItems, JournalError> {
        claim::claim(&self.conn, &self.scopes, &mut self.heads, now, limit, except)
    }

    /// To be called before the tables are changed by other statements than those below.
    pub(crate) fn forget_caches(&mut self) {
        self.heads.invalidate();
        self.under_way = None;
    }

    /// Hands out these items, those of them that wait, whatever they wait for.
    pub(crate) fn claim_items(&mut self, ordinals: &[u64]) -> Result<ClaimedItems, JournalError> {
        claim::claim_items(&self.conn, &self.scopes, ordinals)
    }

    /// Adds to the history.
    pub(crate) fn add_history(&mut self, minutes: &[Minute]) -> Result<(), JournalError> {
        minutes.iter().try_for_each(|minute| history::add(&self.conn, minute))
    }

    /// Moves the log into the database, so that one file is left.
    pub(crate) fn close(self) -> Result<(), JournalError> {
        self.outputs.check_places()?;
        self.check_place()?;
        checkpoint(&self.conn)?;
        leave_one_file(&self.conn)?;
        self.conn.close().map_err(|(_, error)| JournalError::Sqlite { action: "close", source: error })
    }

    pub(crate) fn commit(&mut self, adds: CallTotals, durable: bool) -> Result<(), JournalError> {
        self.outputs.write()?;
        refused_answers::set_covered(&self.conn, self.outputs.refused_answers.covered())
            .map_err(JournalError::sqlite("write"))?;
        let (results, errors) = (self.outputs.results.covered(), self.outputs.errors.covered());
        let mut update = self
            .conn
            .prepare_cached(
                "UPDATE run SET out_len = ?1, out_crc = ?2, err_len = ?3, err_crc = ?4, calls = calls + ?5,
                     resends = resends + ?6, retries = retries + ?7, throttled = throttled + ?8,
                     abandoned = abandoned + ?9
                 WHERE out_len <> ?1 OR err_len <> ?3 OR ?5 + ?6 + ?7 + ?8 + ?9 > 0",
            )
            .map_err(JournalError::sqlite("write"))?;
        let CallTotals { calls, resends, retries, throttled, abandoned } = adds;
        update
            .execute(params![
                int(results.len),
                results.crc,
                int(errors.len),
                errors.crc,
                int(calls),
                int(resends),
                int(retries),
                int(throttled),
                int(abandoned)
            ])
            .map_err(JournalError::sqlite("write"))?;
        drop(update);
        schema::commit(&self.conn, durable)?;
        // Only now: the answers of this batch stand in the results, whatever becomes of the journal.
        self.check_place()
    }

    /// Makes sure that the journal is still where the next run looks for it.
    fn check_place(&self) -> Result<(), JournalError> {
        match &self.paths.journal {
            Some(journal) if FileIdentity::at(journal).ok() != self.place => {
                Err(JournalError::JournalTaken { journal: journal.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Records that a call is sent.
    pub(crate) fn leaves(&mut self, departure: &Departure) -> Result<(), JournalError> {
        self.under_way()?.insert(departure.ordinal);
        unanswered::add(&self.conn, departure).map_err(JournalError::sqlite("write"))
    }

    /// The outcome of an item's call is recorded.
    fn answered(&mut self, ordinal: u64) -> Result<(), JournalError> {
        if self.under_way()?.remove(&ordinal) {
            unanswered::remove(&self.conn, ordinal).map_err(JournalError::sqlite("write"))?;
        }
        Ok(())
    }

    fn under_way(&mut self) -> Result<&mut BTreeSet<u64>, JournalError> {
        if self.under_way.is_none() {
            let known = unanswered::all(&self.conn).map_err(JournalError::sqlite("read"))?;
            self.under_way = Some(known.into_iter().map(|call| call.ordinal).collect());
        }
        Ok(self.under_way.as_mut().expect("it was read"))
    }

    /// Records the end of an item. The statement itself checks the state: of several ends only the first writes a line.
    pub(crate) fn finish(&mut self, finished: &Finished) -> Result<FinishStatus, JournalError> {
        let Finished { ordinal, end, line, tally, reason, .. } = finished;
        let Tally { attempts, deferrals, unsent, abandoned, tokens_in, tokens_out, first, deadline, last } = tally;
        let state = end.state();
        let output = self.outputs.of(*end);
        let changed = self
            .conn
            .prepare_cached(FINISH)
            .and_then(|mut update| {
                update.execute(params![
                    int(*ordinal),
                    state.code(),
                    reason,
                    int(*tokens_in),
                    int(*tokens_out),
                    int(output.next_offset()),
                    int(line.len() as u64),
                    attempts,
                    deferrals,
                    unsent,
                    abandoned,
                    first.map(|at| at.as_millis()),
                    deadline.map(|at| at.as_millis()),
                    last.as_ref().map(|last| last.class.as_str()),
                    last.as_ref().and_then(|last| last.status),
                    last.as_ref().and_then(|last| last.code.as_deref()),
                    last.as_ref().and_then(|last| last.error_type.as_deref()),
                    last.as_ref().and_then(|last| last.message.as_deref()).map(shorten),
                ])
            })
            .map_err(JournalError::sqlite("write"))?;
        if changed == 0 {
            return Ok(FinishStatus::AlreadyEnded);
        }
        output.stage(line);
        self.answered(*ordinal)?;
        Ok(FinishStatus::Recorded)
    }

    /// Takes a refused answer into its file.
    pub(crate) fn keep_refused(&mut self, line: &[u8]) -> Result<(), JournalError> {
        self.outputs.refused_answers.stage(line);
        refused_answers::add(&self.conn).map_err(JournalError::sqlite("write"))
    }

    pub(crate) fn reschedule(&mut self, next: &Rescheduled) -> Result<FinishStatus, JournalError> {
        // 0 means "waits for nothing" in the index, and that place belongs to items that were never tried.
        let not_before = next.not_before.as_millis().max(1);
        let changed = self
            .conn
            .prepare_cached(
                "UPDATE item SET state = 0, not_before_ms = ?2, delay_ms = ?3
                 WHERE id = ?1 AND state NOT IN (2, 3, 4, 5) RETURNING scope, not_before_ms",
            )
            .and_then(|mut update| {
                let values = params![int(next.ordinal), not_before, millis(next.delay)];
                update.query_row(values, |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(JournalError::sqlite("write"))?;
        self.requeue(changed, next.ordinal, Some(&next.tally))
    }

    pub(crate) fn release(&mut self, ordinal: u64, sent: Option<&Tally>) -> Result<FinishStatus, JournalError> {
        let changed = self
            .conn
            .prepare_cached(
                "UPDATE item SET state = 0 WHERE id = ?1 AND state NOT IN (2, 3, 4, 5) RETURNING scope, not_before_ms",
            )
            .and_then(|mut update| update.query_row([int(ordinal)], |row| Ok((row.get(0)?, row.get(1)?))).optional())
            .map_err(JournalError::sqlite("write"))?;
        if sent.is_none() && self.under_way()?.contains(&ordinal) {
            unanswered::withdraw(&self.conn, ordinal).map_err(JournalError::sqlite("write"))?;
        }
        self.requeue(changed, ordinal, sent)
    }

    /// `changed`: the scope of the item and when it is due, if it has not ended.
    fn requeue(
        &mut self,
        changed: Option<(i64, i64)>,
        ordinal: u64,
        tally: Option<&Tally>,
    ) -> Result<FinishStatus, JournalError> {
        let Some((scope, not_before)) = changed else { return Ok(FinishStatus::AlreadyEnded) };
        self.heads.add(scope, not_before, int(ordinal));
        if let Some(tally) = tally {
            self.tally(ordinal, tally)?;
            self.answered(ordinal)?;
        }
        Ok(FinishStatus::Recorded)
    }

    fn tally(&self, ordinal: u64, tally: &Tally) -> Result<(), JournalError> {
        let Tally { attempts, deferrals, unsent, abandoned, tokens_in, tokens_out, first, deadline, last } = tally;
        self.conn
            .prepare_cached(
                "UPDATE item SET attempts = ?2, deferrals = ?3, probes = ?4, abandoned = ?5,
                     first_ms = ?6, deadline_ms = ?7, tokens_in = ?8, tokens_out = ?9
                 WHERE id = ?1",
            )
            .and_then(|mut update| {
                let (first, deadline) = (first.map(|at| at.as_millis()), deadline.map(|at| at.as_millis()));
                let (tokens_in, tokens_out) = (int(*tokens_in), int(*tokens_out));
                update.execute(params![
                    int(ordinal),
                    attempts,
                    deferrals,
                    unsent,
                    abandoned,
                    first,
                    deadline,
                    tokens_in,
                    tokens_out
                ])
            })
            .map_err(JournalError::sqlite("write"))?;
        let Some(LastAnswer { class, status, code, error_type, message }) = last else { return Ok(()) };
        self.conn
            .prepare_cached(
                "UPDATE item SET last_class = ?2, last_status = ?3, last_code = ?4, last_type = ?5, last_error = ?6
                 WHERE id = ?1",
            )
            .and_then(|mut update| {
                let message = message.as_deref().map(shorten);
                update.execute(params![int(ordinal), class.as_str(), status, code, error_type, message])
            })
            .map_err(JournalError::sqlite("write"))?;
        Ok(())
    }

    pub(crate) fn set_scope(&mut self, row: ScopeRow) -> Result<(), JournalError> {
        let (state, until, reason) = scope_columns(&row.state);
        let id = self
            .conn
            .query_row(
                "INSERT INTO scope (name, state, until_ms, reason) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (name) DO UPDATE SET state = ?2, until_ms = ?3, reason = ?4
                 RETURNING id",
                params![row.name, state, until, reason],
                |found| found.get(0),
            )
            .map_err(JournalError::sqlite("write"))?;
        match self.scopes.binary_search_by_key(&id, |scope| scope.id) {
            Ok(place) => self.scopes[place].row = row,
            Err(place) => self.scopes.insert(place, Scope { id, row }),
        }
        Ok(())
    }

    /// The deadlines of the scope's waiting items are later by the part of that time in which they are due.
    pub(crate) fn stands_still(&self, name: &str, from: Timestamp, until: Timestamp) -> Result<(), JournalError> {
        let of: Vec<i64> = self
            .scopes
            .iter()
            .filter(|scope| name == ACCOUNT || &*scope.row.name == name)
            .map(|scope| scope.id)
            .collect();
        let later = || {
            let mut update = self.conn.prepare_cached(STANDS_STILL)?;
            of.iter().try_for_each(|id| update.execute(params![id, from.as_millis(), until.as_millis()]).map(drop))
        };
        later().map_err(JournalError::sqlite("write"))
    }

    pub(crate) fn hold_for_this_run(&mut self, name: &str, until: Option<Timestamp>) {
        if let Some(scope) = self.scopes.iter_mut().find(|scope| &*scope.row.name == name) {
            let reason = String::new();
            scope.row.state = match until {
                Some(until) => ScopeStatus::Held { until, reason },
                None => ScopeStatus::Stopped { reason },
            };
        }
    }

    /// The scopes that are held or stopped, without the account.
    pub(crate) fn closed_scopes(&self, now: Timestamp) -> BTreeSet<i64> {
        let is_closed = |scope: &&Scope| !scope.may_send(now) && &*scope.row.name != ACCOUNT;
        self.scopes.iter().filter(is_closed).map(|scope| scope.id).collect()
    }

    /// Adds the usage of a call.
    pub(crate) fn add_usage(&self, usage: &ModelUsage) -> Result<(), JournalError> {
        usage::add(&self.conn, usage).map_err(JournalError::sqlite("write"))
    }

    pub(crate) fn write_snapshot(&self, update: &SnapshotUpdate) -> Result<(), JournalError> {
        snapshot::write(&self.conn, update)
    }
}

/// Leaves WAL mode: reading a database in that mode makes files beside it, which stay, or cannot be made. Where a reader has the
/// journal open just now, or its folder has another name now, the end of the next run does it.
fn leave_one_file(conn: &Connection) -> Result<(), JournalError> {
    let switched =
        conn.busy_timeout(Duration::ZERO).and_then(|()| conn.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(())));
    let was_moved = |error: &rusqlite::Error| {
        error.sqlite_error().is_some_and(|error| error.extended_code == SQLITE_READONLY_DBMOVED)
    };
    match switched {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) || was_moved(&error) => {
            Ok(())
        }
        other => other.map_err(JournalError::sqlite("close")),
    }
}

/// The states of a guard as numbers.
const _: () = assert!(
    State::Succeeded as i64 == 2
        && State::Failed as i64 == 3
        && State::Skipped as i64 == 4
        && State::Cancelled as i64 == 5
);

#[cfg(test)]
mod tests {
    use super::*;

    /// As of a run that was started in a folder, with names in it, which then got another name.
    #[test]
    fn a_journal_whose_folder_was_moved_is_closed_and_keeps_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        std::fs::create_dir(&before).unwrap();
        let conn = Connection::open(before.join("job.journal")).unwrap();
        conn.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE done (item INTEGER); INSERT INTO done VALUES (7)")
            .unwrap();
        std::fs::rename(&before, &after).unwrap();
        leave_one_file(&conn).unwrap();
        conn.close().unwrap();
        let conn = Connection::open(after.join("job.journal")).unwrap();
        assert_eq!(conn.query_row("SELECT item FROM done", [], |row| row.get::<_, i64>(0)), Ok(7));
        leave_one_file(&conn).unwrap();
    }
}
