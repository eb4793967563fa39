//! `paceline sim`: policies against model providers, in virtual time.

mod args;
#[cfg(feature = "charts")]
mod chart;
mod compare;
mod files;
mod plan;
mod responsive;
mod table;
mod trace;

use std::path::Path;

use paceline_config::{Overrides, Preset};
use paceline_sim::{Scenario, Setup, SimError, policy, simulate, simulate_traced};
use serde_json::json;

pub(crate) use self::args::Args;
use self::args::{Command, ListArgs, RunArgs, World};
use crate::args::Everywhere;
use crate::exit::{Failure, Status};
use crate::{output, upstream};

/// Runs simulations; sends nothing.
///
/// # Errors
/// Refuses unknown scenarios, policies and hints, naming those that there are.
pub(crate) fn command(args: Args, everywhere: &Everywhere) -> Result<Status, Failure> {
    let configured = matches!(args.command, Command::Run(_) | Command::Plan(_));
    if let Some(file) = everywhere.config.as_ref().filter(|_| !configured) {
        let file = file.display();
        return Err(Failure::refused(format!("--config {file} does nothing here: `sim run` and `sim plan` take it")));
    }
    match args.command {
        Command::List(args) => list(&args),
        Command::Run(args) => run(&args, everywhere),
        Command::Compare(args) => return compare::command(&args, everywhere.quiet),
        Command::Plan(args) => plan::command(&args, everywhere),
        Command::Responsive(args) => responsive::command(&args),
    }?;
    Ok(Status::Success)
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let names = Scenario::development().chain(Scenario::short_jobs()).chain(Scenario::shown());
    let scenarios = names.map(scenario).collect::<Result<Vec<_>, _>>()?;
    output::print(|out| {
        if args.json {
            let rows = scenarios.iter().map(|one| json!({"name": one.name, "items": one.items, "about": one.about}));
            return writeln!(out, "{}", rows.collect::<serde_json::Value>());
        }
        scenarios.iter().try_for_each(|one| writeln!(out, "{:12} {:>6} items  {}", one.name, one.items, one.about))
    })
}

fn run(args: &RunArgs, everywhere: &Everywhere) -> Result<(), Failure> {
    let setup = Setup { seed: args.seed, ..args.setup(everywhere)? };
    let scenario = scenario(&args.scenario)?;
    let picture = args.chart.as_ref().map(files::Picture::path);
    files::expect_places(args.trace.as_deref().into_iter().chain(picture))?;
    let measures = if args.trace.is_none() && args.chart.is_none() {
        simulate(&scenario, &setup).map_err(refused)?
    } else {
        let (measures, spans) = simulate_traced(&scenario, &setup).map_err(refused)?;
        if let Some(path) = &args.trace {
            files::table(path, trace::COLUMNS, trace::rows(&spans))?;
        }
        #[cfg(feature = "charts")]
        if let Some(picture) = &args.chart {
            picture.save(&chart::run::figure(&scenario, &measures, &spans))?;
        }
        measures
    };
    output::print(|out| match args.json {
        true => writeln!(out, "{}", json!(measures)),
        false => out.write_all(table::of_one(&measures).as_bytes()),
    })
}

/// A simulation that cannot be; presets are policies too.
fn refused(error: SimError) -> Failure {
    match error {
        SimError::Policy(_) => {
            let names = Preset::ALL.iter().map(|preset| preset.as_str());
            let presets: Vec<&str> = names.filter(|name| !policy::OURS.contains(name)).collect();
            Failure::refused(format!("{error}, or a preset: {}", presets.join(", ")))
        }
        _ => Failure::refused(error),
    }
}

/// A built-in scenario, or one from a file.
fn scenario(name: &str) -> Result<Scenario, Failure> {
    let path = Path::new(name);
    if path.extension().is_none_or(|end| end != "toml") {
        return Scenario::named(name).map_err(Failure::refused);
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("cannot read the scenario {name}: {error}")))?;
    Scenario::from_toml(&text).map_err(|error| Failure::refused(format!("{name}: {error}")))
}

impl RunArgs {
    /// The policy that is named, or the upstream of a configuration that is.
    fn setup(&self, everywhere: &Everywhere) -> Result<Setup, Failure> {
        match (&self.policy, &everywhere.config) {
            (Some(_), Some(_)) => Err(Failure::refused("--policy and --config each say which policy it is: give one")),
            (None, config) if config.is_some() || self.upstream.is_some() => {
                let overrides = Overrides { upstream: self.upstream.clone(), ..Overrides::default() };
                let upstream = upstream::configured(overrides, everywhere)?;
                Ok(Setup {
                    pacer: Some(upstream.pacer),
                    ..self.world.setup(&format!("upstream.{}", upstream.name), self.clients)
                })
            }
            (policy, _) => Ok(self.world.setup(policy.as_deref().unwrap_or("auto"), self.clients)),
        }
    }
}

impl World {
    /// A policy of that name, or a preset.
    fn setup(&self, policy: &str, clients: u32) -> Setup {
        let Self { share, hints } = self;
        let preset = Preset::from_name(policy).filter(|_| !policy::OURS.contains(&policy));
        let pacer = preset.map(Preset::pacer_config);
        Setup { pacer, clients, share: *share, hints: hints.clone(), ..Setup::new(policy) }
    }
}
