//! `paceline run`: sends every request of a file, and is never done twice.

mod begin;
mod dry_run;
mod kept;
mod key_as_value;
mod outline;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline::{Clock, Instant, Limiter, clock};
use paceline_config::Upstream;
use paceline_core::{Limits, Timestamp};
use paceline_http::Sender;
use paceline_store::{ACCOUNT, JobCounts, Journal, JournalError, Paths, Reader, Rows, RunLock, ScopeRow, State};
use tokio::sync::watch;

use self::outline::Outline;
use crate::account::{Account, SharedLimits};
use crate::args::Everywhere;
use crate::budget::{Enough, Left};
use crate::calls::dispatch::{Dispatcher, Ended};
use crate::calls::item::Context;
use crate::calls::on_their_way::failure_of;
use crate::exit::{Failure, Status};
use crate::fallback::Fallback;
use crate::files::{self, Kept};
use crate::hosts::{self, Hosts};
use crate::job::acknowledge::Acknowledge;
use crate::job::holds::Clocks;
use crate::job::load::Job;
use crate::job::load_guard::LoadGuard;
use crate::job::{check_paths, done, holds, load};
use crate::job_line::JobTeller;
use crate::limiter_state;
use crate::lines::format::Format;
use crate::lines::input::{Input, Span};
use crate::mock;
use crate::open_job::{OpenJob, Restored};
use crate::other_hosts::host_view::JobEnd;
use crate::output::{self, SummaryOutput};
use crate::progress::display::Progress;
use crate::progress::extract;
use crate::progress::report::{Ending, ReportError};
use crate::progress::summary::{Correction, Summary};
use crate::progress::{report, resume_command};
use crate::run_args::RunArgs;
use crate::signals::{self, Interruptions, Signals};
use crate::stops::stop::StopReason;
use crate::upstream::host_of;
use crate::{text, upstream};

/// Runs a job to its end, or until it has to stop.
///
/// # Errors
/// Refuses bad configuration and input before anything is sent; and reports a failure during the run.
pub(crate) async fn command(mut args: RunArgs, everywhere: &Everywhere) -> Result<Status, Failure> {
    hosts::check(&args)?;
    let paths = paths(&args)?;
    let mut upstream = upstream_of(&mut args, &paths, everywhere)?;
    check_paths::check(&args, &paths, &upstream, everywhere)?;
    paceline_http::warn_of_idle(&upstream);
    let fallback = args.fallback.configured(&upstream)?;
    if args.dry_run {
        let limits = known_limits(&upstream);
        return tokio::task::block_in_place(|| dry_run::command(&args, &paths, &upstream, &limits));
    }
    upstream::bound_by_files(&mut upstream, files::OF_A_CALL)?;
    let kept = Kept::for_the_end();
    let headers = key_as_value::headers(&upstream)?;
    let done = tokio::task::block_in_place(|| done::check(&args, &upstream))?;
    let outline = Outline::of(&args, &upstream, &paths);
    let lock = match RunLock::take(&paths).map_err(load::refused) {
        Err(Failure::DiskFull(message)) => return outline.print_full(message, Duration::ZERO, everywhere.quiet),
        lock => lock?,
    };
    let preparing = LoadGuard::watch(&paths, outline.clone().of_interrupted(everywhere.quiet))?;
    output::try_summary(args.summary.as_deref())?;
    let clock = Clock::new();
    let began = clock.now();
    let opening = begin::open(&args, &paths, &mut upstream, lock, &preparing, &done);
    let (input, mock, format, job, hosts) = match opening.await {
        Err(Failure::DiskFull(message)) => {
            return outline.print_full(message, clock.now() - began, everywhere.quiet);
        }
        opened => opened?,
    };
    let limiter = limiter(&upstream, args.seed)?;
    let account = upstream::is_own_account(&upstream, mock.as_ref()).then(|| Account::of(&upstream, &headers));
    let shared =
        SharedLimits::open(account.as_ref(), upstream.fleet.as_ref(), &upstream.pacer, limiter.clone(), false).await?;
    let _in_use = account.and_then(|account| account.mark(shared.is_shared()));
    let teller = JobTeller::of(&upstream, &headers, name_of(&args.output))?;
    let sender =
        Sender::by(&upstream, upstream::sending(&upstream, headers, args.timeout)).map_err(Failure::refused)?;
    let run = Run {
        clock,
        began,
        summarized: AtomicBool::new(false),
        args: &args,
        upstream: &upstream,
        paths: &paths,
        job,
        hosts,
        limiter,
        shared,
        fallback,
        teller,
        quiet: everywhere.quiet,
    };
    // First these: no interruption falls between the two.
    let signals = Signals::new().map_err(Failure::interrupted)?;
    drop(preparing);
    run.go(input, format, sender, signals, kept).await
}

/// The upstream in force, for a job that may have begun.
fn upstream_of(args: &mut RunArgs, paths: &Paths, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let mut upstream = upstream::resolve(&args.upstream, everywhere)?;
    kept::take_up(args, paths, &mut upstream)?;
    match &args.expect {
        Some(expect) => expect.of(upstream),
        None => Ok(upstream),
    }
}

/// A run that is set up and has not begun.
struct Run<'a> {
    clock: Clock,
    began: Instant,
    /// Whether its summary was printed.
    summarized: AtomicBool,
    args: &'a RunArgs,
    upstream: &'a Upstream,
    paths: &'a Paths,
    job: Job,
    hosts: Option<Hosts>,
    limiter: Limiter,
    shared: SharedLimits,
    fallback: Option<Arc<Fallback>>,
    teller: JobTeller,
    quiet: bool,
}

impl Run<'_> {
    /// To its end; one that breaks has a summary too.
    async fn go(
        mut self,
        input: Input,
        format: Format,
        sender: Sender,
        signals: Signals,
        kept: Kept,
    ) -> Result<Status, Failure> {
        output::remove_summary(self.args.summary.as_deref())?;
        upstream::tell_file(self.upstream, self.quiet);
        let ended = self.work(input, format, sender, signals, kept).await;
        if self.summarized.load(Ordering::Relaxed) {
            return ended;
        }
        let outline = || Outline::of(self.args, self.upstream, self.paths).of_begun();
        let took = self.clock.now() - self.began;
        match ended {
            Err(Failure::DiskFull(message)) => outline().print_full(message, took, self.quiet),
            Err(failure @ (Failure::Interrupted(_) | Failure::Lost(_))) => {
                outline().print(&StopReason::Error { message: failure.to_string() }, took, self.quiet)?;
                Err(failure)
            }
            ended => ended,
        }
    }

    async fn work(
        &mut self,
        input: Input,
        format: Format,
        sender: Sender,
        signals: Signals,
        kept: Kept,
    ) -> Result<Status, Failure> {
        let mut hosts = self.hosts.take();
        let ending = hosts.as_mut().and_then(|hosts| hosts.ending.take());
        let (told, line) = watch::channel(None);
        let telling = self.teller.begin(move || line.borrow().clone());
        let course = OpenJob {
            input,
            format,
            upstream: self.upstream,
            journal: &self.job.journal,
            input_cursor: self.job.input_cursor,
            limiter: self.limiter.clone(),
            guest: None,
            sender: Arc::new(sender),
            fallback: self.fallback.take(),
            extract: self.args.pointer().map(str::to_owned),
            bounds: self.args.bounds(),
            progress: Progress::new(self.quiet).told_to(told),
            interruptions: Interruptions::Signals(signals),
            lock: Some(self.paths.lock.clone()),
            turn_wait: self.shared.turn_wait(),
            hosts,
        };
        let restore = |now, acknowledge: &Acknowledge| self.restore(now, acknowledge);
        let (context, dispatcher) =
            tokio::task::block_in_place(|| course.set_up(restore)).map_err(|error| self.broken(failure_of(&error)))?;
        let ended = self.dispatch(dispatcher).await;
        telling.end().await;
        // It hands in what has ended, whatever ended the run.
        let job_end = match ending {
            Some(ending) => Some(ending.await.unwrap_or_default()),
            None => None,
        };
        let ended = ended.map_err(|failure| self.broken(failure))?;
        drop(kept);
        let enough = signals::interrupt_flag().map_err(Failure::interrupted)?;
        tokio::task::block_in_place(|| self.conclude(&context, &ended, job_end.as_ref(), &enough))
            .map_err(|failure| self.broken(failure))
    }

    /// Sends, in turns with other runs where limits are shared.
    async fn dispatch(&mut self, dispatcher: Dispatcher) -> Result<Ended, Failure> {
        self.shared.begin();
        // Not on this thread, which every call that ends would have to wake: among the workers it is mostly awake.
        let ended = tokio::select! {
            ended = tokio::spawn(dispatcher.run()) => ended.map_err(Failure::interrupted).flatten(),
            () = self.shared.keep() => unreachable!("it goes on for as long as it is asked"),
        };
        self.shared.end().await;
        ended
    }

    /// What earlier runs left: holds, and what the limiter knew.
    fn restore(&self, now: Timestamp, acknowledge: &Acknowledge) -> Result<Restored, JournalError> {
        let journal = &self.job.journal;
        let snapshot = journal.snapshot()?;
        let clocks = snapshot.as_ref().and_then(Clocks::of);
        let sends_of = |scope: &str| self.args.only.sends_of(scope);
        let by_gateway = self.upstream.via.is_some();
        let stopped = holds::restore(journal, &self.limiter, now, clocks, by_gateway, sends_of, acknowledge)?;
        if self.job.same_account {
            let texts = journal.limiter_state()?;
            limiter_state::restore(&self.limiter, &self.shared, texts.iter().map(String::as_str));
        }
        holds::test_first(&self.limiter, &stopped);
        let left_out = if self.args.only.names_hosts() { self.leave_out_others(&journal.scopes()?)? } else { 0 };
        Ok(Restored { stopped, left_out })
    }

    /// Of hosts that the run is not for nothing is sent. Returns how many of their items wait.
    fn leave_out_others(&self, scopes: &[ScopeRow]) -> Result<u64, JournalError> {
        let (only, names) = (&self.args.only, || scopes.iter().map(|row| &*row.name).filter(|name| *name != ACCOUNT));
        only.tell_unknown(names());
        let others = scopes.iter().filter(|row| *row.name != *ACCOUNT && !only.sends_of(&row.name));
        others.for_each(|row| self.job.journal.hold_for_this_run(&row.name, None));
        let Some(journal) = &self.paths.journal else { return Ok(0) };
        let waiting = Reader::open(journal)?.by_scope()?.into_iter();
        let waiting =
            waiting.filter(|row| row.left > 0 && *row.scope.name != *ACCOUNT && !only.sends_of(&row.scope.name));
        let mut hosts = BTreeSet::new();
        // A host may be in several tiers.
        let left_out =
            waiting.inspect(|row| _ = hosts.insert(host_of(&row.scope.name).to_owned())).map(|row| row.left).sum();
        if !hosts.is_empty() {
            tracing::info!("--only-host: this run is not for {}", text::counted(hosts.len() as u64, "other host"));
        }
        Ok(left_out)
    }

    /// Whether items of the hosts are left that the run is for.
    fn leaves_its_hosts(&self) -> Result<bool, JournalError> {
        let (journal, only) = (&self.job.journal, &self.args.only);
        for row in journal.scopes()?.into_iter().filter(|row| only.names_hosts() && only.is_of(&row.name)) {
            if journal.waits_in(&row.name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// With what to do about it, where there is a journal to go on from.
    fn broken(&self, failure: Failure) -> Failure {
        if self.paths.journal.is_some() { failure.resumable() } else { failure }
    }

    /// Counts what was recorded, and prints the summary.
    fn conclude(
        &self,
        context: &Context,
        ended: &Ended,
        hosts: Option<&JobEnd>,
        enough: &AtomicBool,
    ) -> Result<Status, Failure> {
        let now = clock::wall();
        let (journal, failed) = (&self.job.journal, |error: JournalError| failure_of(&error));
        // First: the thread that reads on may come to the end meanwhile.
        let unread = journal.input_cursor().map_err(failed)?.is_some();
        let mut counts = journal.counts(now).map_err(failed)?;
        let unwritten = ended.recorder.figures().add_unwritten(&mut counts);
        let held = holds::held(journal.scopes().map_err(failed)?, now);
        // What cannot be written at the end takes no summary away.
        let is_whole = counts.waiting + counts.in_flight == 0 && !unread;
        let ordered = if self.args.ordered && is_whole { journal.order().map_err(failed) } else { Ok(()) };
        let waits = |scope: &&Arc<str>| journal.waits_in(scope).unwrap_or(true);
        let waiting: BTreeSet<Arc<str>> = ended.recorder.holds.given_up().filter(waits).cloned().collect();
        let leaves_its_hosts = self.leaves_its_hosts().map_err(failed)?;
        let bounded = ended.stop.as_ref().is_some_and(StopReason::is_bound);
        let reported = self.report(context, &Ending { now, bounded, enough });
        let enough_budget = self.enough_budget(context, ended.stop.as_ref(), &counts, enough);
        // What a full disk leaves in the log of the journal, the next run finds there.
        let full = journal.disk_full().is_some();
        let closed = journal.close().or_else(|error| if full { Ok(()) } else { Err(failure_of(&error)) });
        let extracted = self.extract();
        let owed = outline::owed(self.paths, [ordered.is_err(), extracted.is_err()]);
        let view = context.limiter.snapshot();
        let correction = self.correction(ended.stop.as_ref(), counts.failed > 0 && counts.held == 0);
        let again = self.again(correction.as_ref(), leaves_its_hosts);
        let summary = Summary {
            held: &held,
            held_up: ended.recorder.held_up(context.now()),
            counts: &counts,
            unwritten,
            unread,
            owed: &owed,
            figures: ended.recorder.figures(),
            stop: ended.stop.as_ref(),
            has_begun_all: ended.has_begun_all,
            stopped_scopes: ended.stopped_scopes,
            elapsed: context.limiter.now() - context.began,
            limits: &known_limits(self.upstream),
            upstream: self.upstream,
            budget: context.budget.used(),
            view: &view,
            last_failure: &|scope| ended.recorder.last_failure(scope),
            waits_in: &|scope| waiting.contains(scope),
            enough_budget: enough_budget.as_ref(),
            again,
            correction,
            hosts,
        };
        let wall = |at: Instant| context.timestamp(at);
        // Compressed results are there once all have ended.
        let results = Some(&self.args.output).filter(|output| output.exists()).unwrap_or(&self.paths.output);
        let text = summary.text(results, self.paths);
        let quiet = self.quiet && summary.status().is_hidden(bounded && enough_budget.is_none());
        let summary_output = SummaryOutput { as_json: self.args.json, quiet, file: self.args.summary.as_deref() };
        self.summarized.store(true, Ordering::Relaxed);
        summary_output.print(summary.status(), || summary.json(&wall), &text)?;
        ordered.and(reported).and(closed).and(extracted).map(|()| summary.status())
    }

    /// What seems to be enough of the budget that has ended the run, for the items that are left.
    fn enough_budget(
        &self,
        context: &Context,
        stop: Option<&StopReason>,
        counts: &JobCounts,
        enough: &AtomicBool,
    ) -> Option<Enough> {
        let exceeded = stop.and_then(StopReason::exceeded_budget)?;
        let items = counts.waiting + counts.in_flight;
        let by_model = left_by_model(&self.job.journal, context, clock::wall(), enough);
        let left = Left { items, bytes: counts.bytes_left, ended_bytes: counts.bytes_ended, by_model };
        (items > 0).then(|| context.budget.enough(exceeded, &left))
    }

    /// Writes what `--extract` takes out of the results.
    fn extract(&self) -> Result<(), Failure> {
        let Some(pointer) = self.args.pointer() else { return Ok(()) };
        let path = extract::path(self.paths);
        let failed = |error| Failure::interrupted(format!("cannot write {}: {error}", path.display()));
        extract::write(self.paths, pointer).map_err(failed)
    }

    /// Writes why items failed, or were put off.
    fn report(&self, context: &Context, ending: &Ending<'_>) -> Result<(), Failure> {
        match report::write(&self.paths.report, &self.job.journal, &context.input, ending) {
            Err(ReportError::Interrupted) => {
                tracing::warn!("the report was not written; `paceline stats --items --json` prints the same");
            }
            Err(error) if error.is_disk_full() => {
                tracing::warn!("{error}; once the disk has space, `paceline stats --items --json` prints the same");
            }
            other => return other.map_err(Failure::interrupted),
        }
        Ok(())
    }

    /// What has to be corrected before the job goes on. `may_retry`: items failed, and none of them may have been done.
    fn correction(&self, stop: Option<&StopReason>, may_retry: bool) -> Option<Correction> {
        stop.is_some_and(StopReason::asks_for_corrected_requests).then(|| Correction {
            retries_failed: may_retry && !self.args.retry_failed,
            by_model: self.args.model.is_some(),
        })
    }

    /// The command that goes on with the job: with the hosts that it names while some of their items are left.
    fn again(&self, correction: Option<&Correction>, leaves_its_hosts: bool) -> Option<String> {
        self.paths.journal.as_ref()?;
        let words = std::env::args_os();
        let again = match leaves_its_hosts {
            true => resume_command::for_its_hosts(words),
            false => resume_command::command_line(words),
        };
        Some(match correction {
            Some(_) => again + " --accept-changed-input",
            None => again,
        })
    }
}

fn paths(args: &RunArgs) -> Result<Paths, Failure> {
    let paths = Paths::beside(&args.output);
    if paths.compress && !args.ordered {
        return Err(Failure::refused(format!(
            "-o {} is compressed, and only ordered results can be: add --ordered, or write to {}",
            args.output.display(),
            paths.output.display()
        )));
    }
    Ok(match &args.journal {
        Some(journal) => paths.with_journal(journal.clone()),
        None if args.no_journal => paths.without_journal(),
        None => paths,
    })
}

/// The models that the items ask for which are left, where they matter and all of them can be read before the user has `enough`.
fn left_by_model(journal: &Journal, context: &Context, now: Timestamp, enough: &AtomicBool) -> BTreeMap<Arc<str>, u64> {
    let mut left = BTreeMap::<Arc<str>, u64>::new();
    if !context.budget.tells_models_apart() {
        return left;
    }
    let read = journal.report(now, Rows::NotSimplySucceeded, |row| -> Result<(), ReportError> {
        if enough.load(Ordering::Relaxed) {
            return Err(ReportError::Interrupted);
        }
        if matches!(row.state, State::Waiting | State::InFlight) {
            let bytes = context.input.read(Span { offset: row.src_off, len: row.src_len })?;
            let line = context.format.read(&bytes, row.line).map_err(io::Error::other)?;
            *left.entry(line.billed_model().unwrap_or_default().into()).or_default() += 1;
        }
        Ok(())
    });
    read.map(|()| left).unwrap_or_default()
}

fn limiter(upstream: &Upstream, seed: Option<u64>) -> Result<Limiter, Failure> {
    let config = upstream.pacer.clone().with_deadline(upstream.deadline);
    match seed {
        Some(seed) => Limiter::with_seed(config, seed),
        None => Limiter::new(config),
    }
    .map_err(Failure::refused)
}

/// What people call a job: its results file.
fn name_of(output: &Path) -> String {
    output.file_name().unwrap_or(output.as_os_str()).to_string_lossy().into_owned()
}

/// The limits that an ideal client would know: those configured, and those of our own mock.
fn known_limits(upstream: &Upstream) -> Limits {
    let mut limits = upstream.pacer.limits.clone();
    limits.quotas.extend(mock::limit_of(upstream));
    limits
}
