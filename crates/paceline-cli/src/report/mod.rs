//! `paceline report`: a durable job as one page for a browser, which needs nothing beside it.

mod page;
mod place;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use paceline_config::{Price, Prices};
use paceline_store::{ModelUsage, Reader, Rows, State};
use serde_json::{Value, json};

use crate::budget::cost_of;
use crate::exit::{Failure, Status};
use crate::job::job_config::JobConfig;
use crate::lines::input::Input;
use crate::output;
use crate::progress::report::{self, ReportError, Row};
use crate::stats::{self, JobView, history};

/// `paceline report`.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The job's results file, or a folder, whose newest journal is shown [default: this folder]
    #[arg(value_name = "RESULTS")]
    results: Option<PathBuf>,
    /// File to write the page to; of those that are there, only a page is replaced
    #[arg(long, value_name = "FILE")]
    html: PathBuf,
    /// Price of a million tokens, in=2.50,out=10, for the cost [default: the prices in paceline.toml when the job ran last]
    #[arg(long, value_name = "PRICE")]
    price: Option<Price>,
}

/// Kinds of failures that are shown.
const MOST_FAILURES: usize = 100;

/// Models whose usage is shown.
const MOST_MODELS: usize = 200;

/// Writes the page of the job.
///
/// # Errors
/// There is no journal, it cannot be read, or the page cannot be written.
pub(crate) fn command(args: &ReportArgs) -> Result<Status, Failure> {
    let path = stats::journal(args.results.as_deref())?;
    let reader = stats::open(&path)?;
    let input = reader.input().map_err(Failure::refused)?.path;
    place::check(&args.html, args.results.as_deref(), &path, &input)?;
    let page = page::html(&document(&reader, &path, args.price)?);
    output::write_report(&args.html, &mut |out| out.write_all(page.as_bytes()))?;
    Ok(Status::Success)
}

/// So many hosts have a row, those in trouble first.
const MOST_HOSTS: usize = 1_000;

/// All that the page shows.
fn document(reader: &Reader, path: &Path, price: Option<Price>) -> Result<Value, Failure> {
    let view = JobView::of(reader, path)?;
    let minutes = reader.history().map_err(Failure::refused)?;
    let config = JobConfig::read(&reader.config_json().map_err(Failure::refused)?);
    let prices = price.map_or_else(|| config.prices(), Prices::from);
    let text = view.text(path);
    // Its indentation says which lines belong to the one above.
    let words: Vec<_> = text.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    let (counts, hosts) = (&view.counts, view.by_host(reader)?);
    Ok(json!({
        "name": path.file_stem().map(|name| name.to_string_lossy()),
        "journal": path.display().to_string(),
        "at": view.now.to_string(),
        "version": env!("CARGO_PKG_VERSION"),
        "words": words,
        "counts": {
            "input": counts.input(),
            "succeeded": counts.succeeded,
            "fallback": counts.fallback,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "cancelled": counts.cancelled,
            "pending": counts.waiting + counts.in_flight,
            "calls": counts.totals.calls,
            "resends": counts.totals.resends,
            "throttled": counts.totals.throttled,
        },
        "minutes": history::json(&minutes, view.now),
        "models": models(&view.used, &prices),
        "has_prices": !prices.is_empty(),
        "failures": failures(reader, &view)?,
        "hosts": hosts.iter().take(MOST_HOSTS).collect::<Vec<_>>(),
        "hosts_in_all": hosts.len(),
    }))
}

/// What each model used, the most first.
fn models(used: &[ModelUsage], prices: &Prices) -> Value {
    let mut usage = used.to_vec();
    usage.sort_by_key(|usage| std::cmp::Reverse(usage.tokens_in + usage.tokens_out));
    let model = |usage: &ModelUsage| {
        let cost = cost_of(usage, prices);
        json!({
            "model": &*usage.model,
            "calls": usage.calls,
            "tokens_in": usage.tokens_in,
            "tokens_out": usage.tokens_out,
            "cost": (!prices.is_empty()).then(|| cost.as_f64()),
        })
    };
    usage.iter().take(MOST_MODELS).map(model).collect()
}

/// Items that have no answer, by what became of them and by their last answer: how many, and the first as an example.
fn failures(reader: &Reader, view: &JobView) -> Result<Value, Failure> {
    let path = reader.input().map_err(Failure::refused)?.path;
    // Without its input the items are known by their lines.
    let input = Input::open(&path).ok();
    let mut kinds: BTreeMap<_, (u64, Row)> = BTreeMap::new();
    let counted = reader.report(view.now, Rows::NotSimplySucceeded, |found| -> Result<(), ReportError> {
        let last = found.tally.last.as_ref();
        if found.state == State::Succeeded && !found.fell_back() || last.is_none() && found.reason.is_none() {
            return Ok(());
        }
        let of_last = last.map(|last| (last.class.as_str(), last.status, last.code.clone()));
        let kind = (found.state.as_str(), found.fell_back(), found.reason.clone(), of_last);
        let known = kinds.entry(kind);
        known
            .and_modify(|(count, _)| *count += 1)
            .or_insert_with(|| (1, report::row(&found, input.as_ref(), view.now, false)));
        Ok(())
    });
    counted.map_err(Failure::interrupted)?;
    let mut kinds: Vec<_> = kinds.into_values().collect();
    kinds.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
    let kind = |(count, example): &(u64, Row)| {
        json!({
            "items": count,
            "state": example.state,
            "class": example.class,
            "status": example.status_code,
            "code": example.code,
            "reason": example.reason,
            "example": example.custom_id.to_string(),
            "message": example.last_error,
        })
    };
    Ok(kinds.iter().take(MOST_FAILURES).map(kind).collect())
}
