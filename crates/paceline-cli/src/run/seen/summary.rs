//! The true end of a run: counted in the journal, not remembered.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use paceline::{ScopeSnapshot, ScopeState, Snapshot};
use paceline_core::{Cost, Dimension, Limits};
use paceline_sim::Job;
use paceline_store::{Counts, DeferReason};
use serde_json::{Value, json};

use crate::exit::Status;
use crate::run::calls::stop::Stop;
use crate::run::seen::figures::Figures;
use crate::run::seen::oracle;
use crate::run::seen::report;
use crate::run::seen::snapshot::{self, ToWall};
use crate::text;

/// Held and stopped scopes that are named.
const SHOWN: usize = 5;

/// How a run ended.
pub(crate) struct Summary<'a> {
    pub(crate) counts: &'a Counts,
    /// The input has not been read to its end, so that nobody knows how many items there are.
    pub(crate) unread: bool,
    pub(crate) figures: &'a Figures,
    pub(crate) stop: Option<&'a Stop>,
    pub(crate) elapsed: Duration,
    /// The limits that were told, if any were.
    pub(crate) limits: &'a Limits,
    pub(crate) concurrency: u32,
    pub(crate) view: &'a Snapshot,
    /// The command that goes on with the job.
    pub(crate) again: String,
}

impl Summary<'_> {
    /// The status word and exit code.
    pub(crate) fn status(&self) -> Status {
        let counts = self.counts;
        if counts.waiting + counts.in_flight > 0 || self.unread {
            Status::Deferred
        } else if counts.succeeded == counts.input() {
            Status::Success
        } else if counts.succeeded == 0 {
            Status::Failed
        } else {
            Status::Partial
        }
    }

    /// The summary for scripts.
    pub(crate) fn json(&self, wall: ToWall<'_>) -> Value {
        let (counts, totals) = (self.counts, self.counts.totals);
        json!({
            "status": self.status().as_str(),
            "input": counts.input(),
            "unread": self.unread,
            "succeeded": counts.succeeded,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "cancelled": counts.cancelled,
            "deferred": counts.waiting + counts.in_flight,
            "calls": totals.calls,
            "resends": totals.resends,
            "retries": totals.retries,
            "throttled": totals.throttled,
            "abandoned": totals.abandoned,
            "tokens_in": counts.tokens_in,
            "tokens_out": counts.tokens_out,
            "stopped": self.stop.map(Stop::as_str),
            "resume": (self.status() == Status::Deferred).then_some(&self.again),
            "seconds": round(self.elapsed),
            "oracle_seconds": self.oracle().map(round),
            "scopes": snapshot::scopes(self.view, wall),
        })
    }

    /// The summary for people.
    pub(crate) fn text(&self, output: &Path, errors: &Path, report: &Path, wall: ToWall<'_>) -> String {
        let (counts, totals) = (self.counts, self.counts.totals);
        let deferred = counts.waiting + counts.in_flight;
        let mut text = format!(
            "{}  {}: {} succeeded, {} failed, {} skipped, {} deferred\n",
            self.status(),
            text::counted(counts.input(), "item"),
            text::count(counts.succeeded),
            text::count(counts.failed),
            text::count(counts.skipped),
            text::count(deferred),
        );
        let mut line = |words: String| writeln!(text, "  {words}").expect("a string takes everything");
        line(format!(
            "{}: {} again ({} after server errors), {} answered with a rate limit, {} given up; this run took {}",
            text::counted(totals.calls, "call"),
            text::count(totals.resends),
            text::count(totals.retries),
            text::count(totals.throttled),
            text::count(totals.abandoned),
            text::duration(self.elapsed),
        ));
        line(format!("{} tokens in, {} out", text::count(counts.tokens_in), text::count(counts.tokens_out)));
        if let Some(oracle) = self.oracle() {
            line(format!("with perfect knowledge of the limits it would have taken {}", text::duration(oracle)));
        }
        line(format!("results: {}", output.display()));
        if counts.failed + counts.skipped + counts.cancelled > 0 {
            line(format!("errors: {} (why: {})", errors.display(), report.display()));
        }
        for group in &counts.deferred {
            let class = group.class.map(|class| format!(" (last answer: {class})")).unwrap_or_default();
            let reason = words(report::told(group.reason, self.stop.is_some_and(Stop::is_bound)));
            line(format!("deferred: {} {reason}{class}", text::count(group.items)));
        }
        if deferred > 0 {
            self.closed_scopes(wall).into_iter().for_each(&mut line);
        }
        if let Some(stop) = self.stop {
            line(format!("stopped early: {stop}"));
        }
        if totals.abandoned > 0 {
            line(format!("{} given up in flight may be billed", text::counted(totals.abandoned, "call")));
        }
        if self.unread {
            line("the input is not read to its end: there may be more items".to_owned());
        }
        if deferred > 0 || self.unread {
            line(format!("go on with: {}", self.again));
        }
        text
    }

    /// Scopes, and the account, that send nothing for now: until when, or why.
    fn closed_scopes(&self, wall: ToWall<'_>) -> Vec<String> {
        let name = |scope: &ScopeSnapshot| match &*scope.name {
            "" => "the account".to_owned(),
            name => name.to_owned(),
        };
        let all = std::iter::once(&self.view.account).chain(&self.view.scopes);
        let mut words: Vec<String> = all
            .filter_map(|scope| match &scope.state {
                ScopeState::Held { until } => {
                    Some(format!("held: {} until {}", name(scope), text::moment(wall(*until))))
                }
                ScopeState::Stopped { reason } => {
                    Some(format!("stopped: {}: {reason}; act on that, then go on", name(scope)))
                }
                ScopeState::Open | ScopeState::Paced => None,
            })
            .collect();
        let more = words.len().saturating_sub(SHOWN);
        words.truncate(SHOWN);
        words.extend(
            (more > 0).then(|| format!("and {}, see paceline stats", text::counted(more as u64, "more scope"))),
        );
        words
    }

    /// How long the items that ended in this run would have taken somebody who knows the limits; none when no limit was
    /// told or nothing succeeded.
    fn oracle(&self) -> Option<Duration> {
        let (mean_latency, median_latency) = self.figures.latency()?;
        let calls = self.figures.ended_now;
        if self.limits.quotas.is_empty() {
            return None;
        }
        let tokens = |total: u64| total * calls / self.figures.ended().max(1);
        let cost = Cost::zero()
            .with(Dimension::Requests, calls)
            .with(Dimension::Tokens, tokens(self.counts.tokens_in + self.counts.tokens_out))
            .with(Dimension::InputTokens, tokens(self.counts.tokens_in))
            .with(Dimension::OutputTokens, tokens(self.counts.tokens_out));
        let quotas = oracle::quotas(self.limits);
        Some(Job { calls, cost, mean_latency, median_latency }.finish_time(&quotas, Some(self.concurrency)))
    }
}

fn words(reason: DeferReason) -> &'static str {
    match reason {
        DeferReason::ScopeStopped => "until somebody acts on what stopped them",
        DeferReason::ScopeHeld => "until a used-up quota reopens",
        DeferReason::NotBefore => "until their next try",
        DeferReason::NotStarted => "because the run ended before they were begun",
        DeferReason::RunBound => "because the run ended before their turn",
    }
}

fn round(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}
