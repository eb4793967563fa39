//! `paceline collect`: the results of a job that many hosts work on, and which such jobs there are.

mod files;
mod gather;
mod jobs;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use paceline_store::Paths;
use paceline_store::blocks::{BlockStore, JobStatus};
use serde_json::{Value, json};

use self::files::Files;
use self::gather::Gathered;
use crate::exit::{Failure, Status};
use crate::other_hosts::host_view::twice;
use crate::output::SummaryOutput;
use crate::{database, text};

/// `paceline collect`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// The database of the job, as `paceline run --store` names it: postgres://USER@HOST/DATABASE
    #[arg(long, value_name = "STORE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    store: String,
    /// The job [default: the only one that the store has]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Where to write the results; without it the jobs of the store are listed
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Replace results that were collected before
    #[arg(long, requires = "output")]
    overwrite: bool,
    /// Remove the job from the store, with its lines and results: after -o only once no result is missing
    #[arg(long)]
    forget: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Writes, in the order of the input and with no line twice:
  OUT, such as results.jsonl   one line for each item that succeeded; compressed where OUT ends in .gz
  results.errors.jsonl         one line for each item that failed; made when there are any

A job that is not done may be collected too: what is missing is counted, and the exit code is 3.";

/// Lists the jobs, or collects the results of one.
///
/// # Errors
/// Refuses a store that is no Postgres, a job that is not there, and files that are not to be replaced; reports what keeps the
/// results from being read or written.
pub(crate) async fn command(args: Args, quiet: bool) -> Result<Status, Failure> {
    if !database::is_address(&args.store) {
        return Err(Failure::refused(format!(
            "--store {} is no address of a database: expected postgres://USER@HOST/DATABASE; the results of a job on one machine \
             are in the file that `paceline run` names with -o",
            text::printable(&args.store)
        )));
    }
    let store = BlockStore::open(&args.store).await.map_err(database::not_begun)?;
    let jobs = store.jobs().await.map_err(Failure::interrupted)?;
    if args.output.is_none() && !args.forget {
        return jobs::list(&jobs, args.job.as_deref(), args.json);
    }
    let job = jobs::choose(&jobs, args.job.as_deref(), args.forget && args.output.is_none())?;
    let Some(output) = &args.output else {
        forget(&store, job).await?;
        return Ok(Status::Success);
    };
    let gathered = into_files(&store, &job.name, output, args.overwrite, quiet).await?;
    let forgets = args.forget && gathered.missing() == 0;
    let summary_output = SummaryOutput { as_json: args.json, quiet: quiet && gathered.missing() == 0, file: None };
    let words = gathered.describe(output);
    summary_output.print(gathered.status(), || gathered.json(&job.name), &words)?;
    if forgets {
        forget(&store, job).await?;
    }
    Ok(gathered.status())
}

/// Writes what the store has of the results of a job: successes to `output`, failures beside it.
///
/// # Errors
/// Refuses files that are not to be replaced; reports what keeps the results from being read or written: the files that were
/// there stay then.
async fn into_files(
    store: &BlockStore,
    job: &str,
    output: &Path,
    overwrite: bool,
    quiet: bool,
) -> Result<Gathered, Failure> {
    let mut files = Files::create(&Paths::beside(output), overwrite)?;
    let gathered = gather::gather(store, job, &mut files, quiet).await?;
    files.finish().map_err(Failure::interrupted)?;
    Ok(gathered)
}

async fn forget(store: &BlockStore, job: &JobStatus) -> Result<(), Failure> {
    let name = text::printable(&job.name);
    if store.forget(&job.name).await.map_err(Failure::interrupted)? {
        tracing::info!("the job {name} is removed from the store");
        return Ok(());
    }
    let working: Vec<_> = job.workers.iter().map(|worker| text::printable(&worker.name)).collect();
    let who = if working.is_empty() { String::new() } else { format!(" ({})", working.join(", ")) };
    Err(Failure::refused(format!(
        "the job {name} was not removed: hosts work on it{who}. Stop their runs (Ctrl-C), or wait a minute where they were killed, then \
         run the same command again"
    )))
}

impl Gathered {
    /// Whether all is there, and all of it good.
    const fn status(&self) -> Status {
        Status::of(self.missing() > 0, self.failed, self.succeeded)
    }

    /// For people: where each line of the input is.
    fn describe(&self, output: &Path) -> String {
        let paths = Paths::beside(output);
        let (lines, succeeded) = (text::counted(self.lines, "line"), text::count(self.succeeded));
        let mut words = format!("{}  {lines}: {succeeded} succeeded ({})", self.status(), output.display());
        if self.failed > 0 {
            write!(words, ", {} failed ({})", text::count(self.failed), paths.errors.display())
                .expect("a string takes everything");
        }
        if self.missing() > 0 {
            write!(words, ", {} without a result yet", text::count(self.missing())).expect("a string takes everything");
        }
        if !self.complete {
            words += "; the input is not loaded whole: more lines may come. Run the command that began the job again";
        }
        if let Some(twice) = twice(self.again) {
            write!(words, "\n  {twice}").expect("a string takes everything");
        }
        words
    }

    fn json(&self, job: &str) -> Value {
        json!({
            "status": self.status().as_str(),
            "job": job,
            "lines": self.lines,
            "complete": self.complete,
            "succeeded": self.succeeded,
            "failed": self.failed,
            "missing": self.missing(),
            "maybe_twice": self.again,
        })
    }
}
