//! The true end of a run: counted in the journal, not remembered.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use paceline::{PauseCause, ScopeSnapshot, ScopeState, Snapshot, ToWall};
use paceline_config::Upstream;
use paceline_core::{Class, Cost, Dimension, Limits};
use paceline_model::Job;
use paceline_providers::is_of_expectation;
use paceline_providers::table::Scope;
use paceline_store::{JobCounts, Paths};
use serde_json::{Value, json};

use crate::budget::{Enough, Used};
use crate::exit::Status;
use crate::job::holds::{self, Held};
use crate::only::NOT_HELD;
use crate::other_hosts::host_view::JobEnd;
use crate::progress::counters::Counters;
use crate::progress::oracle;
use crate::progress::report;
use crate::progress::resume_command;
use crate::progress::snapshot;
use crate::stops::stop::{AGAIN, StopReason};
use crate::text;

/// So many scopes that are refused may be under one limit.
const SEVERAL: usize = 10;

/// So many refusals and nothing else are no accident.
const MANY_REFUSALS: u64 = 10;

/// Held and stopped scopes that are named.
const SHOWN: usize = 5;

/// That the requests have to be corrected before the job goes on, and what the command that goes on does with them.
pub(crate) struct Correction {
    /// It sends those that failed.
    pub(crate) retries_failed: bool,
    /// `--model` makes requests of lines.
    pub(crate) by_model: bool,
}

/// How a run ended.
pub(crate) struct Summary<'a> {
    pub(crate) counts: &'a JobCounts,
    /// Answers that could not be written. Their calls are among those that were cut off.
    pub(crate) unwritten: u64,
    /// Scopes that are held, the first to open first.
    pub(crate) held: &'a [Held],
    /// What one scope held up that the user could divide.
    pub(crate) held_up: Option<String>,
    /// The input has not been read to its end, so that the number of items is not known.
    pub(crate) unread: bool,
    /// What was asked for beside the items, and not done.
    pub(crate) owed: &'a [String],
    pub(crate) figures: &'a Counters,
    /// Why the run ended early, if it did.
    pub(crate) stop: Option<&'a StopReason>,
    /// It has begun as many items as it may.
    pub(crate) has_begun_all: bool,
    /// So many scopes, such as hosts, made no more calls in the end.
    pub(crate) stopped_scopes: u32,
    pub(crate) elapsed: Duration,
    /// The limits that are known, if any.
    pub(crate) limits: &'a Limits,
    /// Whom the calls were sent to.
    pub(crate) upstream: &'a Upstream,
    /// What has been used of the job's budget.
    pub(crate) budget: Used,
    pub(crate) view: &'a Snapshot,
    /// Why the server of a scope failed last.
    pub(crate) last_failure: &'a dyn Fn(&str) -> Option<&'a str>,
    /// Whether an item of a scope waits.
    pub(crate) waits_in: &'a dyn Fn(&str) -> bool,
    /// That the budget of the job has no room for the next call, and what would be enough.
    pub(crate) enough_budget: Option<&'a Enough>,
    /// The command that goes on with the job; none when the job has no journal to go on from.
    pub(crate) again: Option<String>,
    /// What that command takes, where requests have to be corrected first.
    pub(crate) correction: Option<Correction>,
    /// The whole job, where this run was one host of many.
    pub(crate) hosts: Option<&'a JobEnd>,
}

impl Summary<'_> {
    /// The status and exit code.
    pub(crate) fn status(&self) -> Status {
        let counts = self.counts;
        let of_this_run = || {
            let otherwise = counts.input().abs_diff(counts.succeeded);
            Status::of(self.is_left(), otherwise, counts.succeeded + counts.fallback)
        };
        self.hosts.map_or_else(of_this_run, JobEnd::status)
    }

    /// Whether another run would have something to do.
    const fn is_left(&self) -> bool {
        if let Some(hosts) = self.hosts {
            return hosts.is_left();
        }
        self.counts.waiting + self.counts.in_flight > 0 || self.unread || !self.owed.is_empty()
    }

    /// Why the run ended early. Whatever came while the last items ended has stopped nothing.
    fn stop(&self) -> Option<&StopReason> {
        self.stop.filter(|_| self.is_left())
    }

    /// The summary for scripts.
    pub(crate) fn json(&self, wall: ToWall<'_>) -> Value {
        let (counts, totals) = (self.counts, self.counts.totals);
        let mut json = json!({
            "status": self.status().as_str(),
            "input": counts.input(),
            "unread": self.unread,
            "succeeded": counts.succeeded,
            "fallback": counts.fallback,
            "failed": counts.failed,
            "held": counts.held,
            "skipped": counts.skipped,
            "cancelled": counts.cancelled,
            "refused_answers": counts.refused_answers,
            "deferred": counts.waiting + counts.in_flight,
            "calls": totals.calls,
            "calls_at_least": counts.calls_lost,
            "calls_unsure": counts.calls_unsure,
            "resends": totals.resends,
            "retries": totals.retries,
            "throttled": totals.throttled,
            "abandoned": totals.abandoned,
            "tokens_in": counts.tokens_in,
            "tokens_out": counts.tokens_out,
            "cut_at_token_limit": self.figures.cut_now,
            "budget": self.budget().json(),
            "stopped": self.stop().map(StopReason::as_str),
            "resume": self.again.as_ref().filter(|_| self.is_left()),
            "seconds": round(self.elapsed),
            "ended_at": paceline::clock::wall().to_string(),
            "oracle_seconds": self.oracle().map(round),
            "scopes": snapshot::scopes(self.view, wall),
        });
        self.hosts.into_iter().for_each(|hosts| json["job"] = hosts.json());
        json
    }

    /// The summary for people.
    pub(crate) fn text(&self, output: &Path, paths: &Paths) -> String {
        let (counts, Paths { errors, report, .. }) = (self.counts, paths);
        let deferred = counts.waiting + counts.in_flight;
        let items = format!(
            "{}  {}: {} succeeded, {}{} failed, {} skipped, {} not finished\n",
            self.status(),
            text::counted(counts.input(), "item"),
            text::count(counts.succeeded),
            text::fell_back(counts.fallback),
            text::count(counts.failed),
            text::count(counts.skipped),
            text::count(deferred),
        );
        let mut text = self.hosts.map_or(items, JobEnd::headline);
        let mut line = |content: String| writeln!(text, "  {content}").expect("a string takes everything");
        self.enough_budget.into_iter().map(|enough| enough.words.clone()).for_each(&mut line);
        let here = counts.succeeded + counts.fallback + counts.failed + counts.skipped + counts.cancelled;
        self.hosts.iter().flat_map(|hosts| hosts.lines(here)).for_each(&mut line);
        line(self.calls());
        if counts.tokens_in + counts.tokens_out > 0 {
            line(format!("{} tokens in, {} out", text::count(counts.tokens_in), text::count(counts.tokens_out)));
        }
        if self.figures.cut_now > 0 {
            let answers = text::counted(self.figures.cut_now, "answer");
            line(format!(
                "{answers} of this run ended at a bound on tokens (such as --max-output-tokens, or max_tokens of the request): cut short"
            ));
        }
        self.budget().in_one_line().into_iter().for_each(&mut line);
        // A single call waits for nothing.
        if let Some(oracle) = self.oracle().filter(|_| self.figures.ended_now > 1) {
            line(format!("at the rate of the known limits it takes at least {}", text::duration(oracle)));
        }
        self.learnt().into_iter().for_each(&mut line);
        self.one_limit().into_iter().for_each(&mut line);
        // A run that could not begin has none.
        line(match output.exists() {
            true => format!("results: {}", output.display()),
            false => format!("no results yet: {} is not there", output.display()),
        });
        // A line that failed here may have succeeded on another host.
        let stands = self.hosts.is_none_or(|hosts| hosts.whole.failed > 0);
        if counts.failed + counts.skipped + counts.cancelled > 0 {
            let since = if stands { "" } else { "; these lines have succeeded since" };
            line(format!("errors: {} (why: {}){since}", errors.display(), report.display()));
        }
        text::refused_answers(counts.refused_answers, &paths.refused_answers).into_iter().for_each(&mut line);
        if counts.failed > counts.held && self.again.is_some() && !self.is_left() && self.hosts.is_none() {
            line(sent_again(counts.failed - counts.held, counts.held));
        }
        if counts.fallback > 0 {
            let results = text::counted(counts.fallback, "result");
            line(format!("fallback: {results} without an answer of the API; --retry-failed asks it again"));
        }
        if stands {
            text::held(counts.held, "--retry-failed", counts.failed - counts.held).into_iter().for_each(&mut line);
        }
        self.deferred().into_iter().for_each(&mut line);
        self.hosts.and_then(|hosts| hosts.elsewhere(deferred)).into_iter().for_each(&mut line);
        if deferred > 0 {
            self.closed_scopes().into_iter().for_each(&mut line);
            self.always_throttled().into_iter().for_each(&mut line);
        }
        self.held_up.iter().cloned().for_each(&mut line);
        self.end(&paths.refused_answers).into_iter().for_each(&mut line);
        text
    }

    /// Why the run ended before its items did, what it lost, and how to go on. `kept`: where answers are that `--expect` refused.
    fn end(&self, kept: &Path) -> Vec<String> {
        let stop = self.stop();
        let more = match self.stopped_scopes {
            0 | 1 => String::new(),
            several => format!(" (one of {several} that made no more calls; `paceline stats --by-host` has all)"),
        };
        let more = |stop: &StopReason| if stop.is_of_scopes() { more.as_str() } else { "" };
        let told = |stop: &StopReason| format!("stopped early: {}{}", text::printable(&stop.at_end()), more(stop));
        let mut lines: Vec<String> = stop.map(told).into_iter().chain(self.owed.iter().cloned()).collect();
        if let Some(stop) = stop.filter(|stop| stop.is_of_expect()) {
            lines.extend(text::about_expect(&stop.to_string(), self.counts.refused_answers, kept));
        }
        // Where a person has to put something right first, the bound says nothing.
        let other = stop.filter(|stop| self.has_begun_all && **stop != StopReason::MaxItems);
        match other {
            Some(stop) if stop.found_no_server() => lines.push(
                "--max-items is reached: it counts each item that was begun, also one whose call no server took"
                    .to_owned(),
            ),
            Some(stop) if !stop.needs_a_person() => lines.push("--max-items is reached".to_owned()),
            _ => {}
        }
        if self.unwritten > 0 {
            lines.push(format!(
                "{} could not be written; those calls are made again, or held where they must not be made twice",
                text::counted(self.unwritten, "answer")
            ));
        }
        let (abandoned, lost) = (self.counts.totals.abandoned, self.counts.calls_lost);
        lines.extend(
            (abandoned > self.unwritten)
                .then(|| text::cut_off(abandoned - self.unwritten, self.counts.calls_unsure, lost, self.by_gateway())),
        );
        let unread = match self.counts.input() {
            0 => "nothing was begun",
            _ => "the input was not read to its end: there may be more items",
        };
        lines.extend(self.unread.then(|| unread.to_owned()));
        match &self.again {
            _ if !self.is_left() => {}
            Some(again) => {
                if let Some(correction) = &self.correction {
                    let by = ", in the input or by --model, --prompt-template, --body or --max-output-tokens";
                    let place = if correction.by_model { by } else { "" };
                    let failed =
                        if correction.retries_failed { "--retry-failed sends those that failed, and " } else { "" };
                    lines.push(format!(
                        "correct the requests first{place}: then {failed}--accept-changed-input accepts the lines that you changed"
                    ));
                }
                lines.push(match self.enough_budget {
                    Some(enough) => {
                        let Enough { flag, amount, .. } = enough;
                        format!("continue with a larger budget, such as: {}", resume_command::with_flag(again, flag, amount))
                    }
                    None => format!("continue {}with: {again}", stop.map(StopReason::goes_on).unwrap_or_default()),
                });
            }
            None => lines.push(
                "without a journal this run cannot be continued: the next one starts from the beginning, with another output"
                    .to_owned(),
            ),
        }
        lines
    }

    /// What the job has used of its budget, or what it cost where it has none.
    const fn budget(&self) -> Used {
        self.budget.beside((self.counts.tokens_in, self.counts.tokens_out))
    }

    /// How many times a gateway may have sent a call again before it answered, where there is one. Under a budget each try is
    /// one call of the run.
    fn by_gateway(&self) -> Option<u32> {
        let has_budget = self.budget.tokens.is_some() || matches!(self.budget.cost, Some((_, Some(_))));
        self.upstream.via.as_ref().map(|_| if has_budget { 0 } else { self.upstream.pacer.retry.max_retries })
    }

    /// The calls of the job, those of this run where others came before, and what went wrong with them.
    fn calls(&self) -> String {
        let (totals, before) = (self.counts.totals, self.figures.calls_before);
        let calls = |of_run| text::calls(self.counts, of_run);
        let mut line = match totals.calls.saturating_sub(before) {
            _ if before == 0 => calls(None),
            0 if !self.is_left() => format!("nothing was left to send; {} in earlier runs", calls(None)),
            0 => format!("nothing could be sent; {} in earlier runs", calls(None)),
            now => calls(Some(now)),
        };
        let of_run = if before == 0 { "" } else { "in this run " };
        let for_long = self.view.account.totals.of(Class::QuotaExhausted);
        let details = match self.upstream.via {
            Some(_) => text::call_details_at_gateway(&totals, for_long, before == 0),
            None => text::call_details(&totals, for_long, of_run),
        };
        if !details.is_empty() {
            line += &format!(": {details}");
        }
        line + &format!("; this run took {}", text::duration(self.elapsed))
    }

    /// What the busiest scope that was refused believes of its limit. Without a refusal, or where nothing passed, nothing was
    /// learnt about it.
    fn learnt(&self) -> Option<String> {
        let refused = |scope: &&ScopeSnapshot| scope.estimate.as_ref().is_some_and(|belief| belief.refused.is_some());
        let scopes = &self.view.scopes;
        let passed = |scope: &&ScopeSnapshot| scope.totals.of(Class::Success) > 0;
        let busiest = scopes.iter().filter(refused).filter(passed).max_by_key(|scope| scope.totals.sends)?;
        let of = if scopes.len() > 1 { format!("{}: ", text::printable(&busiest.name)) } else { String::new() };
        // For how long nothing leaves is told with what is held.
        Some(format!("{of}{}", busiest.estimate.as_ref()?.without_pause()))
    }

    /// Where most calls were refused, in many scopes: each learns its limit by itself, and nothing in the answers tells that one
    /// limit may be over all of them.
    fn one_limit(&self) -> Option<String> {
        let totals = &self.view.account.totals;
        let (refused, sends) = (totals.of(Class::Throttled), totals.sends);
        let scopes = self.view.scopes.iter().filter(|scope| scope.totals.of(Class::Throttled) > 0).count();
        let advice = match self.upstream.dialect.scope() == Scope::Host {
            true => "give that limit with --limit, which is a ceiling over all hosts",
            false => "--scope all paces them as one",
        };
        (scopes >= SEVERAL && refused * 2 > sends).then(|| {
            let [refused, sends, scopes] = [refused, sends, scopes as u64].map(text::count);
            format!("{refused} of {sends} calls were rate-limited, in {scopes} scopes: if one limit is over all of them, {advice}")
        })
    }

    /// How many items wait for what, each wait named once.
    fn deferred(&self) -> Vec<String> {
        let mut groups: Vec<(String, u64)> = Vec::new();
        let is_refused = |code: &str| self.counts.refused_answers > 0 && is_of_expectation(code);
        for group in &self.counts.deferred {
            let class = match group.class {
                // The same class as that of a refused key, and no server has seen one.
                Some(Class::Account) if group.status.is_none() => " (last try: no connection)".to_owned(),
                Some(Class::Transient) if group.code.as_deref().is_some_and(is_refused) => {
                    " (last answer: refused by --expect)".to_owned()
                }
                class => class.map(|class| format!(" ({})", report::answered(class, group.status))).unwrap_or_default(),
            };
            let reason =
                report::reason_text(report::shown_reason(group.reason, self.stop().is_some_and(StopReason::is_bound)));
            let label = format!("{reason}{class}");
            match groups.iter_mut().find(|(known, _)| *known == label) {
                Some((_, items)) => *items += group.items,
                None => groups.push((label, group.items)),
            }
        }
        // Those whose answers were lost have been begun; where others were too, which of them these are is not known.
        if let [(_, items)] = &mut groups[..]
            && (1..=*items).contains(&self.unwritten)
        {
            *items -= self.unwritten;
            groups.push(("whose answers could not be written".to_owned(), self.unwritten));
            groups.retain(|(_, items)| *items > 0);
        }
        report::with_those_untried(&mut groups);
        groups.iter().map(|(label, items)| format!("not finished: {} {label}", text::count(*items))).collect()
    }

    /// Scopes, and the account, that send nothing for now: until when, or why.
    fn closed_scopes(&self) -> Vec<String> {
        let all = std::iter::once(&self.view.account).chain(&self.view.scopes);
        let mut lines: Vec<String> = all.filter_map(|scope| self.closed(scope)).collect();
        lines.extend(self.held.iter().map(|held| format!("held: {}", held.describe(self.upstream.via.is_some()))));
        let more = lines.len().saturating_sub(SHOWN);
        lines.truncate(SHOWN);
        let last = self.held.last().map(|held| format!("; the last is held until {}", text::end(held.until)));
        lines.extend((more > 0).then(|| {
            let last = last.unwrap_or_default();
            format!("and {}, see paceline stats{last}", text::counted(more as u64, "more scope"))
        }));
        lines
    }

    /// A stopped scope that needs a person, or one that this run has given up. Held ones are in the journal.
    fn closed(&self, scope: &ScopeSnapshot) -> Option<String> {
        let name = holds::name(&scope.name);
        match &scope.state {
            // HostView below, as the reason to stop.
            ScopeState::Stopped { reason } if self.stop().is_some_and(|stop| *stop.to_string() == **reason) => None,
            ScopeState::Stopped { .. } if scope.name.is_empty() && self.stop().is_some_and(StopReason::is_account) => {
                None
            }
            ScopeState::Stopped { reason } => {
                // A reason of many hosts names its host, and says what to do.
                let is_named =
                    reason.starts_with(&format!("{} ", scope.name)) || reason.contains(&format!(" of {} ", scope.name));
                let of = if is_named && !scope.name.is_empty() { String::new() } else { format!("{name}: ") };
                let then = match reason.contains("--stop-after-same") {
                    true => String::new(),
                    false => format!("; fix the cause, {AGAIN}"),
                };
                Some(format!("stopped: {of}{}{then}", text::printable(reason)))
            }
            ScopeState::Held { cause: cause @ PauseCause::ServerFails, .. } => {
                let last = (self.last_failure)(&scope.name).map(|last| format!(" (last: {})", text::printable(last)));
                let refuses = scope.refused_since.is_some() && scope.no_success_since.is_none();
                let cause =
                    if refuses { "the server refuses each call, and names no time" } else { cause.explanation() };
                let why = format!("{cause}{}", last.unwrap_or_default());
                let name = if self.view.scopes.len() > 1 { format!("{name}: ") } else { String::new() };
                // Of one that is held for longer its hold is told.
                let is_held = self.held.iter().any(|held| held.name == scope.name);
                let next = match (self.waits_in)(&scope.name) {
                    true if is_held => "",
                    true => "; the next run tries again",
                    false => "; its items have failed: --retry-failed sends them again",
                };
                Some(format!("no more calls in this run: {name}{why}{next}"))
            }
            _ => None,
        }
    }

    /// Scopes that answered each call of this run with a rate limit. Such a refusal is no failure of its item, so that only a
    /// bound ends it.
    fn always_throttled(&self) -> Option<String> {
        let always = |scope: &&ScopeSnapshot| {
            let throttled = scope.totals.of(Class::Throttled);
            let is_open = matches!(scope.state, ScopeState::Open | ScopeState::Paced);
            is_open && throttled >= MANY_REFUSALS && throttled == scope.totals.sends
        };
        let scopes: Vec<_> = self.view.scopes.iter().filter(always).collect();
        let most = scopes.iter().max_by_key(|scope| scope.totals.sends)?;
        let name = match self.view.scopes.len() {
            1 => "the server".to_owned(),
            _ => holds::name(&most.name).into_owned(),
        };
        let more = match scopes.len() - 1 {
            0 => String::new(),
            more => format!(" (and so did {})", text::counted(more as u64, "more scope")),
        };
        Some(format!(
            "{name} answered each of its {} in this run with a rate limit{more}: --max-deferrals 10 fails an item after so many",
            text::counted(most.totals.sends, "call")
        ))
    }

    /// How long the items that ended in this run would have taken an oracle that knows the limits; none when no limit was
    /// known, a tier has limits of its own, or nothing succeeded.
    fn oracle(&self) -> Option<Duration> {
        let (mean_latency, median_latency) = self.figures.latency()?;
        let calls = self.figures.ended_now;
        if self.limits.quotas.is_empty() || !self.upstream.pacer.tiers.is_empty() {
            return None;
        }
        let tokens = |total: u64| total * calls / self.figures.ended().max(1);
        let cost = Cost::zero()
            .with(Dimension::Requests, calls)
            .with(Dimension::Tokens, tokens(self.counts.tokens_in + self.counts.tokens_out))
            .with(Dimension::InputTokens, tokens(self.counts.tokens_in))
            .with(Dimension::OutputTokens, tokens(self.counts.tokens_out));
        let quotas = oracle::quotas(self.limits);
        Some(
            Job { calls, cost, mean_latency, median_latency }
                .finish_time(&quotas, Some(self.upstream.pacer.concurrency.max())),
        )
    }
}

fn round(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1_000.0).round() / 1_000.0
}

/// How items that failed are sent again: without those that are held, which a person has to look after.
fn sent_again(failed: u64, held: u64) -> String {
    let (only, items) = match held {
        0 => (String::new(), "the failed items again".to_owned()),
        _ => (
            format!(" --only-status {NOT_HELD}"),
            format!("{} again, and none that is held", text::counted(failed, "failed item")),
        ),
    };
    format!("once the cause is fixed, the same command with --retry-failed{only} sends {items}")
}
