//! What can be typed. Every word here is part of the interface: scripts rely on it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use paceline_config::{Money, Overrides, Price, Upstream};

use crate::explain;
use crate::logging::LogFormat;
use crate::mock;
use crate::plan;
use crate::run::lines::format::FormatFlag;
use crate::run::seen::extract;
use crate::sim;
use crate::tasks;

/// Paces every call to a rate-limited API: as fast as its limits permit, nothing lost, nothing paid twice.
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
  3  DEFERRED  stopped early, or items were put off: the same command goes on";

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct Everywhere {
    /// Configuration file [default: ./paceline.toml, else paceline/paceline.toml in your configuration folder]
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    pub(crate) config: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short, global = true, display_order = 901)]
    pub(crate) quiet: bool,
    /// Say more: each failed call (-v), each step (-vv); RUST_LOG=paceline=debug does it too, by module
    #[arg(long, short, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet", display_order = 902)]
    pub(crate) verbose: u8,
    /// Form of the log lines on standard error
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 903)]
    pub(crate) log_format: LogFormat,
}

/// One file of the source each.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Send every request of a JSONL file and write the answers to another
    Run(Box<RunArgs>),
    /// Work on items that may have to wait for minutes or days: add them, run them, see how they stand
    Tasks(Box<tasks::Args>),
    /// Show how long the retries of an item, and of a run, may take at worst; sends nothing
    Plan(plan::Args),
    /// Show the limits in force and where each value came from; sends nothing
    Check(Box<CheckArgs>),
    /// Show how a running or finished job stands, from its journal
    Stats(StatsArgs),
    /// Say what an API's answer means, step by step: class, action, wait and limits; sends nothing
    Explain(explain::Args),
    /// Serve a rate-limited API on this machine, for trying things out
    Mock(mock::Args),
    /// Try policies against model providers, in virtual time
    Sim(sim::Args),
    /// Print the completions of a shell, to be put where it looks for them
    Completions(CompletionsArgs),
}

/// Groups of flags in the help.
pub(crate) const UPSTREAM: &str = "Upstream";
const INPUT: &str = "Input";
const PACE: &str = "Pace and patience";
const BOUNDS: &str = "Bounds of this run";
const BUDGET: &str = "Budget of the job, over all its runs";
const JOB: &str = "Job and results";

/// Where the API is, and how calls reach it and show who sends them.
#[derive(Clone, Debug, Args)]
pub(crate) struct AccessArgs {
    /// Address of the API; without --upstream it is taken as a generic HTTP API
    #[arg(help_heading = UPSTREAM, long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Environment variable that holds the key [default: the provider's usual one]
    #[arg(help_heading = UPSTREAM, long, value_name = "VARIABLE", conflicts_with = "api_key_file")]
    pub(crate) api_key_env: Option<String>,
    /// File that holds the key
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Header that carries the key [default: the provider's, else Authorization]
    #[arg(help_heading = UPSTREAM, long, value_name = "NAME")]
    pub(crate) key_header: Option<String>,
    /// Word before the key: Bearer, Basic (a key NAME:PASSWORD is encoded), ..., none [default: the provider's, else Bearer]
    #[arg(help_heading = UPSTREAM, long, value_name = "WORD")]
    pub(crate) key_scheme: Option<String>,
    /// Header that every call carries; may be repeated. A key is better kept in a variable or a file
    #[arg(help_heading = UPSTREAM, long, value_name = "'NAME: VALUE'")]
    pub(crate) header: Vec<String>,
    /// Certificates of authorities, in PEM, to trust beside the system's
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Certificate to show to the server, in PEM
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,
    /// Proxy to go through, or none [default: the environment's HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY]
    #[arg(help_heading = UPSTREAM, long, value_name = "URL")]
    pub(crate) proxy: Option<String>,
}

impl AccessArgs {
    /// Beside what else is to be overridden.
    pub(crate) fn over(self, others: Overrides) -> Overrides {
        Overrides {
            base_url: self.base_url,
            api_key_env: self.api_key_env,
            api_key_file: self.api_key_file,
            key_header: self.key_header,
            key_scheme: self.key_scheme,
            headers: self.header,
            ca_file: self.ca_file,
            client_cert: self.client_cert,
            client_key: self.client_key,
            proxy: self.proxy,
            ..others
        }
    }

    /// The first of them that is given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.base_url.is_some(), "--base-url"),
            (self.api_key_env.is_some(), "--api-key-env"),
            (self.api_key_file.is_some(), "--api-key-file"),
            (self.key_header.is_some(), "--key-header"),
            (self.key_scheme.is_some(), "--key-scheme"),
            (!self.header.is_empty(), "--header"),
            (self.ca_file.is_some(), "--ca-file"),
            (self.client_cert.is_some(), "--client-cert"),
            (self.client_key.is_some(), "--client-key"),
            (self.proxy.is_some(), "--proxy"),
        ];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }
}

/// Which upstream, and under which limits.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpstreamArgs {
    /// Upstream from paceline.toml, or a known one: openai, anthropic, gemini, ..., generic (any HTTP API, with --base-url),
    /// mock (in-process, needs no key)
    #[arg(help_heading = UPSTREAM, long, value_name = "NAME")]
    pub(crate) upstream: Option<String>,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    /// A limit of the provider: 500rpm, '10 rps', '200k tpm', '90 per 10s', '50 concurrent'; may be repeated
    #[arg(help_heading = PACE, long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub(crate) limit: Vec<String>,
    /// Requests a minute: as --limit Nrpm
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) rpm: Option<String>,
    /// Tokens a minute: as --limit Ntpm
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) tpm: Option<String>,
    /// What is slowed down together: model, endpoint (one path), group (metadata.label of the line), table or all [default: what
    /// the provider limits together, for a generic API all]
    #[arg(help_heading = PACE, long, value_name = "WHAT")]
    pub(crate) scope: Option<String>,
    /// Requests that may leave at once after idling [default: the limit per second, rounded up]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) burst: Option<String>,
    /// Most calls in flight at once [default: 512 under the pace auto, else 50]
    #[arg(help_heading = PACE, long, visible_alias = "workers", value_name = "N", allow_hyphen_values = true)]
    pub(crate) concurrency: Option<String>,
    /// Re-sends of an item after a server error; calls are 1 + N [default: 7]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) max_retries: Option<String>,
    /// Deferrals of an item after rate-limit answers before it fails [default: no bound]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) max_deferrals: Option<String>,
    /// Who decides how fast calls leave: auto, fixed, aimd, responsive, linear, exponential, none or a preset [default: auto]
    #[arg(help_heading = PACE, long, value_name = "PACE")]
    pub(crate) pace: Option<String>,
    /// How long an item may take from its first call [default: 24h]
    #[arg(help_heading = PACE, long, value_name = "DURATION", allow_hyphen_values = true)]
    pub(crate) deadline: Option<String>,
}

/// `paceline run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_FILES)]
pub(crate) struct RunArgs {
    /// Requests, one a line: {"custom_id","method","url","body"}, or see --format; - reads standard input, *.gz is unpacked
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Answers, one a line, in OpenAI's Batch form, or in Anthropic's for anthropic lines
    #[arg(long, short, value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Form of the lines
    #[arg(help_heading = INPUT, long, value_name = "FORM", value_enum, default_value_t)]
    pub(crate) format: FormatFlag,
    /// Where bare request bodies go [default: /v1/chat/completions, for anthropic /v1/messages, for others none]
    #[arg(help_heading = INPUT, long, value_name = "PATH")]
    pub(crate) endpoint: Option<String>,
    /// Model of the requests that are made of prompts: of a table, a list of prompts, or with --prompt-template of JSON objects
    #[arg(help_heading = INPUT, long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Template of the prompt: a file, or a text such as 'Translate: {{ text }}'; its names are the columns of a row
    #[arg(help_heading = INPUT, long, value_name = "TEMPLATE", requires = "model")]
    pub(crate) prompt_template: Option<String>,
    /// How long one call may take
    #[arg(help_heading = PACE, long, value_name = "DURATION", default_value = "600s", value_parser = some_time)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) timeout: Duration,
    /// End the run when the next call could start only after this long; the same command goes on later
    #[arg(help_heading = PACE, long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) max_wait: Duration,
    /// Begin at most N items in this run; the others wait for the next
    #[arg(help_heading = BOUNDS, long, value_name = "N", value_parser = count::<u64>, allow_hyphen_values = true)]
    pub(crate) max_items: Option<u64>,
    /// Use at most N tokens in this run, in and out; calls in flight count with what they are expected to use
    #[arg(help_heading = BOUNDS, long, value_name = "N", value_parser = count::<u64>, allow_hyphen_values = true)]
    pub(crate) max_tokens: Option<u64>,
    /// Send nothing more after this long; calls in flight get up to 30s
    #[arg(help_heading = BOUNDS, long, value_name = "DURATION", value_parser = some_time, allow_hyphen_values = true)]
    pub(crate) max_duration: Option<Duration>,
    /// Use at most N tokens for the job, in and out; a call counts with what it is expected to use until its answer is there
    #[arg(help_heading = BUDGET, long, value_name = "N", value_parser = count::<u64>, allow_hyphen_values = true)]
    pub(crate) budget_tokens: Option<u64>,
    /// Spend at most so much money on the job, in the currency of the prices
    #[arg(help_heading = BUDGET, long, value_name = "AMOUNT", allow_hyphen_values = true)]
    pub(crate) budget_cost: Option<Money>,
    /// What a million tokens cost, such as in=2.50,out=10 [default: price of the upstream in paceline.toml]
    #[arg(help_heading = BUDGET, long, value_name = "PRICE", allow_hyphen_values = true)]
    pub(crate) price: Option<Price>,
    /// Check the input and print what there is to do; sends nothing, leaves no files, needs no key
    #[arg(help_heading = BOUNDS, long, conflicts_with = "summary")]
    pub(crate) dry_run: bool,
    /// Stop when the first N items to end all failed alike; 0 never stops
    #[arg(help_heading = PACE, long, value_name = "N", default_value_t = 20)]
    pub(crate) stop_after_same: usize,
    /// Seed of every random delay, so that they repeat [default: different at each run]
    #[arg(help_heading = PACE, long, value_name = "K")]
    pub(crate) seed: Option<u64>,
    /// Journal of the job [default: OUT with the ending .journal]
    #[arg(help_heading = JOB, long, value_name = "FILE", conflicts_with = "no_journal")]
    pub(crate) journal: Option<PathBuf>,
    /// Keep no journal: an interrupted job then starts from the front
    #[arg(help_heading = JOB, long)]
    pub(crate) no_journal: bool,
    /// Lines that cannot be sent go to the errors file, and the rest is sent
    #[arg(help_heading = INPUT, long)]
    pub(crate) skip_bad_lines: bool,
    /// Begin while the input is still being read; lines that cannot be sent go to the errors file, unlisted
    #[arg(help_heading = INPUT, long, conflicts_with = "skip_bad_lines")]
    pub(crate) no_check: bool,
    /// Go on with an input that changed: items are known by id and body, and what ended must stay
    #[arg(help_heading = INPUT, long, conflicts_with_all = ["overwrite", "no_journal"])]
    pub(crate) accept_changed_input: bool,
    /// Begin anew: remove the results, errors, report and journal that are there, once the input was checked
    #[arg(help_heading = JOB, long)]
    pub(crate) overwrite: bool,
    /// When the last item has ended, put results and errors in the order of the input; OUT may then end in .gz
    #[arg(help_heading = JOB, long)]
    pub(crate) ordered: bool,
    /// Send the items again that failed in earlier runs; their lines in the input may have been repaired
    #[arg(help_heading = JOB, long, conflicts_with = "no_journal")]
    pub(crate) retry_failed: bool,
    /// Take over the answers of a hosted batch's output file instead of sending those items; may be repeated
    #[arg(help_heading = INPUT, long, value_name = "FILE")]
    pub(crate) done: Vec<PathBuf>,
    /// Write one value of each answer beside the results, such as /choices/0/message/content, to results.flat.jsonl
    #[arg(help_heading = JOB, long, value_name = "POINTER", value_parser = extract::pointer)]
    pub(crate) extract: Option<String>,
    /// A success is JSON: a page or half an object under a 200 is a failure that passes, and is tried again
    #[arg(help_heading = JOB, long, value_name = "WHAT", value_enum)]
    pub(crate) expect: Option<Expect>,
    /// Write the summary to a file, as JSON
    #[arg(help_heading = JOB, long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Print the summary as JSON on standard output
    #[arg(help_heading = JOB, long)]
    pub(crate) json: bool,
}

const RUN_FILES: &str = "\
Files, for -o results.jsonl:
  results.jsonl         one line for each item that succeeded
  results.errors.jsonl  one line for each item that failed; made when first needed
  results.flat.jsonl    with --extract, one value of each answer
  results.report.jsonl  why items failed, were retried or were put off
  results.journal       the state of the job; the same command goes on after any interruption
  results.input         a copy of standard or compressed input

Exit codes: 0 all succeeded, 1 some failed, 2 nothing was sent, 3 to be continued by the same command.";

/// `paceline check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) upstream: UpstreamArgs,
    /// Print what each preset sets, whatever the upstream
    #[arg(long)]
    pub(crate) presets: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `paceline stats`.
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// The job's results file, or a folder with journals [default: the newest journal in this folder]
    #[arg(value_name = "RESULTS")]
    pub(crate) results: Option<PathBuf>,
    /// One row for each item that did not simply succeed, waiting items included
    #[arg(long, conflicts_with_all = ["history", "watch"])]
    pub(crate) items: bool,
    /// What happened in each minute, as CSV: calls, answers, delays, tokens and the limit in force
    #[arg(long, conflicts_with = "watch")]
    pub(crate) history: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print again every second until the job ends or no run works on it
    #[arg(long)]
    pub(crate) watch: bool,
}

/// `paceline completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// What a success has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Expect {
    /// Any JSON value, or a stream of events
    Json,
}

impl Expect {
    /// The upstream that takes nothing else for a success.
    pub(crate) fn of(self, upstream: Upstream) -> Upstream {
        match self {
            Self::Json => Upstream { dialect: upstream.dialect.expecting_json(), ..upstream },
        }
    }
}

/// Durations on flags are those of the configuration file.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    paceline_config::parse_duration(text).map_err(|error| error.to_string())
}

/// A duration in which something can happen.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("expected a duration above 0".to_owned()),
        time => Ok(time),
    }
}

/// Counts on flags are those of the configuration file.
pub(crate) fn count<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let number = paceline_config::parse_count(text).map_err(|error| error.to_string())?;
    N::try_from(number).map_err(|_| "expected a smaller number".to_owned())
}

/// What is wrong with retries, in the words of the flags that set them.
pub(crate) fn as_flags(error: &paceline_core::ConfigError) -> String {
    error.to_string().replace("retry.base", "--first-delay").replace("retry.", "--")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

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
            (args.upstream.burst.as_deref(), args.upstream.limit.as_slice()),
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
