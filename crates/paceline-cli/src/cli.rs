//! The commands and global flags. Every name here is part of the interface: scripts rely on it.

use clap::{Args, Parser, Subcommand};

use crate::args::Everywhere;
use crate::check::CheckArgs;
use crate::man::ManArgs;
use crate::run_args::RunArgs;
use crate::stats::StatsArgs;
use crate::{collect, explain, mock, plan, report, serve, sim, tasks, top};

/// Paces every call to a rate-limited API: as fast as its limits permit, nothing lost, no stored answer paid for twice.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, about, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) everywhere: Everywhere,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Values:
  Durations  200ms  5s  15m  1h30m  7d; a bare number is seconds
  Limits     500rpm  '10 rps'  500rpm,200ktpm  '90 per 10s'  '1M tokens per 1h'  '50 concurrent'
  Counts     500  1_000  800k  2M

Exit codes:
  0  SUCCESS   everything succeeded
  1  PARTIAL   finished, some items failed or were skipped (FAILED: all of them)
  2            usage, configuration or input is wrong; nothing was sent
  3  DEFERRED  not finished: run the same command again to continue, unless a budget or a key stopped it";

/// One file of the source each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send every request of a JSONL file and write the answers to another
    Run(Box<RunArgs>),
    /// Collect the results of a job that many hosts work on (`run --store`), or list such jobs
    Collect(collect::Args),
    /// Work on items that may have to wait for minutes or days: add, run and inspect them
    Tasks(Box<tasks::Args>),
    /// Pace the calls of other programs, in any language: a gateway whose address replaces that of the API
    Serve(Box<serve::Args>),
    /// Show the longest time that the retries of an item, and of a run, may take; sends nothing
    Plan(plan::Args),
    /// Show the limits in force and where each value came from; sends nothing
    Check(Box<CheckArgs>),
    /// Show the progress of a running or finished job, from its journal
    Stats(StatsArgs),
    /// Watch a gateway in the terminal: why each scope waits and for how long, rates, recent decisions
    Top(top::TopArgs),
    /// Write a job as one page for a browser, in words and charts: throughput, refusals, limits, failures, cost
    Report(report::ReportArgs),
    /// Explain how an API's answer is read, step by step: class, action, wait and limits; sends nothing
    Explain(explain::Args),
    /// Serve a rate-limited API on this machine, to try things out
    Mock(mock::Args),
    /// Try policies against model providers, in virtual time
    Sim(sim::Args),
    /// Print the completion script of a shell
    Completions(CompletionsArgs),
    /// Write the pages of the manual into a folder, for packages
    #[command(hide = true)]
    Man(ManArgs),
}

/// `paceline completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_of_every_command_stand_before_or_after_its_name() {
        for line in ["paceline --quiet check --json", "paceline check --json --quiet"] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            assert!(cli.everywhere.quiet, "{line}");
        }
    }

    #[test]
    fn wrong_numbers_reach_the_configuration_which_names_the_knob() {
        let cli = Cli::try_parse_from("paceline run in -o out --burst -1 --limit -5rpm".split(' ')).expect("parses");
        let Command::Run(args) = cli.command else { panic!("not a run") };
        assert_eq!(
            (args.upstream.burst.as_deref(), args.upstream.limits.limit.as_slice()),
            (Some("-1"), &["-5rpm".to_owned()][..])
        );
    }

    #[test]
    fn durations_have_units_and_default_to_seconds() {
        let cli =
            Cli::try_parse_from("paceline run in -o out --timeout 200ms --max-wait 90".split(' ')).expect("parses");
        let Command::Run(args) = cli.command else { panic!("not a run") };
        assert_eq!((args.timeout, args.max_wait), (Duration::from_millis(200), Duration::from_secs(90)));
        assert!(Cli::try_parse_from("paceline run in -o out --timeout ten".split(' ')).is_err());
    }
}
