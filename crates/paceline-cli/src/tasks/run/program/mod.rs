//! A command that works on an item: one process each, ended whole when its time is over.

mod exit_report;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use paceline_core::Class;
use paceline_store::work::{self, Task};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};

use super::shutdown::Shutdown;
use crate::exit::Failure;
use crate::tasks::process_group::ProcessGroup;
use crate::text;

/// More than that of standard output is not read for a last line.
const OUTPUT_BYTES: usize = 1 << 20;

/// How many bytes of the end of standard error are kept.
const STDERR_BYTES: usize = 4 << 10;

/// A command that is asked to end has so long before it is killed.
pub(super) const KILL_AFTER: Duration = Duration::from_secs(2);

/// How long to read the pipes of a command that has exited: processes that it began in the background may hold them open.
const PIPES_AFTER_EXIT: Duration = Duration::from_millis(250);

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
    pub(super) stderr: String,
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
    pub(super) fn new(command: &[OsString], timeout: Duration) -> Result<Self, Failure> {
        let (name, arguments) =
            command.split_first().ok_or_else(|| Failure::refused("no command: name it after --"))?;
        let path = which::which(name).map_err(|_| {
            let name = name.display();
            Failure::refused(format!("cannot execute {name}: no such command, or no permission to execute it"))
        })?;
        Ok(Self { path, arguments: arguments.to_vec(), timeout })
    }

    /// Works on an item once.
    ///
    /// # Errors
    /// The command's report, or how it ended.
    pub(super) async fn work(&self, task: &Task, shutdown: &Shutdown) -> Result<(), Failed> {
        let ended = self.run(task, shutdown).await;
        exit_report::outcome(&ended).map_err(|mut failure| {
            if failure.class == Class::Account || failure.is_for_group {
                // This message is shown for the whole group, which has neither item nor command.
                failure.message = format!("{}: {}", self.name(), failure.message);
            }
            Failed { failure, is_its_own: exit_report::is_of_the_item(&ended) }
        })
    }

    fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str());
        text::printable(&name.to_string_lossy()).into_owned()
    }

    async fn run(&self, task: &Task, shutdown: &Shutdown) -> Ended {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env("PACELINE_KEY", task.key()).env("PACELINE_GROUP", task.group());
        command.env("PACELINE_ATTEMPT", task.attempt().to_string());
        ProcessGroup::in_own_group(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return Ended { exit: Exit::NotBegun(error), output: Output::default(), stderr: String::new() };
            }
        };
        let group = ProcessGroup::of(&child);
        let (stdin, stdout, stderr_pipe) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (mut output, mut stderr) = (Output::default(), Vec::new());
        let exit = {
            let pipes = async {
                tokio::join!(
                    feed(stdin, task.payload()),
                    read(stdout, &mut output),
                    read_end(stderr_pipe, &mut stderr)
                );
            };
            tokio::pin!(pipes);
            let by_itself = async {
                let status = tokio::select! {
                    status = child.wait() => status,
                    () = &mut pipes => return child.wait().await,
                };
                // Its children may go on; its own output has arrived by now.
                let _ = tokio::time::timeout(PIPES_AFTER_EXIT, &mut pipes).await;
                status
            };
            tokio::select! {
                status = by_itself => status.map_or_else(Exit::NotBegun, Exit::Status),
                () = tokio::time::sleep(self.timeout) => Exit::TimedOut(self.timeout),
                () = shutdown.aborting() => Exit::GivenUp,
            }
        };
        if matches!(exit, Exit::TimedOut(_) | Exit::GivenUp) {
            group.ask_to_end();
            let _ = tokio::time::timeout(KILL_AFTER, child.wait()).await;
            // Also what did not listen, and what it left behind.
            drop(group);
            let _ = child.wait().await;
        } else {
            group.has_ended();
        }
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Ended { exit, output, stderr }
    }
}

/// A command need not read its item.
async fn feed(stdin: Option<ChildStdin>, payload: &str) {
    if let Some(mut stdin) = stdin {
        // The pipe is closed then; its exit code shows whether it missed anything.
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
async fn read_end(pipe: Option<impl AsyncRead + Unpin>, end: &mut Vec<u8>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; STDERR_BYTES];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        end.extend_from_slice(&buffer[..read]);
        end.drain(..end.len().saturating_sub(STDERR_BYTES));
    }
}
