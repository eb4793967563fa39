//! `paceline tasks run`: works through a store, with a command or with requests.

mod alike;
mod answers;
mod course;
mod hurry;
mod kept;
mod permits;
mod program;
mod requests;
mod seen;
mod settings;
mod summary;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use paceline_core::{Class, Cost, Outcome};
use paceline_store::ScopeStatus;
use paceline_store::work::{
    self, Scheduler, SchedulerConfig, SchedulerEvent, StartDecision, State, Task, WorkClock, WorkError, WorkStore,
};

use self::alike::Alike;
use self::answers::Answers;
use self::course::{Course, Told};
use self::hurry::Hurried;
use self::kept::KeptLimiter;
use self::permits::Permits;
use self::program::{Failed, Program};
use self::requests::Requests;
use self::seen::Seen;
pub(crate) use self::settings::Args;
use self::summary::Ran;
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::files::{self, Kept};
use crate::run::job::sharing;
use crate::tasks::report::standing::Standing;
use crate::text;
use crate::upstream;

/// Works until everything has ended, or the run has to end; again and again where that is asked for.
///
/// # Errors
/// Refuses bad usage, and a store that another process works on, before anything begins; says what broke under way.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let clock = WorkClock::system();
    let policy = args.policy()?;
    let mut upstream = args.upstream(everywhere)?;
    upstream::bound_by_files(&mut upstream, if args.http { files::OF_A_CALL } else { files::OF_A_COMMAND });
    let concurrency = policy.concurrency.min(upstream.pacer.concurrency.max() as usize);
    let policy = SchedulerConfig { pace: upstream.pacer.pace, concurrency, ..policy };
    let judge = args.judge.judge(everywhere)?;
    let permits = Permits::new(&upstream)?;
    let address = upstream.base_url.clone().unwrap_or_default();
    args.store.refuse_as_output("-o", args.output.as_deref())?;
    args.store.refuse_as_output("--summary", args.summary.as_deref())?;
    let store = args.store.open(&clock).await?;
    let work = if args.http {
        let answers = args.output.as_deref().map(Answers::open).transpose()?;
        let (endpoint, longest_outage) = (args.endpoint.clone(), args.longest_outage());
        Work::Requests(Arc::new(Requests::to(upstream, endpoint, args.timeout, longest_outage, answers).await?))
    } else {
        Work::Command(Arc::new(Program::new(&args.command, args.timeout)?))
    };
    let account = match &work {
        Work::Requests(requests) => requests.account(),
        Work::Command(_) => Some(sharing::account(&address, &HeaderMap::new())),
    };
    let kept = KeptLimiter::restore(store.clone(), permits.limiter().clone(), account, clock.clone());
    let kept = kept.await.map_err(Failure::refused)?;
    summary::try_file(args.summary.as_deref())?;
    let told = Told::listen().map_err(Failure::interrupted)?;
    let mut scheduler = Scheduler::new(store.clone(), policy.clone(), clock.clone()).map_err(Failure::refused)?;
    if let Some(judge) = judge {
        scheduler = scheduler.with_judge(Arc::new(Hurried::new(judge, told.clone())));
    }
    let runs = Runs { args: &args, quiet: everywhere.quiet, store, policy, scheduler, permits, kept, work, clock };
    match args.every {
        None => runs.once(&told).await,
        Some(every) => runs.every(every, &told).await,
    }
}

/// What every run needs.
struct Runs<'a> {
    args: &'a Args,
    quiet: bool,
    store: Arc<dyn WorkStore>,
    policy: SchedulerConfig,
    scheduler: Scheduler,
    permits: Permits,
    kept: KeptLimiter,
    work: Work,
    clock: WorkClock,
}

/// How items are worked on.
#[derive(Clone)]
enum Work {
    Command(Arc<Program>),
    Requests(Arc<Requests>),
}

impl Runs<'_> {
    /// One run each `every`, counted from their beginnings; what was deferred begins the next.
    async fn every(&self, every: Duration, told: &Told) -> Result<Status, Failure> {
        loop {
            let began = self.clock.now();
            let status = self.once(told).await?;
            let rest = (began + every).saturating_since(self.clock.now());
            if told.at_all() {
                return Ok(status);
            }
            tracing::info!("the next run begins at {}", text::moment(self.clock.wall() + rest));
            tokio::select! {
                () = told.once() => return Ok(status),
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    async fn once(&self, told: &Told) -> Result<Status, Failure> {
        let before = self.store.counts().await.map_err(Failure::refused)?;
        if before.total() == 0 {
            tracing::info!("there are no items in the store");
        }
        let (course, _watching) = Course::begin(told.clone());
        let may_begin = before.of(State::Waiting) + before.of(State::InFlight) + before.of(State::Deferred);
        let more = self.args.stay || may_begin > self.args.stop_after_same as u64;
        let alike = Alike::new(self.args.stop_after_same, more, !self.args.http);
        let seen = Seen::new(self.quiet, &before, &self.policy, self.clock.clone());
        let scheduler = self.scheduler.clone().with_observer({
            let (seen, course, permits) = (seen.clone(), course.clone(), self.permits.clone());
            let heard = alike.clone();
            Arc::new(move |note: &SchedulerEvent<'_>| {
                if let Some(same) = heard.hear(note) {
                    tracing::error!("stopping: {}", text::printable(&same.to_string()));
                    course.ends();
                }
                match note {
                    SchedulerEvent::Ending(_) => course.ends(),
                    SchedulerEvent::Scope(row) if row.state == ScopeStatus::Open => permits.reopen(&row.name),
                    _ => {}
                }
                seen.hear(note);
            })
        });
        let kept = Kept::for_the_end();
        self.permits.begin_run();
        if let Work::Requests(requests) = &self.work {
            requests.begin_run();
        }
        let began = self.clock.now();
        let drawing = seen.draw_regularly();
        let ended = tokio::select! {
            ended = scheduler.run_paced(|task| self.start(task, &course, &alike), course.is_ending()) => ended,
            () = self.kept.keep_regularly() => unreachable!("it goes on for as long as it is asked"),
        };
        self.kept.keep().await;
        drop((drawing, kept));
        let summary = ended.map_err(|error| broken(error, seen.has_begun()))?;
        if let Work::Requests(requests) = &self.work
            && let Some(words) = requests.broken()
        {
            return Err(Failure::interrupted(words).resumable());
        }
        let same = alike.put_back(&*self.store).await.map_err(|error| broken(error, true))?;
        let elapsed = self.clock.now().saturating_since(began);
        let standing = Standing::of(&*self.store, &self.clock).await.map_err(Failure::interrupted)?;
        Ran { summary, same, standing, elapsed }.tell(self.args, self.quiet)
    }
}

/// What becomes of a try.
type Trying = Pin<Box<dyn Future<Output = Result<(), work::Failure>> + Send>>;

impl Runs<'_> {
    /// Every start takes a permit, and every end is told to the limiter, so that one throttle slows its whole scope.
    fn start(&self, task: Task, course: &Course, alike: &Alike) -> StartDecision<Trying> {
        match &self.work {
            Work::Command(program) => {
                let scope = self.permits.scope(task.group());
                let permit = match self.permits.take(&task, scope, Cost::request()) {
                    Ok(permit) => permit,
                    Err(later) => return later,
                };
                let (program, course, alike) = (Arc::clone(program), course.clone(), alike.clone());
                StartDecision::Now(Box::pin(async move {
                    let end = program.work(&task, &course).await;
                    let is_probe = permit.is_probe();
                    let sits_out = permits::sits_out(&permit.complete(outcome_of(&end)), is_probe);
                    end.map_err(|Failed { failure, is_its_own }| {
                        if is_its_own {
                            alike.only_failed(task.item());
                        }
                        failure.of_probe(sits_out)
                    })
                }))
            }
            Work::Requests(requests) => requests.start(task, &self.permits, course),
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
    if begun { Failure::interrupted(error).resumable() } else { Failure::refused(error) }
}
