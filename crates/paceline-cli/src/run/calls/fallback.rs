//! `--fallback COMMAND`: its result stands in for the answer of an API that stayed down.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::sync::Arc;

use paceline_config::{KeySource, Upstream};
use paceline_core::Class;
use paceline_store::{ClaimedItem, Tally};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::process::Command;
use tokio::task::{Id, JoinSet};

use crate::exit::Failure;
use crate::process::{Ended, Exit, OUTPUT_BYTES, Program};
use crate::run::args::RunArgs;
use crate::run::calls::fail_fast::Failed;
use crate::run::calls::item::Context;
use crate::text;

/// The variable that switches a configured fallback off, and asks for one where none is configured.
const SWITCH: &str = "ENABLE_FALLBACK_PROCESSING";

/// So many items may wait for the command before no further ones are sent: each of them is in memory.
const LONGEST_QUEUE: usize = 1_000;

/// The command of a run.
#[derive(Debug)]
pub(crate) struct Fallback {
    program: Program,
    /// The variable with the key of the API, which the command does not get.
    key: Option<String>,
}

/// The fallback of a run, if it has one.
///
/// # Errors
/// Refuses a command that cannot be executed, a switch that is neither on nor off, and one that is on without a command.
pub(crate) fn configured(args: &RunArgs, upstream: &Upstream) -> Result<Option<Arc<Fallback>>, Failure> {
    let switch = std::env::var_os(SWITCH).map(|value| switch(&value)).transpose()?;
    let key = format!("upstream.{}.fallback", upstream.name);
    let given = args.fallback.as_ref().map(|line| ("--fallback", line));
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
        Program::new(&OsString::from(name), &arguments, args.fallback_timeout).map_err(|why| refused(&why))?;
    let key = match &upstream.key {
        KeySource::Variable { name, .. } => Some(name.clone()),
        KeySource::None | KeySource::File(_) => None,
    };
    Ok(Some(Arc::new(Fallback { program, key })))
}

fn switch(value: &OsString) -> Result<bool, Failure> {
    match value.to_string_lossy().trim().to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(Failure::refused(format!("{SWITCH}={:?}: expected true or false", value.to_string_lossy()))),
    }
}

/// An item that has no answer because the API stayed down.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) item: ClaimedItem,
    pub(crate) without: Without,
}

/// What becomes of an item without a fallback.
#[derive(Debug)]
pub(crate) enum Without {
    /// It fails.
    Fails(Box<Failed>),
    /// It waits for the next run, because this one ended for that reason.
    Waits(&'static str),
}

impl Down {
    /// Why there is no answer, as a code.
    pub(crate) fn reason(&self) -> &str {
        match &self.without {
            Without::Fails(failed) => failed.finished.reason.as_deref().unwrap_or_default(),
            Without::Waits(reason) => reason,
        }
    }

    /// The last failure.
    pub(crate) fn message(&self) -> &str {
        let last = self.tally().last.as_ref().and_then(|last| last.message.as_deref());
        last.unwrap_or("the run ended before the API could be asked")
    }

    /// The item's sends.
    pub(crate) fn tally(&self) -> &Tally {
        match &self.without {
            Without::Fails(failed) => &failed.finished.tally,
            Without::Waits(_) => &self.item.tally,
        }
    }
}

/// What the command gets on standard input.
#[derive(Serialize)]
struct Question<'a> {
    key: String,
    request: Request<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    error: WhyDown<'a>,
}

#[derive(Serialize)]
struct Request<'a> {
    method: &'a str,
    url: &'a str,
    body: Box<RawValue>,
}

#[derive(Serialize)]
struct WhyDown<'a> {
    reason: &'a str,
    class: Option<&'static str>,
    status: Option<u16>,
    code: Option<&'a str>,
    message: &'a str,
}

impl Fallback {
    async fn answer(&self, key: &str, question: &[u8]) -> Result<Vec<u8>, String> {
        let environment = |command: &mut Command| {
            self.key.iter().for_each(|name| _ = command.env_remove(name));
            command.env("PACELINE_KEY", key);
        };
        let Ended { exit, output, stderr } = self.program.run(question, environment, std::future::pending()).await;
        let said = stderr.trim();
        let said = if said.is_empty() { String::new() } else { format!(": {}", text::cut(said, 200)) };
        match exit {
            Exit::Status(status) if !status.success() => Err(format!("{status}{said}")),
            Exit::Status(_) if output.too_long => Err(format!("it wrote more than {OUTPUT_BYTES} bytes")),
            Exit::Status(_) => match output.text.trim_ascii_end() {
                [] => Err(format!("it wrote nothing{said}")),
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

/// A command that has ended, or will not be asked.
pub(crate) type Answered = (Down, Result<Vec<u8>, String>);

/// The items that wait for the command, and the commands that run.
#[derive(Default)]
pub(crate) struct Fallbacks {
    fallback: Option<Arc<Fallback>>,
    waiting: VecDeque<Down>,
    tasks: JoinSet<Result<Vec<u8>, String>>,
    running: HashMap<Id, Down>,
}

impl Fallbacks {
    pub(crate) fn new(fallback: Option<Arc<Fallback>>) -> Self {
        Self { fallback, ..Self::default() }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.fallback.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Whether no further item should be sent before some of these have ended.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= LONGEST_QUEUE
    }

    /// Takes items in, and begins as many commands as there are processors.
    pub(crate) fn add(&mut self, context: &Arc<Context>, down: impl IntoIterator<Item = Down>) {
        self.waiting.extend(down);
        let Some(fallback) = &self.fallback else { return };
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        while self.running.len() < most
            && let Some(down) = self.waiting.pop_front()
        {
            let (fallback, question) = (Arc::clone(fallback), question(context, &down));
            let task = self.tasks.spawn(async move {
                let (key, question) = question?;
                fallback.answer(&key, &question).await
            });
            self.running.insert(task.id(), down);
        }
    }

    /// The next command that ends; waits for ever where none runs.
    pub(crate) async fn next(&mut self) -> Answered {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, answer))) => (self.running.remove(&id).expect("each has an item"), answer),
            Some(Err(error)) => {
                (self.running.remove(&error.id()).expect("each has an item"), Err("the run ended".to_owned()))
            }
            None => std::future::pending().await,
        }
    }

    /// Kills the commands that run, which [`next`](Self::next) then returns, and hands back what waits.
    pub(crate) fn abort(&mut self) -> VecDeque<Down> {
        self.tasks.abort_all();
        std::mem::take(&mut self.waiting)
    }
}

/// The key of an item, and what the command is told of it.
fn question(context: &Context, down: &Down) -> Result<(String, Vec<u8>), String> {
    let (echo, call) = context.request_of(&down.item).map_err(|error| error.to_string())?;
    let body = std::str::from_utf8(&call.body).unwrap_or_default();
    let body = serde_json::from_str::<Box<RawValue>>(body).or_else(|_| to_raw_value(body));
    let body = body.map_err(|error| error.to_string())?;
    let last = down.tally().last.as_ref();
    let key = echo.custom_id.to_string();
    let question = Question {
        key: key.clone(),
        request: Request { method: call.method.as_str(), url: &call.url, body },
        metadata: echo.metadata.as_deref(),
        error: WhyDown {
            reason: down.reason(),
            class: last.map(|last| last.class).map(Class::as_str),
            status: last.and_then(|last| last.status),
            code: last.and_then(|last| last.code.as_deref()),
            message: down.message(),
        },
    };
    let mut question = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
    question.push(b'\n');
    Ok((key, question))
}
