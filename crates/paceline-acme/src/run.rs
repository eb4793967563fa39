//! One run: the plan becomes work items, the scheduler works on them, the report lists the outcomes.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use paceline::{Backoff, Class, Growth, Jitter};
use paceline_judge::{LlmConfig, LlmError, LlmJudge};
use paceline_store::ScopeStatus;
use paceline_store::work::{
    EndReason, Failure, OverBound, Scheduler, SchedulerConfig, SchedulerEvent, SqliteStore, Task, WorkClock, WorkError,
    WorkItem, WorkStore,
};

use crate::account::AccountFile;
use crate::args::{Args, beside};
use crate::challenge::Challenges;
use crate::client::{self, Ca, CaConfig, SetupError};
use crate::items;
use crate::order::Renewer;
use crate::planner::{Plan, plan};
use crate::reporter::{Report, RunFigures};
use crate::scanner::scan;
use crate::storage::{self, Orders};

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A file or folder.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Two runs would answer each other's challenges and count each other's tries.
    #[error("another run works with {}; wait for it, or give this one a --store of its own", .0.display())]
    Locked(PathBuf),
    /// HTTPS or the pace.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The store, before anything was sent.
    #[error(transparent)]
    Store(#[from] WorkError),
    /// The store, on the way.
    #[error("the run broke off: {0}; what is recorded stays, and the same command goes on")]
    Broken(#[source] WorkError),
    /// The judge.
    #[error(transparent)]
    Judge(#[from] LlmError),
    /// The bounds of the run.
    #[error(transparent)]
    Config(#[from] paceline::ConfigError),
}

impl RunError {
    /// 2 when nothing was sent, else 3.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Broken(_) => 3,
            Self::File { .. }
            | Self::Locked(_)
            | Self::Setup(_)
            | Self::Store(_)
            | Self::Config(_)
            | Self::Judge(_) => 2,
        }
    }
}

/// What is due, without calling a server.
pub(crate) fn dry(args: &Args) -> Result<Report, RunError> {
    let Plan { due, left } = planned(args)?;
    Ok(Report::of_plan(now(), &due, &left))
}

/// Renews what is due. Once `stop` is ready nothing more begins.
pub(crate) async fn once(
    args: &Args,
    challenges: &Challenges,
    stop: impl Future<Output = ()>,
) -> Result<Report, RunError> {
    let started = now();
    let state = beside(&args.store);
    storage::private_folder(&state).map_err(file("make", &state))?;
    let _alone = lock(&state.join("lock"))?;
    storage::sweep(&args.certs).map_err(file("read", &args.certs))?;
    storage::try_folder(&args.certs).map_err(file("write to", &args.certs))?;
    let Plan { due, left } = planned(args)?;

    let clock = WorkClock::system();
    let store = Arc::new(SqliteStore::open(&args.store, clock.clone())?);
    let ca = Ca::new(ca_config(args)?)?;
    ca.restore(&*store).await?;
    let items = items::enter(&*store, ca.directory(), due).await?;
    let orders = state.join("orders");
    let orders = Orders::open(orders.clone()).map_err(file("make", &orders))?;
    let account = AccountFile::new(&state, ca.directory(), &args.contact);
    let renewer = Renewer::new(ca.clone(), account, challenges.clone(), orders);

    let mut scheduler = Scheduler::new(store.clone(), config(args), clock)?.with_observer(Arc::new(log_event));
    if let Some(judge) = judge(args)? {
        scheduler = scheduler.with_judge(Arc::new(judge));
    }
    let due = Arc::new(items);
    let work = |task: Task| {
        let (renewer, due) = (renewer.clone(), due.clone());
        async move {
            let planned = due.get(task.key()).ok_or_else(not_planned)?;
            client::on_behalf_of(task.item().id, renewer.renew(task.key(), planned)).await
        }
    };
    let mut gone = false;
    let stop = async {
        tokio::select! {
            () = stop => {}
            () = ca.given_up() => gone = true,
        }
    };
    let ended = tokio::select! {
        ended = scheduler.run_until(work, stop) => ended,
        () = ca.keep_regularly(&*store) => unreachable!("it goes on for as long as it is asked"),
    };
    ca.keep(&*store).await;
    let summary = ended.map_err(RunError::Broken)?;
    if gone {
        items::due_at_once(&*store).await.map_err(RunError::Broken)?;
    }
    let ended = why(summary.ended, gone, args, &*store, ca.directory()).await.map_err(RunError::Broken)?;
    let seconds = now().duration_since(started).as_secs_f64();
    let course = RunFigures { started, seconds, calls: ca.calls(), ended };
    let outcomes = items::outcomes(&*store, &due).await.map_err(RunError::Broken)?;
    Ok(Report::of_run(course, &outcomes, &left))
}

fn planned(args: &Args) -> Result<Plan, RunError> {
    let entries = scan(&args.certs).map_err(file("read", &args.certs))?;
    Ok(plan(entries, now(), args.days))
}

/// Why a run ended before everything was done.
async fn why(
    ended: EndReason,
    gone: bool,
    args: &Args,
    store: &dyn WorkStore,
    group: &str,
) -> Result<Option<String>, WorkError> {
    if gone {
        return Ok(Some(format!("the CA has been failing for {:?}", args.max_outage)));
    }
    let scope = store.scopes().await?.into_iter().find(|row| *row.name == *group);
    Ok(match (ended, scope.map(|row| row.state)) {
        (EndReason::GroupsStopped, Some(ScopeStatus::Stopped { reason })) => {
            Some(format!("the CA needs a person: {reason}"))
        }
        (EndReason::MaxWait, Some(ScopeStatus::Held { reason, .. })) => Some(format!("the CA asks to wait: {reason}")),
        (EndReason::Done, _) => None,
        (ended, _) => ended.as_str().map(str::to_owned),
    })
}

/// The model that decides about failures, if one is asked for. It gets the CA's messages, neither keys nor payloads.
fn judge(args: &Args) -> Result<Option<LlmJudge>, RunError> {
    let (Some(url), Some(model)) = (&args.judge_url, &args.judge_model) else { return Ok(None) };
    let mut config = LlmConfig::new(url, model);
    if let Some(path) = &args.judge_key_file {
        let key = fs::read_to_string(path).map_err(file("read", path))?;
        config = config.with_key(key.trim())?;
    }
    Ok(Some(LlmJudge::new(config)?))
}

fn config(args: &Args) -> SchedulerConfig {
    let cap = args.first_delay.max(LONGEST_DELAY);
    let growth = Growth::Exponential { base: args.first_delay, multiplier: 2.0, cap };
    SchedulerConfig {
        max_retries: args.max_retries,
        // A CA that refuses without saying for how long is not asked more often than that either.
        max_deferrals: Some(args.max_retries),
        backoff: Backoff { growth, jitter: Jitter::None },
        over_bound: OverBound::NextRun,
        ..SchedulerConfig::default()
    }
}

fn ca_config(args: &Args) -> Result<CaConfig, RunError> {
    let read = |path: &PathBuf| fs::read(path).map_err(file("read", path));
    Ok(CaConfig {
        directory: args.directory.clone().unwrap_or_default(),
        limit: args.rate.clone(),
        root: args.ca_file.as_ref().map(read).transpose()?,
        max_outage: args.max_outage,
    })
}

/// Tells the log what happens.
fn log_event(event: &SchedulerEvent<'_>) {
    let domain = |item: &WorkItem| items::domain(&item.key).to_owned();
    match event {
        SchedulerEvent::Succeeded(item) => tracing::info!("{}: renewed", domain(item)),
        SchedulerEvent::Decided { item, decided, wait } => {
            let next = match (decided.action, wait) {
                ("abort", _) => "kept until its cause is fixed".to_owned(),
                ("next_run", _) => "waits for the next run".to_owned(),
                (_, Some(wait)) => format!("again in {wait:.1?}"),
                _ => "given up".to_owned(),
            };
            let code = decided.failure.code.as_deref().unwrap_or(decided.failure.class.as_str());
            tracing::warn!("{}: {code}: {}; {next}", domain(item), decided.failure.message);
        }
        SchedulerEvent::Scope(row) => match &row.state {
            ScopeStatus::Stopped { reason } => tracing::error!("{} is stopped: {reason}", row.name),
            ScopeStatus::Held { reason, .. } => tracing::warn!("{} is held: {reason}", row.name),
            ScopeStatus::Open => {}
        },
        _ => {}
    }
}

/// The plan has all items of the store that have not ended, so this is one that another process added meanwhile.
fn not_planned() -> Failure {
    Failure::new(Class::Invalid, "no certificate in the folder is due under that name")
}

/// A lock that the system takes back when the process dies.
fn lock(path: &Path) -> Result<File, RunError> {
    let lock = File::options().create(true).append(true).open(path).map_err(file("make", path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(RunError::Locked(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(file("lock", path)(source)),
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunError {
    let path = path.to_owned();
    move |source| RunError::File { action, path, source }
}

pub(crate) fn now() -> Timestamp {
    Timestamp::from_millisecond(paceline::clock::wall().as_millis()).unwrap_or_default()
}

/// The longest wait between two tries of a domain, unless the first is longer.
const LONGEST_DELAY: std::time::Duration = std::time::Duration::from_secs(300);
