//! `paceline tasks report`: the outcomes of a store's items, as text, JSON or Markdown.

mod by_group;
mod document;
pub(crate) mod store_summary;
mod worker;

use std::path::PathBuf;

use paceline_store::work::WorkClock;

use super::groups;
use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::output;
use by_group::ByGroup;
use document::{Document, Of};
use worker::Worker;

/// `paceline tasks report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Form of the report; text shows the first items only
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    format: Form,
    /// Only items of this group
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Also count the items of each group
    #[arg(long)]
    by_group: bool,
    /// Print JSON, like --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write the report to a file, which is replaced once the report is complete
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    #[default]
    Text,
    Json,
    Markdown,
}

/// Prints the report. Its exit code is about the printing, whatever the outcomes of the items are.
///
/// # Errors
/// Refuses what is no store; and reports one that cannot be read, or its figures do not add up.
pub(crate) async fn command(args: Args) -> Result<Status, Failure> {
    args.store.refuse_as_output("-o", args.output.as_deref())?;
    let store = args.store.open(&WorkClock::system()).await?;
    let form = if args.json { Form::Json } else { args.format };
    let groups = args.store.groups(&*store).await.map_err(Failure::interrupted)?;
    let worker = Worker::of(&args.store, &*store).await.map_err(Failure::interrupted)?;
    if let Some(group) = &args.group
        && let Some(unknown) = groups::unknown(&*store, group).await.map_err(Failure::interrupted)?
    {
        return Err(Failure::refused(unknown));
    }
    let by_group = args.by_group.then(ByGroup::default);
    let of = Of { group: args.group.as_deref(), form, by_group };
    let mut document = Document::read(groups, (&*store, args.store.shown()), worker, of).await?;
    match &args.output {
        None => output::print(|out| document.write(out))?,
        Some(path) => output::write_report(path, &mut |out| document.write(out))?,
    }
    Ok(Status::Success)
}
