//! The command line of Paceline.

mod account;
mod args;
mod budget;
mod call_notes;
mod calls;
mod check;
mod cli;
mod collect;
mod completions;

mod database;
mod exit;
mod explain;
mod fallback;
mod files;
mod hosts;
mod job;
mod job_line;
mod job_settings;
mod limiter_state;
mod lines;
mod logging;
mod man;
mod mock;
mod only;
mod open_job;
mod other_hosts;
mod output;
mod plan;
mod process;
mod progress;
mod report;
mod reserve;
mod run;
mod run_args;
mod serve;
mod signals;
mod sim;
mod stats;
mod stops;
mod tasks;
mod text;
mod top;
mod upstream;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser as _};
use mimalloc::MiMalloc;
use paceline_providers::secrets::{hidden, looks_secret};

use crate::cli::{Cli, Command};
use crate::exit::{Failure, Status};

/// A request is some hundred small pieces of memory, which one thread takes and often another gives back.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    logging::tell_panics();
    let cli = Cli::try_parse().unwrap_or_else(|mut error| {
        // That a mistyped flag could be passed as a value helps here with none.
        error.remove(ContextKind::Suggested);
        name_budget(&mut error);
        refuse(&error)
    });
    let requests = matches!(&cli.command, Command::Serve(args) if args.flags.log_requests);
    logging::init(cli.everywhere.log_format, cli.everywhere.quiet, cli.everywhere.verbose, requests);
    let code = match execute(cli) {
        Ok(status) => status.into(),
        Err(failure) => {
            let words = without_typed_secrets(failure.to_string());
            logging::tell(tracing::Level::ERROR, &text::printable_lines(&words));
            ExitCode::from(failure.code())
        }
    };
    logging::flush();
    code
}

/// Names the budget in money to users who look for it under the name of its neighbours.
fn name_budget(error: &mut clap::Error) {
    if matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(flag)) if flag == "--max-cost") {
        error.insert(ContextKind::SuggestedArg, ContextValue::String("--budget-cost".to_owned()));
    }
}

/// Ends a command line that cannot be read.
fn refuse(error: &clap::Error) -> ! {
    let words = error.render().to_string();
    let without = without_typed_secrets(words.clone());
    if !error.use_stderr() || without == words {
        error.exit()
    }
    logging::tell(tracing::Level::ERROR, without.trim_start_matches("error: ").trim_end());
    std::process::exit(error.exit_code())
}

/// Takes keys out of an error: one that was typed in a wrong place would stay in the log. Where none was typed, the error stays
/// as it is.
fn without_typed_secrets(error: String) -> String {
    let mut words = std::env::args_os();
    match words.any(|word| looks_secret(&word.to_string_lossy())) {
        true => hidden(&error).into_owned(),
        false => error,
    }
}

fn execute(cli: Cli) -> Result<Status, Failure> {
    let everywhere = cli.everywhere;
    match cli.command {
        Command::Check(args) => check::command(&args, &everywhere),
        Command::Collect(args) => runtime()?.block_on(collect::command(args, everywhere.quiet)),
        Command::Completions(args) => completions::command(&args),
        Command::Explain(args) => explain::command(&args, &everywhere),
        Command::Man(args) => man::command(Cli::command(), &args),
        Command::Plan(args) => plan::command(&args),
        Command::Report(args) => report::command(&args),
        Command::Sim(args) => sim::command(args, &everywhere),
        Command::Stats(args) => stats::command(&args),
        Command::Run(args) => runtime()?.block_on(run::command(*args, &everywhere)),
        Command::Tasks(args) => runtime()?.block_on(tasks::command(*args, &everywhere)),
        Command::Serve(args) => runtime()?.block_on(serve::command(*args, &everywhere)),
        Command::Top(args) => runtime()?.block_on(top::command(args)),
        Command::Mock(args) => runtime()?.block_on(mock::command(args)),
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    files::raise_limit();
    let failed = |error| files::too_few().map_or_else(|| Failure::interrupted(error), Failure::Refused);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    #[cfg(unix)]
    {
        let _entered = runtime.enter();
        signals::outlive_full_files().map_err(failed)?;
    }
    Ok(runtime)
}
