//! Opening a job: a new one is loaded from its input and checked line by line, an old one is resumed.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind};

use http::Method;
use paceline::{Clock, clock};
use paceline_config::Upstream;
use paceline_core::UnknownOutcome;
use paceline_providers::secrets::hidden;
use paceline_store::{
    CustomId, Duplicates, InputCursor, Journal, JournalError, LoadedLine, Loader, Opened, Options, Paths, Recovery,
    RefusedLine, RunLock,
};
use serde_json::Value;

use crate::exit::Failure;
use crate::job::background_load::BackgroundLoad;
use crate::job::job_config::{self, JobConfig};
use crate::job::share_told::ShareTold;
use crate::job_settings::{BadLines, Opening};
use crate::lines::format::Format;
use crate::lines::input::{Input, LONGEST_LINE, Span};
use crate::lines::line::{self, Line, LineError};
use crate::lines::not_sent::NotSent;
use crate::lines::wrong::{self, OTHER_INPUT, Wrong};
use crate::stops::stop::DISK_FULL;
use crate::{text, upstream};

/// A job, ready to run.
pub(crate) struct Job {
    pub(crate) journal: Journal,
    /// The limits that earlier runs saw hold for this one: it works with the same account.
    pub(crate) same_account: bool,
    /// Where the input is to be read on while it runs.
    pub(crate) input_cursor: Option<InputCursor>,
}

/// Lines that a job without a check begins with: enough to be busy until the next are there.
const FIRST: usize = 1_000;

/// So many lines are checked in some milliseconds.
const LINES_A_LOOK: usize = 4_096;

/// Why a job cannot be opened. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// Lines of the input cannot be sent.
    #[error(
        "{}, so no request was sent; correct them, or send the others with --skip-bad-lines:{}",
        wrong.count_words(input),
        wrong.list()
    )]
    Lines { input: String, wrong: Wrong },
    /// The input has no lines.
    #[error("empty_file: {input} holds no requests; expected {expected}")]
    Empty { input: String, expected: &'static str },
    /// The input has too many lines.
    #[error("too_many_tasks: {input} holds more than {most} requests")]
    TooMany { input: String, most: usize },
    /// Anything else.
    #[error(transparent)]
    Other(#[from] Failure),
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Other(failure) => failure,
            input => Self::refused(input),
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
    opening: &Opening,
) -> Result<Job, OpenError> {
    let flags = (opening.accept_changed || opening.retry_failed)
        .then(|| JobConfig::made_otherwise(paths.journal.as_deref(), input))
        .flatten();
    let mut options = Options::new(paths, input.mark().map_err(Failure::refused)?, clock::wall());
    options.overwrite = opening.overwrite;
    options.accept_changed = opening.accept_changed;
    options.repair_failed = opening.retry_failed;
    options.awaits_notes = opening.budgets.are_of_job();
    options.config_json = JobConfig::of(upstream, input, format, opening).json();
    match Journal::open_locked(options, lock).map_err(refused)? {
        Opened::New(loader) => {
            let journal = load(loader, input, format, upstream, opening, None)?;
            ready(journal, true, input, format, upstream, opening)
        }
        Opened::Changed { loader, recovery, rewritten } => {
            say(&recovery, None, upstream);
            let opening = &Opening { bad_lines: opening.bad_lines.of_whole_input(), ..opening.clone() };
            let journal = load(loader, input, format, upstream, opening, flags.as_deref())?;
            tracing::info!("{}", taken_up(input, rewritten, opening.accept_changed || opening.retry_failed));
            let same_account = job_config::adopt(&journal, input, format, upstream, opening)?;
            ready(journal, same_account, input, format, upstream, opening)
        }
        Opened::Resumed { journal, recovery } => {
            say(&recovery, Some(&journal), upstream);
            let same_account = job_config::adopt(&journal, input, format, upstream, opening)?;
            ready(journal, same_account, input, format, upstream, opening)
        }
    }
}

/// The job to resume. A step that needs every item waits for the rest of the input after all.
fn ready(
    journal: Journal,
    same_account: bool,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
) -> Result<Job, OpenError> {
    let mut input_cursor = journal.input_cursor().map_err(refused)?;
    if let Some(from) = input_cursor.filter(|_| opening.needs_all) {
        BackgroundLoad { journal: &journal, input, format, upstream, from }
            .read(|_| Ok(true))
            .map_err(Failure::refused)?;
        input_cursor = None;
    }
    Ok(Job { journal, same_account, input_cursor })
}

/// How a job goes on with an input that may be another. `rewritten`: its length and beginning are the same. Without flags that
/// `accept` others, all of its lines are.
fn taken_up(input: &Input, rewritten: bool, accept: bool) -> String {
    match (rewritten, accept) {
        (true, false) => format!("{} has another time of change, and the same lines: the job goes on", input.name()),
        (true, true) => format!("{} was written again: each line is sent as it stands now", input.name()),
        (false, _) => {
            let by = "or what makes its requests (--model, --prompt-template)";
            format!("{} changed since the last run of this job, {by}: items are sent as they stand now", input.name())
        }
    }
}

/// An error of the journal, and what can be done about it here. Of a full disk the input is not to blame.
pub(crate) fn refused(error: JournalError) -> Failure {
    if error.is_disk_full() {
        return Failure::DiskFull(error.to_string());
    }
    if let Some(other) = job_of_that_journal(&error) {
        return Failure::refused(other);
    }
    let (other_input, restarts);
    let advice = match &error {
        JournalError::OutputWithoutJournal { .. } => {
            "; a job with another output and --done RESULTS takes its answers over; --overwrite deletes it and starts again; without \
             the journal, what the job has spent of a budget is forgotten"
        }
        JournalError::OutputExists { .. } => "; --overwrite deletes it and starts again",
        JournalError::JournalWithoutOutput { .. } => {
            ", or start again with --overwrite. Only the restored file keeps its answers: with --overwrite every item is sent and paid for \
             again, and what the job has spent of a budget is forgotten"
        }
        JournalError::InputChanged { .. } => {
            other_input = format!("; {OTHER_INPUT}");
            &other_input
        }
        JournalError::Damaged { .. } | JournalError::DamagedJournal { .. } => {
            restarts = restarts_of_damaged(&error);
            &restarts
        }
        error if error.may_not_be_opened() => {
            "; the journal or its folder may belong to another user, such as root after one run with sudo (ls -l shows whose it is)"
        }
        JournalError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            "; it may belong to another user, such as root after one run with sudo (ls -l shows whose it is): let this user write it"
        }
        JournalError::Sqlite { .. } => "; check that the disk has space and that the folder is writable",
        _ => "",
    };
    Failure::Refused(format!("{error}{advice}"))
}

/// What can be done about a file of a job that is damaged, but for restoring it.
fn restarts_of_damaged(error: &JournalError) -> String {
    let results = match error {
        JournalError::Damaged { path, .. } => path.display().to_string(),
        _ => "RESULTS".to_owned(),
    };
    // The others have no answers that are taken for successes.
    let is_other = [".errors.jsonl", ".refused.jsonl"].iter().any(|end| results.ends_with(end));
    let results = if is_other { "RESULTS".into() } else { text::shell_word(&results) };
    format!(
        "\n  to keep its answers, start a job with another output and --done {results}\n  to discard them, use --overwrite\n  unless it is \
         restored, what the job has spent of a budget is forgotten"
    )
}

/// Results whose journal is that of another job beside them, such as of `-o results` and `-o results.jsonl`: neither is to be
/// deleted.
fn job_of_that_journal(error: &JournalError) -> Option<String> {
    let JournalError::JournalWithoutOutput { output, journal, .. } = error else { return None };
    let other = match output.extension() {
        Some(end) if end == "jsonl" => output.with_extension(""),
        _ => {
            let mut name = output.clone().into_os_string();
            name.push(".jsonl");
            name.into()
        }
    };
    other.is_file().then(|| {
        format!(
            "{} is missing, and its journal {} seems to be that of the job -o {}: go on with that one, or choose another -o",
            output.display(),
            journal.display(),
            other.display()
        )
    })
}

/// Tells what the end of the last run left; `journal`: which says how that ended, as far as it could be written.
pub(crate) fn say(recovery: &Recovery, journal: Option<&Journal>, upstream: &Upstream) {
    let was_full = journal.is_some_and(ended_on_a_full_disk);
    if was_full || recovery.recorded + recovery.cut + recovery.interrupted > 0 {
        let what = if was_full { "a full disk, which ended the run before" } else { "an interruption" };
        let mut line = format!("continuing after {what}");
        for (count, noun, what) in [
            (recovery.recorded, "item", "found complete in the results"),
            (recovery.cut, "byte", "of the results removed that are no whole line of this job"),
        ] {
            if count > 0 {
                line += &format!("; {} {what}", text::counted(count, noun));
            }
        }
        if recovery.in_flight > 0 {
            let again = if recovery.in_flight == 1 {
                "it is sent again, and may be billed twice"
            } else {
                "they are sent again, and may be billed twice"
            };
            // Which calls they are is not known before their lines are read.
            let then = match upstream.access.unknown_outcome {
                Some(UnknownOutcome::Resend) => again,
                None if upstream.dialect.is_prompt("") => again,
                _ => {
                    "what may be called twice is sent again (and billed twice, perhaps); what may not is held, and the summary counts it"
                }
            };
            // Notes are written a moment later, unless a budget awaits them.
            let bound = if recovery.calls_lost { "about" } else { "up to" };
            line += &format!("; {bound} {} may have been under way: {then}", text::counted(recovery.in_flight, "call"));
        }
        tracing::info!("{line}");
    }
}

fn ended_on_a_full_disk(journal: &Journal) -> bool {
    let snapshot = journal.snapshot().ok().flatten();
    let job = snapshot.and_then(|snapshot| serde_json::from_str::<Value>(&snapshot.job).ok());
    job.is_some_and(|job| job["stopped"] == DISK_FULL)
}

/// Checks an input as a run does that begins with it, by a journal at `paths` of which nothing stays. Repeated ids are refused
/// in any case.
///
/// # Errors
/// As for [`open`].
pub(crate) fn check_alone(
    paths: Paths,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
) -> Result<(), OpenError> {
    let mut options = Options::new(paths, input.mark().map_err(Failure::refused)?, clock::wall());
    options.overwrite = true;
    let Opened::New(mut loader) = Journal::open(options).map_err(refused)? else {
        unreachable!("an overwritten job begins anew")
    };
    let (wrong, repeated) = checked(&mut loader, input, format, upstream, opening)?;
    upstream::warn_of_scopes(upstream, &loader.scopes());
    if repeated.count > 0 {
        let which =
            "the host of the one does not know that of the other, so such lines cannot be left out: correct them";
        return Err(Failure::refused(format!("ids are repeated in {}; {which}:{}", input.name(), wrong.list())).into());
    }
    if wrong.count() > 0 {
        tracing::warn!("{}:{}", wrong.count_as_failed(&input.name()), wrong.list());
    }
    Ok(())
}

/// Reads an input into the loader. Returns the lines that cannot be sent and the repeated ids, where a run leaves them out.
fn checked(
    loader: &mut Loader,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
) -> Result<(Wrong, Duplicates), OpenError> {
    let mut wrong = Wrong::default();
    fill(loader, input, format, upstream, opening, &mut wrong)?;
    let repeated = loader.duplicates(Wrong::NAMED).map_err(refused)?;
    wrong.add_repeated(&repeated);
    if wrong.count() > 0 && opening.bad_lines == BadLines::Refuse {
        return Err(OpenError::Lines { input: input.name(), wrong });
    }
    Ok((wrong, repeated))
}

/// `flags`: those that make requests of its rows and have other values than before, in words.
fn load(
    mut loader: Loader,
    input: &mut Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
    flags: Option<&str>,
) -> Result<Journal, OpenError> {
    let (wrong, repeated) = checked(&mut loader, input, format, upstream, opening)?;
    if repeated.count > 0 {
        loader.refuse_duplicates(Wrong::REPEATED).map_err(refused)?;
        loader.duplicates(0).map_err(refused)?;
    }
    if wrong.count() > 0 {
        let list = if opening.bad_lines == BadLines::List { format!(":{}", wrong.list()) } else { String::new() };
        tracing::warn!("{}{list}", wrong.count_as_failed(&input.name()));
    }
    let conflicts = loader.conflicts(Wrong::NAMED).map_err(refused)?;
    if conflicts.count > 0 {
        return Err(Failure::refused(wrong::conflicts(
            &conflicts,
            &input.name(),
            opening.accept_changed,
            opening.retry_failed,
            flags,
        ))
        .into());
    }
    input.settle().map_err(Failure::from)?;
    Ok(loader.finish().map_err(refused)?)
}

/// Takes every line into the journal; the first of them only when the job does not wait for the others.
fn fill(
    loader: &mut Loader,
    input: &Input,
    format: &Format,
    upstream: &Upstream,
    opening: &Opening,
    wrong: &mut Wrong,
) -> Result<(), OpenError> {
    let unreadable = |error: io::Error| Failure::refused(format!("cannot read {}: {error}", input.name()));
    let mut lines = input.lines().map_err(unreadable)?;
    let first = (opening.bad_lines == BadLines::Later).then_some(FIRST);
    let (mut taken, mut doubts) = (0, Doubts::default());
    let (clock, length) = (Clock::new(), input.mark().map_err(Failure::refused)?.len);
    let mut progress = ShareTold::begun(clock.now());
    let sooner = if opening.needs_all { "" } else { " (--no-check begins at once)" };
    while let Some((number, span, bytes)) = lines.next_line().map_err(unreadable)? {
        if let Some(most) = opening.most_lines.filter(|most| taken == *most) {
            return Err(OpenError::TooMany { input: input.name(), most });
        }
        let (added, error) = hand_on(format, upstream, bytes, number, span, |handed| match handed {
            Handed::Item(item, line) => {
                doubts.note(number, line, input.is_of_rows());
                loader.add(&item)
            }
            Handed::Refused(line) => loader.add_refused(&line),
        });
        added.map_err(refused)?;
        error.into_iter().for_each(|error| wrong.add(error));
        taken += 1;
        if taken.is_multiple_of(LINES_A_LOOK)
            && let Some(share) = progress.percent(clock.now(), span.offset, length)
        {
            tracing::info!("checking {} before anything is sent: {share}% of it{sooner}", input.name());
        }
        if first == Some(taken) {
            loader.leave(lines.position());
            break;
        }
    }
    if taken == 0 {
        return Err(OpenError::Empty { input: input.name(), expected: input.expected() });
    }
    doubts.tell();
    Ok(())
}

/// What a person may not have meant in lines that can be sent all the same, with the first of each kind.
#[derive(Default)]
struct Doubts {
    not_sent: NotSent,
    /// Lines that call an address again.
    repeated: u64,
    first_repeated: Option<String>,
    /// The hashes of those addresses.
    addresses: HashSet<u64, RandomState>,
}

impl Doubts {
    fn note(&mut self, number: u64, line: &Line<'_>, of_rows: bool) {
        // An id that is an address is refused where it comes again.
        let is_its_id = matches!(&line.custom_id, CustomId::Text(id) if *id == *line.url);
        if line.body.is_empty() && line.method == Method::GET && line.headers.is_empty() && !is_its_id {
            let hash = self.addresses.hasher().hash_one(&*line.url);
            if !self.addresses.insert(hash) {
                self.repeated += 1;
                self.first_repeated.get_or_insert_with(|| line.url.to_string());
            }
        }
        // Tables have columns for other ends.
        if let Some(key) = line.stray.clone().filter(|_| !of_rows) {
            self.not_sent.note(key, number);
        }
    }

    fn tell(&self) {
        self.not_sent.tell();
        if let Some(url) = &self.first_repeated {
            tracing::warn!(
                "{} an address of a line before, such as {}: each of them is a call",
                if self.repeated == 1 {
                    "1 line repeats".into()
                } else {
                    format!("{} lines repeat", text::count(self.repeated))
                },
                text::printable(&hidden(url))
            );
        }
    }
}

/// A line on its way into the journal.
pub(crate) enum Handed<'a> {
    /// It can be sent as that request.
    Item(LoadedLine<'a>, &'a Line<'a>),
    /// It cannot.
    Refused(RefusedLine<'a>),
}

/// Reads a line and hands it to `take`; returns what that returns, and what is wrong with the line.
pub(crate) fn hand_on<T>(
    format: &Format,
    upstream: &Upstream,
    bytes: &[u8],
    number: u64,
    span: Span,
    take: impl FnOnce(Handed<'_>) -> T,
) -> (T, Option<LineError>) {
    let (src_off, src_len) = (span.offset, span.len);
    match check(format, bytes, number, span) {
        Ok(line) => {
            let scope = upstream.scope_name(&line.names());
            let (custom_id, body) = (&line.custom_id, line.hashed);
            let item = LoadedLine { custom_id, line: number, src_off, src_len, body, scope: &scope };
            (take(Handed::Item(item, &line)), None)
        }
        Err(error) => {
            let (custom_id, message) = (line::readable_id(bytes), error.reason());
            let (custom_id, code) = (custom_id.as_ref(), error.code);
            let line = RefusedLine { custom_id, line: number, src_off, src_len, bytes, code, message: &message };
            (take(Handed::Refused(line)), Some(error))
        }
    }
}

fn check<'a>(format: &Format, bytes: &'a [u8], number: u64, span: Span) -> Result<Line<'a>, LineError> {
    if span.is_too_long() {
        let message = format!("{} bytes, expected at most {} MiB", text::count(span.len), LONGEST_LINE >> 20);
        return Err(LineError { line: number, code: "line_too_long", param: None, message });
    }
    format.read(bytes, number)
}
