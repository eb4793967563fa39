//! Answers of a hosted batch, or those that `--expect` refused before: imported instead of sending their items again.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use http::HeaderMap;
use paceline::clock;
use paceline_config::Upstream;
use paceline_core::Class;
use paceline_providers::{Answer, Dialect, is_of_expectation};
use paceline_store::{CustomId, End, Finished, Journal, JournalItem, LastAnswer, ResultBody, State};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::exit::Failure;
use crate::job::load;
use crate::lines::format::Format;
use crate::lines::input::{Input, Lines, Span};
use crate::lines::line::Echo;
use crate::run_args::RunArgs;
use crate::text;

/// Answers looked up and recorded at a time; few, because each may be megabytes.
const AT_A_TIME: usize = 64;

/// Files of answers, each line of which can be read.
pub(crate) struct Done {
    files: Vec<PathBuf>,
    /// With `--expect` those answers alone are taken that it takes for successes.
    expected: Option<Dialect>,
}

/// Reads the files once from front to back, before anything is begun.
///
/// # Errors
/// Refuses files that cannot be read, and lines of another form, by number.
pub(crate) fn check(args: &RunArgs, upstream: &Upstream) -> Result<Done, Failure> {
    for file in &args.done {
        each_line(file, |_| Ok(()))?;
    }
    Ok(Done { files: args.done.clone(), expected: args.expect.as_ref().map(|_| upstream.dialect.clone()) })
}

impl Done {
    /// Records the successful answers of items that still wait. Lines of items that have ended, and of unknown ones, are
    /// counted and left alone, so that the same file may be given again.
    ///
    /// # Errors
    /// An error of the journal or the input, before anything is sent.
    pub(crate) fn take_over(&self, journal: &Journal, input: &Input, format: &Format) -> Result<(), Failure> {
        let job = Job { journal, input, format, expected: self.expected.as_ref() };
        for file in &self.files {
            let mut tally = Tally::default();
            let (mut answers, mut failures) = (Vec::with_capacity(AT_A_TIME), Vec::new());
            let is_cut_off = each_line(file, |line| {
                match line.answer(job.expected.is_some()) {
                    Ok(answer) => answers.push(answer),
                    Err(custom_id) => failures.push(custom_id),
                }
                if answers.len() + failures.len() < AT_A_TIME {
                    return Ok(());
                }
                job.record(&mut answers, &mut tally)?;
                job.count(&mut failures, &mut tally)
            })?;
            job.record(&mut answers, &mut tally)?;
            job.count(&mut failures, &mut tally)?;
            tally.cut_off = u64::from(is_cut_off);
            tally.say(file);
        }
        journal.flush().map_err(load::refused)
    }
}

/// An answer as it will stand in the results.
struct Given {
    custom_id: CustomId,
    status: u16,
    request_id: String,
    headers: Option<Box<RawValue>>,
    body: Box<RawValue>,
    /// `--expect` refused it, as it was then: where a call of this job had it, that is counted.
    was_refused: bool,
}

impl Given {
    /// Whether a job with this dialect counts it as a success. A body that is no JSON stands in its line as a string.
    fn is_success(&self, dialect: &Dialect) -> bool {
        let text = serde_json::from_str::<String>(self.body.get());
        let body = text.as_deref().unwrap_or_else(|_| self.body.get()).as_bytes();
        let answer = Answer { status: self.status, headers: &HeaderMap::new(), body, path: "" };
        dialect.read(&answer, clock::wall()).class == Class::Success
    }
}

/// The counts of a file's lines.
#[derive(Default)]
struct Tally {
    /// Items whose answers are taken.
    taken: HashSet<u64>,
    /// Lines of those items behind the first.
    repeated: u64,
    ended: u64,
    unknown: u64,
    unsuccessful: u64,
    unexpected: u64,
    cut_off: u64,
}

impl Tally {
    fn say(&self, file: &Path) {
        let mut line =
            format!("{} taken over from {}", text::counted(self.taken.len() as u64, "answer"), file.display());
        for (count, what) in [
            (self.unsuccessful, "without a success, so that the item is sent"),
            (self.unexpected, "with an answer that --expect refuses, so that the item is sent again"),
            (self.repeated, "more for the same items"),
            (self.ended, "for an item that has ended already"),
            (self.unknown, "with an id that the input does not have"),
            (self.cut_off, "cut off at the end of the file, so that the item is sent"),
        ] {
            if count > 0 {
                line += &format!("; {} {what}", text::counted(count, "line"));
            }
        }
        tracing::info!("{line}");
    }
}

/// The job that takes the answers over.
struct Job<'a> {
    journal: &'a Journal,
    input: &'a Input,
    format: &'a Format,
    expected: Option<&'a Dialect>,
}

impl Job<'_> {
    fn record(&self, answers: &mut Vec<Given>, tally: &mut Tally) -> Result<(), Failure> {
        let ids: Vec<_> = answers.iter().map(|given| given.custom_id.clone()).collect();
        let found = self.journal.find(&ids).map_err(load::refused)?;
        for (given, found) in answers.drain(..).zip(found) {
            match found {
                Some((item, _)) if tally.taken.contains(&item.ordinal) => tally.repeated += 1,
                Some((item, State::Waiting)) => {
                    if self.expected.is_some_and(|dialect| !given.is_success(dialect)) {
                        tally.unexpected += 1;
                        continue;
                    }
                    tally.taken.insert(item.ordinal);
                    self.journal.finish(finished(&item, &given, &self.echo(&item)?), drop);
                }
                Some(_) => tally.ended += 1,
                None => tally.unknown += 1,
            }
        }
        Ok(())
    }

    /// Counts lines without a success.
    fn count(&self, failures: &mut Vec<CustomId>, tally: &mut Tally) -> Result<(), Failure> {
        for found in self.journal.find(failures).map_err(load::refused)? {
            match found {
                Some((item, _)) if tally.taken.contains(&item.ordinal) => tally.repeated += 1,
                Some((_, State::Waiting)) => tally.unsuccessful += 1,
                Some(_) => tally.ended += 1,
                None => tally.unknown += 1,
            }
        }
        failures.clear();
        Ok(())
    }

    /// What the line repeats, from the request in the input.
    fn echo(&self, item: &JournalItem) -> Result<Echo, Failure> {
        let span = Span { offset: item.src_off, len: item.src_len };
        let unreadable = |error| Failure::refused(format!("cannot read {}: {error}", self.input.name()));
        let bytes = self.input.read(span).map_err(unreadable)?;
        let line = self.format.read(&bytes, item.line).map_err(Failure::refused)?;
        let metadata = line.metadata.map(ToOwned::to_owned);
        Ok(Echo { custom_id: line.custom_id, metadata, form: self.format.results() })
    }
}

/// The end of an item that was never sent from here: its line answers call 0.
fn finished(item: &JournalItem, given: &Given, echo: &Echo) -> Finished {
    let Given { status, request_id, headers, body, .. } = given;
    let (headers, body_bytes) = (headers.as_deref(), body.get().as_bytes());
    let answer = ResultBody::Response { status: *status, request_id, headers, body: body_bytes };
    let line = echo.line(item.ordinal, 0, End::Succeeded, &answer);
    let mut finished = Finished::new(item.ordinal, End::Succeeded, line);
    finished.tally = item.tally.clone();
    finished.tally.last = Some(LastAnswer { status: Some(*status), ..LastAnswer::new(Class::Success) });
    let usage = serde_json::from_str::<Usage>(body.get()).unwrap_or_default().usage.unwrap_or_default();
    if !given.was_refused || item.tally.sends() == 0 {
        let tally = &mut finished.tally;
        tally.tokens_in = tally.tokens_in.saturating_add(usage.tokens_in.unwrap_or(0));
        tally.tokens_out = tally.tokens_out.saturating_add(usage.tokens_out.unwrap_or(0));
    }
    finished
}

/// Shows each line of a file, `*.gz` unpacked, to `see`. Returns whether the last line is cut off, as a writer that was killed
/// leaves it; that line is not shown.
fn each_line(file: &Path, mut see: impl FnMut(Line<'_>) -> Result<(), Failure>) -> Result<bool, Failure> {
    let name = file.display();
    let refuse = |error: &dyn std::fmt::Display| Failure::refused(format!("cannot read {name}: {error}"));
    let opened = BufReader::new(File::open(file).map_err(|error| refuse(&error))?);
    let packed = file.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn BufRead> =
        if packed { Box::new(BufReader::new(MultiGzDecoder::new(opened))) } else { Box::new(opened) };
    let mut lines = Lines::new(reader);
    let no_answer = |number: u64| {
        Failure::refused(format!(
            "--done {name}: line {number} is not a line of a hosted batch's output: expected custom_id, response and error \
             (OpenAI), or custom_id and result (Anthropic)"
        ))
    };
    let mut cut_off = None;
    while let Some((number, _, bytes)) = lines.next_line().map_err(|error| refuse(&error))? {
        if let Some(number) = cut_off {
            return Err(no_answer(number));
        }
        match serde_json::from_slice::<Line<'_>>(bytes) {
            Ok(line) if line.response.is_some() || line.error.is_some() || line.result.is_some() => see(line)?,
            Err(error) if error.is_eof() => cut_off = Some(number),
            _ => return Err(no_answer(number)),
        }
    }
    Ok(cut_off.is_some())
}

/// A line of a batch's output or error file, OpenAI's or Anthropic's.
#[derive(Deserialize)]
struct Line<'a> {
    custom_id: CustomId,
    #[serde(borrow, default)]
    response: Option<Response<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<BatchResult<'a>>,
}

#[derive(Deserialize)]
struct Response<'a> {
    status_code: u16,
    #[serde(borrow, default)]
    request_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    headers: Option<&'a RawValue>,
    #[serde(borrow)]
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct BatchResult<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Usage {
    usage: Option<Tokens>,
}

#[derive(Default, Deserialize)]
struct Tokens {
    #[serde(alias = "prompt_tokens", alias = "input_tokens")]
    tokens_in: Option<u64>,
    #[serde(alias = "completion_tokens", alias = "output_tokens")]
    tokens_out: Option<u64>,
}

impl Line<'_> {
    /// The answer, if it is a usable one: what failed, was cancelled or expired there is still to be done. Else its item. Where
    /// each answer `is_checked`, one that `--expect` refused is none of these: it may have been corrected since.
    fn answer(self, is_checked: bool) -> Result<Given, CustomId> {
        let custom_id = self.custom_id;
        if let Some(result) = self.result {
            return match result.message.filter(|_| result.kind == "succeeded") {
                Some(body) => {
                    let body = body.to_owned();
                    let request_id = String::new();
                    Ok(Given { custom_id, status: 200, request_id, headers: None, body, was_refused: false })
                }
                None => Err(custom_id),
            };
        }
        let was_refused = is_checked && self.error.is_some_and(is_of_expect);
        let response = self.response.filter(|_| self.error.is_none() || was_refused);
        let Some(Response { status_code: status @ 200..=299, request_id, headers, body }) = response else {
            return Err(custom_id);
        };
        let request_id = request_id.unwrap_or_default().into_owned();
        let headers = headers.map(ToOwned::to_owned);
        Ok(Given { custom_id, status, request_id, headers, body: body.to_owned(), was_refused })
    }
}

/// Whether an answer is no success because of what the user expects, perhaps.
fn is_of_expect(error: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Error<'a> {
        #[serde(borrow)]
        code: Cow<'a, str>,
    }
    serde_json::from_str::<Error<'_>>(error.get()).is_ok_and(|error| is_of_expectation(&error.code))
}
