//! The handle of a runner: all commands go through one queue to the thread that owns the files.

use std::sync::{Arc, mpsc};

use paceline_core::Timestamp;

use crate::append::{self, Appended, AppendedLine, InputCursor};
use crate::error::{DiskFull, JournalError};
use crate::history::Minute;
use crate::item::{
    ClaimExcept, ClaimedItems, CutOff, Departure, FinishStatus, Finished, JournalItem, ModelUsage, Rescheduled,
    Unanswered,
};
use crate::load::{self, Loader};
use crate::lock::RunLock;
use crate::options::Options;
use crate::output::Outputs;
use crate::recover::{self, Recovery};
use crate::replace::{self, LastFailure};
use crate::report::{self, JobCounts, ReportRow, Rows};
use crate::schema::{Found, connect, refuse_foreign};
use crate::scope::{self, ScopeRow, ScopeStatus};
use crate::snapshot::{self, SnapshotUpdate, StoredSnapshot};
use crate::state::State;
use crate::writer::Writer;
use crate::{command::Command, disk_space::Room};
use crate::{journal_db::JournalDb, line::CustomId};
use crate::{query, rescope, unanswered, usage};

/// The result of opening a job.
#[derive(Debug)]
pub enum Opened {
    /// Nothing was there, or a load that never ended: the input is to be loaded.
    New(Loader),
    /// A job to resume.
    Resumed {
        /// Its journal.
        journal: Journal,
        /// What was repaired.
        recovery: Recovery,
    },
    /// A job to resume with another input, or with one that was written again, which is to be loaded. An item keeps the state
    /// of the one with its id and body; new ones are added, and unfinished ones that are gone or changed are dropped.
    Changed {
        /// Takes the new input.
        loader: Loader,
        /// What was repaired.
        recovery: Recovery,
        /// Length and beginning are those of the input as it was: it was written again, or copied.
        rewritten: bool,
    },
}

/// The durable state of a job. Cheap to clone; the last handle that goes closes it.
///
/// Outcomes, holds and snapshots are queued and answered on the journal's own thread, once they are on disk: keep what
/// you do there short. A queue of 64 MiB makes the caller wait until it has room. While the disk is full
/// ([`disk_full`](Self::disk_full)) nothing is answered, and all of it is recorded once there is room. After a failure (a broken
/// disk) every call is answered with [`JournalError::Stopped`]; what was acknowledged before is safe.
#[derive(Clone, Debug)]
pub struct Journal {
    pub(crate) writer: Arc<Writer>,
    id: Arc<str>,
}

impl Journal {
    /// Opens the job, for this process alone, and repairs what a crash left: lines in the files that the journal had
    /// not recorded yet are recorded, unfinished ones cut off, items in flight wait again behind the others.
    ///
    /// # Errors
    /// [`JournalError::Locked`] while another run works on it; [`JournalError::Folder`]; [`JournalError::InputChanged`],
    /// [`JournalError::OutputWithoutJournal`], [`JournalError::JournalWithoutOutput`], [`JournalError::Damaged`],
    /// [`JournalError::NewerVersion`] and [`JournalError::NotAJournal`] when the files do not fit together, in which case nothing
    /// was changed; [`JournalError::DiskFull`] without 1 MiB; [`JournalError::Io`] and [`JournalError::Sqlite`].
    pub fn open(options: Options) -> Result<Opened, JournalError> {
        let lock = RunLock::take(&options.paths)?;
        Self::open_locked(options, lock)
    }

    /// [`open`](Self::open) under the job's lock, for a caller that has to prepare something under it.
    ///
    /// # Errors
    /// As for [`open`](Self::open), less those of the lock.
    pub fn open_locked(options: Options, lock: RunLock) -> Result<Opened, JournalError> {
        load::remove_unfinished(&options.paths)?;
        if let Some(disk_full) = options.paths.disk_space().too_full_to_begin() {
            return Err(JournalError::DiskFull(disk_full));
        }
        let journal = options.paths.journal.as_deref();
        if options.overwrite {
            refuse_foreign(journal)?;
            return Ok(Opened::New(Loader::begin(lock, options)?));
        }
        if journal.is_none_or(|path| !path.exists()) {
            Outputs::refuse_existing(&options.paths)?;
            return Ok(Opened::New(Loader::begin(lock, options)?));
        }
        let (conn, found) = connect(journal)?;
        match found {
            Found::Empty => {
                drop(conn);
                Outputs::refuse_existing(&options.paths)?;
                Ok(Opened::New(Loader::begin(lock, options)?))
            }
            Found::Journal => {
                let run = query::run(&conn)?;
                let same = options.input.same_as(&run.input);
                let rewritten = same.is_ok();
                let changed = match same {
                    Err(error) if !(options.accept_changed || options.repair_failed) => return Err(error),
                    _ => !rewritten || options.input.mtime_ms != run.input.mtime_ms,
                };
                replace::complete(&conn, &options.paths)?;
                Outputs::refuse_strange(&options.paths, &run)?;
                let (mut outputs, recovery) =
                    recover::recover(&conn, &options.paths, &run, options.now, options.awaits_notes)?;
                if changed {
                    let loader = Loader::begin_changed(conn, outputs, lock, options)?;
                    return Ok(Opened::Changed { loader, recovery, rewritten });
                }
                replace::unpack_to_go_on(&conn, &options.paths, &mut outputs).and_then(|()| outputs.prove())?;
                let journal = Self::start(JournalDb::new(conn, outputs, options.paths, lock)?, run.id)?;
                Ok(Opened::Resumed { journal, recovery })
            }
        }
    }

    pub(crate) fn start(db: JournalDb, id: String) -> Result<Self, JournalError> {
        Ok(Self { writer: Arc::new(Writer::start(db)?), id: id.into() })
    }

    /// The job's own id: the same over all its runs, different for each job. Letters and digits.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Room for the answer of a call that is to leave; none while the disk has not as much.
    pub fn room_for_answer(&self) -> Option<Room> {
        self.writer.disk_space().room_for_answer()
    }

    /// The full disk that the journal, or a call that is to leave, waits for.
    pub fn disk_full(&self) -> Option<DiskFull> {
        self.writer.disk_space().disk_full()
    }

    /// Waits for no full disk any more: what finds no room is refused with [`JournalError::DiskFull`], like everything behind
    /// it, and nothing of it is recorded. The journal can still be looked at. For the end of a run.
    pub fn fail_when_disk_full(&self) {
        self.writer.disk_space().fail_when_full();
    }

    /// Hands out at most `limit` due items of scopes that are open, but for those in `except`, and marks them in flight.
    pub fn claim(
        &self,
        now: Timestamp,
        limit: usize,
        except: ClaimExcept,
        reply: impl FnOnce(Result<ClaimedItems, JournalError>) + Send + 'static,
    ) {
        self.writer.send(Command::Claim { now, limit, except, reply: Box::new(reply) });
    }

    /// Hands out those of the items that wait, whatever their due time and scope, and marks them in flight. The answer's
    /// `next_due` is meaningless.
    pub fn claim_items(
        &self,
        ordinals: Vec<u64>,
        reply: impl FnOnce(Result<ClaimedItems, JournalError>) + Send + 'static,
    ) {
        self.writer.send(Command::ClaimItems { ordinals, reply: Box::new(reply) });
    }

    /// [`claim`](Self::claim) from all open scopes, waiting for the answer. Not for async code.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], [`JournalError::Closed`].
    pub fn claim_now(&self, now: Timestamp, limit: usize) -> Result<ClaimedItems, JournalError> {
        wait(|reply| self.claim(now, limit, ClaimExcept::default(), reply))
    }

    /// The next of the lines that cannot be sent and have not ended yet, at most `limit` by place in the input. For the
    /// beginning of a run, which writes their error lines.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn refused(&self, limit: usize) -> Result<Vec<JournalItem>, JournalError> {
        self.writer.query(move |conn| query::refused(conn, limit))
    }

    /// Records that a call of an item is sent, until its outcome is recorded. Once `reply` is called that outlasts a kill, and
    /// a power cut if it is to be durable. The next run counts a call without an outcome as given up, and as much as it reserved.
    pub fn leaves(&self, departure: Departure, reply: impl FnOnce(Result<(), JournalError>) + Send + 'static) {
        self.writer.send(Command::Leaves { departure, reply: Some(Box::new(reply)) });
    }

    /// [`leaves`](Self::leaves) for a call that need not wait for its record, which is made together with the next one.
    pub fn leaves_unawaited(&self, departure: Departure) {
        self.writer.send(Command::Leaves { departure, reply: None });
    }

    /// The items whose call [left](Self::leaves) in an earlier run, which ended before it recorded the outcome.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn unanswered(&self) -> Result<Vec<CutOff>, JournalError> {
        self.writer.query(|conn| unanswered::all(conn).map_err(JournalError::sqlite("read")))
    }

    /// Records the end of an item: its line is on disk, and the item ended, when `reply` is called.
    pub fn finish(&self, finished: Finished, reply: impl FnOnce(Result<FinishStatus, JournalError>) + Send + 'static) {
        self.writer.send(Command::Finish(Box::new(finished), Box::new(reply)));
    }

    /// Keeps an answer that the user's expectation refused: its line, as
    /// [`ResultLine::encode_refused`](crate::ResultLine::encode_refused) made it, is on disk once `reply` is called, in
    /// [`Paths::refused_answers`](crate::Paths::refused_answers). To be told before what becomes of its item, so that a crash
    /// loses no answer whose call it counts.
    pub fn keep_refused(&self, line: Vec<u8>, reply: impl FnOnce(Result<(), JournalError>) + Send + 'static) {
        self.writer.send(Command::Refused { line, reply: Box::new(reply) });
    }

    /// Records a later retry of an item.
    pub fn reschedule(
        &self,
        next: Rescheduled,
        reply: impl FnOnce(Result<FinishStatus, JournalError>) + Send + 'static,
    ) {
        self.writer.send(Command::Reschedule(Box::new(next), Box::new(reply)));
    }

    /// Releases an item: it waits again as before its claim. With the call if it was sent, and abandoned.
    pub fn release(
        &self,
        ordinal: u64,
        sent: Option<Unanswered>,
        reply: impl FnOnce(Result<FinishStatus, JournalError>) + Send + 'static,
    ) {
        self.writer.send(Command::Release { ordinal, sent: sent.map(Box::new), reply: Box::new(reply) });
    }

    /// Holds, stops or opens a scope, or with [`ACCOUNT`](crate::ACCOUNT) the account. It lasts over runs.
    pub fn set_scope(
        &self,
        name: &str,
        state: ScopeStatus,
        reply: impl FnOnce(Result<(), JournalError>) + Send + 'static,
    ) {
        let row = ScopeRow { name: name.into(), state };
        self.writer.send(Command::Scope { row, reply: Box::new(reply) });
    }

    /// Hands out nothing of a scope before then, or at all, in this run alone: nothing of it is stored.
    pub fn hold_for_this_run(&self, name: &Arc<str>, until: Option<Timestamp>) {
        self.writer.send(Command::HoldForThisRun { name: Arc::clone(name), until });
    }

    /// Gives each item that has not ended the scope that `scope_of` names; none leaves it where it is. The scopes must be
    /// known ([`set_scope`](Self::set_scope)). For the beginning of a run, before anything is claimed.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts), and the first error of `scope_of`.
    pub fn rescope<E: From<JournalError>>(
        &self,
        mut scope_of: impl FnMut(&JournalItem) -> Result<Option<Arc<str>>, E>,
    ) -> Result<(), E> {
        let mut after = None;
        loop {
            let page = self.writer.query(move |conn| rescope::pending_page(conn, after))?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.ordinal);
            let mut moves = Vec::new();
            for item in &page {
                if let Some(scope) = scope_of(item)? {
                    moves.push((item.ordinal, scope));
                }
            }
            self.writer.query(move |conn| rescope::reassign(conn, &moves))?;
        }
    }

    /// The position up to which the input of a running job is loaded; none once every line is.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn input_cursor(&self) -> Result<Option<InputCursor>, JournalError> {
        self.writer.query(append::input_cursor)
    }

    /// Appends lines of the input, and records the position up to which it is read (`None`: its end). A line with a repeated id
    /// is refused, for the reason `repeated`. On disk once this returns.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn append(
        &self,
        lines: Vec<AppendedLine>,
        input_cursor: Option<InputCursor>,
        repeated: &'static str,
    ) -> Result<Appended, JournalError> {
        self.writer.between_batches(move |db| append::append(db, &lines, input_cursor, repeated))
    }

    /// Lets every item start at once that waits for a time of its own. For the beginning of a run.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn forget_waits(&self) -> Result<(), JournalError> {
        self.writer.query(query::forget_waits)
    }

    /// The configuration with which the job was begun or last resumed, as JSON.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn config_json(&self) -> Result<String, JournalError> {
        self.writer.query(query::config)
    }

    /// Replaces the stored configuration, and with it what calls used, where their models have other names from now on.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn set_config(&self, json: String, used: Option<Vec<ModelUsage>>) -> Result<(), JournalError> {
        self.writer.query(move |conn| query::set_config(conn, &json, used.as_deref()))
    }

    /// The last snapshot that was written, by this run or the one before.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn snapshot(&self) -> Result<Option<StoredSnapshot>, JournalError> {
        self.writer.query(snapshot::read)
    }

    /// The limiter state of an earlier run, in parts ([`SnapshotUpdate::state`]).
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn limiter_state(&self) -> Result<Vec<String>, JournalError> {
        self.writer.query(snapshot::read_state)
    }

    /// Writes the changes of the snapshot for other processes.
    pub fn write_snapshot(
        &self,
        update: SnapshotUpdate,
        reply: impl FnOnce(Result<(), JournalError>) + Send + 'static,
    ) {
        self.writer.send(Command::Snapshot { update, reply: Box::new(reply) });
    }

    /// Adds the counts since the last call to the history. A kill loses what was not added yet.
    pub fn add_history(&self, minutes: Vec<Minute>, reply: impl FnOnce(Result<(), JournalError>) + Send + 'static) {
        self.writer.send(Command::History { minutes, reply: Box::new(reply) });
    }

    /// Rewrites results and errors in the order of the input, and compresses the results where
    /// [`Paths::compress`](crate::Paths::compress) asks for that. Of a process or machine that dies meanwhile, either the old
    /// file is left or the new one, and a journal that fits it. Files that are in order stay as they are. For the end of a job,
    /// when nothing is queued any more: compressed results take no further line.
    ///
    /// # Errors
    /// [`JournalError::Io`], [`JournalError::Sqlite`], [`JournalError::Damaged`]; the old file stays then.
    /// [`JournalError::Stopped`], [`JournalError::Closed`].
    pub fn order(&self) -> Result<(), JournalError> {
        self.writer.between_batches(JournalDb::order)
    }

    /// Lets the items that failed or fell back wait again, and takes their lines out of the files; returns how many there were.
    /// Their sends so far stay counted, but their attempts and deferrals no longer count against their bounds, and their
    /// deadline begins anew.
    ///
    /// # Errors
    /// As for [`order`](Self::order).
    pub fn retry_failed(&self) -> Result<u64, JournalError> {
        self.retry_failed_of(|_| true)
    }

    /// The same for items of which this says so.
    ///
    /// # Errors
    /// As for [`order`](Self::order).
    pub fn retry_failed_of(
        &self,
        is_meant: impl Fn(&LastFailure<'_>) -> bool + Send + 'static,
    ) -> Result<u64, JournalError> {
        self.writer.between_batches(move |db| db.retry_failed(&is_meant))
    }

    /// Looks items up by their ids: each with its state, or none where the input has no such id.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn find(&self, ids: &[CustomId]) -> Result<Vec<Option<(JournalItem, State)>>, JournalError> {
        let keys: Vec<_> = ids.iter().map(CustomId::key).collect();
        self.writer.query(move |conn| {
            let scopes = scope::scope_list(conn)?;
            keys.iter().map(|key| query::find(conn, &scopes, key)).collect()
        })
    }

    /// The counts of items by state, without the reasons of waits: for the beginning of a run. Waits for what was queued before.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn sums(&self) -> Result<JobCounts, JournalError> {
        self.writer.query(report::sums)
    }

    /// The counts of items by state. Waits for what was queued before, and reads every row: for the end of a run.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], [`JournalError::Closed`], [`JournalError::Sqlite`].
    pub fn counts(&self, now: Timestamp) -> Result<JobCounts, JournalError> {
        self.writer.query(move |conn| report::counts(conn, now, false))
    }

    /// The usage of the calls of all runs, by model.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn usage(&self) -> Result<Vec<ModelUsage>, JournalError> {
        self.writer.query(usage::all)
    }

    /// The scopes and their states, by name; the account's comes along once it was set.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn scopes(&self) -> Result<Vec<ScopeRow>, JournalError> {
        self.writer.query(scope::scopes)
    }

    /// Whether an item of that scope waits.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn waits_in(&self, scope: &str) -> Result<bool, JournalError> {
        let scope = scope.to_owned();
        self.writer.query(move |conn| scope::waits_in(conn, &scope))
    }

    /// The status and code with which most waiting items of the scope were refused last, or had one of these `codes`; or none.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn refused_last(&self, scope: &str, codes: &[&str]) -> Result<Option<scope::StatusAndCode>, JournalError> {
        let (scope, codes) = (scope.to_owned(), serde_json::json!(codes).to_string());
        self.writer.query(move |conn| scope::refused_last(conn, &scope, &codes))
    }

    /// When the next waiting item may start, as [`ClaimedItems::next_due`].
    ///
    /// # Errors
    /// As for [`counts`](Self::counts).
    pub fn next_due(&self) -> Result<Option<Timestamp>, JournalError> {
        self.writer.query(|conn| scope::next_due(conn, &scope::scope_list(conn)?))
    }

    /// Goes through the items by place in the input, page by page: memory does not grow with the job.
    ///
    /// # Errors
    /// As for [`counts`](Self::counts), and the first error of `visit`.
    pub fn report<E: From<JournalError>>(
        &self,
        now: Timestamp,
        rows: Rows,
        visit: impl FnMut(ReportRow) -> Result<(), E>,
    ) -> Result<(), E> {
        report::pages(|after| self.writer.query(move |conn| report::report_page(conn, now, rows, after)), visit)
    }

    /// Waits until everything queued before is on disk.
    ///
    /// # Errors
    /// [`JournalError::Stopped`], [`JournalError::Closed`].
    pub fn flush(&self) -> Result<(), JournalError> {
        self.writer.query(|_| Ok(()))
    }

    /// Writes what is queued, closes the files and releases the lock. Items in flight stay so: release them before, or
    /// the next run takes them for interrupted.
    ///
    /// # Errors
    /// The failure that stopped the journal, if one did.
    pub fn close(&self) -> Result<(), JournalError> {
        self.writer.close()
    }
}

/// Sends a command and waits for its reply.
fn wait<T: Send + 'static>(
    send: impl FnOnce(Box<dyn FnOnce(Result<T, JournalError>) + Send>),
) -> Result<T, JournalError> {
    let (sender, receiver) = mpsc::channel();
    // The receiver outlives the reply: it waits for it right below.
    send(Box::new(move |result| drop(sender.send(result))));
    receiver.recv().unwrap_or(Err(JournalError::Closed))
}
