//! Where log lines go and what they look like: standard error, as text or as JSON.

mod queue;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use indicatif::MultiProgress;
use paceline::clock;
use paceline_providers::secrets::hidden;
use serde_json::{Value, json};
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use queue::{Queue, write_line};

use crate::text::{counted, printable_lines};

/// The form of the log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The log lines of the gateway's requests.
const REQUESTS: &str = "requests=info";

static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Some thousand lines.
static QUEUE: Queue = Queue::new(1 << 20);

/// Whether a thread writes what is in the queue.
static HAS_WRITER: OnceLock<bool> = OnceLock::new();

/// Sets up logging for the process. `RUST_LOG` chooses levels; without it Paceline's own lines of level info and above
/// are shown, with `quiet` those of level error only, with `verbose` 1 and more those of level debug and trace. `requests`: the
/// lines of the gateway's requests too, however the levels are chosen.
pub(crate) fn init(format: LogFormat, quiet: bool, verbose: u8, requests: bool) {
    // An untrusted certificate is reported once, by the call that it stops, and a stop with what a person does about it.
    let usual = match (quiet, verbose) {
        (true, _) => "error,rustls_platform_verifier=off,paceline::limiter::stop=off",
        (false, 0) => "warn,paceline=info,rustls_platform_verifier=off,paceline::limiter::stop=off",
        (false, 1) => "warn,paceline=debug,rustls_platform_verifier=off,paceline::limiter::stop=off",
        (false, _) => "warn,paceline=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let filter = if requests { filter.add_directive(REQUESTS.parse().expect("a directive")) } else { filter };
    let format = *FORMAT.get_or_init(|| format);
    HAS_WRITER.get_or_init(begin_to_write);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(Queued).with_target(false);
    // A second initialisation can only happen in tests, and then the first one is as good.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
}

/// Tells on standard error what no level hides, such as why a command failed. As text it stands behind `error: ` or `warning: `.
pub(crate) fn tell(level: Level, message: &str) {
    let text = || match level {
        Level::ERROR => format!("error: {message}"),
        Level::WARN => format!("warning: {message}"),
        _ => message.to_owned(),
    };
    print(&if is_json() { line(level, message, None) } else { text() });
}

/// Has a panic, which is a defect of the program, told without what looks like a key: its message may quote what was read.
pub(crate) fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
        let trace = Some(Backtrace::capture()).filter(|trace| trace.status() == BacktraceStatus::Captured);
        let trace = trace.map_or_else(String::new, |trace| format!("\n{trace}"));
        let words = panic_words(panic.payload_as_str().unwrap_or("no message"), &place) + &trace;
        let text = if is_json() { line(Level::ERROR, &words, None) } else { format!("error: {words}") };
        // Not by the queue: its thread may be the one that panics.
        let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
    }));
}

fn panic_words(message: &str, place: &str) -> String {
    printable_lines(&format!("this is a defect of paceline: it panicked{place}: {}", hidden(message)))
}

/// Prints the summary of a job on standard error: its text, or a line with its first sentence and all of it in `summary`.
pub(crate) fn tell_summary(text: &str, json: impl FnOnce() -> Value) {
    let headline = text.lines().next().unwrap_or_default();
    print(&if is_json() { line(Level::INFO, headline, Some(json())) } else { text.trim_end_matches('\n').to_owned() });
}

fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// A line with the members that those of a subscriber have.
fn line(level: Level, message: &str, summary: Option<Value>) -> String {
    let (timestamp, level) = (clock::wall().to_string(), level.as_str());
    match summary {
        Some(summary) => json!({"timestamp": timestamp, "level": level, "message": message, "summary": summary}),
        None => json!({"timestamp": timestamp, "level": level, "message": message}),
    }
    .to_string()
}

fn print(line: &str) {
    add(format!("{line}\n").as_bytes());
}

/// Begins the thread that writes, or returns false: then each line is written where it comes from.
fn begin_to_write() -> bool {
    let mut is_cut = queue::ends_within_a_line();
    let write = move |line: &[u8]| {
        // A terminal that was closed, or a reader that went, is no reason to end what is under way. To clear the bars of a
        // terminal that is there no more would panic.
        let mut print = || write_line(&mut is_cut, line, &mut io::stderr().lock());
        if io::stderr().is_terminal() { bars().suspend(print) } else { print() }
    };
    let tell =
        |lost| tracing::warn!("{} of the log were lost: standard error did not take them", counted(lost, "line"));
    std::thread::Builder::new().name("log".to_owned()).spawn(move || QUEUE.work(write, tell)).is_ok()
}

fn has_writer() -> bool {
    HAS_WRITER.get() == Some(&true)
}

/// A failure is ignored: no reader is left.
fn add(line: &[u8]) {
    if has_writer() {
        return QUEUE.add(line);
    }
    let _ = io::stderr().write_all(line);
}

/// Draws on the terminal, unless a later state of it takes its place: what asks for it does not wait for the terminal.
pub(crate) fn draw(drawing: impl FnOnce() + Send + 'static) {
    if has_writer() { QUEUE.draw(drawing) } else { drawing() }
}

/// Waits until all is written, for a second at most: at the end of the program, and before it says that it is ready.
pub(crate) fn flush() {
    if has_writer() {
        QUEUE.flush();
    }
}

/// Lines of the log that were not written.
pub(crate) fn lost_lines() -> &'static AtomicU64 {
    QUEUE.lost()
}

/// Whether progress is drawn: on a terminal that redraws lines, beside log lines for people.
pub(crate) fn draws(quiet: bool) -> bool {
    let redraws = std::env::var_os("TERM").is_some_and(|kind| kind != "dumb") && io::stderr().is_terminal();
    !quiet && redraws && !is_json()
}

/// The bars on the terminal, which log lines must not tear.
pub(crate) fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(MultiProgress::new)
}

struct Queued;

impl<'a> MakeWriter<'a> for Queued {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        Self
    }
}

/// A line of a subscriber, which escapes what controls a terminal, but not what turns the direction of reading.
fn shown(line: &[u8]) -> String {
    printable_lines(&String::from_utf8_lossy(line))
}

impl Write for Queued {
    /// A line, as a subscriber writes it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        add(shown(line).as_bytes());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_tells_no_key() {
        let message = "a header: {\"authorization\": \"Bearer sesame-1234\", \"x-api-key\": \"sesame\"}\u{1b}[31m";
        let words = panic_words(message, " at src/x.rs:1:2");
        assert!(words.starts_with("this is a defect of paceline: it panicked at src/x.rs:1:2: a header: "), "{words}");
        assert!(!words.contains("sesame") && !words.contains('\u{1b}'), "{words}");
    }

    #[test]
    fn no_text_of_others_turns_the_direction_of_a_line() {
        let line = "WARN the provider said: nor\u{202e}lamron\u{2066} \u{e9}\n";
        assert_eq!(shown(line.as_bytes()), "WARN the provider said: nor\u{fffd}lamron\u{fffd} \u{e9}\n");
    }
}
