//! `paceline run --dry-run`: what a run would do, without sending anything or leaving a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use paceline::clock;
use paceline_config::{Money, Upstream};
use paceline_core::{Cost, Instant, Limits, Pacer, Request, Timestamp, TooLarge};
use paceline_providers::Usage;
use paceline_store::{DeferReason, JournalError, LastFailure, Paths, Reader, ReportRow, Rows, RunLock, State};
use serde_json::{Value, json};

use crate::budget::{Budget, Left, Used};
use crate::exit::{Failure, Status};
use crate::job::job_config::JobConfig;
use crate::job::{done, holds, load};
use crate::job_settings::Opening;
use crate::lines::address::Addresses;
use crate::lines::convert::Converter;
use crate::lines::error::InputError;
use crate::lines::format::Format;
use crate::lines::input::{Input, Span};
use crate::lines::spool::Earlier;
use crate::lines::wrong::{self, Wrong};
use crate::only::Only;
use crate::progress::oracle;
use crate::progress::report::ReportError;
use crate::run::begin::{self, earlier_input, tell_overwritten};
use crate::run_args::RunArgs;
use crate::stops::alike::Kind;
use crate::upstream::is_of;
use crate::{output, upstream};

mod answerers;
mod learned;
mod words;

use self::answerers::Answerer;
use self::words::Needed;

/// Checks the input as a run would and prints what there is to do. Of a job that has begun: what is left.
///
/// # Errors
/// As for a run, before its first call.
pub(crate) fn command(args: &RunArgs, paths: &Paths, upstream: &Upstream, limits: &Limits) -> Result<Status, Failure> {
    tell_overwritten(args, paths);
    let job = begun(args, paths)?;
    let Planned { reader, input, format, scratch } = match &job {
        Some(job) => as_begun(args, paths, upstream, job)?,
        None => load_aside(args, upstream, args.opening(), true)?,
    };
    let mut plan = Plan {
        retry_failed: args.retry_failed,
        only: args.only.clone(),
        failed_in: reader.failed_in().map_err(Failure::refused)?,
        unread: reader.input_cursor().map_err(Failure::refused)?.is_some(),
        done_unknown: job.is_some() && !args.done.is_empty(),
        ..Plan::default()
    };
    let spent = job.as_ref().unwrap_or(&reader);
    let under_way = spent.under_way().map_err(Failure::refused)?;
    plan.under_way = under_way.iter().map(|reserved| reserved.calls).sum();
    let kept = JobConfig::read(&spent.config_json().map_err(Failure::refused)?);
    let usage = kept.used_at(upstream, spent.spent().map_err(Failure::refused)?);
    let budget = Budget::new(args.budgets(), upstream.prices.clone(), &usage, false);
    let counts = spent.counts_at_rest(clock::wall()).map_err(Failure::refused)?;
    plan.used = budget.used().beside((counts.tokens_in, counts.tokens_out));
    plan.answerers = Answerer::all(&usage, &upstream.prices);
    plan.count(&reader, &input, &format, upstream).map_err(Failure::refused)?;
    plan.as_so_far = budget.cost_of_rest(&plan.left).filter(|_| plan.left.items > 0);
    plan.seconds = plan.seconds(upstream, limits);
    if plan.again.is_empty() && plan.stay_failed > 0 {
        args.only.tell_none();
    }
    plan.answerers.retain(|other| !plan.asked.contains(&*other.model));
    let scopes = reader.scopes().map_err(Failure::refused)?;
    args.only.tell_unknown(scopes.iter().map(|row| &*row.name));
    if !plan.unread {
        upstream::warn_of_scopes(upstream, &scopes);
    }
    if args.summary.is_some() {
        tracing::info!("a dry run leaves the file of --summary as it is; --json prints what it finds");
    }
    let printed = output::print(|out| {
        if args.json {
            writeln!(out, "{}", plan.json(args, upstream))
        } else {
            out.write_all(plan.text(args, upstream).as_bytes())
        }
    });
    drop((reader, scratch, job));
    printed.map(|()| Status::Success)
}

/// The journal of a job that a run would resume; none if it would begin one, where no results are in its way.
fn begun(args: &RunArgs, paths: &Paths) -> Result<Option<Reader>, Failure> {
    match begin::begun(args, paths).map(Reader::open) {
        Some(Ok(reader)) => return Ok(Some(reader)),
        // The run begins anew where the load of one before was cut off.
        Some(Err(error)) if !matches!(error, JournalError::NotLoaded { .. }) => return Err(load::refused(error)),
        _ if args.overwrite => {}
        _ => paths.refuse_results().map_err(load::refused)?,
    }
    Ok(None)
}

/// The items that a run would have, and their input.
struct Planned {
    reader: Reader,
    input: Input,
    format: Format,
    /// Where they are, if in no journal of a job; removed with this.
    scratch: Option<tempfile::TempDir>,
}

/// The items of a job that has begun. Its input has to be the one that it was begun with, unless the flags allow another.
fn as_begun(args: &RunArgs, paths: &Paths, upstream: &Upstream, reader: &Reader) -> Result<Planned, Failure> {
    let earlier = earlier_input(args, paths);
    let converter = Converter::of(args, upstream.provider)?;
    let input = Input::prepare(args.input(), &paths.input, &earlier, converter.as_ref()).map_err(Failure::refused)?;
    let (was, is) = (reader.input().map_err(Failure::refused)?, input.mark().map_err(Failure::refused)?);
    let same = is.same_as(&was);
    let may_differ = args.accept_changed_input || args.retry_failed;
    // As a run does: what was written again may have another content anywhere. A pipe can be read only once.
    let is_rewritten = is.mtime_ms != was.mtime_ms && InputError::of_pipe(args.input()).is_ok();
    let is_other = same.is_err() || is_rewritten;
    same.or_else(|changed| if may_differ { Ok(()) } else { Err(load::refused(changed)) })?;
    let format = format(args, &input, upstream)?;
    JobConfig::read(&reader.config_json().map_err(Failure::refused)?).refuse_other_format(&format)?;
    if is_other {
        return with_other_input(args, paths, upstream);
    }
    let journal = paths.journal.as_deref().expect("a job that has begun has one");
    Ok(Planned { reader: Reader::open(journal).map_err(load::refused)?, input, format, scratch: None })
}

/// The items of a job that has begun, as a run would give them to the input as it is now.
fn with_other_input(args: &RunArgs, paths: &Paths, upstream: &Upstream) -> Result<Planned, Failure> {
    InputError::of_pipe(args.input())?;
    let opening = args.opening();
    let opening = Opening { bad_lines: opening.bad_lines.of_whole_input(), ..opening };
    let mut planned = load_aside(args, upstream, opening, false)?;
    let folder = planned.scratch.as_ref().expect("loaded aside").path();
    let fresh = scratch_paths(folder).journal.expect("a journal beside the results");
    let job = paths.journal.as_deref().expect("a job that has begun has one");
    let (accepted, repaired) = (args.accept_changed_input, args.retry_failed);
    let conflicts = Reader::with_other_input(&fresh, job, accepted, repaired, Wrong::NAMED).map_err(load::refused)?;
    if conflicts.count > 0 {
        let (name, flags) = (planned.input.name(), JobConfig::made_otherwise(Some(job), &planned.input));
        return Err(Failure::refused(wrong::conflicts(&conflicts, &name, accepted, repaired, flags.as_deref())));
    }
    planned.reader = Reader::open(&fresh).map_err(Failure::refused)?;
    Ok(planned)
}

/// A journal in a folder that goes with it: every check of a real load, and nothing left of it. `takes_over`: with the
/// answers that `--done` names.
fn load_aside(args: &RunArgs, upstream: &Upstream, opening: Opening, takes_over: bool) -> Result<Planned, Failure> {
    let folder = tempfile::tempdir()
        .map_err(|error| Failure::refused(format!("cannot write to {}: {error}", std::env::temp_dir().display())))?;
    let paths = scratch_paths(folder.path());
    let lock = RunLock::take(&paths).map_err(Failure::refused)?;
    let converter = Converter::of(args, upstream.provider)?;
    let mut input = Input::prepare(args.input(), &paths.input, &Earlier::MayDiffer, converter.as_ref())
        .map_err(Failure::refused)?;
    let format = format(args, &input, upstream)?;
    let journal: PathBuf = paths.journal.clone().expect("a journal beside the results");
    let done = done::check(args, upstream)?;
    let job = load::open(lock, paths, &mut input, &format, upstream, &opening)?;
    if takes_over {
        done.take_over(&job.journal, &input, &format)?;
    }
    job.journal.close().map_err(Failure::refused)?;
    let reader = Reader::open(&journal).map_err(Failure::refused)?;
    Ok(Planned { reader, input, format, scratch: Some(folder) })
}

fn scratch_paths(folder: &Path) -> Paths {
    Paths::beside(&folder.join("dry-run.jsonl"))
}

fn format(args: &RunArgs, input: &Input, upstream: &Upstream) -> Result<Format, Failure> {
    Format::choose(args.format, args.endpoint.as_deref(), input, upstream.provider, &Addresses::of(upstream))
}

/// What there is to do.
#[derive(Default)]
struct Plan {
    items: u64,
    scopes: BTreeMap<String, Part>,
    seconds: Option<Duration>,
    /// Items that failed are sent again, these of them.
    retry_failed: bool,
    only: Only,
    /// How many are, by the status of their last answer, or the code where there was none, and how many are not.
    again: BTreeMap<Kind, u64>,
    stay_failed: u64,
    /// Items of hosts that the run is not for.
    left_out: u64,
    /// Items whose scopes are held, and until when the last of them is.
    held: u64,
    held_until: Option<Timestamp>,
    /// The scopes that items had as they failed, where their lines were changed since.
    failed_in: BTreeMap<u64, Arc<str>>,
    /// The input is not read to its end, so that there may be more.
    unread: bool,
    /// Answers would be taken over that were not looked for.
    done_unknown: bool,
    /// What it costs as far as requests set a bound, with each prompt that is to be kept written into the provider's cache; none
    /// where no price is known.
    cost: Option<Money>,
    /// What it costs if the calls cost as much as those of the job so far; none before the first.
    as_so_far: Option<Money>,
    /// What is to do, and what has ended.
    left: Left,
    /// Some requests ask for their prompts to be kept, at more than the price of input.
    writes: bool,
    models: BTreeSet<String>,
    /// Those that all lines ask for which were read.
    asked: BTreeSet<String>,
    /// Those that have answered in their place.
    answerers: Vec<Answerer>,
    /// Items whose requests set no bound on their answers.
    unbounded: u64,
    /// Tokens of those answers, if they are as long as answers were so far.
    unbounded_tokens: u64,
    /// Tokens that a bound on each of those answers would add to the prompts.
    tokens_of_bounds: u64,
    /// Items whose requests do not tell what they cost: they have or ask for more than text.
    untold: u64,
    /// Answers of the job that estimates rest on.
    answers: u64,
    /// Those of them that were longer than their request allows.
    beyond: learned::Beyond,
    /// Tokens, and the cost in the smallest units, if each prompt has as many as it can by what is known.
    most: (u64, u64),
    /// Tokens of the smallest call.
    smallest: Option<u64>,
    /// Items that alone exceed a configured limit.
    too_large: TooLargeItems,
    /// What the runs before used, and calls without a recorded answer reserved.
    used: Used,
    /// How many calls those are.
    under_way: u64,
}

/// Items that could never start.
#[derive(Default)]
struct TooLargeItems {
    items: u64,
    /// The line of the first, and which limit it exceeds.
    first: Option<(u64, TooLarge)>,
}

impl TooLargeItems {
    fn add(&mut self, line: u64, why: TooLarge) {
        self.items += 1;
        self.first.get_or_insert((line, why));
    }
}

/// What there is to do in one scope.
#[derive(Default)]
struct Part {
    items: u64,
    /// As the provider's limits will count it.
    cost: Cost,
    tokens_in: u64,
    /// As far as requests set a bound.
    tokens_out: u64,
}

impl Plan {
    /// Whether an item that failed is sent once more.
    fn is_sent_again(&mut self, row: &ReportRow) -> bool {
        let last = row.tally.last.as_ref();
        let (status, code) = (last.and_then(|last| last.status), last.and_then(|last| last.code.as_deref()));
        let failed_in = self.failed_in.get(&row.ordinal).map(|scope| &**scope);
        let failure = LastFailure { status, code, scope: &row.scope, failed_in, is_held: row.is_held() };
        let is_meant = !row.is_refused() && self.retry_failed && self.only.means(&failure);
        // Of a success that was refused the code tells more.
        let status = status.filter(|status| !(200..300).contains(status) || code.is_none());
        match is_meant {
            true => *self.again.entry((status, code.filter(|_| status.is_none()).map(str::to_owned))).or_default() += 1,
            false => self.stay_failed += 1,
        }
        is_meant
    }

    /// Whether an item that waits is sent.
    fn is_sent(&mut self, scope: &str) -> bool {
        let is_meant = self.only.sends_of(scope);
        self.left_out += u64::from(!is_meant);
        is_meant
    }

    /// Whether the item of a row is sent at all. Counts those that a pause keeps back.
    fn sends(&mut self, row: &ReportRow) -> bool {
        let is_sent = match row.state {
            State::Waiting | State::InFlight => self.is_sent(&row.scope),
            State::Failed => self.is_sent_again(row),
            State::Succeeded if row.fell_back() => self.is_sent_again(row),
            _ => false,
        };
        let sends = is_sent && !row.is_refused();
        self.held += u64::from(sends && row.deferred == Some(DeferReason::ScopeHeld));
        sends
    }

    fn count(
        &mut self,
        reader: &Reader,
        input: &Input,
        format: &Format,
        upstream: &Upstream,
    ) -> Result<(), ReportError> {
        let ratios = self.learn(reader, input, format, upstream)?;
        let mut pacer = Pacer::new(upstream.pacer.clone(), 0, Instant::ZERO).map_err(std::io::Error::other)?;
        let mut cost = 0_u64;
        let now = clock::wall();
        let scopes = reader.scopes().map_err(ReportError::from)?;
        self.held_until = holds::held(scopes, now).last().map(|held| held.until);
        reader.report(now, Rows::All, |row| -> Result<(), ReportError> {
            self.items += 1;
            let has_ended = !matches!(row.state, State::Waiting | State::InFlight) && row.tally.sends() > 0;
            self.left.ended_bytes += if has_ended { row.src_len } else { 0 };
            if !self.sends(&row) {
                return Ok(());
            }
            (self.left.items, self.left.bytes) = (self.left.items + 1, self.left.bytes + row.src_len);
            let bytes = input.read(Span { offset: row.src_off, len: row.src_len })?;
            let line = format.read(&bytes, row.line).map_err(std::io::Error::other)?;
            let scope = upstream.scope_name(&line.names());
            let part = self.scopes.entry(scope.to_string()).or_default();
            part.items += 1;
            let ratio = ratios.of(&scope);
            let charge = upstream.dialect.charge(&line.url, line.body.as_bytes(), &ratio);
            part.cost = sum(&part.cost, &charge);
            // Not every provider counts the answer's bound against its limits, but any model may write as much.
            let bound = upstream.dialect.longest_answer(&line.url, line.body.as_bytes());
            let bound = bound.map(|bound| if bound > 0 { bound.max(self.beyond.mean(&scope)) } else { 0 });
            let tokens_out = bound.unwrap_or_default();
            let (tokens_in, most_in, is_mixed) = learned::prompt_tokens(&ratio, &charge, line.body.as_bytes());
            (part.tokens_in, part.tokens_out) = (part.tokens_in + tokens_in, part.tokens_out + tokens_out);
            // Of a request that names no model it is not known whether its answer is of tokens at all.
            let model = line.billed_model();
            if bound.is_none() && model.is_some() {
                self.unbounded += 1;
                self.unbounded_tokens += ratio.output_tokens();
                self.tokens_of_bounds += learned::tokens_of_bound(&ratio, line.body.as_bytes());
            }
            self.untold += u64::from(is_mixed || upstream.dialect.tells_no_tokens(&line.url, line.body.as_bytes()));
            model.iter().for_each(|model| self.asks_for(model));
            *self.left.by_model.entry(model.as_deref().unwrap_or_default().into()).or_default() += 1;
            let dearest = upstream.dialect.dearest_input(line.body.as_bytes()).max(100);
            self.writes |= dearest > 100;
            let priced = |model: &str, tokens_in: u64| {
                upstream.prices.of(model).of_usage(&Usage::reserved(tokens_in, tokens_out, dearest))
            };
            let model = model.as_deref().unwrap_or_default();
            let [one, most] = [tokens_in, most_in].map(|tokens| priced(model, tokens));
            cost = cost.saturating_add(one.units());
            self.most.0 = self.most.0.saturating_add(most_in.saturating_add(tokens_out));
            self.most.1 = self.most.1.saturating_add(most.units());
            for other in &mut self.answerers {
                other.add([one, most], |model| [tokens_in, most_in].map(|tokens| priced(model, tokens)));
            }
            let call = tokens_in + tokens_out;
            self.smallest = Some(self.smallest.map_or(call, |smallest| smallest.min(call)));
            let request = Request::new(pacer.scope(&scope), charge);
            self.tries(&mut pacer, request, row.line);
            Ok(())
        })?;
        self.cost = (!upstream.prices.is_empty()).then_some(Money::from_units(cost));
        Ok(())
    }

    /// Whether the limits let that line leave at all.
    fn tries(&mut self, pacer: &mut Pacer, request: Request, line: u64) {
        match pacer.enqueue(Instant::ZERO, request) {
            Ok(ticket) => drop(pacer.cancel(Instant::ZERO, ticket)),
            Err(why) => self.too_large.add(line, why),
        }
        while pacer.poll_event().is_some() {}
    }

    /// The time that the configured limits alone ask for; none when there are none.
    fn seconds(&self, upstream: &Upstream, limits: &Limits) -> Option<Duration> {
        let all = self.scopes.values().fold(Cost::zero(), |all, part| sum(&all, &part.cost));
        let account = oracle::least(limits, self.pending(), all);
        let tiers = upstream.pacer.tiers.iter().flat_map(|(name, limits)| {
            let parts = self.scopes.iter().filter(|(scope, _)| is_of(scope, name));
            parts.filter_map(|(_, part)| oracle::least(limits, part.items, part.cost.clone()))
        });
        account.into_iter().chain(tiers).max()
    }

    fn pending(&self) -> u64 {
        self.scopes.values().map(|part| part.items).sum()
    }

    fn tokens(&self) -> (u64, u64) {
        let sum = |of: fn(&Part) -> u64| self.scopes.values().map(of).sum();
        (sum(|part| part.tokens_in), sum(|part| part.tokens_out))
    }

    fn has_budget(&self) -> bool {
        self.used.tokens.is_some() || self.used.cost.is_some_and(|(_, of)| of.is_some())
    }

    /// Whether the budgets cover all that is to do; `None`: an answer without a bound may use them up, or prompts or
    /// answers that have more tokens than estimated.
    fn budget_is_enough(&self) -> Option<bool> {
        let needed = self.needed();
        let dearest = self.answerers.iter().map(|other| other.most).max().unwrap_or_default();
        let most =
            Needed { tokens: self.most.0, cost: needed.cost.map(|_| Money::from_units(self.most.1).max(dearest)) };
        match self.missing(needed).is_empty() {
            true if self.has_budget() && self.is_doubtful(most) => None,
            enough => Some(enough),
        }
    }

    /// Whether calls may need more than is estimated.
    fn is_doubtful(&self, most: Needed) -> bool {
        self.unbounded > 0 || self.untold > 0 || self.beyond.answers > 0 || !self.missing(most).is_empty()
    }

    /// What is to do needs, as estimated.
    fn needed(&self) -> Needed {
        let (tokens_in, tokens_out) = self.tokens();
        // Where other models answer, their prices say more than those of the models that are asked for.
        let others = self.as_so_far.filter(|_| self.others_answer());
        Needed { tokens: tokens_in + tokens_out, cost: self.cost.map(|cost| cost.max(others.unwrap_or_default())) }
    }

    /// The same, if the dearest of the models answers that have answered.
    fn needed_by_dearest(&self) -> Needed {
        let (needed, dearest) = (self.needed(), self.answerers.iter().map(|other| other.cost).max());
        Needed { cost: needed.cost.map(|cost| cost.max(dearest.unwrap_or_default())), ..needed }
    }

    /// Whether other models than those that are asked for have answered.
    const fn others_answer(&self) -> bool {
        !self.answerers.is_empty()
    }

    fn json(&self, args: &RunArgs, upstream: &Upstream) -> Value {
        let (tokens_in, tokens_out) = self.tokens();
        let scopes: Vec<Value> = self
            .scopes
            .iter()
            .map(|(name, part)| {
                json!({
                    "name": name,
                    "items": part.items,
                    "tokens_in": part.tokens_in,
                    "tokens_out": part.tokens_out,
                })
            })
            .collect();
        json!({
            "input": self.items,
            "pending": self.pending(),
            "tokens_in": tokens_in,
            "tokens_out": tokens_out,
            "unbounded_outputs": self.unbounded,
            "untold_costs": self.untold,
            "estimated_by_answers": self.answers,
            "answers_beyond_bounds": self.beyond.answers,
            "cost": self.cost.map(Money::as_f64),
            "cost_as_so_far": self.as_so_far.map(Money::as_f64),
            "too_large": {
                "items": self.too_large.items,
                "first_line": self.too_large.first.as_ref().map(|(line, _)| line),
            },
            "budget": self.used.json(),
            "budget_is_enough": self.budget_is_enough(),
            "seconds": self.seconds.map(|seconds| seconds.as_secs_f64()),
            "scopes": scopes,
            "bounds": {
                "max_items": args.max_items,
                "max_tokens": args.max_tokens,
                "max_duration_s": args.max_duration.map(|duration| duration.as_secs_f64()),
                "max_wait_s": args.max_wait.as_secs_f64(),
                "deadline_s": upstream.deadline.as_secs_f64(),
            },
        })
    }
}

fn sum(a: &Cost, b: &Cost) -> Cost {
    a.units().chain(b.units()).fold(Cost::zero(), |sum, (dimension, units)| {
        let units = sum.get(&dimension).saturating_add(units);
        sum.with(dimension, units)
    })
}
