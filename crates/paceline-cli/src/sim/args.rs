//! What `paceline sim` can be told.

use clap::Subcommand;

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
    /// Processes that divide the items among themselves
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) clients: u32,
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
    /// auto, fixed, aimd, responsive, linear, exponential or none of ours, or one of others such as openai or tenacity
    #[arg(long, value_name = "POLICY", default_value = "auto")]
    pub(crate) policy: String,
    #[command(flatten)]
    pub(crate) world: World,
    /// Seed of everything that is random: the same gives the same bytes
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub(crate) seed: u64,
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
    /// A policy; may be repeated [default: auto, aimd and fixed of ours, openai, tenacity, aws, google, known]
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    #[command(flatten)]
    pub(crate) world: World,
    /// Seeds 1 to K; figures are medians over them
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: u64,
    /// A row for each scenario too
    #[arg(long)]
    pub(crate) each: bool,
    /// Print a Markdown table
    #[arg(long, conflicts_with = "json")]
    pub(crate) markdown: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
