//! `paceline sim compare`: many scenarios under many policies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use indicatif::{ProgressBar, ProgressStyle};
use paceline_sim::{Failed, Measures, Scenario, Setup, compare_each, medians, policy};
use serde_json::json;
use tracing::Level;

use super::args::CompareArgs;
#[cfg(feature = "charts")]
use super::chart;
use super::table::Mean;
use super::{files, refused, scenario, table};
use crate::exit::{Failure, Status};
use crate::{logging, output, text};

/// Several clients under one of these are refused a dozen times for each success and more, so that their runs take longer
/// than all others together: they are compared when they are named.
const WASTEFUL: [&str; 4] = ["C", "openai", "vegas", "gradient2"];

/// And a single one under this.
const WILD: &str = "none";

/// Runs them all and prints the figures of those that could be run.
///
/// # Errors
/// Names that do not exist, before anything is run; afterwards, that the user pressed Ctrl-C.
pub(crate) fn command(args: &CompareArgs, quiet: bool) -> Result<Status, Failure> {
    let names: Vec<String> = match args.scenario.is_empty() {
        true => Scenario::development().map(ToOwned::to_owned).collect(),
        false => args.scenario.clone(),
    };
    let scenarios = names.iter().map(|name| scenario(name)).collect::<Result<Vec<_>, _>>()?;
    args.chart.as_ref().map_or(Ok(()), |picture| files::expect_place(picture.path()))?;
    let setups = setups(args);
    setups.iter().try_for_each(Setup::check).map_err(refused)?;
    let wanted = scenarios.len() as u64 * setups.len() as u64 * args.seeds;
    let bar = bar(wanted, quiet);
    let stop = stop_on_ctrl_c()?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let runs = compare_each(&scenarios, &setups, args.seeds, threads, &stop, |done| {
        if let Ok(run) = done {
            bar.set_message(format!("{} in {}", run.policy, run.scenario));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let (made, failed): (Vec<_>, Vec<_>) = runs.into_iter().partition(Result::is_ok);
    let made: Vec<Measures> = made.into_iter().flatten().collect();
    let medians = medians(&made);
    let means = Mean::of_each(&setups, &medians);
    #[cfg(feature = "charts")]
    if let Some(picture) = &args.chart {
        picture.save(&chart::compare::figure(&means, scenarios.len(), &args.world.hints))?;
    }
    output::print(|out| match args.json {
        true => writeln!(out, "{}", json!(medians)),
        false => out.write_all(table::of_many(&medians, &means, args.each, args.markdown).as_bytes()),
    })?;
    table::too_good(&medians).lines().for_each(|line| logging::tell(Level::WARN, line));
    let failed: Vec<Failed> = failed.into_iter().filter_map(Result::err).collect();
    for failed in &failed {
        logging::tell(Level::ERROR, &text::printable(&failed.to_string()));
    }
    let ended = made.len() + failed.len();
    match (ended as u64 == wanted, failed.is_empty(), made.is_empty()) {
        (false, ..) => Err(Failure::interrupted(format!("stopped after {ended} of {wanted} runs"))),
        (true, true, _) => Ok(Status::Success),
        (true, false, true) => Ok(Status::Failed),
        (true, false, false) => Ok(Status::Partial),
    }
}

fn setups(args: &CompareArgs) -> Vec<Setup> {
    let clients = if args.clients.is_empty() { vec![1, 16] } else { args.clients.clone() };
    let all = || policy::OURS.iter().chain(&policy::PEERS).map(|name| (*name).to_owned()).collect();
    let policies: Vec<String> = if args.policy.is_empty() { all() } else { args.policy.clone() };
    let is_costly = |clients: u32, policy: &str| policy == WILD || clients > 1 && WASTEFUL.contains(&policy);
    let left_out = |clients: u32, policy: &str| args.policy.is_empty() && is_costly(clients, policy);
    let pairs = clients.iter().flat_map(|clients| policies.iter().map(move |policy| (*clients, policy)));
    let pairs = pairs.filter(|(clients, policy)| !left_out(*clients, policy));
    pairs.map(|(clients, policy)| args.world.setup(policy, clients)).collect()
}

/// Becomes true with the first Ctrl-C: runs in progress end, and the finished ones are reported. The second ends the process.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let pressed = Arc::clone(&stop);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::interrupted)?;
    thread::spawn(move || {
        runtime.block_on(async {
            while tokio::signal::ctrl_c().await.is_ok() {
                if pressed.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        });
    });
    Ok(stop)
}

fn bar(runs: u64, quiet: bool) -> ProgressBar {
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(runs) };
    let style =
        ProgressStyle::with_template("{wide_bar} {pos}/{len} runs, {msg}").expect("a template that can be read");
    bar.with_style(style)
}
