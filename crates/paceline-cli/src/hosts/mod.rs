//! `run --store`: one job on many hosts. Its lines are in Postgres, in blocks; each host is an ordinary run of the blocks that it
//! claims, with a journal of its own.
//!
//! An item has the ordinal that it has in the whole job, and the journals of all hosts have one id: so all send an item with the
//! same idempotency key.

mod again;
mod blocks;
mod creator;
mod flags;
mod line;
mod need;
mod settings;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use paceline::{Clock, clock};
use paceline_config::Upstream;
use paceline_core::PacerConfig;
use paceline_store::blocks::{BlockStore, Settings, SharedJob};
use paceline_store::{InputFingerprint, Journal, JournalError, LineFile, Opened, Options, Paths, RunLock, hash};
use tokio::sync::{oneshot, watch};
use tokio::task::block_in_place;

use self::creator::Creator;
use self::line::{Broken, Line};
use self::worker::{Mine, Worker};
use crate::database::not_begun;
use crate::exit::Failure;
use crate::job::job_config::{self, JobConfig};
use crate::job::load::{self, Job};
use crate::lines::address::Addresses;
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::other_hosts::host_view::{HostView, JobEnd};
use crate::other_hosts::others::Others;
use crate::other_hosts::pulse::Pulse;
use crate::progress::resume_command;
use crate::run_args::RunArgs;
use crate::text;

/// A host that is ready to work.
pub(crate) struct Hosts {
    pub(crate) worker: Worker,
    pub(crate) others: Arc<Others>,
    /// What people are told of the whole job.
    pub(crate) told: watch::Receiver<HostView>,
    /// How it left the job.
    pub(crate) ending: Option<oneshot::Receiver<JobEnd>>,
    /// Lines of the job that have no result.
    pub(crate) left: u64,
}

/// Refuses flags that cannot hold for the whole job.
///
/// # Errors
/// Names the flag, why, and what to do.
pub(super) fn check(args: &RunArgs) -> Result<(), Failure> {
    args.store.as_deref().map_or(Ok(()), |store| flags::check(args, store))
}

/// Joins the job, or makes it of the input, and opens the journal of this host.
///
/// # Errors
/// Refuses an input that a run would refuse, and a host that would send the lines otherwise than the others do.
pub(super) async fn open(
    args: &RunArgs,
    store: &str,
    paths: &Paths,
    upstream: &Upstream,
    lock: RunLock,
) -> Result<(Input, Format, Job, Hosts), Failure> {
    let name = name_of(args)?;
    warn_of_limits(upstream);
    let addresses = Addresses::of(upstream);
    let calls = settings::of_calls(args, upstream)?;
    let store = BlockStore::open_for(store, args.max_wait).await.map_err(not_begun)?;
    let (shared, format) = match &args.input {
        Some(input) => {
            Creator { args, paths, upstream, store: &store, name: &name }.share(input, &addresses, &calls).await?
        }
        None => {
            let shared = joined(&store, &name, &calls, args.max_wait).await?;
            let (form, endpoint) = settings::form(&shared);
            let format = Format::stated(form, endpoint, upstream.provider, &addresses).map_err(Failure::refused)?;
            (shared, format)
        }
    };
    let (input, job) = block_in_place(|| journal_of(args, paths, upstream, &format, &name, &shared, lock))?;
    again::put_back(args, upstream, &store, &shared).await?;
    let mut hosts = worker(args, paths, store, &name, shared, &job.journal).await?;
    begin(&mut hosts).await.map_err(|broken| match broken {
        Broken::Job(message) => Failure::refused(message),
        other => Failure::interrupted(other),
    })?;
    Ok((input, format, job, hosts))
}

/// What the job is called: as the user says, else as its input is.
fn name_of(args: &RunArgs) -> Result<String, Failure> {
    let of_input = || args.input.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    args.job.clone().or_else(of_input).ok_or_else(|| Failure::refused(flags::NO_JOB))
}

/// Hosts know nothing of each other's calls.
fn warn_of_limits(upstream: &Upstream) {
    let PacerConfig { limits, tiers, tier_places, .. } = &upstream.pacer;
    let mut all = tiers.iter().map(|(_, limits)| limits).chain([limits]);
    let is_limited = !tier_places.is_empty() || all.any(|limits| !limits.quotas.is_empty());
    if upstream.fleet.is_none() && upstream.via.is_none() && is_limited {
        tracing::warn!(
            "the limits of this run hold on this machine alone, and the job's workers on other machines have their own: --fleet shares \
             them, and may name the same database"
        );
    }
}

/// The job, for a host without its input, which waits until a host that has the input has made it.
async fn joined(store: &BlockStore, name: &str, calls: &Settings, max_wait: Duration) -> Result<SharedJob, Failure> {
    let clock = Clock::new();
    let began = clock.now();
    let mut is_told = false;
    loop {
        if let Some(job) = store.find(name).await.map_err(not_begun)? {
            let differences = settings::differences(&job, calls);
            return if differences.is_empty() { Ok(job) } else { Err(settings::refused(name, &differences)) };
        }
        let is_over = clock.now() - began >= max_wait;
        if is_over || !is_told {
            let jobs = store.jobs().await.map_err(not_begun)?;
            let named: Vec<&str> = jobs.iter().map(|job| &*job.name).take(SHOWN).collect();
            let there = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
            let (name, there) = (text::printable(name), text::printable(&there));
            let none = format!("there is no job {name} in the store (there is: {there})");
            if is_over {
                return Err(Failure::interrupted(format!(
                    "{none}, and no worker has made it within --max-wait; the same command with the input makes it"
                )));
            }
            tracing::warn!(
                "{none}; waiting up to {} for a worker that has the input to make it",
                text::duration(max_wait)
            );
            is_told = true;
        }
        tokio::time::sleep(LOOK_EVERY.min(max_wait)).await;
    }
}

/// Between two looks for a job that is not there.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Jobs that are named where another was meant.
const SHOWN: usize = 5;

/// The journal of this host, and the file of the lines that it claims.
fn journal_of(
    args: &RunArgs,
    paths: &Paths,
    upstream: &Upstream,
    format: &Format,
    name: &str,
    shared: &SharedJob,
    lock: RunLock,
) -> Result<(Input, Job), Failure> {
    let key = key_of(name, shared);
    let mark = InputFingerprint { path: paths.input.clone(), len: 0, mtime_ms: 0, head_hash: hash(key.as_bytes()) };
    let opening = args.opening();
    let mut options = Options::new(paths.clone(), mark, clock::wall());
    options.id = Some(key);
    options.overwrite = opening.overwrite;
    let input = Input::of_blocks(&paths.input, name)?;
    options.config_json = JobConfig::of(upstream, &input, format, &opening).json();
    let opened = Journal::open_locked(options, lock).map_err(|error| match error {
        JournalError::InputChanged { .. } => settings::other_results(paths, name),
        other => load::refused(other),
    })?;
    let (journal, same_account) = match opened {
        Opened::New(loader) => (loader.finish().map_err(load::refused)?, true),
        Opened::Resumed { journal, recovery } => {
            load::say(&recovery, Some(&journal), upstream);
            let same_account = job_config::adopt(&journal, &input, format, upstream, &opening)?;
            (journal, same_account)
        }
        Opened::Changed { .. } => unreachable!("only where that is asked for"),
    };
    Ok((input, Job { journal, same_account, input_cursor: None }))
}

/// What the journals of all hosts are known by, and the idempotency keys of its items begin with: no other job has it.
fn key_of(name: &str, job: &SharedJob) -> String {
    let what = format!("{name}\n{}\n{}\n{:?}", job.id, job.created, job.settings);
    blake3::hash(what.as_bytes()).to_hex()[..16].to_owned()
}

async fn worker(
    args: &RunArgs,
    paths: &Paths,
    store: BlockStore,
    name: &str,
    job: SharedJob,
    journal: &Journal,
) -> Result<Hosts, Failure> {
    let host = host();
    let id = worker::register(&store, job.id, &host).await.map_err(not_begun)?;
    let id = id.ok_or_else(|| Failure::interrupted(format!("the job {} was removed", text::printable(name))))?;
    let store = Arc::new(store);
    let (told, telling) = watch::channel(HostView::default());
    let (ending, ended) = oneshot::channel();
    let others = Arc::new(Others::of_a_host());
    let (id, known) = watch::channel(id);
    let pulse = Pulse::begin(Arc::clone(&store), job.id, known, Arc::clone(&others));
    let (spool, spooled, taken) = block_in_place(|| {
        let spool = LineFile::open(&paths.input).map_err(load::refused)?;
        let spooled = std::fs::metadata(&paths.input).map_err(Failure::refused)?.len();
        Ok::<_, Failure>((spool, spooled, journal.taken_blocks().map_err(load::refused)?))
    })?;
    taken.iter().for_each(|block| others.gave(*block));
    let clock = Clock::new();
    let now = clock.now();
    let worker = Worker {
        store,
        job,
        name: name.to_owned(),
        host,
        id,
        _pulse: pulse,
        journal: journal.clone(),
        spool,
        spooled,
        others: Arc::clone(&others),
        mine: taken.into_iter().map(|block| (block.first, Mine::of(block))).collect::<BTreeMap<_, _>>(),
        line: Line { max_wait: args.max_wait, clock, silent: None, came_back: false, told },
        need: need::Need::default(),
        of_a_block: need::FEW,
        ended: 0,
        beat_at: now,
        ask_at: now,
        grown: (0, now),
        end: JobEnd { store: args.store.as_deref().map(resume_command::word).unwrap_or_default(), ..JobEnd::default() },
        ending: Some(ending),
    };
    Ok(Hosts { worker, others, told: telling, ending: Some(ended), left: 0 })
}

/// Takes up what an earlier run of this host left, before the first call.
async fn begin(hosts: &mut Hosts) -> Result<(), Broken> {
    let worker = &mut hosts.worker;
    let held = worker.resume().await?;
    worker.keep(&held);
    worker.doubt().await?;
    worker.beat().await?;
    worker.hand_in(clock::wall()).await?;
    block_in_place(|| worker.drop_lost())?;
    hosts.left = worker.end.whole.left();
    Ok(())
}

/// What others see of this host.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    let name = name.as_deref().map_or("host", str::trim).to_owned();
    format!("{name}:{}", std::process::id())
}
