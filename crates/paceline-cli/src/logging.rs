//! Where log lines go and what they look like: standard error, as text or as JSON.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

use indicatif::MultiProgress;
use paceline::clock;
use serde_json::{Value, json};
use tracing::Level;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

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

/// Sets up logging for the process. `RUST_LOG` chooses levels; without it Paceline's own lines of level info and above
/// are shown, with `quiet` those of level error only, with `verbose` 1 and more those of level debug and trace. `requests`: the
/// lines of the gateway's requests too, however the levels are chosen.
pub(crate) fn init(format: LogFormat, quiet: bool, verbose: u8, requests: bool) {
    // An untrusted certificate is reported once, by the call that it stops.
    let usual = match (quiet, verbose) {
        (true, _) => "error,rustls_platform_verifier=off",
        (false, 0) => "warn,paceline=info,rustls_platform_verifier=off",
        (false, 1) => "warn,paceline=debug,rustls_platform_verifier=off",
        (false, _) => "warn,paceline=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let filter = if requests { filter.add_directive(REQUESTS.parse().expect("a directive")) } else { filter };
    let format = *FORMAT.get_or_init(|| format);
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(AroundTheBar).with_target(false);
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

/// A failure is ignored: no reader is left.
fn print(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
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

struct AroundTheBar;

impl<'a> MakeWriter<'a> for AroundTheBar {
    type Writer = Self;

    fn make_writer(&'a self) -> Self::Writer {
        Self
    }
}

impl Write for AroundTheBar {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A terminal that was closed, or a reader that went, is no reason to end what is under way. To clear the bars of a
        // terminal that is there no more would panic.
        let print = || io::stderr().lock().write_all(line);
        let _ = if io::stderr().is_terminal() { bars().suspend(print) } else { print() };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
