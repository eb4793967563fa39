//! Loads the input into a new journal: one transaction, so that a load that is killed leaves nothing behind.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};

use paceline_core::Timestamp;
use rusqlite::{Connection, params};

use crate::append::{InputCursor, set_input_cursor};
use crate::disk::{remove, sync_folder_of};
use crate::error::JournalError;
use crate::item::{LoadedLine, RefusedLine};
use crate::journal::Journal;
use crate::journal_db::JournalDb;
use crate::line::CustomId;
use crate::lock::RunLock;
use crate::merge::{self, Conflicts};
use crate::options::Options;
use crate::output::Outputs;
use crate::paths::{InputFingerprint, Paths, beside_database, with_suffix};
use crate::query::{self, int};
use crate::refused::{self, Duplicates, Place};
use crate::refused_answers;
use crate::replace;
use crate::schema::{
    DUE_INDEX, Found, ITEM_TABLE, KEY_INDEX, TABLES, begin_writing, checkpoint, connect, hash, mark, refuse_foreign,
};
use crate::scope::{ScopeRow, ScopeStatus, scope_list};
use crate::unanswered;

/// Takes the items of a new job. Memory stays the same however many they are. Dropped without
/// [`finish`](Self::finish), it removes the journal: an input that was refused leaves nothing behind.
#[derive(Debug)]
pub struct Loader {
    /// None only between the end of `finish` and the drop.
    open: Option<Box<Open>>,
    scopes: BTreeMap<String, i64>,
    items: u64,
    /// The index over the ids stands: none repeats.
    unique: bool,
}

#[derive(Debug)]
struct Open {
    conn: Connection,
    /// The file that is filled: the journal, or one beside it that will replace it.
    place: Option<PathBuf>,
    lock: RunLock,
    options: Options,
    /// The files of the job that is taken up with another input.
    outputs: Option<Outputs>,
    /// Where the input is to be read on once the job runs.
    input_cursor: Option<InputCursor>,
}

impl Loader {
    /// Fills a journal beside the place where it will stand once the input was taken; whatever job is there stays until
    /// then.
    pub(crate) fn begin(lock: RunLock, options: Options) -> Result<Self, JournalError> {
        let place = place_beside(&options.paths);
        refuse_foreign(place.as_deref())?;
        place.iter().try_for_each(|place| remove_database(place))?;
        let (conn, _) = connect_new(place.as_deref())?;
        Self::fill(conn, place, lock, options)
    }

    fn fill(conn: Connection, place: Option<PathBuf>, lock: RunLock, options: Options) -> Result<Self, JournalError> {
        let awaits_notes = options.awaits_notes;
        // From here on dropping it removes the file.
        let loader = Self::over(Open { conn, place, lock, options, outputs: None, input_cursor: None });
        let conn = &loader.open.as_ref().expect("open until finished").conn;
        conn.execute_batch(BEGIN)
            .and_then(|()| conn.execute_batch(TABLES))
            .and_then(|()| conn.execute_batch(ITEM_TABLE))
            .and_then(|()| conn.execute_batch(crate::history::TABLE))
            .and_then(|()| conn.execute_batch(crate::usage::TABLE))
            .and_then(|()| conn.execute_batch(refused_answers::TABLE))
            .and_then(|()| conn.execute_batch(unanswered::TABLES))
            .and_then(|()| unanswered::begin_run(conn, awaits_notes, 0).map(drop))
            .map_err(JournalError::sqlite("load"))?;
        Ok(loader)
    }

    /// Takes another input into a job that is there. Dropped unfinished, it leaves the job as it was.
    pub(crate) fn begin_changed(
        conn: Connection,
        outputs: Outputs,
        lock: RunLock,
        options: Options,
    ) -> Result<Self, JournalError> {
        let mut loader =
            Self::over(Open { conn, place: None, lock, options, outputs: Some(outputs), input_cursor: None });
        let conn = &loader.open.as_ref().expect("open until finished").conn;
        conn.execute_batch(BEGIN).and_then(|()| merge::set_aside(conn)).map_err(JournalError::sqlite("load"))?;
        loader.scopes = scope_list(conn)?.into_iter().map(|scope| (scope.row.name.to_string(), scope.id)).collect();
        Ok(loader)
    }

    fn over(open: Open) -> Self {
        Self { open: Some(Box::new(open)), scopes: BTreeMap::new(), items: 0, unique: false }
    }

    /// Adds the next item of the input; returns its ordinal, counted from 0. Repeated ids are detected by
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn add(&mut self, item: &LoadedLine<'_>) -> Result<u64, JournalError> {
        let conn = &self.open.as_ref().expect("open until finished").conn;
        let scope = match self.scopes.get(item.scope) {
            Some(id) => *id,
            None => {
                conn.execute("INSERT INTO scope (name) VALUES (?1)", [item.scope])
                    .map_err(JournalError::sqlite("load"))?;
                self.scopes.insert(item.scope.to_owned(), conn.last_insert_rowid());
                conn.last_insert_rowid()
            }
        };
        let ordinal = self.items;
        let sql =
            "INSERT INTO item (id, key, body_hash, line, src_off, src_len, scope) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        conn.prepare_cached(sql)
            .and_then(|mut insert| {
                let (line, src_off, src_len) = (int(item.line), int(item.src_off), int(item.src_len));
                let (key, body_hash) = (item.custom_id.key(), hash(item.body));
                insert.execute(params![int(ordinal), key, body_hash, line, src_off, src_len, scope])
            })
            .map_err(JournalError::sqlite("load"))?;
        self.items += 1;
        Ok(ordinal)
    }

    /// Adds the next line of the input as an item that cannot be sent. The job fails it by itself; see
    /// [`Journal::refused`].
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn add_refused(&mut self, refused: &RefusedLine<'_>) -> Result<u64, JournalError> {
        let conn = &self.open.as_ref().expect("open until finished").conn;
        let ordinal = self.items;
        let RefusedLine { custom_id, line, src_off, src_len, bytes, code, message } = *refused;
        let (place, key) = (Place { ordinal, line, src_off, src_len }, custom_id.map(CustomId::key));
        refused::add(conn, &place, key.as_ref(), &hash(bytes), code, message).map_err(JournalError::sqlite("load"))?;
        self.items += 1;
        Ok(ordinal)
    }

    /// Refuses every item with a repeated id, for the reason `code`. The first stays.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn refuse_duplicates(&mut self, code: &str) -> Result<(), JournalError> {
        let conn = &self.open.as_ref().expect("open until finished").conn;
        refused::refuse_duplicates(conn, code).map_err(JournalError::sqlite("load"))
    }

    /// The rest of the input is left to [`Journal::append`]: the job runs without waiting for it.
    pub fn leave(&mut self, input_cursor: InputCursor) {
        self.open.as_mut().expect("open until finished").input_cursor = Some(input_cursor);
    }

    /// Items added so far.
    pub const fn items(&self) -> u64 {
        self.items
    }

    /// The scopes of the items so far, all of them open.
    pub fn scopes(&self) -> Vec<ScopeRow> {
        let row = |name: &String| ScopeRow { name: name.as_str().into(), state: ScopeStatus::Open };
        self.scopes.keys().map(row).collect()
    }

    /// Finds items with repeated ids. It returns only the first `limit` by place in the input, but counts all.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn duplicates(&mut self, limit: usize) -> Result<Duplicates, JournalError> {
        let Open { conn, .. } = self.open.as_deref().expect("open until finished");
        match conn.execute_batch(KEY_INDEX) {
            Ok(()) => {
                self.unique = true;
                Ok(Duplicates::default())
            }
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                refused::duplicates(conn, limit).map_err(JournalError::sqlite("load"))
            }
            Err(source) => Err(JournalError::Sqlite { action: "load", source }),
        }
    }

    /// Looks for items that have ended in the job and are not as they were in the new input; none in a new job. After
    /// [`duplicates`](Self::duplicates), which must have found none or had them refused.
    ///
    /// # Errors
    /// [`JournalError::Sqlite`].
    pub fn conflicts(&self, limit: usize) -> Result<Conflicts, JournalError> {
        let Open { conn, outputs, options, .. } = self.open.as_deref().expect("open until finished");
        if outputs.is_none() {
            return Ok(Conflicts::default());
        }
        merge::conflicts(conn, options.may_change(), limit).map_err(JournalError::sqlite("load"))
    }

    /// Completes the journal, makes it durable and creates the results file. With [`Options::overwrite`] the job that was
    /// there is removed at this moment.
    ///
    /// # Errors
    /// [`JournalError::Duplicates`] when ids repeat; [`JournalError::EndedChanged`] for [`conflicts`](Self::conflicts);
    /// [`JournalError::Io`], [`JournalError::Sqlite`]. A new journal is then removed.
    pub fn finish(mut self) -> Result<Journal, JournalError> {
        if !self.unique {
            let found = self.duplicates(1)?;
            if let Some(first) = found.first.first() {
                return Err(JournalError::Duplicates {
                    line: first.line,
                    first_line: first.first_line,
                    count: found.count,
                });
            }
        }
        let conflicts = self.conflicts(0)?.count;
        if conflicts > 0 {
            return Err(JournalError::EndedChanged { count: conflicts });
        }
        let open = self.open.as_deref_mut().expect("open until finished");
        open.lock.check()?;
        let id = open.id()?;
        open.commit(&id)?;
        if open.outputs.is_none() {
            open.take_place()?;
        }
        if let Some(journal) = &open.options.paths.journal {
            sync_folder_of(journal)?;
        }
        let mut outputs = match open.outputs.take() {
            Some(mut outputs) => {
                replace::unpack_to_go_on(&open.conn, &open.options.paths, &mut outputs)?;
                outputs
            }
            None => Outputs::create(&open.options.paths)?,
        };
        outputs.prove()?;
        let Open { conn, lock, options, .. } = *self.open.take().expect("open until finished");
        Journal::start(JournalDb::new(conn, outputs, options.paths, lock)?, id)
    }
}

impl Open {
    /// The job's id, which stays with another input too.
    fn id(&self) -> Result<String, JournalError> {
        match &self.options.id {
            _ if self.outputs.is_some() => Ok(query::run(&self.conn)?.id),
            Some(id) => Ok(id.clone()),
            None => Ok(run_id(self.options.now)),
        }
    }

    /// Ends the transaction.
    fn commit(&self, id: &str) -> Result<(), JournalError> {
        let Self { conn, options, outputs, input_cursor, .. } = self;
        let commit = || {
            if outputs.is_some() {
                merge::take_over(conn, options.may_change())?;
                write_input(conn, options)?;
            } else {
                write_run(conn, id, options)?;
                mark(conn)?;
            }
            set_input_cursor(conn, *input_cursor)?;
            conn.execute_batch(DUE_INDEX)?;
            conn.execute_batch(
                "COMMIT; PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -2000;
                 PRAGMA shrink_memory;",
            )
        };
        commit().map_err(JournalError::sqlite("load"))?;
        outputs.as_ref().map_or(Ok(()), |_| checkpoint(conn))
    }

    /// Puts the journal where it belongs. A job that is there is removed first, and of it the journal: whatever stops this in
    /// between, results without a journal are refused, and never taken for those of the new one.
    fn take_place(&mut self) -> Result<(), JournalError> {
        let Paths { output, errors, report, refused_answers, journal, compress, .. } = &self.options.paths;
        journal.iter().try_for_each(|journal| remove_database(journal))?;
        if self.options.overwrite {
            let packed = compress.then(|| self.options.paths.packed());
            [output, errors, report, refused_answers].into_iter().chain(&packed).try_for_each(|path| remove(path))?;
        }
        let (Some(place), Some(journal)) = (&mut self.place, journal) else { return Ok(()) };
        let memory = Connection::open_in_memory().map_err(JournalError::sqlite("open"))?;
        let filled = std::mem::replace(&mut self.conn, memory);
        filled.close().map_err(|(_, error)| JournalError::Sqlite { action: "close", source: error })?;
        std::fs::rename(&*place, journal).map_err(JournalError::io("replace", journal))?;
        place.clone_from(journal);
        (self.conn, _) = connect(Some(journal))?;
        begin_writing(&self.conn)
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let Open { conn, place, lock, .. } = *open;
        drop(conn);
        if let Some(place) = place {
            // What cannot be removed is recognized as an unfinished load and started over.
            let _ = remove_database(&place);
        }
        drop(lock);
    }
}

/// Where a journal is filled that will replace another.
fn place_beside(paths: &Paths) -> Option<PathBuf> {
    paths.journal.clone().map(|path| with_suffix(path.into(), ".new").into())
}

/// Removes what is left of a load that was killed before its journal could replace another.
pub(crate) fn remove_unfinished(paths: &Paths) -> Result<(), JournalError> {
    let ours = place_beside(paths).filter(|place| refuse_foreign(Some(place)).is_ok());
    ours.map_or(Ok(()), |place| remove_database(&place))
}

/// Makes a database; what is left of one that cannot be made is removed.
fn connect_new(path: Option<&Path>) -> Result<(Connection, Found), JournalError> {
    connect(path).inspect_err(|_| {
        // What cannot be removed is recognized as an unfinished load and started over.
        let _ = path.map(remove_database);
    })
}

/// Removes a database with the files that SQLite keeps beside it.
fn remove_database(path: &Path) -> Result<(), JournalError> {
    remove(path)?;
    beside_database(path).iter().try_for_each(|path| remove(path))
}

/// Where the input is, for a process in another folder too.
fn path_from_anywhere(input: &InputFingerprint) -> PathBuf {
    std::path::absolute(&input.path).unwrap_or_else(|_| input.path.clone())
}

fn write_run(conn: &Connection, id: &str, options: &Options) -> rusqlite::Result<()> {
    let Options { input, config_json, now, .. } = options;
    conn.execute(
        "INSERT INTO run (id, created_ms, input_path, input_len, input_mtime_ms, input_head_hash, config_json)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![
            id,
            now.as_millis(),
            path_from_anywhere(input).to_string_lossy(),
            int(input.len),
            input.mtime_ms,
            input.head_hash,
            config_json
        ],
    )?;
    Ok(())
}

fn write_input(conn: &Connection, options: &Options) -> rusqlite::Result<()> {
    let input = &options.input;
    conn.execute(
        "UPDATE run SET input_path = ?1, input_len = ?2, input_mtime_ms = ?3, input_head_hash = ?4",
        params![path_from_anywhere(input).to_string_lossy(), int(input.len), input.mtime_ms, input.head_hash],
    )?;
    Ok(())
}

/// Different for each job, so that no other job's calls have its idempotency keys. The seed of the standard hash maps is
/// the operating system's randomness.
fn run_id(now: Timestamp) -> String {
    let random = RandomState::new();
    format!("{:016x}", random.hash_one((now, std::process::id())))
}

/// The results prove what was done, but not what there is to do: that is on disk before the first call. The index over the
/// ids is sorted on disk too: in memory it would grow with the input, and so would the index of a log. Sorted runs are of 16
/// MiB: each needs a buffer when they are merged, and of smaller ones there would be hundreds.
const BEGIN: &str = "PRAGMA synchronous = FULL; PRAGMA temp_store = FILE; PRAGMA cache_size = -16384; BEGIN IMMEDIATE;";
