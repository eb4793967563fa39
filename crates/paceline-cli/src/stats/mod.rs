//! `paceline stats`: the progress of a job, read from its journal without disturbing it.

mod age_snapshot;
mod by_host;
pub(crate) mod history;
mod items;
mod job;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Args;
use paceline::clock;
use paceline_core::Timestamp;
use paceline_store::{JobCounts, JournalError, ModelUsage, Paths, Reader, RunLock};
use serde_json::Value;

use crate::budget::{Budget, Used};
use crate::exit::{Failure, Status};
use crate::job::job_config::JobConfig;
use crate::output::print;
use crate::stops::stop::StopReason;

/// `paceline stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The job's results file, or a folder, whose newest journal is shown [default: this folder]
    #[arg(value_name = "RESULTS")]
    pub(crate) results: Option<PathBuf>,
    /// One row for each item that was retried, put off or failed, or still waits
    #[arg(long, conflicts_with_all = ["history", "watch"])]
    pub(crate) items: bool,
    /// One row for each host, or whatever else is paced by itself: items done, failed and left, and why it waits; trouble first
    #[arg(long, conflicts_with_all = ["items", "history", "watch"])]
    pub(crate) by_host: bool,
    /// What happened in each minute, as CSV: calls, answers, delays, tokens and the limit in force
    #[arg(long, conflicts_with = "watch")]
    pub(crate) history: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print again every second until the job ends or no run works on it
    #[arg(long)]
    pub(crate) watch: bool,
}

/// Said of a job that is left.
fn no_run(snapshot: &Value) -> String {
    let first = match snapshot["stopped"].as_str() {
        Some("account") => "; it was stopped by a refused key or account: mend that, then",
        Some("budget") => "; it was stopped by a budget of all its runs: raise that, then",
        Some("same_failure") => "; it was stopped by calls that all failed the same way: mend the cause, then",
        _ => ";",
    };
    format!("no run works on this job{first} run the same command again to continue it\n")
}

/// Between two looks of `--watch`.
const EVERY: Duration = Duration::from_secs(1);

/// Prints the progress of the job.
///
/// # Errors
/// There is no journal, or it cannot be read.
pub(crate) fn command(args: &StatsArgs) -> Result<Status, Failure> {
    let path = journal(args.results.as_deref())?;
    if args.watch {
        return watch(&path, args.json);
    }
    let reader = open(&path)?;
    let snapshot = snapshot(&reader)?;
    if args.items {
        let bounded = snapshot["stopped"].as_str().is_some_and(StopReason::is_word_of_bound);
        items::print(&reader, args.json, bounded, is_running(&path))?;
    } else if args.by_host {
        by_host::print(&reader, &snapshot, is_running(&path), args.json)?;
    } else if args.history {
        print_history(&reader, is_running(&path), args.json)?;
    } else {
        print_job(&view(&reader, &path, snapshot, is_running(&path))?, &path, args.json)?;
    }
    Ok(Status::Success)
}

/// Prints the job again and again, until no run works on it.
fn watch(path: &Path, as_json: bool) -> Result<Status, Failure> {
    let mut last = None;
    loop {
        let reader = open(path)?;
        let snapshot = snapshot(&reader)?;
        // A run writes it twice a second, so that its lock is asked for only when there seems to be none.
        let at = Some(snapshot["at"].clone());
        let is_written = last.is_some() && last != at;
        last = at;
        let mut job = view(&reader, path, snapshot.clone(), is_written || is_running(path))?;
        // The last items may have ended since, and their run with them.
        if is_written && !job.is_left && !is_running(path) {
            job = view(&reader, path, snapshot, false)?;
        }
        print_job(&job, path, as_json)?;
        if !job.running {
            return Ok(Status::Success);
        }
        std::thread::sleep(EVERY);
    }
}

/// The journal of a job: by its results file, a folder, or itself; by default the newest of this folder.
pub(crate) fn journal(results: Option<&Path>) -> Result<PathBuf, Failure> {
    results.map_or_else(|| newest_journal(Path::new(".")), journal_of)
}

fn lock_of(journal: &Path) -> PathBuf {
    Paths::beside(journal).with_journal(journal.to_owned()).lock
}

/// Whether a run works on the job: it holds the lock beside the journal or, once that file was deleted, its results.
fn is_running(journal: &Path) -> bool {
    let lock = lock_of(journal);
    if lock.exists() {
        return RunLock::is_held(&lock);
    }
    results_of(journal).any(|results| RunLock::is_held(&results))
}

/// Opens a journal to read.
///
/// # Errors
/// There is none, or it cannot be read.
pub(crate) fn open(path: &Path) -> Result<Reader, Failure> {
    if !path.exists() {
        if path.starts_with("http:") || path.starts_with("https:") {
            return Err(Failure::refused(
                "a gateway has no journal: `paceline top ADDRESS` shows what it does, and ADDRESS/api/state has it as JSON",
            ));
        }
        let path = path.display();
        return Err(Failure::refused(format!(
            "there is no journal {path}: name the results file of a job, or its journal if --journal chose another place"
        )));
    }
    Reader::open(path).map_err(|error| match error {
        JournalError::IsStore { .. } => {
            Failure::refused(format!("{error}; `paceline tasks list --store {}` shows it", path.display()))
        }
        JournalError::NotLoaded { .. } => match results_of(path).find(|results| results.metadata().is_ok_and(|it| it.len() > 0)) {
            Some(results) => Failure::refused(format!(
                "the journal {} is empty, so that nothing tells which items of {} are done; a run with another output and --done {} \
                 takes the answers over",
                path.display(),
                results.display(),
                results.display()
            )),
            None => Failure::refused(error),
        },
        error => Failure::refused(error),
    })
}

/// The results beside a journal, by its name.
pub(crate) fn results_of(journal: &Path) -> impl Iterator<Item = PathBuf> {
    let is_named_so = journal.extension().is_some_and(|end| end == "journal");
    let ends: &[&str] = if is_named_so { &["jsonl", ""] } else { &[] };
    ends.iter().map(|end| journal.with_extension(end))
}

/// The journal of a results file; a journal may be named itself, and a folder stands for its newest.
fn journal_of(results: &Path) -> Result<PathBuf, Failure> {
    if results.is_dir() {
        return newest_journal(results);
    }
    if results.extension().is_some_and(|end| end == "journal") {
        return Ok(results.to_owned());
    }
    let beside = Paths::beside(results).journal.filter(|journal| journal.exists() || !is_database(results));
    Ok(beside.unwrap_or_else(|| results.to_owned()))
}

/// Whether a file begins as every file of SQLite does.
fn is_database(path: &Path) -> bool {
    let mut first = [0; 16];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut first));
    read.is_ok() && first == *b"SQLite format 3\0"
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
        let here = if folder == Path::new(".") { "this folder".into() } else { folder.display().to_string() };
        Failure::refused(format!("no *.journal in {here}; name the results file of a job, such as results.jsonl"))
    })
}

/// What the runner wrote last; null before its first time.
fn snapshot(reader: &Reader) -> Result<Value, Failure> {
    let Some(snapshot) = reader.snapshot().map_err(Failure::refused)? else { return Ok(Value::Null) };
    let mut job: Value = serde_json::from_str(&snapshot.job).unwrap_or(Value::Null);
    // An older version wrote the scopes with the job.
    if let (Some(at), None) = (age_snapshot::time(&job["at"]), job.get("scopes")) {
        let scopes = snapshot.scopes.iter().filter_map(|text| serde_json::from_str(text).ok());
        job["scopes"] = scopes.map(|scope| age_snapshot::aged(scope, at)).collect();
    }
    Ok(job)
}

fn print_history(reader: &Reader, running: bool, as_json: bool) -> Result<(), Failure> {
    let now = clock::wall();
    let minutes = history::with_present(reader.history().map_err(Failure::refused)?, now, running);
    print(|out| match as_json {
        true => writeln!(out, "{}", history::json(&minutes, now)),
        false => history::csv(&minutes, now, out),
    })
}

/// Prints the job; for people also that no run works on it, where something is left.
fn print_job(job: &JobView, path: &Path, as_json: bool) -> Result<(), Failure> {
    let JobView { counts, snapshot, now, running, budget, is_left, .. } = job;
    if as_json {
        return print(|out| writeln!(out, "{}", job::json(counts, snapshot.clone(), *running, budget)));
    }
    let text = job::describe(counts, snapshot, path, *now, *running, budget);
    let rests = if *is_left && !running { no_run(snapshot) } else { String::new() };
    print(|out| write!(out, "{text}{rests}"))
}

/// A job as a whole.
pub(crate) struct JobView {
    pub(crate) counts: JobCounts,
    snapshot: Value,
    /// What its calls used, by model.
    pub(crate) used: Vec<ModelUsage>,
    budget: Used,
    pub(crate) now: Timestamp,
    running: bool,
    /// Something is left to do.
    pub(crate) is_left: bool,
}

impl JobView {
    /// The job of a journal, at present.
    pub(crate) fn of(reader: &Reader, path: &Path) -> Result<Self, Failure> {
        let running = is_running(path);
        view(reader, path, snapshot(reader)?, running)
    }

    /// How far each host is, or whatever else is paced by itself, as `stats --by-host --json` has it.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) fn by_host(&self, reader: &Reader) -> Result<Vec<Value>, Failure> {
        by_host::json(reader, &self.snapshot, self.running)
    }

    /// What `stats` prints.
    pub(crate) fn text(&self, path: &Path) -> String {
        let rest = if self.is_left && !self.running { no_run(&self.snapshot) } else { String::new() };
        job::describe(&self.counts, &self.snapshot, path, self.now, self.running, &self.budget) + &rest
    }
}

fn view(reader: &Reader, path: &Path, mut snapshot: Value, running: bool) -> Result<JobView, Failure> {
    let now = clock::wall();
    // Of a run that works, calls under way have used nothing yet; those that a kill cut off count as in the next run.
    let mut counts = if running { reader.counts(now) } else { reader.counts_at_rest(now) }.map_err(Failure::refused)?;
    if running {
        counts.totals.calls += counts.under_way;
    }
    job::put_right(&mut snapshot, reader.scopes().map_err(Failure::refused)?, now);
    // Of a million items that takes a second, and says nothing of one scope alone.
    if snapshot["scopes"].as_array().is_some_and(|scopes| scopes.len() > 1) {
        job::note_left(&mut snapshot, &reader.by_scope().map_err(Failure::refused)?);
    }
    if !running {
        job::rest(&mut snapshot);
    } else if let Some(wait) = RunLock::holder(&lock_of(path)).waits_for {
        job::wait_for(&mut snapshot, &wait);
    }
    let fleet = snapshot.get_mut("account").and_then(|account| account.get_mut("fleet"));
    fleet.into_iter().for_each(|fleet| age_snapshot::age_lease(fleet, now));
    let is_left = counts.waiting + counts.in_flight > 0 || reader.input_cursor().map_err(Failure::refused)?.is_some();
    if let Some(stopped) = snapshot.get_mut("stopped").filter(|_| !is_left) {
        // Whatever came while the last items ended has stopped nothing.
        *stopped = Value::Null;
    }
    let config = JobConfig::read(&reader.config_json().map_err(Failure::refused)?);
    let used = if running { reader.usage() } else { reader.spent() }.map_err(Failure::refused)?;
    let budget = Budget::new(config.budgets(), config.prices(), &used, false)
        .used()
        .beside((counts.tokens_in, counts.tokens_out));
    Ok(JobView { counts, snapshot, used, budget, now, running, is_left })
}
