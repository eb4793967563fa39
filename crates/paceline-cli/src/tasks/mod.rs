//! `paceline tasks`: items that are tried until they are done, over minutes or days.

mod add;
mod family;
mod judge;
mod run;
mod store;

use crate::args::Everywhere;
use crate::exit::{Failure, Status};

/// `paceline tasks`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// One file of the source each.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Put items into a store
    Add(add::Args),
    /// Work on what is due, until everything has ended or has to wait for long
    Run(Box<run::Args>),
}

/// Does what is asked of a store.
///
/// # Errors
/// Refuses bad usage and stores that are none; says what broke under way.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    match args.command {
        Command::Add(args) => add::command(args, everywhere).await,
        Command::Run(args) => run::command(*args, everywhere).await,
    }
}
