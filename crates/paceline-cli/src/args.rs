//! Flags that several commands share, and the parsing of their values.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Args, Command};
use paceline_config::{Overrides, Upstream, pace_names, scope_names, upstream_names};
use paceline_core::UnknownOutcome;
use paceline_providers::{Expected, Schema};

use crate::exit::Failure;
use crate::logging::LogFormat;

/// Flags that every command takes.
#[derive(Debug, Args)]
pub(crate) struct Everywhere {
    /// Configuration file [default: ./paceline.toml, else paceline/paceline.toml in your configuration folder]
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    pub(crate) config: Option<PathBuf>,
    /// Print only errors, and the summary of a job that failed in part or was stopped
    #[arg(long, short, global = true, display_order = 901)]
    pub(crate) quiet: bool,
    /// Log each failed call (-v); also what each call waits for, and how each answer is read (-vv)
    #[arg(long, short, global = true, action = clap::ArgAction::Count, conflicts_with = "quiet", display_order = 902)]
    pub(crate) verbose: u8,
    /// Format of standard error: text, or json with one object a line, the summary and errors included
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", display_order = 903)]
    pub(crate) log_format: LogFormat,
}

/// Groups of flags in the help.
pub(crate) const UPSTREAM: &str = "Upstream";
pub(crate) const PACE: &str = "Pace and patience";

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
    /// Certificates of authorities to trust beside the system's, in PEM
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,
    /// Certificate to show to the server, in PEM
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) client_cert: Option<PathBuf>,
    /// Key of that certificate, in PEM
    #[arg(help_heading = UPSTREAM, long, value_name = "FILE")]
    pub(crate) client_key: Option<PathBuf>,
    /// Header for a key by which the API recognizes a repeated request, or none [default: the provider's, where it has one]
    #[arg(help_heading = UPSTREAM, long, value_name = "NAME")]
    pub(crate) idempotency_header: Option<String>,
    /// What to do when it is unknown whether the server executed a POST: resend it, fail its item, or hold it (the item fails and
    /// can be retried by hand) [default: resend for prompts of language models, else hold]
    #[arg(help_heading = UPSTREAM, long, value_name = "WORD", value_parser = Offered(outcome_names), hide_possible_values = true)]
    pub(crate) unknown_outcome: Option<String>,
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
            idempotency_header: self.idempotency_header,
            unknown_outcome: self.unknown_outcome,
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
            (self.idempotency_header.is_some(), "--idempotency-header"),
            (self.unknown_outcome.is_some(), "--unknown-outcome"),
            (self.proxy.is_some(), "--proxy"),
        ];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }
}

/// The gateway in between.
#[derive(Clone, Debug, Args)]
pub(crate) struct ViaArgs {
    /// Gateway to call through, which is `paceline serve`: it keeps the limits and has the key; none calls the API itself
    #[arg(help_heading = UPSTREAM, long, value_name = "URL")]
    pub(crate) via: Option<String>,

    /// Share the limits with all processes that name this store, with the same host and key: redis://, rediss:// or postgres://
    /// (docs/fleet.md)
    #[arg(help_heading = UPSTREAM, long, value_name = "URL")]
    pub(crate) fleet: Option<String>,
}

/// Limits that are told.
#[derive(Clone, Debug, Args)]
pub(crate) struct LimitArgs {
    /// A limit of the provider: 500rpm, '10 rps', '200k tpm', '90 per 10s', '50 concurrent'; may be repeated. All
    /// your jobs on this machine that call the same host with the same key share it; jobs that run at once take turns
    #[arg(help_heading = PACE, long, value_name = "LIMIT", allow_hyphen_values = true)]
    pub(crate) limit: Vec<String>,
    /// Requests a minute: as --limit Nrpm
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) rpm: Option<String>,
    /// Tokens a minute: as --limit Ntpm
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) tpm: Option<String>,
}

impl LimitArgs {
    /// Beside what else is to be overridden.
    pub(crate) fn over(self, others: Overrides) -> Overrides {
        Overrides { limits: self.limit, rpm: self.rpm, tpm: self.tpm, ..others }
    }

    /// The first of them that is given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let flags = [(!self.limit.is_empty(), "--limit"), (self.rpm.is_some(), "--rpm"), (self.tpm.is_some(), "--tpm")];
        flags.into_iter().find_map(|(given, flag)| given.then_some(flag))
    }
}

/// Which upstream, and under which limits.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpstreamArgs {
    /// Upstream from paceline.toml, or a known one: openai, anthropic, gemini, ..., generic (any HTTP API, with --base-url),
    /// mock (in-process, needs no key)
    #[arg(help_heading = UPSTREAM, long, value_name = "NAME", value_parser = Offered(upstream_names), hide_possible_values = true)]
    pub(crate) upstream: Option<String>,
    #[command(flatten)]
    pub(crate) through: ViaArgs,
    #[command(flatten)]
    pub(crate) access: AccessArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Calls that share a pace: those of a model, an endpoint (one path), a host (lines may name any host; others get no key), a
    /// group (metadata.label of the line), a table, or all [default: what the provider limits together, for a generic API all]
    #[arg(help_heading = PACE, long, value_name = "WHAT", value_parser = Offered(scope_names), hide_possible_values = true)]
    pub(crate) scope: Option<String>,
    /// Requests that may start at once after a pause [default: the limit per second, rounded up]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) burst: Option<String>,
    /// Most calls in flight at once [default: 512 under the pace auto, else 50]
    #[arg(help_heading = PACE, long, visible_alias = "workers", value_name = "N", allow_hyphen_values = true)]
    pub(crate) concurrency: Option<String>,
    /// Retries of an item after server errors, so at most 1 + N calls [default: 7]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) max_retries: Option<String>,
    /// How often rate-limit answers may put off an item before it fails [default: no bound]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) max_deferrals: Option<String>,
    /// How the pace of calls is chosen: auto, fixed, aimd, responsive, linear, exponential, none or a preset [default: auto]
    #[arg(help_heading = PACE, long, value_name = "PACE", value_parser = Offered(pace_names), hide_possible_values = true)]
    pub(crate) pace: Option<String>,
    /// How long an item may take from its first call [default: 24h]
    #[arg(help_heading = PACE, long, value_name = "DURATION", allow_hyphen_values = true)]
    pub(crate) deadline: Option<String>,
}

/// Takes any text, and has a shell offer these names: what else may stand there, the configuration knows.
#[derive(Clone)]
pub(crate) struct Offered(pub(crate) fn() -> Vec<&'static str>);

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(&self, cmd: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(cmd, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
}

fn outcome_names() -> Vec<&'static str> {
    UnknownOutcome::ALL.map(UnknownOutcome::as_str).to_vec()
}

/// What a success has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// Any JSON value, or a stream of events: `json`.
    Json,
    /// What matches the JSON schema in that file.
    Schema(PathBuf),
}

impl From<OsString> for Expect {
    fn from(word: OsString) -> Self {
        if word == "json" { Self::Json } else { Self::Schema(word.into()) }
    }
}

impl Expect {
    /// The upstream that takes nothing else for a success.
    ///
    /// # Errors
    /// Refuses a file that cannot be read, is no JSON or no schema.
    pub(crate) fn of(&self, mut upstream: Upstream) -> Result<Upstream, Failure> {
        let expected = match self {
            Self::Json => Expected::Json,
            Self::Schema(path) => {
                let refused = |why: &str, error: &dyn Display| {
                    Failure::refused(format!("--expect {}: {why}: {error}", path.display()))
                };
                let unread = "expected json, or the file of a JSON schema, which cannot be read";
                let text = std::fs::read(path).map_err(|error| refused(unread, &error))?;
                let schema = serde_json::from_slice(&text).map_err(|error| refused("the file is no JSON", &error))?;
                Expected::Schema(Schema::new(schema).map_err(|error| refused("the file is no JSON schema", &error))?)
            }
        };
        upstream.dialect = upstream.dialect.expecting(expected);
        Ok(upstream)
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

/// The error about retries, with the names of the flags that set them.
pub(crate) fn as_flags(error: &paceline_core::ConfigError) -> String {
    error.to_string().replace("retry.base", "--first-delay").replace("retry.", "--")
}
