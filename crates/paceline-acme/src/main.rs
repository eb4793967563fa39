#![doc = include_str!("../README.md")]

mod account;
mod args;
mod challenge;
mod client;
mod csr;
#[cfg(test)]
mod decisions;
mod errors;
mod items;
mod lines;
mod order;
mod planner;
mod reporter;
mod run;
mod scanner;
mod schedule;
mod storage;

use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use jiff::Zoned;
use jiff::tz::TimeZone;
use paceline::Rng;
use paceline_providers::escape::printable;
use paceline_store::work::Status;
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::args::Args;
use crate::challenge::Challenges;
use crate::lines::Lines;
use crate::reporter::Report;
use crate::run::RunError;
use crate::schedule::Schedule;

type AnyError = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,acme_renewal=info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines(std::io::stderr()));
    // A log whose reader is gone is no reason to stop.
    log.with_target(false).with_ansi(false).log_internal_errors(false).init();
    match execute(&args) {
        Ok(exit_code) => ExitCode::from(exit_code),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {}", printable(&error.to_string()));
            ExitCode::from(error.downcast_ref::<RunError>().map_or(2, RunError::exit_code))
        }
    }
}

fn execute(args: &Args) -> Result<u8, AnyError> {
    args.refuse_passwords()?;
    args.refuse_reports_in_the_way()?;
    for path in args.json.iter().chain(&args.markdown) {
        // A report that cannot be written is better known before anything is sent.
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if args.dry_run {
        return publish(args, &run::dry(args)?);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listening = Challenges::serve(args.listen).await;
        let challenges = listening.map_err(|error| format!("cannot answer challenges on {}: {error}", args.listen))?;
        let stop = stop_signal()?;
        match args.every {
            Some(every) => {
                let schedule = Schedule { every, at: args.at, spread: args.spread };
                again_and_again(args, &challenges, schedule, stop).await
            }
            None => {
                let report = run::once(args, &challenges, stopped(stop)).await?;
                publish(args, &report).or_else(|error| {
                    // What was done is done, but the program that reads the report must not take a missing one for a success.
                    tracing::error!("{error}");
                    Ok(Status::Deferred.exit_code())
                })
            }
        }
    })
}

/// Runs by the schedule until it is asked to stop; the exit code is that of the last run. What goes wrong with one run is no
/// reason to forget the next.
async fn again_and_again(
    args: &Args,
    challenges: &Challenges,
    schedule: Schedule,
    stop: watch::Receiver<bool>,
) -> Result<u8, AnyError> {
    let local = || run::now().to_zoned(TimeZone::system());
    let mut rng = Rng::new(RandomState::new().hash_one(0));
    let mut next = schedule.first(&local(), rng.unit())?;
    let mut exit_code = 0;
    loop {
        if !wait_until(&next, &local, stop.clone()).await {
            return Ok(exit_code);
        }
        exit_code = match run::once(args, challenges, stopped(stop.clone())).await {
            Ok(report) => publish(args, &report).unwrap_or_else(|error| {
                tracing::error!("{error}");
                report.exit_code()
            }),
            Err(error) => {
                tracing::error!("{error}");
                error.exit_code()
            }
        };
        next = schedule.next(&local(), &next, rng.unit())?;
        tracing::info!("the next run begins at {next:.0}");
    }
}

/// Waits by the wall clock, reading it every minute: a machine that was suspended must not wait on. False when asked to stop.
async fn wait_until(time: &Zoned, local: &impl Fn() -> Zoned, stop: watch::Receiver<bool>) -> bool {
    let asked = stop.clone();
    let mut stop = std::pin::pin!(stopped(stop));
    loop {
        if *asked.borrow() {
            return false;
        }
        let left = time.duration_since(&local());
        let Ok(left) = std::time::Duration::try_from(left) else { return true };
        if left.is_zero() {
            return true;
        }
        tokio::select! {
            () = tokio::time::sleep(left.min(std::time::Duration::from_secs(60))) => {}
            () = &mut stop => return false,
        }
    }
}

/// Prints the report, writes it where it was asked for, and returns its exit code.
fn publish(args: &Args, report: &Report) -> Result<u8, AnyError> {
    // A reader that closed its end changes nothing about the run.
    let _ = std::io::stdout().write_all(report.text().as_bytes());
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    if let Some(path) = &args.markdown {
        std::fs::write(path, report.markdown()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(report.exit_code())
}

/// True after Ctrl-C or SIGTERM: what is in flight then has 30 s to end. A second one ends it at once; the next run goes on.
fn stop_signal() -> std::io::Result<watch::Receiver<bool>> {
    let (sender, stop) = watch::channel(false);
    #[cfg(unix)]
    let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        for is_first in [true, false] {
            #[cfg(unix)]
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
            #[cfg(not(unix))]
            let _ = tokio::signal::ctrl_c().await;
            if is_first {
                let _ = sender.send(true);
            }
        }
        std::process::exit(3);
    });
    Ok(stop)
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
