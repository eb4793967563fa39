//! `run --store`: one job on many hosts. Its lines are in Postgres, in blocks; each host is an ordinary run of the blocks that it
//! claims, with a journal of its own.
//!
//! An item has the ordinal that it has in the whole job, and the journals of all hosts have one id: so all send an item with the
//! same idempotency key.

mod blocks;
mod flags;
mod need;
pub(crate) mod others;
mod settings;
pub(crate) mod told;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use paceline::{Clock, clock};
use paceline_config::Upstream;
use paceline_store::blocks::{BlockStore, Joined, Settings, SharedJob};
use paceline_store::{InputFingerprint, Journal, JournalError, LineFile, Opened, Options, Paths, RunLock, hash};
use tokio::sync::{oneshot, watch};
use tokio::task::block_in_place;

use self::blocks::{Cut, Known};
use self::others::Others;
use self::told::{JobEnd, Told};
use self::worker::{Broken, Line, Mine, Worker};
use crate::database::not_begun;
use crate::exit::Failure;
use crate::run::args::RunArgs;
use crate::run::job::job_config::{self, JobConfig};
use crate::run::job::load::{self, Job};
use crate::run::job::load_guard;
use crate::run::lines::address::Addresses;
use crate::run::lines::convert::Converter;
use crate::run::lines::format::Format;
use crate::run::lines::input::Input;
use crate::run::lines::spool::Earlier;
use crate::text;

/// A host that is ready to work.
pub(crate) struct Hosts {
    pub(crate) worker: Worker,
    pub(crate) others: Arc<Others>,
    /// What people are told of the whole job.
    pub(crate) told: watch::Receiver<Told>,
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
    let store = BlockStore::open(store).await.map_err(not_begun)?;
    let (shared, format) = match &args.input {
        Some(input) => {
            Creator { args, paths, upstream, store: &store, name: &name }.share(input, &addresses, &calls).await?
        }
        None => {
            let shared = joined(&store, &name, &calls).await?;
            let (form, endpoint) = settings::form(&shared);
            let format = Format::stated(form, endpoint, upstream.provider, &addresses).map_err(Failure::refused)?;
            (shared, format)
        }
    };
    if args.retry_failed {
        let failed = store.retry_failed(shared.id).await.map_err(not_begun)?;
        tracing::info!("{} of the job that failed before will be sent again", text::counted(failed, "line"));
    }
    let (input, job) = block_in_place(|| journal_of(args, paths, upstream, &format, &name, &shared, lock))?;
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
    let name = args.job.clone().or_else(of_input);
    name.ok_or_else(|| Failure::refused("a host needs a job: name an input, or with --job one that is in the store"))
}

/// Hosts know nothing of each other's calls.
fn warn_of_limits(upstream: &Upstream) {
    if upstream.fleet.is_none() && upstream.via.is_none() && !upstream.pacer.limits.quotas.is_empty() {
        tracing::warn!(
            "the limits of this run hold for this host alone, and each other host of the job has its own: --fleet shares them, and \
             may name the same database"
        );
    }
}

/// A job that is there, for a host without its input.
async fn joined(store: &BlockStore, name: &str, calls: &Settings) -> Result<SharedJob, Failure> {
    let Some(job) = store.find(name).await.map_err(not_begun)? else {
        let jobs = store.jobs().await.map_err(not_begun)?;
        let named: Vec<&str> = jobs.iter().map(|job| &*job.name).take(SHOWN).collect();
        let there = if named.is_empty() { "none".to_owned() } else { text::printable(&named.join(", ")).into_owned() };
        return Err(Failure::refused(format!(
            "there is no job {} in the store (there is: {there}); the same command with the input makes it",
            text::printable(name)
        )));
    };
    let differences = settings::differences(&job, calls);
    if differences.is_empty() { Ok(job) } else { Err(settings::refused(name, &differences)) }
}

/// Jobs that are named where another was meant.
const SHOWN: usize = 5;

/// A host that has the input.
struct Creator<'a> {
    args: &'a RunArgs,
    paths: &'a Paths,
    upstream: &'a Upstream,
    store: &'a BlockStore,
    name: &'a str,
}

impl Creator<'_> {
    /// Joins the job of this input, and puts those of its lines into the store that are not there.
    async fn share(
        &self,
        source: &Path,
        addresses: &Addresses,
        calls: &Settings,
    ) -> Result<(SharedJob, Format), Failure> {
        let Self { args, upstream, store, name, .. } = *self;
        let converter = Converter::of(args, upstream.provider)?;
        let (input, format, known) = block_in_place(|| {
            let input = Input::prepare(source, &self.paths.input, &Earlier::MayDiffer, converter.as_ref())?;
            let format = Format::choose(args.format, args.endpoint.as_deref(), &input, upstream.provider, addresses)?;
            let known = input.lines().and_then(Known::of);
            Ok::<_, Failure>((input, format, known))
        })?;
        let unreadable = |error| Failure::refused(format!("cannot read {}: {error}", source.display()));
        let known = known.map_err(unreadable)?;
        let settings = settings::with_input(calls, &known, &format);
        let there = store.find(name).await.map_err(not_begun)?;
        if there.is_none_or(|job| !job.complete) {
            // Nothing of an input that would be refused is in the store.
            block_in_place(|| load::check_alone(of_check(self.paths), &input, &format, upstream, &args.opening()))?;
        }
        let job = match store.join(name, &settings).await.map_err(not_begun)? {
            Joined::Job(job) => job,
            Joined::Differs(differences) => return Err(settings::refused(name, &settings::told(differences))),
        };
        if !job.complete {
            self.load(&input, &job, &known).await?;
        }
        Ok((job, format))
    }

    /// Puts the lines into the store, from where it was left. Another host with the input may do the same at once: each block is
    /// taken from one of them.
    async fn load(&self, input: &Input, job: &SharedJob, known: &Known) -> Result<(), Failure> {
        let Self { store, name, .. } = *self;
        let unreadable = |error| Failure::refused(format!("cannot read {}: {error}", input.name()));
        let gone = || Failure::interrupted(format!("the job {} was removed", text::printable(name)));
        let cut =
            |loaded| block_in_place(|| Cut::behind(input.lines()?, loaded, known.block_lines())).map_err(unreadable);
        let mut loaded = job.loaded;
        let mut blocks = cut(loaded)?;
        while let Some(block) = block_in_place(|| blocks.next_block()).map_err(unreadable)? {
            let expected = loaded + block.lines;
            loaded =
                store.append(job.id, loaded, block.lines, block.body).await.map_err(not_begun)?.ok_or_else(gone)?;
            if loaded != expected {
                blocks = cut(loaded)?;
            }
        }
        if store.complete(job.id, known.lines).await.map_err(not_begun)? {
            let (lines, name) = (text::counted(known.lines, "line"), text::printable(name));
            tracing::info!("the job {name} is in the store, with {lines}: other hosts join it with --job {name}");
            return Ok(());
        }
        Err(Failure::interrupted(format!("{} changed while it was read: the job is not complete", input.name())))
    }
}

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
        JournalError::InputChanged { .. } => Failure::refused(format!(
            "{} is the result of another job than {}: choose another -o for this one",
            paths.output.display(),
            text::printable(name)
        )),
        other => load::refused(other),
    })?;
    let (journal, same_account) = match opened {
        Opened::New(loader) => (loader.finish().map_err(load::refused)?, true),
        Opened::Resumed { journal, recovery } => {
            load::say(&recovery, upstream);
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
    let (told, telling) = watch::channel(Told::default());
    let (ending, ended) = oneshot::channel();
    let others = Arc::new(Others::default());
    let (spool, spooled, taken) = block_in_place(|| {
        let spool = LineFile::open(&paths.input).map_err(load::refused)?;
        let spooled = std::fs::metadata(&paths.input).map_err(Failure::refused)?.len();
        Ok::<_, Failure>((spool, spooled, journal.taken_blocks().map_err(load::refused)?))
    })?;
    taken.iter().filter(|block| block.lost).for_each(|block| others.lost(block.first, block.lines));
    let clock = Clock::new();
    let now = clock.now();
    let worker = Worker {
        store,
        job,
        name: name.to_owned(),
        host,
        id,
        journal: journal.clone(),
        spool,
        spooled,
        others: Arc::clone(&others),
        mine: taken.into_iter().map(|block| (block.first, Mine::of(block))).collect::<BTreeMap<_, _>>(),
        line: Line { max_wait: args.max_wait, clock, silent: None, came_back: false, told },
        need: need::Need::default(),
        ended: 0,
        beat_at: now,
        ask_at: now,
        grown: (0, now),
        end: JobEnd::default(),
        ending: Some(ending),
    };
    Ok(Hosts { worker, others, told: telling, ending: Some(ended), left: 0 })
}

/// Takes up what an earlier run of this host left, before the first call.
async fn begin(hosts: &mut Hosts) -> Result<(), Broken> {
    let worker = &mut hosts.worker;
    let held = worker.resume().await?;
    worker.keep(&held);
    worker.beat().await?;
    worker.hand_in().await?;
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

/// The files of a check, of which nothing stays: they are those of a job that has not begun.
fn of_check(paths: &Paths) -> Paths {
    Paths { lock: load_guard::check_lock(paths), output_lock: None, ..paths.clone() }
}
