//! The summary of a run: what it did, and all items by state.

use std::time::Duration;

use paceline_store::work::{EndReason, Summary, WorkClock, WorkError, WorkStore};
use serde_json::{Map, Value, json};

use super::same_failure::SameFailure;
use super::settings::Args;
use super::stopped_scopes::{StoppedScopes, Why};
use crate::exit::{Failure, Status};
use crate::output::SummaryOutput;
use crate::progress::resume_command;
use crate::stops::stop::StopReason;
use crate::tasks::report::store_summary::StoreSummary;
use crate::text;

/// Where all items of the store stand.
///
/// # Errors
/// An error of the store.
pub(super) async fn standing(args: &Args, store: &dyn WorkStore) -> Result<StoreSummary, WorkError> {
    StoreSummary::of(store, args.store.now(store).await?).await
}

/// Writes the summary of a run that found no room on the disk to begin, or broke, where one is asked for: how the items of the
/// store stand, as far as that can be read.
///
/// # Errors
/// Names a place that did not take it.
pub(super) async fn print_outline(args: &Args, clock: &WorkClock, stop: &StopReason) -> Result<(), Failure> {
    let mut figures = match args.store.open(clock).await {
        Ok(store) => standing(args, &*store).await.map(|standing| standing.json()).unwrap_or_default(),
        Err(_) => Map::new(),
    };
    for (key, value) in [
        ("status", Status::Deferred.as_str().to_owned()),
        ("stopped", stop.as_str().to_owned()),
        ("resume", resume_command::command_line(std::env::args_os())),
        ("ended_at", paceline::clock::wall().to_string()),
    ] {
        figures.insert(key.to_owned(), value.into());
    }
    let figures = Value::Object(figures);
    // Why it ended is the error of the command.
    let summary_output = SummaryOutput { as_json: args.json, quiet: true, file: args.summary.as_deref() };
    summary_output.print(Status::Deferred, || figures.clone(), "")
}

/// A run that is over.
pub(super) struct Ran {
    pub(super) summary: Summary,
    /// Items that other workers had when they were killed, which this run had put back.
    pub(super) left: u64,
    /// It ended because everything failed alike.
    pub(super) same: Option<SameFailure>,
    /// It did not end early, but groups are stopped, and in each of them everything failed alike.
    pub(super) groups_failed_alike: bool,
    /// Scopes that it stopped without their groups.
    pub(super) stopped_scopes: StoppedScopes,
    /// It was stopped for that reason.
    pub(super) stop: Option<StopReason>,
    /// Where all items of the store stand after it.
    pub(super) standing: StoreSummary,
    /// What one scope held up that the user could divide.
    pub(super) held_up: Option<String>,
    pub(super) elapsed: Duration,
}

impl Ran {
    /// Prints it, and writes it where that is asked for.
    ///
    /// # Errors
    /// Names a place that did not take it, unless another run follows that will have one of its own.
    pub(super) fn print(&self, args: &Args, quiet: bool) -> Result<Status, Failure> {
        let bounded = matches!(self.summary.ended, EndReason::MaxDuration);
        let quiet = quiet && self.standing.status().is_hidden(bounded);
        let summary_output = SummaryOutput { as_json: args.json, quiet, file: args.summary.as_deref() };
        match summary_output.print(self.standing.status(), || self.json(), &self.text(&args.store.shown())) {
            Err(failure) if args.every.is_some() => tracing::error!("{failure}"),
            printed => printed?,
        }
        Ok(self.standing.status())
    }

    /// Why the run ended early, where it did.
    fn stopped(&self) -> Option<&'static str> {
        (self.same.is_some() || self.groups_failed_alike)
            .then_some("same_failure")
            .or(self.stop.as_ref().map(StopReason::as_str))
            .or_else(|| self.scopes_ended_it().map(Why::as_str))
            .or(self.summary.ended.as_str())
            .filter(|_| self.standing.deferred() > 0)
    }

    /// What stopped scopes, where that left nothing else to do: a server that is not there is also one that is waited for.
    fn scopes_ended_it(&self) -> Option<Why> {
        self.stopped_scopes.why().filter(|why| match self.summary.ended {
            EndReason::Done => true,
            EndReason::MaxWait => *why == Why::Unreachable,
            EndReason::GroupsStopped | EndReason::MaxDuration | EndReason::Interrupted => false,
        })
    }

    fn again(&self) -> Option<String> {
        (self.standing.deferred() > 0).then(|| resume_command::command_line(std::env::args_os()))
    }

    fn json(&self) -> Value {
        let summary = &self.summary;
        let mut figures = self.standing.json();
        figures.insert("calls".to_owned(), summary.calls.into());
        figures.insert("resends".to_owned(), summary.resends.into());
        figures.insert("abandoned".to_owned(), summary.abandoned.into());
        figures.insert("crashes".to_owned(), self.left.into());
        figures.insert("uncounted".to_owned(), summary.uncounted.into());
        figures.insert("cancelled_calls".to_owned(), summary.cancelled.into());
        figures.insert("lost".to_owned(), summary.lost.into());
        figures.insert("stopped".to_owned(), self.stopped().into());
        figures.insert("resume".to_owned(), self.again().into());
        figures.insert("ended_at".to_owned(), json!(paceline::clock::wall().to_string()));
        figures.insert("seconds".to_owned(), json!((self.elapsed.as_secs_f64() * 1_000.0).round() / 1_000.0));
        Value::Object(figures)
    }

    fn text(&self, store: &str) -> String {
        let mut lines = vec![self.standing.headline(), format!("  {}", self.tries())];
        lines.extend(self.standing.lines(store).into_iter().map(|line| format!("  {line}")));
        lines.extend(self.held_up.iter().map(|line| format!("  {}", text::printable(line))));
        if let Some(again) = self.again() {
            let same = self.same.as_ref().map(ToString::to_string);
            let stopped = same.or_else(|| self.stop.as_ref().map(ToString::to_string)).or_else(|| {
                self.stopped_scopes
                    .describe()
                    .filter(|_| self.scopes_ended_it().is_some() || self.summary.ended == EndReason::Done)
            });
            let why = stopped.map(|why| text::printable(&why).into_owned());
            let why = why.as_deref().unwrap_or(match self.summary.ended {
                EndReason::Done => "some items wait for the next run",
                EndReason::GroupsStopped => "the groups of all remaining items are stopped: fix the cause",
                EndReason::MaxWait => "no item can start within --max-wait",
                EndReason::MaxDuration => "--max-duration is over",
                EndReason::Interrupted => "the run was interrupted",
            });
            // The same command alone ends in the same way.
            let mended = if self.stopped() == Some("same_failure") { "once that is mended, " } else { "" };
            lines.extend([format!("  {why}; {mended}continue with:"), format!("  {again}")]);
        }
        lines.join("\n") + "\n"
    }

    fn tries(&self) -> String {
        let summary = &self.summary;
        let number =
            if summary.calls == 1 { "1 try".to_owned() } else { format!("{} tries", text::count(summary.calls)) };
        let mut line = format!("{number} in {}", text::duration(self.elapsed));
        for (number, what) in [
            (summary.resends, "of them repeated"),
            (summary.abandoned, "cut off"),
            (summary.uncounted, "that count as no try of their items (no connection, or a test of a failing server)"),
            (summary.cancelled, "not recorded, because the item was cancelled meanwhile"),
            (
                summary.lost,
                "not recorded, because the item was removed or sent for anew, or another worker had taken it",
            ),
        ] {
            if number > 0 {
                line += &format!(", {} {what}", text::count(number));
            }
        }
        if self.left > 0 {
            let left = text::count(self.left);
            line += &format!("; workers were killed before with up to {left} more under way");
        }
        line
    }
}
