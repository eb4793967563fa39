//! `paceline tasks run`: works through a store, with a command or with requests.

mod answers;
mod cancellable_judge;
mod current_sender;
mod disk;
mod fail_fast;
mod fallback;
mod groups_of_commands;
mod known_answers;
mod limiter_state;
mod pauses;
mod permits;
mod program;
mod progress;
mod regularly;
mod requests;
mod same_failure;
mod settings;
mod shutdown;
mod stopped_scopes;
mod summary;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderMap;
use paceline::Limiter;
use paceline_core::{Class, Cost, Outcome};
use paceline_store::work::{
    self, EndReason, Filter, Observer, Scheduler, SchedulerConfig, SchedulerEvent, StartDecision, State, Task,
    WorkClock, WorkError, WorkStore,
};
use paceline_store::{ScopeStatus, is_same_file};

use self::answers::Answers;
use self::cancellable_judge::CancellableJudge;
use self::disk::Disk;
use self::fail_fast::FailFast;
use self::limiter_state::PersistentLimiter;
use self::permits::Permits;
use self::program::{Failed, Program};
use self::progress::Progress;
use self::requests::Requests;
use self::same_failure::SameFailure;
pub(crate) use self::settings::{Args, defaults};
use self::shutdown::Shutdown;
use self::stopped_scopes::{StoppedScopes, TestCall};
use self::summary::Ran;
use crate::account::{Account, SharedLimits};
use crate::args::Everywhere;
use crate::database::not_begun;
use crate::exit::{Failure, Status};
use crate::fallback::Fallback;
use crate::files::{self, Kept};
use crate::job_line::JobTeller;
use crate::output;
use crate::signals::SignalCount;
use crate::stops::stop::StopReason;
use crate::text;
use crate::upstream;

/// Works until everything has ended, or the run has to end; again and again where that is asked for.
///
/// # Errors
/// Refuses bad usage, and a store that another process works on, before anything begins; and reports a failure during the run.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let clock = WorkClock::system();
    let policy = args.policy()?;
    let mut upstream = args.upstream(everywhere)?;
    upstream::bound_by_files(&mut upstream, if args.http { files::OF_A_CALL } else { files::OF_A_COMMAND })?;
    let concurrency = policy.concurrency.min(upstream.pacer.concurrency.max() as usize);
    let policy = SchedulerConfig { pace: upstream.pacer.pace, concurrency, ..policy };
    let judge = args.judge.judge(everywhere)?;
    let fallback = args.fallback.configured(&upstream)?;
    let permits = Permits::new(&upstream, policy.backoff.cap(), args.longest_outage())?;
    let (pacer, fleet) = (upstream.pacer.clone(), upstream.fleet.clone());
    let account_of_commands = Account::of(&upstream, &HeaderMap::new());
    refuse_outputs(&args)?;
    let disk = Disk::of(args.store.file(), args.output.as_deref(), args.longest_outage());
    wait_to_begin(&disk, &args, &clock).await?;
    let (store, left) = args.store.open_to_work(&clock, disk.space(), args.stay).await?;
    upstream::tell_file(&upstream, everywhere.quiet);
    tell_of_cut_off("an earlier worker was killed", left, args.http);
    let teller = match &upstream.via {
        Some(_) if args.http => JobTeller::of(&upstream, &upstream::headers_of_batch(&upstream)?, args.store.name())?,
        _ => JobTeller::of_own(&upstream.name, args.store.name()),
    };
    let work = if args.http {
        let answers = match args.output.as_deref() {
            Some(path) => Some(Answers::open(path, disk.space().clone())?.recall(&*store).await?),
            None => None,
        };
        let (endpoint, longest_outage, retries) = (args.endpoint.clone(), args.longest_outage(), policy.max_retries);
        Work::Requests(Arc::new(
            Requests::to(upstream, endpoint, args.timeout, retries, longest_outage, answers, store.clone()).await?,
        ))
    } else {
        Work::Command(Arc::new(Program::new(&args.command, args.timeout)?), StoppedScopes::of_groups(args.stay))
    };
    let account = match &work {
        Work::Requests(requests) => requests.account().cloned(),
        Work::Command(..) => Some(account_of_commands),
    };
    // What a command calls, and with which key, is not known: its limits are those of the store.
    let caller = account.as_ref().filter(|_| args.http);
    let mut shared = SharedLimits::open(caller, fleet.as_ref(), &pacer, permits.limiter().clone(), args.stay).await?;
    let _in_use = caller.and_then(|account| account.mark(shared.is_shared()));
    let limiter_state =
        PersistentLimiter::restore(store.clone(), permits.limiter().clone(), &shared, account, clock.clone());
    let limiter_state = limiter_state.await.map_err(not_begun)?;
    output::try_summary(args.summary.as_deref()).and_then(|()| output::remove_summary(args.summary.as_deref()))?;
    let signals = SignalCount::listen().map_err(Failure::interrupted)?;
    let mut scheduler = Scheduler::new(store.clone(), policy.clone(), clock.clone()).map_err(Failure::refused)?;
    if let Some(judge) = judge {
        scheduler = scheduler.with_judge(Arc::new(CancellableJudge::new(judge, signals.clone())));
    }
    let runs = Runs {
        args: &args,
        left: AtomicU64::new(left),
        quiet: everywhere.quiet,
        store,
        policy,
        scheduler,
        fallback,
        permits: work.permits(permits),
        limiter_state,
        disk,
        work,
        teller,
        clock,
        summarized: AtomicBool::new(false),
    };
    runs.all(&signals, &mut shared).await
}

/// A second signal ends a run that waits for its store.
const NOT_RECORDED: &str = "the store did not answer after a second signal: what was in flight is not recorded, and is tried again once its lease is over";

/// Waits for room on the disk of a store that is there, for as long as the run may take. One that gets none has a summary too.
async fn wait_to_begin(disk: &Disk, args: &Args, clock: &WorkClock) -> Result<(), Failure> {
    args.store.refuse_missing()?;
    let (waited, stop) = disk.wait_to_begin(args.max_duration).await;
    if waited.is_err() {
        summary::print_outline(args, clock, &stop).await?;
    }
    waited
}

/// The items of a worker that was killed begin again, and their calls may have been answered.
fn tell_of_cut_off(what: &str, items: u64, are_requests: bool) {
    if items > 0 {
        let items = text::counted(items, "item");
        let cut_off = match are_requests {
            true => {
                "calls were cut off before an answer; what may be sent twice is sent again, and may be billed twice"
            }
            false => "commands may be running still, and begin again",
        };
        tracing::warn!("{what} while it had {items}: as many or fewer {cut_off}");
    }
}

/// Refuses files to write that are something else already.
fn refuse_outputs(args: &Args) -> Result<(), Failure> {
    args.store.refuse_as_output("-o", args.output.as_deref())?;
    args.store.refuse_as_output("--summary", args.summary.as_deref())?;
    if let (Some(output), Some(summary)) = (&args.output, &args.summary)
        && is_same_file(output, summary)
    {
        let output = output.display();
        return Err(Failure::refused(format!("-o and --summary are the same file, {output}: choose another")));
    }
    args.output.as_deref().map_or(Ok(()), answers::refuse_other)
}

/// What every run needs.
struct Runs<'a> {
    args: &'a Args,
    /// Items of a worker that was killed, until a summary tells of them.
    left: AtomicU64,
    quiet: bool,
    store: Arc<dyn WorkStore>,
    policy: SchedulerConfig,
    scheduler: Scheduler,
    fallback: Option<Arc<Fallback>>,
    permits: Permits,
    limiter_state: PersistentLimiter,
    disk: Disk,
    work: Work,
    teller: JobTeller,
    clock: WorkClock,
    /// Whether the summary of the last run was printed.
    summarized: AtomicBool,
}

/// How items are worked on.
#[derive(Clone)]
enum Work {
    Command(Arc<Program>, StoppedScopes),
    Requests(Arc<Requests>),
}

impl Work {
    /// The first answer that could not be kept.
    fn broken(&self) -> Option<String> {
        let Self::Requests(requests) = self else { return None };
        requests.broken()
    }

    /// Those with what is told of requests alone.
    fn permits(&self, permits: Permits) -> Permits {
        match self {
            Self::Requests(requests) => permits.of_requests(requests.upstream()),
            Self::Command(..) => permits,
        }
    }

    /// What is stopped without its group, and the groups that a former run stopped: of a command a scope is a group.
    fn stopped(&self) -> &StoppedScopes {
        match self {
            Self::Requests(requests) => requests.stopped(),
            Self::Command(_, stopped) => stopped,
        }
    }

    /// Keeps in the store which hosts answer, for as long as the future is polled.
    async fn keep_answers(&self, clock: &WorkClock, limiter: &Limiter) {
        match self {
            Self::Requests(requests) => requests.keep_answers(clock, limiter).await,
            Self::Command(..) => std::future::pending().await,
        }
    }
}

impl Runs<'_> {
    /// One run, or one after the other. A second signal ends it soon, though its store does not answer.
    async fn all(&self, signals: &SignalCount, shared: &mut SharedLimits) -> Result<Status, Failure> {
        let ended = async {
            match self.args.every {
                None => self.once(signals, shared).await,
                Some(every) => self.every(every, signals, shared).await,
            }
        };
        let ended = tokio::select! {
            ended = ended => ended,
            () = shutdown::hurried(signals, &*self.store), if self.args.store.file().is_none() => {
                return Err(Failure::interrupted(NOT_RECORDED).resumable());
            }
        };
        if let Err(failure @ Failure::Interrupted(_)) = &ended
            && !self.summarized.load(Ordering::Relaxed)
        {
            let stop = StopReason::Error { message: failure.to_string() };
            summary::print_outline(self.args, &self.clock, &stop).await?;
        }
        ended
    }

    /// Reads what earlier runs left, and what the other workers of the store have found.
    async fn begin_run(&self, fail_fast: &FailFast) -> Result<(), WorkError> {
        self.permits.begin_run();
        let (store, limiter, restops) = (&*self.store, self.permits.limiter(), self.args.stop_after_same > 0);
        if let Work::Requests(requests) = &self.work {
            requests.begin_run(limiter).await?;
        }
        self.work.stopped().begin_run(store, limiter, restops).await?;
        fail_fast.read(store).await
    }

    /// One run each `every`, counted from their beginnings; what was deferred begins the next.
    async fn every(
        &self,
        every: Duration,
        signals: &SignalCount,
        shared: &mut SharedLimits,
    ) -> Result<Status, Failure> {
        loop {
            let began = self.clock.now();
            let status = self.once(signals, shared).await?;
            let rest = (began + every).saturating_since(self.clock.now());
            if signals.any() {
                return Ok(status);
            }
            tracing::info!("the next run begins at {}", text::moment(self.clock.wall() + rest));
            tokio::select! {
                () = signals.first() => return Ok(status),
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Ends the run, or a scope, where an event asks for that.
    fn observer(
        &self,
        progress: &Progress,
        shutdown: &Shutdown,
        fail_fast: &FailFast,
        stopped_scopes: &StoppedScopes,
    ) -> Observer {
        let (progress, shutdown, permits) = (progress.clone(), shutdown.clone(), self.permits.clone());
        let (fail_fast, stopped_scopes, are_requests) = (fail_fast.clone(), stopped_scopes.clone(), self.args.http);
        Arc::new(move |note: &SchedulerEvent<'_>| {
            if let Some(same) = fail_fast.observe(note).and_then(|stops| stops.stop(&stopped_scopes)) {
                tracing::error!("stopping: {}", text::printable(&same.to_string()));
                shutdown.begin_drain();
            }
            match note {
                SchedulerEvent::Ending(_) => shutdown.begin_drain(),
                SchedulerEvent::TakenOver(items) => {
                    tell_of_cut_off("another worker was killed or did not reach the store", *items, are_requests);
                }
                SchedulerEvent::Scope(row) if row.state == ScopeStatus::Open => {
                    permits.reopen(&row.name);
                    fail_fast.reopen_group(&row.name);
                }
                _ => {}
            }
            progress.observe(note, &|key| fail_fast.waits(key));
        })
    }

    async fn once(&self, signals: &SignalCount, shared: &mut SharedLimits) -> Result<Status, Failure> {
        self.summarized.store(false, Ordering::Relaxed);
        let before = self.store.counts().await.map_err(not_begun)?;
        if before.total() == 0 {
            tracing::info!("there are no items in the store");
        }
        let (shutdown, _guard) = Shutdown::begin(signals.clone());
        let may_begin = before.of(State::Waiting) + before.of(State::InFlight) + before.of(State::Deferred);
        let more = self.args.stay || may_begin > self.args.stop_after_same as u64;
        let fail_fast = FailFast::new(self.args.stop_after_same, more, !self.args.http, self.args.stay);
        let stopped_scopes = self.work.stopped().clone();
        let progress = Progress::new(self.quiet, &before, &self.policy, self.clock.clone());
        let progress = progress.of_commands(!self.args.http).limited_by(self.permits.limiter());
        let observer = self.observer(&progress, &shutdown, &fail_fast, &stopped_scopes);
        let scheduler = self.scheduler.clone().with_observer(observer);
        let scheduler = match &self.fallback {
            Some(fallback) => scheduler.with_fallback(fallback::of(fallback, &self.work, &shutdown)),
            None => scheduler,
        };
        let kept = Kept::for_the_end();
        self.begin_run(&fail_fast).await.map_err(not_begun)?;
        let began = self.clock.now();
        let drawing = progress.draw_regularly(Arc::clone(&self.store), &fail_fast);
        let telling = {
            let progress = progress.clone();
            self.teller.begin(move || Some(progress.job_line()))
        };
        shared.begin();
        let ended = tokio::select! {
            ended = scheduler.run_paced(|task| self.start(task, &shutdown, &fail_fast), shutdown.draining()) => ended,
            () = self.limiter_state.save_regularly() => unreachable!("it goes on for as long as it is asked"),
            () = shared.keep() => unreachable!("it goes on for as long as it is asked"),
            () = self.disk.watch(&shutdown, &self.clock) => unreachable!("it goes on for as long as it is asked"),
            () = self.work.keep_answers(&self.clock, self.permits.limiter()) => unreachable!("it goes on for as long as it is asked"),
            () = fail_fast.leave_as_they_stop(&*self.store) => unreachable!("it goes on for as long as it is asked"),
            () = fail_fast.share_regularly(&*self.store, &stopped_scopes) => unreachable!("it goes on for as long as it is asked"),
            () = stopped_scopes.save_regularly(&*self.store, &self.clock, self.permits.limiter(), self.policy.deadline) => {
                unreachable!("it goes on for as long as it is asked")
            }
        };
        shared.end().await;
        self.disk.waits_no_more();
        self.limiter_state.save().await;
        telling.end().await;
        drop((drawing, kept));
        let broken_answers = self.work.broken();
        if ended.is_err() || broken_answers.is_some() {
            progress.tell(&|key| fail_fast.waits(key), true);
        }
        let summary = ended.map_err(|error| broken(error, progress.has_begun()))?;
        if let Some(message) = broken_answers {
            return Err(Failure::interrupted(message).resumable());
        }
        let settled = self.settle(&fail_fast).await;
        progress.tell(&|key| fail_fast.waits(key), true);
        let same = settled.map_err(|error| broken(error, true))?;
        let elapsed = self.clock.now().saturating_since(began);
        let mut standing = summary::standing(self.args, &*self.store).await.map_err(Failure::interrupted)?;
        standing.retain_of(&*self.store, &Filter::default()).await.map_err(Failure::interrupted)?;
        let groups_failed_alike = matches!(summary.ended, EndReason::Done | EndReason::GroupsStopped)
            && fail_fast.stopped_all(standing.groups().stopped());
        let stop = shutdown.reason().cloned();
        let left = self.left.swap(0, Ordering::Relaxed) + summary.taken_over;
        let held_up = self.permits.held_up(standing.deferred());
        self.summarized.store(true, Ordering::Relaxed);
        Ran { summary, left, same, groups_failed_alike, stopped_scopes, stop, standing, held_up, elapsed }
            .print(self.args, self.quiet)
    }
}

impl Runs<'_> {
    /// What a run leaves in the store to the next. Returns why it ended early, if everything failed alike.
    async fn settle(&self, fail_fast: &FailFast) -> Result<Option<SameFailure>, WorkError> {
        if let Work::Requests(requests) = &self.work {
            requests.settle(self.permits.limiter()).await?;
        }
        fail_fast.share(&*self.store, self.work.stopped()).await?;
        let same = fail_fast.put_back(&*self.store).await?;
        let alike = fail_fast.stopped_alike();
        if let Some(same) = same.as_ref().filter(|_| !alike.is_empty()) {
            tracing::error!("{}", text::printable(&same.to_string()));
        }
        self.work.stopped().note_alike(alike);
        self.work.stopped().save(&*self.store, self.permits.limiter()).await?;
        Ok(same)
    }
}

/// The outcome of a try.
type Trying = Pin<Box<dyn Future<Output = Result<(), work::Failure>> + Send>>;

impl Runs<'_> {
    /// Every start takes a permit, and every outcome is reported to the limiter, so that one throttle slows its whole scope.
    fn start(&self, task: Task, shutdown: &Shutdown, fail_fast: &FailFast) -> StartDecision<Trying> {
        let Some(room) = self.disk.space().room_for_answer() else {
            return StartDecision::Later(disk::waits_for_room(&task));
        };
        if let Some(reason) = fail_fast.keeps_back(task.item()) {
            return StartDecision::Stopped(reason);
        }
        match self.begin(task, shutdown, fail_fast) {
            StartDecision::Now(work) => StartDecision::Now(Box::pin(async move {
                let _room = room;
                work.await
            })),
            other => other,
        }
    }

    fn begin(&self, task: Task, shutdown: &Shutdown, fail_fast: &FailFast) -> StartDecision<Trying> {
        match &self.work {
            Work::Command(program, stopped_scopes) => {
                let scope = self.permits.scope(task.group());
                let reopen = || self.permits.test_again(&scope);
                if let Some(why) = stopped_scopes.keeps_back(task.item(), task.claimed_at(), task.group(), reopen) {
                    return why.left();
                }
                let test = match stopped_scopes.test(task.group(), task.item(), "") {
                    Ok(test) => test,
                    Err(later) => return StartDecision::Later(later),
                };
                let permit = match self.permits.take(&task, scope, Cost::request(), None, false) {
                    Ok(permit) => permit,
                    Err(later) => return later,
                };
                let (program, shutdown, fail_fast) = (Arc::clone(program), shutdown.clone(), fail_fast.clone());
                let (stopped_scopes, groups) = (stopped_scopes.clone(), Arc::clone(self.permits.groups()));
                let limiter = self.permits.limiter().clone();
                groups.begins(&task.item().group, &limiter);
                StartDecision::Now(Box::pin(async move {
                    test.iter().for_each(TestCall::leaves);
                    let end = program.work(&task, &shutdown).await;
                    let (is_probe, outcome) = (permit.is_probe(), outcome_of(&end));
                    // Before the permit is given back, and others of the group begin.
                    let stops_again = stopped_scopes.heard(task.group(), outcome.class, false);
                    groups.ended(outcome.class, &limiter);
                    let sits_out = permits::sits_out(&permit.complete(outcome), is_probe);
                    drop(test);
                    end.map_err(|Failed { failure, is_its_own }| {
                        if stops_again {
                            stopped_scopes.leaves(task.key(), task.group());
                            return work::Failure { class: Class::Invalid, spares_group: true, ..failure };
                        }
                        if is_its_own {
                            fail_fast.only_failed(task.item());
                        }
                        failure.of_probe(sits_out)
                    })
                }))
            }
            Work::Requests(requests) => requests.start(task, &self.permits, shutdown, fail_fast),
        }
    }
}

/// The end of a command, as the limiter needs to know it.
fn outcome_of(end: &Result<(), Failed>) -> Outcome {
    let Err(Failed { failure, is_its_own }) = end else { return Outcome::new(Class::Success) };
    // To the pace that is an answer: whatever answered works.
    let class = if *is_its_own && failure.class == Class::Transient { Class::Invalid } else { failure.class };
    let mut outcome = Outcome::new(class);
    if let Some(wait) = failure.retry_after {
        outcome = outcome.with_hint(wait, true);
    }
    outcome.reason = Some(failure.message.as_str().into());
    outcome
}

/// Before anything began nothing is lost, and something else has to be put right.
fn broken(error: WorkError, begun: bool) -> Failure {
    if begun { Failure::interrupted(error).resumable() } else { not_begun(error) }
}
