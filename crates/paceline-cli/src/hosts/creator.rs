//! A host that has the input: it makes the job, or joins it where the lines are the same, and puts them into the store.

use std::io::{self, BufRead};
use std::path::Path;

use paceline::Clock;
use paceline_config::Upstream;
use paceline_store::Paths;
use paceline_store::blocks::{BlockStore, Joined, NewBlock, Settings, SharedJob};
use tokio::task::block_in_place;

use super::blocks::{Cut, Known};
use super::settings;
use crate::database::not_begun;
use crate::exit::Failure;
use crate::job::share_told::ShareTold;
use crate::job::{load, load_guard};
use crate::lines::address::Addresses;
use crate::lines::convert::Converter;
use crate::lines::format::Format;
use crate::lines::input::Input;
use crate::lines::spool::Earlier;
use crate::run_args::RunArgs;
use crate::text;

/// A host that has the input.
pub(super) struct Creator<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) paths: &'a Paths,
    pub(super) upstream: &'a Upstream,
    pub(super) store: &'a BlockStore,
    pub(super) name: &'a str,
}

impl Creator<'_> {
    /// Joins the job of this input, and puts those of its lines into the store that are not there.
    pub(super) async fn share(
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
        if there.is_none() && !args.overwrite && self.paths.journal.as_deref().is_some_and(Path::exists) {
            return Err(settings::other_results(self.paths, name));
        }
        if there.is_none_or(|job| !job.complete) {
            // Nothing of an input that would be refused is in the store.
            block_in_place(|| load::check_alone(of_check(self.paths), &input, &format, upstream, &args.opening()))?;
        }
        let job = match store.join(name, &settings).await.map_err(not_begun)? {
            Joined::Job(job) => job,
            Joined::Differs(differences) => return Err(settings::refused(name, &settings::displayed(differences))),
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
        let clock = Clock::new();
        let mut progress = ShareTold::begun(clock.now());
        let mut loaded = job.loaded;
        let mut lines = cut(loaded)?;
        loop {
            let blocks = block_in_place(|| some_blocks(&mut lines)).map_err(unreadable)?;
            if blocks.is_empty() {
                break;
            }
            let expected = loaded + blocks.iter().map(|block| block.lines).sum::<u64>();
            loaded = store.append(job.id, loaded, blocks).await.map_err(not_begun)?.ok_or_else(gone)?;
            if loaded != expected {
                lines = cut(loaded)?;
            }
            if let Some(share) = progress.percent(clock.now(), loaded, known.lines) {
                tracing::info!("puts the lines of {} into the store: {share}%", input.name());
            }
        }
        if store.complete(job.id, known.lines).await.map_err(not_begun)? {
            let (lines, name) = (text::counted(known.lines, "line"), text::printable(name));
            tracing::info!("the job {name} is in the store, with {lines}: other workers join it with --job {name}");
            return Ok(());
        }
        Err(Failure::interrupted(format!("{} changed while it was read: the job is not complete", input.name())))
    }
}

/// The bytes of blocks that go into the store together: a store far away answers each time in a second, and a slow line carries
/// them in a minute.
const TOGETHER: usize = 2 << 20;

/// The next of them; none at the end.
fn some_blocks(lines: &mut Cut<impl BufRead>) -> io::Result<Vec<NewBlock>> {
    let (mut blocks, mut bytes) = (Vec::new(), 0);
    while bytes < TOGETHER
        && let Some(block) = lines.next_block()?
    {
        bytes += block.body.len();
        blocks.push(block);
    }
    Ok(blocks)
}

/// The files of a check, of which nothing stays: they are those of a job that has not begun.
fn of_check(paths: &Paths) -> Paths {
    Paths { lock: load_guard::check_lock(paths), output_lock: None, ..paths.clone() }
}
