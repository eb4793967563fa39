//! How a run opens its job: the input is read, or joined where many hosts work on it, and the journal is opened or begun.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use paceline::clock;
use paceline_config::Upstream;
use paceline_providers::Provider;
use paceline_store::{Journal, JournalError, Paths, Reader, RunLock};

use crate::budget::Budget;
use crate::calls::disk_watch;
use crate::exit::Failure;
use crate::hosts::{self, Hosts};
use crate::job::done::Done;
use crate::job::job_config::JobConfig;
use crate::job::load::{self, Job};
use crate::job::load_guard::LoadGuard;
use crate::lines::address::Addresses;
use crate::lines::convert::Converter;
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::lines::spool::Earlier;
use crate::mock::{self, MockServer};
use crate::run_args::RunArgs;
use crate::text;
use crate::upstream;

/// What a run begins with: the lines and their form, the job, the host that it is of a job on many, and a mock that it calls.
pub(super) type Opened = (Input, Option<MockServer>, Format, Job, Option<Hosts>);

/// Opens the job, once the disk has room.
///
/// # Errors
/// Refuses what cannot be sent; nothing was sent.
pub(super) async fn open(
    args: &RunArgs,
    paths: &Paths,
    upstream: &mut Upstream,
    lock: RunLock,
    preparing: &LoadGuard,
    done: &Done,
) -> Result<Opened, Failure> {
    disk_watch::wait_to_begin(&paths.disk_space(), Some(args.max_wait), Some(&paths.lock)).await?;
    upstream::warn_of_tiers_in_a_fleet(upstream);
    if let Some(store) = &args.store {
        tell_overwritten(args, paths);
        let mock = mock::start_for(upstream, args.seed).await?;
        let (input, format, job, hosts) = hosts::open(args, store, paths, upstream, lock).await?;
        preparing.begun();
        return Ok((input, mock, format, job, Some(hosts)));
    }
    let mut input = prepare_input(args, paths, upstream.provider)?;
    let mock = mock::start_for(upstream, args.seed).await?;
    let addresses = Addresses::of(upstream);
    let format = Format::choose(args.format, args.endpoint.as_deref(), &input, upstream.provider, &addresses)?;
    tokio::task::block_in_place(|| {
        let job = load::open(lock, paths.clone(), &mut input, &format, upstream, &args.opening())?;
        preparing.begun();
        put_back(&job.journal, args)?;
        done.take_over(&job.journal, &input, &format)?;
        if job.input_cursor.is_none() {
            upstream::warn_of_scopes(upstream, &job.journal.scopes().map_err(load::refused)?);
        }
        Ok((input, mock, format, job, None))
    })
}

/// Tells what `--overwrite` deletes before it does: its answers were paid for.
pub(super) fn tell_overwritten(args: &RunArgs, paths: &Paths) {
    if !args.overwrite {
        return;
    }
    let read = |reader: Reader| {
        Ok::<_, JournalError>((reader.counts_at_rest(clock::wall())?, reader.spent()?, reader.config_json()?))
    };
    let journal = paths.journal.as_deref().filter(|journal| journal.exists());
    let (results, of) = match journal.map(|journal| Reader::open(journal).and_then(read)) {
        Some(Ok((counts, usage, config))) => {
            let config = JobConfig::read(&config);
            let used = Budget::new(config.budgets(), config.prices(), &usage, false).used();
            let cost = used.in_one_line().map(|words| format!("; {words}")).unwrap_or_default();
            (counts.succeeded + counts.fallback, format!("of {}{cost}", text::calls(&counts, None)))
        }
        // There is none, or it is damaged.
        _ => (results_in(&args.output), "and no journal tells what they have cost".to_owned()),
    };
    if results > 0 {
        let deletes = if args.dry_run { "would delete" } else { "deletes" };
        let (results, output) = (text::counted(results, "result"), paths.output.display());
        match args.output.exists() || paths.output.exists() {
            true => tracing::warn!("--overwrite {deletes} {results} in {output}, {of}"),
            false => tracing::warn!(
                "--overwrite {deletes} the journal of {results}, {of}; {output}, where they were, is missing"
            ),
        }
    }
}

/// So many lines stand in the results, which may be compressed; 0 where they cannot be read.
fn results_in(output: &Path) -> u64 {
    let file = File::open(output).ok().filter(|file| file.metadata().is_ok_and(|file| file.is_file()));
    let Some(file) = file else { return 0 };
    let is_packed = output.extension().is_some_and(|end| end == "gz");
    let reader: Box<dyn Read> = if is_packed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let lines = BufReader::new(reader).split(b'\n').map_while(Result::ok);
    lines.filter(|line| !line.is_empty()).count() as u64
}

/// Lets failed items wait again where that is asked for.
fn put_back(journal: &Journal, args: &RunArgs) -> Result<(), Failure> {
    if args.retry_failed {
        let fell_back = journal.counts(clock::wall()).map_err(load::refused)?.fallback > 0;
        let only = args.only.clone();
        let failed = journal.retry_failed_of(move |failure| only.means(failure)).map_err(load::refused)?;
        if failed == 0 {
            args.only.tell_none();
        }
        if failed > 0 {
            let fallback = if fell_back { ", or got the result of a fallback," } else { "" };
            tracing::info!("{} that failed before{fallback} will be sent again", text::counted(failed, "item"));
        }
    }
    Ok(())
}

fn prepare_input(args: &RunArgs, paths: &Paths, provider: Provider) -> Result<Input, Failure> {
    let converter = Converter::of(args, provider)?;
    tell_overwritten(args, paths);
    tokio::task::block_in_place(|| {
        let earlier = earlier_input(args, paths);
        Input::prepare(args.input(), &paths.input, &earlier, converter.as_ref()).map_err(Failure::from)
    })
}

/// The journal of the job that this run goes on with; none where it begins one.
pub(super) fn begun<'a>(args: &RunArgs, paths: &'a Paths) -> Option<&'a Path> {
    paths.journal.as_deref().filter(|journal| !args.overwrite && journal.exists())
}

/// What the copy of an earlier input means: flags may allow another one.
pub(super) fn earlier_input(args: &RunArgs, paths: &Paths) -> Earlier {
    match begun(args, paths) {
        Some(_) if args.accept_changed_input => Earlier::MayDiffer,
        Some(_) if args.retry_failed => Earlier::MayBeRepaired,
        Some(journal) => JobConfig::earlier_input(journal),
        None => Earlier::MayDiffer,
    }
}
