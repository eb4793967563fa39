//! `paceline stats`: how a job stands, read from its journal without disturbing it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use paceline::clock;
use paceline_store::{Counts, Paths, Reader, Rows};
use serde_json::{Value, json};

use crate::args::StatsArgs;
use crate::exit::{Failure, Status};
use crate::run::input::Input;
use crate::run::report;
use crate::text;

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
        let reader = Reader::open(&path).map_err(Failure::refused)?;
        if args.items {
            print_items(&reader)?;
        } else {
            let pending = print_job(&reader, &path, args.json)?;
            if args.watch && pending {
                std::thread::sleep(EVERY);
                continue;
            }
        }
        return Ok(Status::Success);
    }
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

fn print_items(reader: &Reader) -> Result<(), Failure> {
    let path = reader.input().map_err(Failure::refused)?.path;
    let input = Input::open(&path).map_err(Failure::refused)?;
    let now = clock::wall();
    let mut out = std::io::stdout().lock();
    reader
        .report(now, Rows::All, |row| -> Result<(), report::ReportError> {
            if !report::simply_succeeded(&row) {
                let row = serde_json::to_string(&report::row(&row, &input, now)).map_err(std::io::Error::from)?;
                writeln!(out, "{row}")?;
            }
            Ok(())
        })
        .map_err(Failure::interrupted)
}

/// Prints the job; says whether items are still pending.
fn print_job(reader: &Reader, path: &Path, as_json: bool) -> Result<bool, Failure> {
    let counts = reader.counts(clock::wall()).map_err(Failure::refused)?;
    let snapshot = reader.snapshot().map_err(Failure::refused)?;
    let snapshot: Value = snapshot.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or(Value::Null);
    let mut out = std::io::stdout().lock();
    let text = if as_json { json(&counts, snapshot).to_string() + "\n" } else { words(&counts, &snapshot, path) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::interrupted)?;
    Ok(counts.waiting + counts.in_flight > 0)
}

/// Calls in flight and items that wait. The journal counts claimed items, most of which wait for a permit; the snapshot
/// knows the calls, but a crash leaves it behind.
fn under_way(counts: &Counts, snapshot: &Value) -> (u64, u64) {
    let calls = snapshot["in_flight"].as_u64().unwrap_or(counts.in_flight).min(counts.in_flight);
    (calls, counts.waiting + counts.in_flight - calls)
}

/// The snapshot, with the figures that the journal itself knows better.
fn json(counts: &Counts, snapshot: Value) -> Value {
    let (in_flight, waiting) = under_way(counts, &snapshot);
    let known = json!({
        "input": counts.input(),
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "skipped": counts.skipped,
        "cancelled": counts.cancelled,
        "waiting": waiting,
        "in_flight": in_flight,
        "calls": counts.totals.calls,
        "resends": counts.totals.resends,
        "retries": counts.totals.retries,
        "throttled": counts.totals.throttled,
        "abandoned": counts.totals.abandoned,
        "tokens_in": counts.tokens_in,
        "tokens_out": counts.tokens_out,
    });
    let (Value::Object(mut all), Value::Object(known)) = (snapshot, known.clone()) else { return known };
    all.extend(known);
    Value::Object(all)
}

fn words(counts: &Counts, snapshot: &Value, path: &Path) -> String {
    let number = text::count;
    let (in_flight, waiting) = under_way(counts, snapshot);
    let mut words = format!("{}\n", path.display());
    words += &format!(
        "  {}: {} succeeded, {} failed, {} skipped, {} in flight, {} waiting\n",
        text::counted(counts.input(), "item"),
        number(counts.succeeded),
        number(counts.failed),
        number(counts.skipped),
        number(in_flight),
        number(waiting),
    );
    let totals = counts.totals;
    words += &format!(
        "  {}: {} again ({} after server errors), {} answered with a rate limit\n",
        text::counted(totals.calls, "call"),
        number(totals.resends),
        number(totals.retries),
        number(totals.throttled),
    );
    words += &format!("  {} tokens in, {} out\n", number(counts.tokens_in), number(counts.tokens_out));
    let account = snapshot.get("account");
    for scope in account.into_iter().chain(snapshot["scopes"].as_array().into_iter().flatten()) {
        words += &scope_words(scope);
    }
    if let Some(at) = snapshot["at"].as_str() {
        words += &format!("  as of {at}\n");
    }
    words
}

fn scope_words(scope: &Value) -> String {
    let name = scope["name"].as_str().filter(|name| !name.is_empty()).unwrap_or("account");
    let mut words = format!(
        "  {name}: {}, {} in flight of {}, {} waiting",
        scope["state"].as_str().unwrap_or_default(),
        scope["concurrency"]["in_flight"],
        scope["concurrency"]["current_limit"],
        scope["waiting"],
    );
    if let Some(policy) = scope["waits_for"].as_str() {
        words += &format!(" for {policy}");
    }
    words.push('\n');
    for quota in ["quotas", "announced"].iter().flat_map(|kind| scope[*kind].as_array().into_iter().flatten()) {
        let per = quota["window_s"].as_f64().map(|window| format!(" per {window}s")).unwrap_or_default();
        words += &format!(
            "    {} of {} {}{per} used\n",
            quota["used"],
            quota["limit"],
            quota["dimension"].as_str().unwrap_or_default()
        );
    }
    words
}
