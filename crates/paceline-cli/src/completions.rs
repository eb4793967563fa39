//! `paceline completions`: what a shell needs to complete commands and flags.

use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::{Failure, Status};
use crate::output;

/// Prints the script.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn command(args: &CompletionsArgs) -> Result<Status, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "paceline", &mut script);
    output::print(|out| out.write_all(&script))?;
    Ok(Status::Success)
}
