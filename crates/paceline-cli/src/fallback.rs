//! `--fallback COMMAND`: its result stands in for the answer of an API that stayed down.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use paceline_config::{KeySource, Upstream};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::process::Command;

use crate::args::some_time;
use crate::exit::Failure;
use crate::process::{Ended, Exit, OUTPUT_BYTES, Program};
use crate::text;

/// The variable that switches a configured fallback off, and asks for one where none is configured.
const SWITCH: &str = "ENABLE_FALLBACK_PROCESSING";

/// The flags of a fallback.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FallbackArgs {
    /// Command that stands in where the API stays down: the item on standard input, its result on standard output; results are
    /// marked "source":"fallback"
    #[arg(long, value_name = "COMMAND")]
    fallback: Option<String>,
    /// How long the command of --fallback may take for one item; after that it is killed, and the item ends as without it
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    fallback_timeout: Duration,
}

/// The command of a run.
#[derive(Debug)]
pub(crate) struct Fallback {
    program: Program,
    /// The variable with the key of the API, which the command does not get.
    key: Option<String>,
}

impl FallbackArgs {
    /// The command of the flag.
    pub(crate) fn given(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The fallback of a run, if it has one.
    ///
    /// # Errors
    /// Refuses a command that cannot be executed, a switch that is neither on nor off, and one that is on without a command.
    pub(crate) fn configured(&self, upstream: &Upstream) -> Result<Option<Arc<Fallback>>, Failure> {
        let switch = std::env::var_os(SWITCH).map(|value| switch(&value)).transpose()?;
        let key = format!("upstream.{}.fallback", upstream.name);
        let given = self.fallback.as_ref().map(|line| ("--fallback", line));
        let given = given.or(upstream.fallback.as_ref().map(|line| (key.as_str(), line)));
        let (place, line) = match (given, switch) {
            (Some(given), Some(true) | None) => given,
            (_, Some(false)) | (None, None) => return Ok(None),
            (None, Some(true)) => {
                return Err(Failure::refused(format!(
                    "{SWITCH}=true, and no command is configured: expected --fallback COMMAND, or fallback under [upstream.{}] in \
                     paceline.toml",
                    upstream.name
                )));
            }
        };
        let refused = |why: &str| Failure::refused(format!("{place} {line:?}: {why}"));
        let words = shlex::split(line).ok_or_else(|| refused("its quotes are not closed"))?;
        let (name, arguments) = words.split_first().ok_or_else(|| refused("it names no command"))?;
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let program =
            Program::new(&OsString::from(name), &arguments, self.fallback_timeout).map_err(|why| refused(&why))?;
        let key = match &upstream.key {
            KeySource::Variable { name, .. } => Some(name.clone()),
            KeySource::None | KeySource::File(_) => None,
        };
        Ok(Some(Arc::new(Fallback { program, key })))
    }
}

fn switch(value: &OsString) -> Result<bool, Failure> {
    match value.to_string_lossy().trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Failure::refused(format!("{SWITCH}={:?}: expected true or false", value.to_string_lossy()))),
    }
}

/// What the command gets on standard input.
#[derive(Serialize)]
pub(crate) struct Question<'a> {
    pub(crate) key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<Request<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<&'a RawValue>,
    pub(crate) error: WhyDown<'a>,
}

/// The call of an item.
#[derive(Serialize)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) url: &'a str,
    pub(crate) body: Box<RawValue>,
}

/// Why there is no answer.
#[derive(Serialize)]
pub(crate) struct WhyDown<'a> {
    pub(crate) reason: &'a str,
    pub(crate) class: Option<&'static str>,
    pub(crate) status: Option<u16>,
    pub(crate) code: Option<&'a str>,
    pub(crate) message: &'a str,
}

/// JSON as it is, other text as a string.
pub(crate) fn json_or_text(text: &[u8]) -> Result<Box<RawValue>, String> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let json = serde_json::from_str::<Box<RawValue>>(text).or_else(|_| to_raw_value(text));
    json.map_err(|error| error.to_string())
}

impl Question<'_> {
    /// A line of JSON.
    pub(crate) fn line(&self) -> Result<Vec<u8>, String> {
        let mut line = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        line.push(b'\n');
        Ok(line)
    }
}

impl Fallback {
    /// Runs the command for an item, no longer than until `aborted`, and returns what it wrote; where that `is_result`, there
    /// has to be some.
    ///
    /// # Errors
    /// Why there is no result.
    pub(crate) async fn answer(
        &self,
        question: &[u8],
        is_result: bool,
        environment: impl FnOnce(&mut Command),
        aborted: impl Future<Output = ()>,
    ) -> Result<Vec<u8>, String> {
        let without_key = |command: &mut Command| {
            self.key.iter().for_each(|name| _ = command.env_remove(name));
            environment(command);
        };
        let Ended { exit, output, stderr } = self.program.run(question, without_key, aborted).await;
        let said = stderr.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {}", text::cut(said, 200)) };
        match exit {
            Exit::Status(status) if !status.success() => Err(format!("{status}{said}")),
            Exit::Status(_) if output.too_long => Err(format!("it wrote more than {OUTPUT_BYTES} bytes")),
            Exit::Status(_) => match output.text.trim_ascii_end() {
                [] if is_result => Err(format!("it wrote nothing{said}")),
                result => Ok(result.to_vec()),
            },
            Exit::TimedOut(after) => {
                Err(format!("it did not end within {} (--fallback-timeout){said}", text::duration(after)))
            }
            Exit::GivenUp => Err("the run ended".to_owned()),
            Exit::NotBegun(error) => Err(format!("it cannot be begun: {error}")),
        }
    }
}
