//! `paceline tasks`: items that are tried until they are done, over minutes or days.

mod add;
mod address;
mod amend;
mod closed_scopes;
mod compact;
mod export;
mod groups;
mod held;
mod hosts;
mod judge;
mod list;
mod opened;
mod pages;
mod prune;
mod report;
mod row;
mod run;
mod same_at_each_try;
mod shared_text;
mod show;
mod store;

pub(crate) use self::run::defaults as run_defaults;
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
    /// Work on due items until all have ended or the next is due too late (--max-wait)
    Run(Box<run::Args>),
    /// List the items of a store with their states
    List(list::Args),
    /// Show one item: its payload, and every decision about it
    Show(show::Args),
    /// Make items due at once: those that wait, failed, were skipped or cancelled, or are left to the next run
    Retry(amend::RetryArgs),
    /// Cancel items that have not ended; the result of a try under way is not recorded
    Cancel(amend::Args),
    /// Report how many items succeeded, and each item that was retried, put off or failed, with its reason
    Report(report::Args),
    /// Print items as lines that `add --from` takes, their payloads included
    Export(export::Args),
    /// Remove items that ended long ago, and free their disk space
    Prune(prune::Args),
}

/// Does what is asked of a store.
///
/// # Errors
/// Refuses bad usage and stores that are none; and reports a failure during the run.
pub(crate) async fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    match args.command {
        Command::Add(args) => add::command(args, everywhere).await,
        Command::Run(args) => run::command(*args, everywhere).await,
        Command::List(args) => list::command(args).await,
        Command::Show(args) => show::command(args).await,
        Command::Retry(args) => amend::retry(args).await,
        Command::Cancel(args) => amend::cancel(args).await,
        Command::Report(args) => report::command(args).await,
        Command::Export(args) => export::command(args).await,
        Command::Prune(args) => prune::command(args).await,
    }
}
