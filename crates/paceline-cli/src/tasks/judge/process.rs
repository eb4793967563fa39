//! The process behind a judge: begun for one question, and never left behind.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use paceline_store::work::{InvalidDecision, Judgement, parse_decision};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};

use crate::process::group::ProcessGroup;
use crate::text;

/// A longer answer is none: a decision is a line.
const ANSWER_BYTES: u64 = 64 << 10;

/// How much of standard error is kept, in bytes, for the first warning.
const STDERR_BYTES: usize = 400;

/// By this exit code a command says that it cannot at present, and may later: EX_TEMPFAIL.
const TRY_AGAIN: i32 = 75;

/// A program and its arguments.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    name: String,
    arguments: Vec<String>,
}

/// Why a line names no program that could be begun.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoProgram {
    #[error("its quotes are not closed")]
    Quotes,
    #[error("it names no command")]
    Empty,
    #[error("cannot begin {name:?}: {source}; give the path of a file that may be executed")]
    NotThere { name: String, source: which::Error },
}

/// Why a judge did not answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Silence {
    #[error("it cannot be begun: {0}")]
    NotBegun(std::io::Error),
    #[error("it did not answer in time")]
    TooSlow,
    #[error("it wrote more than 64 KiB")]
    TooLong,
    #[error("it was rate-limited itself{}", quoted(.message))]
    ComeBackLater { message: String },
    #[error("it ended with {status}{}", quoted(.message))]
    Failed { status: ExitStatus, message: String },
    #[error("{invalid}{}", quoted(.message))]
    InvalidDecision { invalid: InvalidDecision, message: String },
}

impl Silence {
    /// The name of its kind, for the log.
    pub(super) const fn cause(&self) -> &'static str {
        match self {
            Self::NotBegun(_) => "not begun",
            Self::TooSlow => "too slow",
            Self::TooLong => "too long",
            Self::ComeBackLater { .. } => "rate-limited",
            Self::Failed { .. } => "failed",
            Self::InvalidDecision { .. } => "nonsense",
        }
    }
}

fn quoted(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!("; it wrote: {message}") }
}

impl Program {
    pub(super) fn parse(line: &str) -> Result<Self, NoProgram> {
        let command = shlex::split(line).ok_or(NoProgram::Quotes)?;
        let (name, arguments) = command.split_first().ok_or(NoProgram::Empty)?;
        let path = which::which(name).map_err(|source| NoProgram::NotThere { name: name.clone(), source })?;
        Ok(Self { path, name: name.clone(), arguments: arguments.to_vec() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Asks one question. Dropping the future kills the process and its children.
    pub(super) async fn ask(&self, question: String) -> Result<Judgement, Silence> {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ProcessGroup::in_own_group(&mut command);
        let mut child = command.spawn().map_err(Silence::NotBegun)?;
        let group = ProcessGroup::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let ((), answer, message) = tokio::try_join!(write(stdin, question), answer(stdout), first_of_stderr(stderr))?;
        let status = child.wait().await.map_err(Silence::NotBegun)?;
        group.has_ended();
        if status.code() == Some(TRY_AGAIN) {
            return Err(Silence::ComeBackLater { message });
        }
        if !status.success() {
            return Err(Silence::Failed { status, message });
        }
        parse_decision(&answer).map_err(|invalid| match error_of(&answer) {
            Some(message) => Silence::ComeBackLater { message },
            None => Silence::InvalidDecision { invalid, message },
        })
    }
}

/// A judge need not read the question.
async fn write(stdin: Option<ChildStdin>, question: String) -> Result<(), Silence> {
    if let Some(mut stdin) = stdin {
        // The pipe is closed then; an answer without reading it all counts all the same.
        let _ = stdin.write_all(format!("{question}\n").as_bytes()).await;
    }
    Ok(())
}

async fn answer(stdout: Option<impl AsyncRead + Unpin>) -> Result<String, Silence> {
    let mut answer = Vec::new();
    if let Some(stdout) = stdout {
        stdout.take(ANSWER_BYTES + 1).read_to_end(&mut answer).await.map_err(Silence::NotBegun)?;
    }
    if answer.len() as u64 > ANSWER_BYTES {
        return Err(Silence::TooLong);
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The beginning of standard error; the rest is read and dropped, so that the process does not block.
async fn first_of_stderr(stderr: Option<impl AsyncRead + Unpin>) -> Result<String, Silence> {
    let mut message = Vec::new();
    if let Some(mut stderr) = stderr {
        let mut buffer = [0; 4 << 10];
        loop {
            let read = stderr.read(&mut buffer).await.map_err(Silence::NotBegun)?;
            if read == 0 {
                break;
            }
            let room = STDERR_BYTES - message.len();
            message.extend_from_slice(&buffer[..read.min(room)]);
        }
    }
    Ok(String::from_utf8_lossy(&message).trim().to_owned())
}

/// The message of an answer like `{"error": ...}`: the judge asked a server that refused.
fn error_of(answer: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(answer).ok()?;
    let error = answer.get("error").filter(|error| !error.is_null())?;
    let message = error.get("message").and_then(Value::as_str).or(error.as_str());
    Some(text::cut(&message.map_or_else(|| error.to_string(), str::to_owned), STDERR_BYTES))
}
