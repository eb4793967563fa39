//! `paceline stats`: how a job stands, read from its journal without disturbing it.

mod history;
mod items;
mod job;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paceline::clock;
use paceline_store::{Paths, Reader};
use serde_json::Value;

use crate::args::StatsArgs;
use crate::exit::{Failure, Status};
use crate::output::print;
use crate::run::Stop;

/// Between two looks of `--watch`.
const EVERY: Duration = Duration::from_secs(1);

/// Prints where the job stands.
///
/// # Errors
/// There is no journal, or it cannot be read.
pub(crate) fn command(args: &StatsArgs) -> Result<Status, Failure> {
    let path = match &args.results {
        Some(results) => journal_of(results),
        None => newest_journal(Path::new("."))?,
    };
    loop {
        let reader = open(&path)?;
        let snapshot = snapshot(&reader)?;
        if args.items {
            let bounded = snapshot["stopped"].as_str().is_some_and(Stop::is_word_of_bound);
            items::print(&reader, args.json, bounded)?;
        } else if args.history {
            print_history(&reader, args.json)?;
        } else {
            let pending = print_job(&reader, &path, snapshot, args.json)?;
            if args.watch && pending {
                std::thread::sleep(EVERY);
                continue;
            }
        }
        return Ok(Status::Success);
    }
}

fn open(path: &Path) -> Result<Reader, Failure> {
    if !path.exists() {
        let path = path.display();
        return Err(Failure::refused(format!(
            "there is no journal {path}: name the results file of a job, or its journal where --journal put it elsewhere"
        )));
    }
    Reader::open(path).map_err(Failure::refused)
}

/// The journal of a results file; a journal may be named itself.
fn journal_of(results: &Path) -> PathBuf {
    if results.extension().is_some_and(|end| end == "journal") {
        return results.to_owned();
    }
    Paths::beside(results).journal.unwrap_or_else(|| results.to_owned())
}

fn newest_journal(folder: &Path) -> Result<PathBuf, Failure> {
    let unreadable = |error| Failure::refused(format!("cannot read the folder {}: {error}", folder.display()));
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let path = entry.path();
        if path.extension().is_none_or(|end| end != "journal") {
            continue;
        }
        let changed = entry.metadata().and_then(|about| about.modified()).map_err(unreadable)?;
        if newest.as_ref().is_none_or(|(known, _)| *known < changed) {
            newest = Some((changed, path));
        }
    }
    newest.map(|(_, path)| path).ok_or_else(|| {
        Failure::refused("no *.journal in this folder; name a job's results file: paceline stats results.jsonl")
    })
}

/// What the runner wrote last; null before its first time.
fn snapshot(reader: &Reader) -> Result<Value, Failure> {
    let snapshot = reader.snapshot().map_err(Failure::refused)?;
    Ok(snapshot.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null))
}

fn print_history(reader: &Reader, as_json: bool) -> Result<(), Failure> {
    let minutes = reader.history().map_err(Failure::refused)?;
    print(|out| if as_json { writeln!(out, "{}", history::json(&minutes)) } else { history::csv(&minutes, out) })
}

/// Prints the job; says whether items are still pending.
fn print_job(reader: &Reader, path: &Path, snapshot: Value, as_json: bool) -> Result<bool, Failure> {
    let counts = reader.counts(clock::wall()).map_err(Failure::refused)?;
    let text =
        if as_json { job::json(&counts, snapshot).to_string() + "\n" } else { job::words(&counts, &snapshot, path) };
    print(|out| out.write_all(text.as_bytes()))?;
    Ok(counts.waiting + counts.in_flight > 0)
}
