//! Which flags of a run mean nothing where many hosts share its job: each is refused before the first call, with what to do.

use std::path::Path;

use crate::database;
use crate::exit::Failure;
use crate::run_args::{FormatFlag, RunArgs};

/// Refuses a store that is none, and flags that hold for one journal and not for the whole job.
///
/// # Errors
/// Names the flag, why, and what to do.
pub(super) fn check(args: &RunArgs, store: &str) -> Result<(), Failure> {
    if !database::is_address(store) {
        return Err(Failure::refused(
            "--store of a run is a Postgres that many workers share: expected postgres://USER@HOST/DATABASE; on one host the journal \
             keeps the job, without --store",
        ));
    }
    if args.input.is_none() && args.job.is_none() {
        return Err(Failure::refused(NO_JOB));
    }
    if let Some((flag, why)) = of_one_journal(args) {
        return Err(Failure::refused(format!("{flag} cannot be used with --store: {why}")));
    }
    if args.input.is_none()
        && let Some(flag) = of_an_input(args)
    {
        return Err(Failure::refused(format!(
            "{flag} says how an input is read, and --job without an input takes the lines as they are in the store: leave it out, or \
             name the input"
        )));
    }
    Ok(())
}

/// Why a host cannot begin.
pub(super) const NO_JOB: &str = "a worker needs a job: name its input <IN>, or with --job a job that another worker makes, which needs no input here";

/// The first flag that cannot hold for a job of many hosts.
fn of_one_journal(args: &RunArgs) -> Option<(&'static str, &'static str)> {
    let is_pipe = |input: &Path| input == Path::new("-") || input.metadata().is_ok_and(|about| !about.is_file());
    let refused = [
        (
            args.input.as_deref().is_some_and(is_pipe),
            "an input that is no file",
            "a worker that is killed could not read it again: write it to a file, and name that",
        ),
        (args.dry_run, "--dry-run", "it looks at an input and at no store: run it without --store"),
        (
            args.budget_tokens.is_some() || args.budget_cost.is_some(),
            "a budget",
            "no worker knows what the others have spent: bound each run with --max-tokens, or set the budget at the provider",
        ),
        (args.no_journal, "--no-journal", "the journal is what a killed worker goes on from"),
        (args.no_check, "--no-check", "an id that is repeated at another worker would go unnoticed"),
        (
            !args.done.is_empty(),
            "--done",
            "the other workers would send those items all the same: leave their lines out of the input",
        ),
        (
            args.accept_changed_input,
            "--accept-changed-input",
            "workers have taken lines already: name another job with --job, and run the new input as that",
        ),
        (
            args.output.extension().is_some_and(|end| end == "gz"),
            "-o with the ending .gz",
            "a worker writes its results as they come: name a file without it; `paceline collect` writes a compressed one",
        ),
        (args.only.names_hosts(), "--only-host", "the store does not know where a line went: choose by --only-status"),
        (
            args.ordered,
            "--ordered",
            "one worker has a part of the results: `paceline collect` writes all of them in order",
        ),
    ];
    refused.into_iter().find_map(|(given, flag, why)| given.then_some((flag, why)))
}

/// The first flag that says how an input is read.
fn of_an_input(args: &RunArgs) -> Option<&'static str> {
    let flags = [
        (args.format != FormatFlag::Auto, "--format"),
        (args.endpoint.is_some(), "--endpoint"),
        (args.model.is_some(), "--model"),
        (args.max_output_tokens.is_some(), "--max-output-tokens"),
        (args.id_column.is_some(), "--id-column"),
        (args.skip_bad_lines, "--skip-bad-lines"),
    ];
    flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
}
