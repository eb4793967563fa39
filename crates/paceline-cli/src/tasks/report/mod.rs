//! `paceline tasks report`: the outcomes of a store's items, as text, JSON or Markdown.

mod document;
pub(crate) mod store_summary;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use paceline_store::work::WorkClock;

use super::store::StoreArgs;
use crate::exit::{Failure, Status};
use crate::output;
use document::Document;

/// `paceline tasks report`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// Form of the report; text shows the first items only
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    format: Form,
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
    let clock = WorkClock::system();
    args.store.refuse_as_output("-o", args.output.as_deref())?;
    let store = args.store.open(&clock).await?;
    let form = if args.json { Form::Json } else { args.format };
    let mut document = Document::read(&*store, &clock, form).await?;
    match &args.output {
        None => output::print(|out| document.write(out))?,
        Some(path) => write(path, &mut document)
            .map_err(|error| Failure::interrupted(format!("cannot write {}: {error}", path.display())))?,
    }
    Ok(Status::Success)
}

/// Into a device or a pipe, or in the place of a file; a link goes on leading there.
fn write(path: &Path, document: &mut Document) -> std::io::Result<()> {
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        let mut device = BufWriter::new(File::options().write(true).open(path)?);
        document.write(&mut device)?;
        return device.flush();
    }
    replace(&path.canonicalize().unwrap_or_else(|_| path.to_owned()), document)
}

/// Readers see the old report or the new one, never a part.
fn replace(path: &Path, document: &mut Document) -> std::io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let mut write = || {
        let mut file = BufWriter::new(File::create(&fresh)?);
        document.write(&mut file)?;
        file.flush()?;
        file.get_ref().sync_data()?;
        std::fs::rename(&fresh, path)
    };
    let written = write();
    if written.is_err() {
        // On a full disk even a part is in the way.
        let _ = std::fs::remove_file(&fresh);
    }
    written
}
