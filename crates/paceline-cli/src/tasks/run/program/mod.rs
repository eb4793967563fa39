//! A command that works on an item: one process each.

mod exit_report;

use std::ffi::OsString;
use std::time::Duration;

use paceline_core::Class;
use paceline_providers::secrets::hidden;
use paceline_store::work::{self, Task};
use tokio::process::Command;

use super::shutdown::Shutdown;
use crate::exit::Failure;
use crate::process;
use crate::text;

/// The command of `paceline tasks run -- COMMAND ARGS`.
#[derive(Debug)]
pub(super) struct Program(process::Program);

/// A try that failed.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) failure: work::Failure,
    /// It says nothing about what other items would meet.
    pub(super) is_its_own: bool,
}

/// What a command finds in its environment.
pub(super) fn describe(command: &mut Command, task: &Task) {
    command.env("PACELINE_KEY", task.key()).env("PACELINE_GROUP", task.group());
    command.env("PACELINE_ATTEMPT", task.attempt().to_string());
}

impl Program {
    /// # Errors
    /// Refuses a command that is not there or may not be executed.
    pub(super) fn new(command: &[OsString], timeout: Duration) -> Result<Self, Failure> {
        let (name, arguments) =
            command.split_first().ok_or_else(|| Failure::refused("no command: name it after --"))?;
        process::Program::new(name, arguments, timeout).map(Self).map_err(Failure::refused)
    }

    /// Works on an item once.
    ///
    /// # Errors
    /// The command's report, or how it ended.
    pub(super) async fn work(&self, task: &Task, shutdown: &Shutdown) -> Result<(), Failed> {
        let environment = |command: &mut Command| describe(command, task);
        let ended = self.0.run(task.payload().as_bytes(), environment, shutdown.aborting()).await;
        exit_report::outcome(&ended).map_err(|mut failure| {
            // What a command writes last is kept in the store, and may repeat its key.
            failure.message = hidden(&failure.message).into_owned();
            if failure.class == Class::Account || failure.is_for_group {
                // This message is shown for the whole group, which has neither item nor command.
                failure.message = format!("{}: {}", self.name(), failure.message);
            }
            Failed { failure, is_its_own: exit_report::is_of_the_item(&ended) }
        })
    }

    fn name(&self) -> String {
        let name = self.0.path().file_name().unwrap_or(self.0.path().as_os_str());
        text::printable(&name.to_string_lossy()).into_owned()
    }
}
