//! The jobs of a store: which one is meant, and the list of them.

use std::fmt::Write as _;

use paceline_store::blocks::{HostStatus, JobStatus};
use serde_json::{Value, json};

use crate::exit::{Failure, Status};
use crate::other_hosts::host_view::twice;
use crate::{output, text};

/// The job of that name, or the only one; one that is to be `named` must be.
pub(super) fn choose<'a>(jobs: &'a [JobStatus], name: Option<&str>, named: bool) -> Result<&'a JobStatus, Failure> {
    let there = || jobs.iter().map(|job| text::printable(&job.name)).collect::<Vec<_>>().join(", ");
    match (name, jobs) {
        (_, []) => Err(Failure::refused("the store has no job; `paceline run INPUT --store STORE` makes one")),
        (Some(name), _) => jobs.iter().find(|job| job.name == name).ok_or_else(|| {
            Failure::refused(format!("the store has no job {}; it has {}", text::printable(name), there()))
        }),
        (None, [job]) if !named => Ok(job),
        (None, _) if named => Err(Failure::refused(format!("name the job to remove with --job: {}", there()))),
        (None, _) => Err(Failure::refused(format!("the store has several jobs; name one with --job: {}", there()))),
    }
}

/// Prints the jobs, or that of the name, and who works on them.
pub(super) fn list(jobs: &[JobStatus], name: Option<&str>, as_json: bool) -> Result<Status, Failure> {
    let jobs = match name {
        Some(_) => std::slice::from_ref(choose(jobs, name, false)?),
        None => jobs,
    };
    if as_json {
        let jobs: Vec<Value> = jobs.iter().map(json).collect();
        output::print(|out| jobs.iter().try_for_each(|job| writeln!(out, "{job}")))?;
    } else if jobs.is_empty() {
        output::print(|out| writeln!(out, "no jobs"))?;
    } else {
        output::print(|out| write!(out, "{}", table(jobs)))?;
    }
    Ok(Status::Success)
}

/// Lines of a job that have no result.
const fn missing(job: &JobStatus) -> u64 {
    job.lines.saturating_sub(job.ok + job.failed)
}

fn table(jobs: &[JobStatus]) -> String {
    let mut table = "JOB                           LINES  SUCCEEDED     FAILED  NO RESULT\n".to_owned();
    for job in jobs {
        let name = text::cell(&text::printable(&job.name), 22);
        let counts = [job.lines, job.ok, job.failed, missing(job)].map(text::count);
        let [lines, ok, failed, missing] = counts;
        let more = if job.complete { "" } else { "  (its input is not loaded whole)" };
        writeln!(table, "{name} {lines:>12} {ok:>10} {failed:>10} {missing:>10}{more}")
            .expect("a string takes everything");
        if let Some(twice) = twice(job.again) {
            writeln!(table, "  {twice}").expect("a string takes everything");
        }
        for worker in &job.workers {
            writeln!(table, "  {}", describe(worker)).expect("a string takes everything");
        }
    }
    table
}

/// Who works, since when, and on how much.
fn describe(worker: &HostStatus) -> String {
    let (name, blocks) = (text::printable(&worker.name), text::counted(worker.blocks, "block"));
    let since = text::moment(worker.since);
    match worker.lease {
        Some(_) => format!("{name}: at work since {since}, {blocks}"),
        None => format!("{name}: not heard of for longer than its lease; others take its {blocks}"),
    }
}

fn json(job: &JobStatus) -> Value {
    let worker = |worker: &HostStatus| {
        json!({
            "name": worker.name,
            "since": worker.since.to_string(),
            "lease_ms": worker.lease.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
            "blocks": worker.blocks,
        })
    };
    json!({
        "job": job.name,
        "created": job.created.to_string(),
        "lines": job.lines,
        "complete": job.complete,
        "succeeded": job.ok,
        "failed": job.failed,
        "missing": missing(job),
        "maybe_twice": job.again,
        "blocks": job.blocks,
        "open_blocks": job.open,
        "workers": job.workers.iter().map(worker).collect::<Vec<_>>(),
    })
}
