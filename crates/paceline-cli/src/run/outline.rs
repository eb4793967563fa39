//! The summary of a run that could not begin, or broke.

use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline::{Clock, clock};
use paceline_config::Upstream;
use paceline_store::{JobCounts, JournalError, Paths, Reader};

use super::{known_limits, limiter};
use crate::budget::{Budget, Limits};
use crate::exit::{Failure, Status};
use crate::job::holds;
use crate::output::SummaryOutput;
use crate::progress::counters::Counters;
use crate::progress::extract;
use crate::progress::resume_command;
use crate::progress::summary::Summary;
use crate::run_args::RunArgs;
use crate::stops::stop::StopReason;

/// What is known of a run before it begins. What was done is in its journal, if that can be read.
#[derive(Clone)]
pub(crate) struct Outline {
    upstream: Upstream,
    paths: Paths,
    output: PathBuf,
    budgets: Limits,
    seed: Option<u64>,
    overwrite: bool,
    as_json: bool,
    file: Option<PathBuf>,
    /// The journal on the disk is that of this run.
    has_begun: bool,
    /// What it is asked for whether items are left or not, as lines for people, and whether it sends those again that failed.
    asked: Vec<String>,
    retries: bool,
}

impl Outline {
    pub(crate) fn of(args: &RunArgs, upstream: &Upstream, paths: &Paths) -> Self {
        Self {
            upstream: upstream.clone(),
            paths: paths.clone(),
            output: args.output.clone(),
            budgets: args.budgets(),
            seed: args.seed,
            overwrite: args.overwrite,
            as_json: args.json,
            file: args.summary.clone(),
            has_begun: false,
            asked: owed(paths, [args.ordered, args.pointer().is_some()]),
            retries: args.retry_failed,
        }
    }

    /// The same of a run that had begun.
    pub(crate) fn of_begun(self) -> Self {
        Self { has_begun: true, ..self }
    }

    /// What prints it where a person ends the run before its first call.
    pub(crate) fn of_interrupted(self, quiet: bool) -> impl FnOnce() -> Result<Status, Failure> {
        let clock = Clock::new();
        let began = clock.now();
        move || self.print(&StopReason::Interrupted, clock.now() - began, quiet)
    }

    /// Tells that the disk is full, and which, and prints it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn print_full(&self, message: String, elapsed: Duration, quiet: bool) -> Result<Status, Failure> {
        let folder =
            self.paths.output.parent().and_then(|folder| std::path::absolute(Path::new(".").join(folder)).ok());
        // What a database says names no file.
        let unnamed = folder.map(|folder| folder.display().to_string()).filter(|folder| !message.contains(folder));
        let stop =
            StopReason::DiskFull { message: message + &unnamed.map(|at| format!(" (in {at})")).unwrap_or_default() };
        stop.announce(Some(0));
        self.print(&stop, elapsed, quiet)
    }

    /// Prints it.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn print(&self, stop: &StopReason, elapsed: Duration, quiet: bool) -> Result<Status, Failure> {
        let Self { upstream, paths, output, budgets, seed, as_json, file, .. } = self;
        let now = clock::wall();
        let journal = paths.journal.as_deref().filter(|_| self.has_begun || !self.overwrite);
        let read = |reader: Reader| {
            Ok::<_, JournalError>((
                reader.counts_at_rest(now)?,
                reader.spent()?,
                reader.scopes()?,
                reader.input_cursor()?.is_some(),
            ))
        };
        let read = journal.and_then(|journal| Reader::open(journal).and_then(read).ok());
        let (counts, usage, scopes, unread) =
            read.unwrap_or_else(|| (JobCounts::default(), Vec::new(), Vec::new(), true));
        // One that has not begun is begun by the same command, whatever it asks for.
        let again = paths.journal.as_deref().and_then(|journal| match self.has_begun {
            false => Some(resume_command::as_typed(std::env::args_os())),
            true => journal.exists().then(|| resume_command::for_its_hosts(std::env::args_os())),
        });
        let retries = self.retries && counts.failed + counts.fallback > counts.held;
        let retried = retries.then(|| "the items that failed were not sent again (--retry-failed)".to_owned());
        let owed: Vec<_> = self.asked.iter().cloned().chain(retried).collect();
        let summary = Summary {
            held: &holds::held(scopes, now),
            held_up: None,
            counts: &counts,
            unwritten: 0,
            unread,
            owed: &owed,
            figures: &Counters::at_start(&counts),
            stop: Some(stop),
            elapsed,
            limits: &known_limits(upstream),
            upstream,
            has_begun_all: false,
            stopped_scopes: 0,
            budget: Budget::new(*budgets, upstream.prices.clone(), &usage, false).used(),
            view: &limiter(upstream, *seed)?.snapshot(),
            last_failure: &|_| None,
            waits_in: &|_| true,
            enough_budget: None,
            again,
            correction: None,
            hosts: None,
        };
        // Why it broke is the error of the command.
        let quiet = matches!(stop, StopReason::Error { .. }) || quiet && summary.status().is_hidden(false);
        let summary_output = SummaryOutput { as_json: *as_json, quiet, file: file.as_deref() };
        let text = summary.text(output, paths);
        summary_output.print(summary.status(), || summary.json(&|_| now), &text)?;
        Ok(summary.status())
    }
}

/// What a run was asked to make of its results once all items have ended, and has not made: the order of the input, and the
/// file of values.
pub(super) fn owed(paths: &Paths, [order, values]: [bool; 2]) -> Vec<String> {
    let values = values.then(|| format!("{} was not written (--extract)", extract::path(paths).display()));
    let order = order.then(|| "the results were not put in the order of the input (--ordered)".to_owned());
    values.into_iter().chain(order).collect()
}
