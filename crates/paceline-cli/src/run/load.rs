//! Opening a job: a new one is loaded from its input and checked line by line, an old one is taken up where it stood.

use std::io;

use paceline::config::Upstream;
use paceline_core::Timestamp;
use paceline_store::{InputMark, Journal, Loader, NewItem, Opened, Options, Paths, Recovery};

use super::begun::{self, Begun};
use super::format::Format;
use super::input::Input;
use super::line::LineError;
use crate::exit::Failure;
use crate::text;

/// Bad lines that are named; the others are only counted.
const NAMED: usize = 10;

/// A job, ready to go on.
pub(crate) struct Job {
    pub(crate) journal: Journal,
    /// What earlier runs were told about limits holds for this one: it works with the same account.
    pub(crate) same_account: bool,
}

/// Opens the job of `paths`, or begins it.
///
/// # Errors
/// Refuses an input with lines that cannot be sent, a changed input, and files that do not fit together. Nothing was
/// sent then, and a job that could not begin leaves no journal.
pub(crate) fn open(
    paths: Paths,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    now: Timestamp,
) -> Result<Job, Failure> {
    let mark = InputMark::of(input.path()).map_err(Failure::refused)?;
    let mut options = Options::new(paths, mark, now);
    options.config_json = Begun::of(upstream, format).json();
    match Journal::open(options).map_err(Failure::refused)? {
        Opened::New(loader) => Ok(Job { journal: load(loader, input, format, upstream)?, same_account: true }),
        Opened::Resumed { journal, recovery } => {
            say(&recovery);
            let same_account = begun::adopt(&journal, input, format, upstream)?;
            Ok(Job { journal, same_account })
        }
    }
}

fn say(recovery: &Recovery) {
    if recovery.recorded + recovery.cut + recovery.interrupted > 0 {
        tracing::info!(
            "going on after an interruption: {} found complete in the results, {} cut off, {} taken up but not \
             recorded (those in flight then may be billed twice)",
            text::counted(recovery.recorded, "item"),
            text::counted(recovery.cut, "byte"),
            text::counted(recovery.interrupted, "item"),
        );
    }
}

fn load(mut loader: Loader, input: &Input, format: &Format, upstream: &Upstream) -> Result<Journal, Failure> {
    let unreadable = |error: io::Error| Failure::refused(format!("cannot read {}: {error}", input.path().display()));
    let mut wrong = Wrong::default();
    let mut lines = input.lines().map_err(unreadable)?;
    while let Some((number, span, bytes)) = lines.next_line().map_err(unreadable)? {
        let line = match format.read(bytes, number) {
            Ok(line) => line,
            Err(error) => {
                wrong.add(error);
                continue;
            }
        };
        let scope = upstream.scope_name(&line.url, line.model.as_deref(), line.label.as_deref());
        let item = NewItem {
            custom_id: &line.custom_id,
            line: number,
            src_off: span.offset,
            src_len: span.len,
            body: line.hashed,
            scope: &scope,
        };
        loader.add(&item).map_err(Failure::refused)?;
    }
    if wrong.count > 0 {
        return Err(Failure::refused(wrong.words(input)));
    }
    if loader.items() == 0 {
        return Err(Failure::refused(format!(
            "empty_file: {} holds no requests; expected one JSON object a line",
            input.path().display()
        )));
    }
    loader.finish().map_err(Failure::refused)
}

#[derive(Default)]
struct Wrong {
    named: Vec<LineError>,
    count: u64,
}

impl Wrong {
    fn add(&mut self, error: LineError) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(error);
        }
    }

    fn words(&self, input: &Input) -> String {
        let mut words = format!(
            "{} of {} cannot be sent, so nothing was:",
            text::counted(self.count, "line"),
            input.path().display()
        );
        for error in &self.named {
            words += &format!("\n  {error}");
        }
        let more = self.count - self.named.len() as u64;
        if more > 0 {
            words += &format!("\n  and {more} more");
        }
        words
    }
}
