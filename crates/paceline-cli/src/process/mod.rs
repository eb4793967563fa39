//! A command begun for one item: its time, its output and its processes have bounds.

pub(crate) mod group;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, Command};

use self::group::ProcessGroup;

/// More than that of standard output is not read for a last line.
pub(crate) const OUTPUT_BYTES: usize = 1 << 20;

/// How many bytes of the end of standard error are kept.
const STDERR_BYTES: usize = 4 << 10;

/// A command that is asked to end has so long before it is killed.
pub(crate) const KILL_AFTER: Duration = Duration::from_secs(2);

/// How long to read the pipes of a command that has exited: processes that it began in the background may hold them open.
const PIPES_AFTER_EXIT: Duration = Duration::from_millis(250);

/// A command with its arguments.
#[derive(Debug)]
pub(crate) struct Program {
    path: PathBuf,
    arguments: Vec<OsString>,
    timeout: Duration,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) output: Output,
    /// The end of what it wrote to standard error.
    pub(crate) stderr: String,
}

#[derive(Debug)]
pub(crate) enum Exit {
    /// By itself, or by a signal of another process.
    Status(ExitStatus),
    /// Killed by us, after so long.
    TimedOut(Duration),
    /// Killed by us, because the run has to end.
    GivenUp,
    /// It never began.
    NotBegun(io::Error),
}

/// What a process wrote to standard output, up to a bound.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) text: Vec<u8>,
    /// There was more than the bound.
    pub(crate) too_long: bool,
}

impl Program {
    /// # Errors
    /// Says so where there is no such command, or no permission to execute it.
    pub(crate) fn new(name: &OsString, arguments: &[OsString], timeout: Duration) -> Result<Self, String> {
        let path = which::which(name).map_err(|_| {
            let name = name.display();
            format!("cannot execute {name}: no such command, or no permission to execute it")
        })?;
        Ok(Self { path, arguments: arguments.to_vec(), timeout })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs it once with `input` on standard input, and no longer than until `aborted`. `prepare` sets its environment. Dropping
    /// the future kills its process group.
    pub(crate) async fn run(
        &self,
        input: &[u8],
        prepare: impl FnOnce(&mut Command),
        aborted: impl Future<Output = ()>,
    ) -> Ended {
        let mut command = Command::new(&self.path);
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(&mut command);
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
                tokio::join!(feed(stdin, input), read(stdout, &mut output), read_end(stderr_pipe, &mut stderr));
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
                () = aborted => Exit::GivenUp,
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
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        // The pipe is closed then; its exit code shows whether it missed anything.
        let _ = stdin.write_all(input).await;
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
