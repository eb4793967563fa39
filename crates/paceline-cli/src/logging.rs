//! Where log lines go and what they look like: standard error, as text or as JSON.

use std::io::{self, IsTerminal as _, Write};
use std::sync::OnceLock;

use indicatif::MultiProgress;
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

/// Sets up logging for the process. `RUST_LOG` chooses levels; without it Paceline's own lines of level info and above
/// are shown, with `quiet` those of level error only, with `verbose` 1 and more those of level debug and trace.
pub(crate) fn init(format: LogFormat, quiet: bool, verbose: u8) {
    // An untrusted certificate is reported once, by the call that it stops.
    let usual = match (quiet, verbose) {
        (true, _) => "error,rustls_platform_verifier=off",
        (false, 0) => "warn,paceline=info,rustls_platform_verifier=off",
        (false, 1) => "warn,paceline=debug,rustls_platform_verifier=off",
        (false, _) => "warn,paceline=trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(usual));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(AroundTheBar).with_target(false);
    // A second initialisation can only happen in tests, and then the first one is as good.
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
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
