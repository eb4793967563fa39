//! Opening a job: a new one is loaded from its input and checked line by line, an old one is taken up where it stood.

use std::io;

use paceline::clock;
use paceline::config::Upstream;
use paceline_store::{Error, Journal, Loader, NewItem, Opened, Options, Paths, Recovery, RefusedLine, RunLock};

use crate::args::RunArgs;
use crate::exit::Failure;
use crate::run::job::begun::{self, Begun};
use crate::run::lines::format::Format;
use crate::run::lines::input::{Input, LONGEST_LINE, Span};
use crate::run::lines::line::{self, Line, LineError};
use crate::run::lines::wrong::{self, Wrong};
use crate::text;

/// A job, ready to go on.
pub(crate) struct Job {
    pub(crate) journal: Journal,
    /// What earlier runs were told about limits holds for this one: it works with the same account.
    pub(crate) same_account: bool,
}

/// What becomes of lines that cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BadLines {
    /// Nothing is sent.
    Refuse,
    /// They fail, and the first of them are listed.
    List,
    /// They fail.
    Count,
}

impl BadLines {
    const fn of(args: &RunArgs) -> Self {
        match (args.skip_bad_lines, args.no_check) {
            (true, _) => Self::List,
            (false, true) => Self::Count,
            (false, false) => Self::Refuse,
        }
    }
}

/// Opens the job of `paths`, or begins it.
///
/// # Errors
/// Refuses an input with lines that cannot be sent, a changed input, and files that do not fit together. Nothing was
/// sent then, and a job that could not begin leaves nothing behind.
pub(crate) fn open(
    lock: RunLock,
    paths: Paths,
    input: &mut Input,
    format: &Format,
    upstream: &Upstream,
    args: &RunArgs,
) -> Result<Job, Failure> {
    let mut options = Options::new(paths, input.mark().map_err(Failure::refused)?, clock::wall());
    options.overwrite = args.overwrite;
    options.accept_changed = args.accept_changed_input;
    options.config_json = Begun::of(upstream, format).json();
    match Journal::open_locked(options, lock).map_err(refused)? {
        Opened::New(loader) => {
            Ok(Job { journal: load(loader, input, format, upstream, BadLines::of(args))?, same_account: true })
        }
        Opened::Changed { loader, recovery } => {
            say(&recovery);
            let journal = load(loader, input, format, upstream, BadLines::of(args))?;
            let same_account = begun::adopt(&journal, input, format, upstream)?;
            Ok(Job { journal, same_account })
        }
        Opened::Resumed { journal, recovery } => {
            say(&recovery);
            let same_account = begun::adopt(&journal, input, format, upstream)?;
            Ok(Job { journal, same_account })
        }
    }
}

/// What the journal says, and what can be done about it here.
fn refused(error: Error) -> Failure {
    let advice = match &error {
        Error::OutputWithoutJournal { .. } | Error::OutputExists { .. } => "; --overwrite removes what is there",
        Error::JournalWithoutOutput { .. } | Error::Damaged { .. } => "; --overwrite removes what is left",
        Error::InputChanged { .. } => "; --accept-changed-input goes on with it where that can be done",
        Error::Sqlite { .. } => "; make sure that the disk has room and the folder can be written",
        _ => "",
    };
    Failure::refused(format!("{error}{advice}"))
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

fn load(
    mut loader: Loader,
    input: &mut Input,
    format: &Format,
    upstream: &Upstream,
    bad_lines: BadLines,
) -> Result<Journal, Failure> {
    let mut wrong = Wrong::default();
    fill(&mut loader, input, format, upstream, &mut wrong)?;
    let repeated = loader.duplicates(Wrong::NAMED).map_err(refused)?;
    wrong.add_repeated(&repeated);
    if wrong.count() > 0 && bad_lines == BadLines::Refuse {
        return Err(Failure::refused(format!("{}, so nothing was:{}", wrong.count_words(&input.name()), wrong.list())));
    }
    if repeated.count > 0 {
        loader.refuse_duplicates(Wrong::REPEATED).map_err(refused)?;
        loader.duplicates(0).map_err(refused)?;
    }
    if wrong.count() > 0 {
        let list = if bad_lines == BadLines::List { format!(":{}", wrong.list()) } else { String::new() };
        tracing::warn!("{} and count as failed{list}", wrong.count_words(&input.name()));
    }
    let conflicts = loader.conflicts(Wrong::NAMED).map_err(refused)?;
    if conflicts.count > 0 {
        return Err(Failure::refused(wrong::conflicts(&conflicts, &input.name())));
    }
    input.settle().map_err(Failure::refused)?;
    loader.finish().map_err(refused)
}

/// Takes every line into the journal.
fn fill(
    loader: &mut Loader,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    wrong: &mut Wrong,
) -> Result<(), Failure> {
    let unreadable = |error: io::Error| Failure::refused(format!("cannot read {}: {error}", input.name()));
    let mut lines = input.lines().map_err(unreadable)?;
    let mut empty = true;
    while let Some((number, span, bytes)) = lines.next_line().map_err(unreadable)? {
        empty = false;
        let line = match check(format, bytes, number, span) {
            Ok(line) => line,
            Err(error) => {
                let (custom_id, message) = (line::readable_id(bytes), error.reason());
                let refused_line = RefusedLine {
                    custom_id: custom_id.as_ref(),
                    line: number,
                    src_off: span.offset,
                    src_len: span.len,
                    bytes,
                    code: error.code,
                    message: &message,
                };
                loader.add_refused(&refused_line).map_err(refused)?;
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
        loader.add(&item).map_err(refused)?;
    }
    if empty {
        return Err(Failure::refused(format!(
            "empty_file: {} holds no requests; expected one JSON object a line",
            input.name()
        )));
    }
    Ok(())
}

fn check<'a>(format: &Format, bytes: &'a [u8], number: u64, span: Span) -> Result<Line<'a>, LineError> {
    if span.is_too_long() {
        let message = format!("{} bytes, expected at most {} MiB", text::count(span.len), LONGEST_LINE >> 20);
        return Err(LineError { line: number, code: "line_too_long", param: None, message });
    }
    format.read(bytes, number)
}
