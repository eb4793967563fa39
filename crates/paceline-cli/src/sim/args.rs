//! The flags of `paceline sim`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use paceline_config::parse_duration;
use paceline_sim::Requirement;

use super::files::{Form, Picture};

use crate::args::{UpstreamArgs, count};

/// `paceline sim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is to be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Name the built-in scenarios: providers, and jobs for them
    List(ListArgs),
    /// Run one scenario under one policy, in virtual time
    Run(RunArgs),
    /// Run many scenarios under many policies
    Compare(CompareArgs),
    /// Watch one worker under the responsive delay find the gap that a server asks for
    Responsive(ResponsiveArgs),
    /// Show what a configuration would do with a job: time, waits, calls
    Plan(Box<PlanArgs>),
}

/// `paceline sim list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is around a policy.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct World {
    /// All processes ask one controller
    #[arg(long)]
    pub(crate) share: bool,
    /// What the provider says: none, ra, ra-ceil, ra-lie-1, ra-lie-60, hdr, hdr-coarse, hdr-lie, llm
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub(crate) hints: String,
}

/// `paceline sim run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// A built-in scenario, or a file that ends in .toml
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) scenario: String,
    /// auto, fixed, aimd, responsive, linear, exponential or none of ours, a preset, or one of others such as openai or
    /// tenacity [default: auto, or what --config says]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Upstream of the configuration whose limits, pace and retries are the policy
    #[arg(long, value_name = "NAME", conflicts_with = "policy")]
    pub(crate) upstream: Option<String>,
    /// Processes that divide the items among themselves
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) clients: u32,
    #[command(flatten)]
    pub(crate) world: World,
    /// Seed of all random numbers: the same gives the same bytes
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write what happened, a line for each span of time
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) trace: Option<PathBuf>,
    /// Draw it
    #[arg(long, value_name = "FILE.svg|.png", value_parser = Picture::parse)]
    pub(crate) chart: Option<Picture>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `paceline sim compare`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// A built-in scenario or a file that ends in .toml; may be repeated [default: the long scenarios]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) scenario: Vec<String>,
    /// A policy; may be repeated [default: all but none, with several clients without those that are refused most]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    /// Processes that divide the items among themselves; may be repeated [default: 1 and 16]
    #[arg(long, value_name = "N")]
    pub(crate) clients: Vec<u32>,
    #[command(flatten)]
    pub(crate) world: World,
    /// Seeds 1 to K; figures are medians over them
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,
    /// A row for each scenario too
    #[arg(long)]
    pub(crate) each: bool,
    /// Draw goodput against waste, a point for each policy
    #[arg(long, value_name = "FILE.svg|.png", value_parser = Picture::parse)]
    pub(crate) chart: Option<Picture>,
    /// Print a Markdown table
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// No item takes more tokens than this.
const MOST_TOKENS: u64 = 1_000_000_000;

/// `paceline sim plan`.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    /// Items of the job, one call each
    #[arg(long, value_name = "N", value_parser = count::<u32>)]
    pub(crate) items: u32,
    /// Tokens that an item takes, in and out
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "scenario",
        value_parser = clap::value_parser!(u64).range(..=MOST_TOKENS))]
    pub(crate) tokens: u64,
    /// Model of the calls, to apply the tier of a model
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Path of the calls, to apply the tier of a path
    #[arg(long, value_name = "PATH", default_value = "/v1/chat/completions")]
    pub(crate) endpoint: String,
    /// The provider that answers, built in or from a file [default: one with exactly the configured limits]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) scenario: Option<String>,
    /// Seed of all random numbers
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
}

/// `paceline sim responsive`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResponsiveArgs {
    /// The classic rule, to the nanosecond, instead of the search
    #[arg(long)]
    pub(crate) compat: bool,
    /// The delay after the first failure
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    pub(crate) initial: Duration,
    /// No delay is longer
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = parse_duration)]
    pub(crate) max: Duration,
    /// Randomness never moves a delay by more than this
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = parse_duration)]
    pub(crate) max_randomization: Duration,
    /// A failure multiplies the delay by this
    #[arg(long, value_name = "FACTOR", default_value_t = 1.5)]
    pub(crate) up: f64,
    /// A step down multiplies the delay by this
    #[arg(long, value_name = "FACTOR", default_value_t = 0.9)]
    pub(crate) down: f64,
    /// Randomness moves a step by at most this share
    #[arg(long, value_name = "SHARE", default_value_t = 0.3)]
    pub(crate) randomization: f64,
    /// Successes before a step down
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) threshold: u32,
    /// The gap that the server asks for: GAP, or GAP:until-first-success,GAP
    #[arg(long, value_name = "GAPS", default_value = "200ms:until-first-success,60ms", value_parser = requirement)]
    pub(crate) require: Requirement,
    /// How many requests, one after the other
    #[arg(long, value_name = "N", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) requests: u32,
    /// Seed of the randomness
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Draw the delays, and what down, threshold and randomization change about them
    #[arg(long, value_name = "FILE", value_parser = |text: &str| Picture::of(Form::Svg, text))]
    pub(crate) svg: Option<Picture>,
    /// The same picture as PNG
    #[arg(long, value_name = "FILE", value_parser = |text: &str| Picture::of(Form::Png, text))]
    pub(crate) png: Option<Picture>,
    /// Write request, delay_ns (the wait before it) and succeeded (0 or 1), a line each
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let gap = |text: &str| parse_duration(text).map_err(|error| error.to_string());
    match text.split_once(',') {
        None => gap(text).map(Requirement::constant),
        Some((first, rest)) => match first.trim().strip_suffix(":until-first-success") {
            Some(first) => Ok(Requirement { until_first_success: gap(first)?, gap: gap(rest)? }),
            None => Err("expected a gap, or two such as 200ms:until-first-success,60ms".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requirement_is_one_gap_or_two() {
        let ms = Duration::from_millis;
        assert_eq!(requirement("60ms"), Ok(Requirement::constant(ms(60))));
        let two = Requirement { until_first_success: ms(200), gap: ms(60) };
        assert_eq!(requirement("200ms:until-first-success,60ms"), Ok(two));
        for wrong in ["", "fast", "200ms,60ms", "200ms:until-first-success", "1s:until-first-success,2s,3s"] {
            assert!(requirement(wrong).is_err(), "{wrong}");
        }
    }
}
