//! Replacing a file of results by a rewritten one, so that the file that is there and the journal always agree.
//!
//! The new file is written beside the old one and synced. One transaction, synced as well, then records where each line
//! stands in the new file, and that the old one is being replaced. Only after that the new file takes the old one's name.
//! A run that finds such a note after a crash completes the change of names first; without a note, the old file is the
//! valid one and what stands beside it is waste.

use crate::state::State;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use paceline_core::GiveUp;
use rusqlite::{Connection, params};

use crate::disk::{create_in_place_of, remove, sync_folder_of};
use crate::error::JournalError;
use crate::line::{CustomId, VerifiedLine, verify_line};
use crate::merge;
use crate::output::{OutputFile, Outputs};
use crate::paths::{Paths, with_suffix};
use crate::query::{RecordedPrefix, count, int};
use crate::recover::set_covered;
use crate::schema::durably;
use crate::scope::REFUSED;

/// Rewrites both files in the order of the input, unless they are in order, and compresses the results if that is wanted.
pub(crate) fn in_order(conn: &Connection, paths: &Paths, outputs: &mut Outputs) -> Result<(), JournalError> {
    for file in [Replacing::Results, Replacing::Errors] {
        if is_packed(conn)? && file == Replacing::Results || is_ordered(conn, file.states())? {
            continue;
        }
        replace(conn, paths, outputs, file, |output, fresh| {
            copy_lines(conn, output, file.states(), fresh)?;
            let missing = || damaged(output, fresh.covered.len, "lines there belong to no item of the journal");
            if fresh.covered.len == output.covered().len { Ok(()) } else { Err(missing()) }
        })?;
    }
    if paths.compress && !is_packed(conn)? {
        replace(conn, paths, outputs, Replacing::Packed, |output, fresh| copy_all(&output.path, false, fresh))?;
    }
    Ok(())
}

/// An item that failed or fell back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastFailure<'a> {
    /// The status of its last answer.
    pub status: Option<u16>,
    /// The code of that, or why there was none.
    pub code: Option<&'a str>,
    /// Its scope.
    pub scope: &'a str,
    /// The scope that it had as it failed, where its line was changed since.
    pub failed_in: Option<&'a str>,
    /// It may have been done, and waits for a person.
    pub is_held: bool,
}

/// Whether it is meant.
pub(crate) type IsMeant<'a> = &'a dyn Fn(&LastFailure<'_>) -> bool;

/// Takes the lines of failed items that are meant out of the errors, and those of a fallback out of the results, and lets the
/// items wait again; returns how many.
pub(crate) fn without_answer(
    conn: &Connection,
    paths: &Paths,
    outputs: &mut Outputs,
    is_meant: IsMeant<'_>,
) -> Result<u64, JournalError> {
    let meant = |of: String| choose(conn, &of, is_meant).map_err(JournalError::sqlite("read"));
    // Lines that cannot be sent could not be sent today either, and what failed because it may have been done is not done twice.
    let (refused, unknown) = (REFUSED, GiveUp::Unknown.as_str());
    let failed = meant(format!("item.state = 3 AND item.scope <> {refused} AND item.reason IS NOT '{unknown}'"))?;
    if failed > 0 {
        replace(conn, paths, outputs, Replacing::Errors, |output, fresh| {
            conn.execute_batch(BEGIN_ANEW).map_err(JournalError::sqlite("write"))?;
            copy_lines(conn, output, Replacing::Errors.states(), fresh)
        })?;
    }
    let fell_back = meant("item.state = 2 AND item.reason IS NOT NULL".to_owned())?;
    if fell_back > 0 {
        unpack(conn, paths, outputs)?;
        replace(conn, paths, outputs, Replacing::Results, |output, fresh| {
            conn.execute_batch(BEGIN_ANEW).map_err(JournalError::sqlite("write"))?;
            copy_lines(conn, output, Replacing::Results.states(), fresh)
        })?;
    }
    Ok(failed + fell_back)
}

/// Notes which items are meant; returns how many.
fn choose(conn: &Connection, of: &str, is_meant: IsMeant<'_>) -> rusqlite::Result<u64> {
    conn.execute_batch("CREATE TEMP TABLE IF NOT EXISTS again (id INTEGER PRIMARY KEY); DELETE FROM again")?;
    conn.execute_batch(merge::MOVED)?;
    let sql = format!(
        "SELECT item.id, item.last_status, item.last_code, scope.name, moved.failed_in, item.reason
         FROM item JOIN scope ON scope.id = item.scope LEFT JOIN moved ON moved.id = item.id WHERE {of}"
    );
    let (mut select, mut chosen) = (conn.prepare(&sql)?, 0);
    let mut insert = conn.prepare("INSERT INTO again VALUES (?1)")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let failure = LastFailure {
            status: row.get(1)?,
            code: row.get_ref(2)?.as_str_or_null()?,
            scope: row.get_ref(3)?.as_str()?,
            failed_in: row.get_ref(4)?.as_str_or_null()?,
            is_held: row.get_ref(5)?.as_str_or_null()? == Some(GiveUp::Held.as_str()),
        };
        if is_meant(&failure) {
            insert.execute([row.get::<_, i64>(0)?])?;
            chosen += 1;
        }
    }
    Ok(chosen)
}

/// The deadline and the bounds begin anew; what was sent stays counted.
const BEGIN_ANEW: &str = "UPDATE item SET state = 0, not_before_ms = 0, delay_ms = 0, deadline_ms = NULL, reason = NULL,
         crash_attempts = 0, forgiven_attempts = attempts, forgiven_deferrals = deferrals, out_off = NULL, out_len = NULL
     WHERE id IN (SELECT id FROM again);
     DELETE FROM moved WHERE id IN (SELECT id FROM again)";

/// Unpacks compressed results when lines will be appended to them, or when they are wanted plain.
pub(crate) fn unpack_to_go_on(conn: &Connection, paths: &Paths, outputs: &mut Outputs) -> Result<(), JournalError> {
    let waits = "SELECT EXISTS (SELECT 1 FROM item WHERE state < 2)";
    let waits: bool = conn.query_row(waits, [], |row| row.get(0)).map_err(JournalError::sqlite("read"))?;
    if waits || !paths.compress { unpack(conn, paths, outputs) } else { Ok(()) }
}

/// Unpacks compressed results.
fn unpack(conn: &Connection, paths: &Paths, outputs: &mut Outputs) -> Result<(), JournalError> {
    if is_packed(conn)? {
        if fs::metadata(&paths.output).is_ok_and(|about| about.len() > 0) {
            return Err(JournalError::OutputExists { output: paths.output.clone() });
        }
        replace(conn, paths, outputs, Replacing::Unpacked, |_, fresh| copy_all(&paths.packed(), true, fresh))?;
    }
    Ok(())
}

/// Ends the replacement that a crash interrupted, if one did, and removes what an earlier moment of one left.
pub(crate) fn complete(conn: &Connection, paths: &Paths) -> Result<(), JournalError> {
    let noted: Option<String> =
        conn.query_row("SELECT replacing FROM run", [], |row| row.get(0)).map_err(JournalError::sqlite("read"))?;
    let Some(file) = noted.as_deref().and_then(Replacing::from_name) else {
        for file in Replacing::ALL {
            remove(&beside(&file.target(paths)))?;
        }
        return Ok(());
    };
    let target = file.target(paths);
    match fs::rename(beside(&target), &target) {
        Err(error) if error.kind() == ErrorKind::NotFound => {} // The crash came after it.
        renamed => renamed.map_err(JournalError::io("replace", &target))?,
    }
    let obsolete = match file {
        Replacing::Results => None,
        // An errors file exists only while it has lines.
        Replacing::Errors => Some(target.clone()).filter(|path| fs::metadata(path).is_ok_and(|about| about.len() == 0)),
        Replacing::Packed => Some(paths.output.clone()),
        Replacing::Unpacked => Some(paths.packed()),
    };
    obsolete.map_or(Ok(()), |path| remove(&path))?;
    sync_folder_of(&target)?;
    durably(conn, || {
        conn.execute("UPDATE run SET replacing = NULL", []).map_err(JournalError::sqlite("write"))?;
        Ok(())
    })
}

/// Which file is replaced, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Replacing {
    Results,
    Errors,
    /// Plain results by compressed ones.
    Packed,
    /// Compressed results by plain ones.
    Unpacked,
}

impl Replacing {
    const ALL: [Self; 4] = [Self::Results, Self::Errors, Self::Packed, Self::Unpacked];

    /// As it is noted in the journal.
    const fn name(self) -> &'static str {
        match self {
            Self::Results => "results",
            Self::Errors => "errors",
            Self::Packed => "packed",
            Self::Unpacked => "unpacked",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.name() == name)
    }

    fn target(self, paths: &Paths) -> PathBuf {
        match self {
            Self::Results | Self::Unpacked => paths.output.clone(),
            Self::Errors => paths.errors.clone(),
            Self::Packed => paths.packed(),
        }
    }

    /// The first and the last state of the items whose lines stand there.
    const fn states(self) -> (i64, i64) {
        match self {
            Self::Errors => (State::Failed.code(), State::Cancelled.code()),
            Self::Results | Self::Packed | Self::Unpacked => (State::Succeeded.code(), State::Succeeded.code()),
        }
    }

    fn output(self, outputs: &mut Outputs) -> &mut OutputFile {
        match self {
            Self::Errors => &mut outputs.errors,
            Self::Results | Self::Packed | Self::Unpacked => &mut outputs.results,
        }
    }
}

/// Lets `write` fill a new file, records it and puts it in its place.
fn replace(
    conn: &Connection,
    paths: &Paths,
    outputs: &mut Outputs,
    file: Replacing,
    write: impl FnOnce(&OutputFile, &mut Fresh) -> Result<(), JournalError>,
) -> Result<(), JournalError> {
    let target = file.target(paths);
    let fresh = beside(&target);
    let written = durably(conn, || {
        let mut fresh = Fresh::create(&target, &fresh, file == Replacing::Packed)?;
        write(file.output(outputs), &mut fresh)?;
        let covered = fresh.finish()?;
        let (results, errors) = match file {
            Replacing::Errors => (outputs.results.covered(), covered),
            Replacing::Results | Replacing::Packed | Replacing::Unpacked => (covered, outputs.errors.covered()),
        };
        set_covered(conn, results, errors)?;
        let note = "UPDATE run SET replacing = ?1, packed = iif(?1 = 'packed', 1, iif(?1 = 'unpacked', 0, packed))";
        conn.execute(note, [file.name()]).map_err(JournalError::sqlite("write"))?;
        Ok(covered)
    });
    let covered = written.inspect_err(|_| {
        // What cannot be removed is removed by the next run.
        let _ = fs::remove_file(&fresh);
    })?;
    complete(conn, paths)?;
    file.output(outputs).replaced(covered)
}

/// Copies the lines of items in those states, by place in the input, and records where each stands then.
fn copy_lines(
    conn: &Connection,
    output: &OutputFile,
    states: (i64, i64),
    fresh: &mut Fresh,
) -> Result<(), JournalError> {
    let mut lines = match File::open(&output.path) {
        Ok(file) => BufReader::with_capacity(1 << 18, file),
        Err(error) if error.kind() == ErrorKind::NotFound && output.covered().len == 0 => return Ok(()),
        Err(source) => return Err(JournalError::Io { action: "read", path: output.path.clone(), source }),
    };
    let (mut after, mut at, mut line) = (-1, 0, Vec::new());
    loop {
        let page = page(conn, states, after).map_err(JournalError::sqlite("read"))?;
        let Some(last) = page.last() else { return Ok(()) };
        after = last.id;
        for Place { id, key, refused, offset, len } in page {
            line.resize(usize::try_from(len).unwrap_or(0), 0);
            // Lines stand nearly in order, so that most of these steps stay within the buffer.
            lines.seek_relative(offset - at).map_err(JournalError::io("read", &output.path))?;
            lines.read_exact(&mut line).map_err(JournalError::io("read", &output.path))?;
            at = offset + len;
            // Not by its ordinal: that is of the input as it was when the line was written.
            let known =
                |verified: VerifiedLine| key == verified.key || (refused && verified.key == CustomId::Absent.key());
            if !verify_line(&line).is_some_and(known) {
                return Err(damaged(output, count(offset), "the line there is not what its journal recorded"));
            }
            conn.prepare_cached("UPDATE item SET out_off = ?2 WHERE id = ?1")
                .and_then(|mut update| update.execute([id, int(fresh.covered.len)]))
                .map_err(JournalError::sqlite("write"))?;
            fresh.append(&line)?;
        }
    }
}

/// Items looked up at a time.
const PAGE: i64 = 1_000;

/// Where the line of an item stands.
struct Place {
    id: i64,
    key: Vec<u8>,
    /// Whether the item is a line that cannot be sent; its error line may be without an id.
    refused: bool,
    offset: i64,
    len: i64,
}

/// The next items after an id, with the places of their lines.
fn page(conn: &Connection, states: (i64, i64), after: i64) -> rusqlite::Result<Vec<Place>> {
    let mut select = conn.prepare_cached(
        "SELECT id, key, scope = ?5, out_off, out_len FROM item
         WHERE id > ?1 AND state BETWEEN ?2 AND ?3 AND out_len > 0 ORDER BY id LIMIT ?4",
    )?;
    let rows = select.query_map(params![after, states.0, states.1, PAGE, REFUSED], |row| {
        let (id, key, refused) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Place { id, key, refused, offset: row.get(3)?, len: row.get(4)? })
    })?;
    rows.collect()
}

/// Whether each line of such items stands right behind the one before.
fn is_ordered(conn: &Connection, states: (i64, i64)) -> Result<bool, JournalError> {
    let walk = || -> rusqlite::Result<bool> {
        let mut select = conn.prepare_cached(
            "SELECT out_off, out_len FROM item WHERE state BETWEEN ?1 AND ?2 AND out_len > 0 ORDER BY id",
        )?;
        let mut rows = select.query([states.0, states.1])?;
        let mut end = 0;
        while let Some(row) = rows.next()? {
            let (offset, len): (i64, i64) = (row.get(0)?, row.get(1)?);
            if offset != end {
                return Ok(false);
            }
            end += len;
        }
        Ok(true)
    };
    walk().map_err(JournalError::sqlite("read"))
}

fn is_packed(conn: &Connection) -> Result<bool, JournalError> {
    conn.query_row("SELECT packed FROM run", [], |row| row.get(0)).map_err(JournalError::sqlite("read"))
}

/// Copies a whole file, compressed or not.
fn copy_all(path: &Path, packed: bool, fresh: &mut Fresh) -> Result<(), JournalError> {
    let file = File::open(path).map_err(JournalError::io("read", path))?;
    let mut from: Box<dyn Read> =
        if packed { Box::new(MultiGzDecoder::new(BufReader::new(file))) } else { Box::new(file) };
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = from.read(&mut buffer).map_err(JournalError::io("read", path))?;
        if read == 0 {
            return Ok(());
        }
        fresh.append(&buffer[..read])?;
    }
}

/// A file on its way to become the results or the errors.
struct Fresh {
    path: PathBuf,
    to: Sink,
    /// What it holds, before compression.
    covered: RecordedPrefix,
    crc: crc32fast::Hasher,
}

enum Sink {
    Plain(BufWriter<File>),
    Packed(GzEncoder<BufWriter<File>>),
}

impl Fresh {
    fn create(target: &Path, path: &Path, packed: bool) -> Result<Self, JournalError> {
        let file = create_in_place_of(target, path).map_err(JournalError::io("create", path))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        let to = if packed { Sink::Packed(GzEncoder::new(file, Compression::default())) } else { Sink::Plain(file) };
        Ok(Self { path: path.to_owned(), to, covered: RecordedPrefix::default(), crc: crc32fast::Hasher::new() })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), JournalError> {
        match &mut self.to {
            Sink::Plain(file) => file.write_all(bytes),
            Sink::Packed(file) => file.write_all(bytes),
        }
        .map_err(JournalError::io("write", &self.path))?;
        self.crc.update(bytes);
        self.covered.len += bytes.len() as u64;
        Ok(())
    }

    /// Returns once the file and its name would survive a power cut.
    fn finish(self) -> Result<RecordedPrefix, JournalError> {
        let Self { path, to, covered, crc } = self;
        let sync = |file: BufWriter<File>| file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all();
        match to {
            Sink::Plain(file) => sync(file),
            Sink::Packed(file) => file.finish().and_then(sync),
        }
        .map_err(JournalError::io("write", &path))?;
        sync_folder_of(&path)?;
        Ok(RecordedPrefix { crc: crc.finalize(), ..covered })
    }
}

fn beside(path: &Path) -> PathBuf {
    with_suffix(path.as_os_str().to_owned(), ".new").into()
}

fn damaged(output: &OutputFile, offset: u64, why: &'static str) -> JournalError {
    JournalError::Damaged { path: output.path.clone(), offset, why }
}
