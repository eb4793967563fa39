//! A command that works on an item: one process each, ended whole when its time is over.

mod said;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use paceline_core::Class;
use paceline_store::work::{self, Task};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};

use super::course::Course;
use crate::exit::Failure;
use crate::tasks::family::Family;
use crate::text;

/// More than that of standard output is not read for a last line.
const OUTPUT_BYTES: usize = 1 << 20;

/// What is kept of the end of standard error.
const WORDS_BYTES: usize = 4 << 10;

/// A command that is asked to end has so long before it is killed.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(2);

/// What a command began in the background may hold its pipes open; they are left after that.
const LINGERING: Duration = Duration::from_millis(250);

/// The command of `paceline tasks run -- COMMAND ARGS`.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    timeout: Duration,
}

/// How a process ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) exit: Exit,
    pub(super) output: Output,
    /// The end of what it wrote to standard error.
    pub(super) words: String,
}

#[derive(Debug)]
pub(super) enum Exit {
    /// By itself, or by a signal of another process.
    Status(ExitStatus),
    /// Killed by us, after so long.
    TimedOut(Duration),
    /// Killed by us, because the run has to end.
    GivenUp,
    /// It never began.
    NotBegun(io::Error),
}

/// A try that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) failure: work::Failure,
    /// It says nothing about what other items would meet.
    pub(super) is_its_own: bool,
}

/// What a process wrote to standard output, up to a bound.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) text: Vec<u8>,
    /// There was more than the bound.
    pub(super) too_long: bool,
}

impl Program {
    /// # Errors
    /// Refuses a command that is not there or may not be executed.
    pub(super) fn new(words: &[OsString], timeout: Duration) -> Result<Self, Failure> {
        let (name, arguments) = words.split_first().ok_or_else(|| Failure::refused("no command: name it after --"))?;
        let path = which::which(name).map_err(|_| {
            let name = name.display();
            Failure::refused(format!("cannot execute {name}: there is no such command, or it may not be executed"))
        })?;
        Ok(Self { path, arguments: arguments.to_vec(), timeout })
    }

    /// Works on an item once.
    ///
    /// # Errors
    /// What the command said, or what became of it.
    pub(super) async fn work(&self, task: &Task, course: &Course) -> Result<(), Failed> {
        let ended = self.run(task, course).await;
        said::verdict(&ended).map_err(|mut failure| {
            if failure.class == Class::Account || failure.is_for_group {
                // These words stand at the whole group, which knows neither item nor command.
                failure.message = format!("{}: {}", self.name(), failure.message);
            }
            Failed { failure, is_its_own: said::is_of_the_item(&ended) }
        })
    }

    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        text::printable(&name.to_string_lossy()).into_owned()
    }

    async fn run(&self, task: &Task, course: &Course) -> Ended {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("PACELINE_KEY", task.key()).env("PACELINE_GROUP", task.group());
        command.env("PACELINE_ATTEMPT", task.attempt().to_string());
        Family::of_its_own(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return Ended { exit: Exit::NotBegun(error), output: Output::default(), words: String::new() };
            }
        };
        let family = Family::of(&child);
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut output, mut words) = (Output::default(), Vec::new());
        let exit = {
            let pipes = async {
                tokio::join!(feed(stdin, task.payload()), read(stdout, &mut output), read_end(stderr, &mut words));
            };
            tokio::pin!(pipes);
            let by_itself = async {
                let status = tokio::select! {
                    status = child.wait() => status,
                    () = &mut pipes => return child.wait().await,
                };
                // What it began may go on; what it said itself has arrived by now.
                let _ = tokio::time::timeout(LINGERING, &mut pipes).await;
                status
            };
            tokio::select! {
                status = by_itself => status.map_or_else(Exit::NotBegun, Exit::Status),
                () = tokio::time::sleep(self.timeout) => Exit::TimedOut(self.timeout),
                () = course.gives_up() => Exit::GivenUp,
            }
        };
        if matches!(exit, Exit::TimedOut(_) | Exit::GivenUp) {
            family.ask_to_end();
            let _ = tokio::time::timeout(LAST_WORDS, child.wait()).await;
            // Also what did not listen, and what it left behind.
            drop(family);
            let _ = child.wait().await;
        } else {
            family.has_ended();
        }
        let words = String::from_utf8_lossy(&words).into_owned();
        Ended { exit, output, words }
    }
}

/// A command need not read its item.
async fn feed(stdin: Option<ChildStdin>, payload: &str) {
    if let Some(mut stdin) = stdin {
        // Its end is closed, then: its exit code tells whether it missed anything.
        let _ = stdin.write_all(payload.as_bytes()).await;
    }
}

/// Reads to the end, and keeps everything up to the bound.
async fn read(stdout: Option<impl AsyncRead + Unpin>, output: &mut Output) {
    let Some(mut stdout) = stdout else { return };
    let mut buffer = vec![0; 16 << 10];
    // A pipe that breaks ends like one that is closed.
    while let Ok(read @ 1..) = stdout.read(&mut buffer).await {
        let room = OUTPUT_BYTES - output.text.len();
        output.text.extend_from_slice(&buffer[..read.min(room)]);
        output.too_long |= read > room;
    }
}

/// Reads to the end, and keeps the end.
async fn read_end(stderr: Option<impl AsyncRead + Unpin>, words: &mut Vec<u8>) {
    let Some(mut stderr) = stderr else { return };
    let mut buffer = vec![0; WORDS_BYTES];
    while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
        words.extend_from_slice(&buffer[..read]);
        words.drain(..words.len().saturating_sub(WORDS_BYTES));
    }
}
