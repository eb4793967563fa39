//! The flags of `paceline serve`.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use paceline::clock;
use paceline_config::{Config, EffectiveValue, FallbackStep, Overrides, Source, TierMatch, Upstream, upstream_names};
use paceline_gateway::{ClientTls, OWN_ROUTES};
use paceline_http::SERVERS_OWN;
use paceline_http::warn_if_exposed;
use paceline_providers::is_loopback;

use super::certificate;
use super::keys::KeysArgs;
use super::lift_holds::LiftArgs;
use crate::args::{AccessArgs, Everywhere, LimitArgs, Offered, PACE, UPSTREAM};
use crate::exit::Failure;
use crate::upstream;

/// `paceline serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// What `serve` can do beside serving.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Command {
    /// Try what a start needs (configuration, keys, state folder, addresses) and show what would be served; sends nothing and
    /// makes no file
    Check(Box<Flags>),
    /// Make, list, rotate and revoke the keys of clients
    Keys(KeysArgs),
    /// Have the gateway that runs end its holds, pauses and stops, because their cause is mended
    LiftHolds(LiftArgs),
}

/// How to serve.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Flags {
    /// IP address and port to listen on; for port 0 the system picks a free one, which the first line of output names
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4747", value_parser = address)]
    pub(crate) listen: SocketAddr,
    /// Address for /metrics, /healthz and /readyz alone [default: that of --listen]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// File of the keys of clients, as `paceline serve keys` writes it; where one is named it must be there [default:
    /// client-keys.json in the folder of --state]
    #[arg(long, value_name = "FILE")]
    pub(crate) client_keys: Option<PathBuf>,
    /// Do not begin without keys of clients, also where the folder with their file is gone, not mounted or another one: for a
    /// gateway behind a proxy, and for services
    #[arg(long, conflicts_with = "allow_anyone")]
    pub(crate) require_client_keys: bool,
    /// Serve other machines without keys of clients: every program that reaches --listen may spend your keys
    #[arg(long)]
    pub(crate) allow_anyone: bool,
    /// Certificate to show to clients, in PEM, which then connect with https; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Log a line for each request once it is over: upstream, scope, client, status, class, wait, attempts, bytes (as JSON with
    /// --log-format json)
    #[arg(long)]
    pub(crate) log_requests: bool,
    /// Folder of what a restart goes on with: batches, keys of clients, what is known of the limits [default: paceline/serve in
    /// your state folder]
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Begin without the holds and pauses that an earlier gateway kept: because a provider asked for an absurd wait, or the
    /// cause is mended
    #[arg(long)]
    pub(crate) lift_holds: bool,
    /// Upstream from paceline.toml, or a known one: openai, anthropic, gemini, ..., generic (any HTTP API, with --base-url),
    /// mock (in-process, needs no key); may be repeated [default: all of paceline.toml]
    #[arg(help_heading = UPSTREAM, long, value_name = "NAME", value_parser = Offered(upstream_names), hide_possible_values = true)]
    upstream: Vec<String>,
    #[command(flatten)]
    access: AccessArgs,
    /// Share the limits with all processes that name this store, with the same host and key: redis://, rediss:// or postgres://
    /// (docs/fleet.md)
    #[arg(help_heading = PACE, long, value_name = "URL")]
    fleet: Option<String>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Most calls in flight at once [default: 512 under the pace auto, else 50]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    concurrency: Option<String>,
    /// Retries of a request after server errors, so at most 1 + N calls [default: 7]
    #[arg(help_heading = PACE, long, value_name = "N", allow_hyphen_values = true)]
    max_retries: Option<String>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected numbers, an IP address and a port, such as 127.0.0.1:4747, [::1]:4747, or 0.0.0.0:4747 for every address of this \
         machine"
            .to_owned()
    })
}

/// Warns of settings that are for jobs, or for callers that have what no request of a client has.
pub(super) fn warn_of_jobs_settings(upstream: &Upstream) {
    const OF_JOBS: [&str; 2] = ["deadline", "fallback"];
    let set = |row: &&EffectiveValue| row.source != Source::Default && OF_JOBS.contains(&row.key.as_str());
    let mut idle: Vec<_> = upstream.effective.iter().filter(set).map(|row| row.key.as_str()).collect();
    if upstream.tiers.iter().any(|tier| matches!(tier.matches, TierMatch::Label(_))) {
        idle.push("tier.label");
    }
    if !idle.is_empty() {
        tracing::warn!(
            upstream = upstream.name,
            "no effect in serve: {}; a request has x-paceline-deadline and no label, and fallback_to names what takes an upstream's \
             place",
            idle.join(", ")
        );
    }
}

/// A host names an upstream without regard to case, and so do variables: of two such names one would get the calls of both.
fn refuse_same_but_for_case(names: &[&str]) -> Result<(), Failure> {
    for (place, name) in names.iter().enumerate() {
        if let Some(other) = names[..place].iter().find(|other| other.eq_ignore_ascii_case(name)) {
            return Err(Failure::refused(format!(
                "upstream.{name}: upstream.{other} is the same name but for the case of its letters, which a host such as \
                 {name}.localhost does not tell apart; expected another name for one of them"
            )));
        }
    }
    Ok(())
}

/// What is to be served.
pub(super) struct Configured {
    pub(super) upstreams: Vec<Upstream>,
    /// The configuration file, if there is one.
    pub(super) file: Option<PathBuf>,
}

impl Configured {
    /// The files whose content decides what is served.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.file.iter().chain(self.upstreams.iter().flat_map(Upstream::files)).cloned().collect()
    }

    /// The files of answers, which are read together with the configuration alone.
    pub(super) fn answers(&self) -> impl Iterator<Item = PathBuf> {
        let steps = self.upstreams.iter().flat_map(|upstream| &upstream.fallback_to);
        steps.filter_map(|step| match step {
            FallbackStep::Static { file, .. } => Some(file.clone()),
            _ => None,
        })
    }
}

const EXAMPLES: &str = "\
Point the base URL of any client at the gateway; its key there may be any text:
  paceline serve --upstream openai --limit 500rpm
  OPENAI_BASE_URL=http://127.0.0.1:4747/openai/v1 OPENAI_API_KEY=any python app.py

Batches as OpenAI's clients know them, for any upstream: docs/batches.md
  OPENAI_BASE_URL=http://127.0.0.1:4747/v1 OPENAI_API_KEY=any python batch.py

Header fields of a request that the gateway reads:
  x-paceline-deadline: 30s     how long it may wait here before it is answered 429 [default: 240s]
  x-paceline-priority: batch   it waits behind interactive ones [default: interactive]
  x-paceline-retries: 2        at most so many retries by the gateway, and no more than its own
  x-paceline-client: nightly   clients take turns [default: by the key that the client shows]

Header fields of each answer: x-paceline-waited-ms, x-paceline-attempts; x-paceline-fallback where something else
(fallback_to in paceline.toml) took the place of an upstream that stayed down.";

impl Flags {
    /// The upstreams to serve.
    ///
    /// # Errors
    /// As [`upstream::configured`]; flags for one upstream where there are several.
    pub(super) fn upstreams(&self, everywhere: &Everywhere) -> Result<Configured, Failure> {
        let config = upstream::loaded(self.overrides(), everywhere)?.direct();
        let names = self.names(&config);
        if let ([_, _, ..], Some(flag)) = (&names[..], self.flag_for_one()) {
            // All others have the names of their flags there.
            let name = if flag == "--max-retries" { " (retry.max_retries)" } else { "" };
            return Err(Failure::refused(format!(
                "{flag} is for one upstream, and there are {}: {}; set it in paceline.toml{name}, or choose one with --upstream",
                names.len(),
                names.join(", ")
            )));
        }
        if let Some(taken) = names.iter().find(|name| OWN_ROUTES.contains(name)) {
            return Err(Failure::refused(format!(
                "upstream.{taken}: the gateway answers /{taken} itself; expected another name than {}",
                OWN_ROUTES.join(", ")
            )));
        }
        refuse_same_but_for_case(&names)?;
        let served = |found| -> Result<Upstream, Failure> {
            let upstream = upstream::checked(found)?;
            self.refuse_itself(&upstream)?;
            Ok(upstream)
        };
        let upstreams = match names[..] {
            [] => vec![served(config.upstream())?],
            _ => names.into_iter().map(|name| served(config.upstream_of(name))).collect::<Result<_, _>>()?,
        };
        Ok(Configured { upstreams, file: config.path().map(Path::to_owned) })
    }

    /// The address of the metrics alone.
    ///
    /// # Errors
    /// That of the clients, where they are without the flag.
    pub(super) fn metrics_listen(&self) -> Result<Option<SocketAddr>, Failure> {
        match self.metrics_listen {
            Some(address) if address == self.listen && address.port() != 0 => Err(Failure::refused(format!(
                "--metrics-listen {address} is the address of --listen: expected another one; without --metrics-listen the metrics \
                 are at that address"
            ))),
            address => Ok(address),
        }
    }

    /// What clients are shown with TLS.
    ///
    /// # Errors
    /// Files that cannot be read, and a key of another certificate.
    pub(super) fn tls(&self) -> Result<Option<ClientTls>, Failure> {
        let pair = self.tls_cert.as_deref().zip(self.tls_key.as_deref());
        let refused = |error| Failure::refused(format!("--tls-cert, --tls-key: {error}"));
        if let Some(Ok(key)) = self.tls_key.as_deref().map(|key| File::open(key).map(|file| (key, file))) {
            warn_if_exposed("the private key", &key.1, &key.0.display().to_string());
        }
        pair.map(|(certificate, key)| ClientTls::read(certificate, key).map_err(refused)).transpose()
    }

    /// What is wrong with a certificate that is shown all the same.
    pub(super) fn amiss(&self, tls: Option<&ClientTls>) -> Vec<String> {
        let Some((tls, certificate)) = tls.zip(self.tls_cert.as_deref()) else { return Vec::new() };
        let file = certificate.display();
        let is_of_authority = tls.is_of_authority().then(|| {
            format!(
                "{file}: this is the certificate of an authority (CA:TRUE), which many clients, such as paceline itself, refuse as a \
                 server's: {SERVERS_OWN}"
            )
        });
        let ends = certificate::amiss(tls.validity(clock::wall())).map(|what| format!("{file}: {what}"));
        is_of_authority.into_iter().chain(ends).collect()
    }

    /// The variable that points programs to the gateway must not point the gateway to itself.
    fn refuse_itself(&self, upstream: &Upstream) -> Result<(), Failure> {
        let address = upstream.base_url.as_deref().filter(|address| is_loopback(address)).unwrap_or_default();
        let port = address.parse::<Uri>().ok().and_then(|address| address.port_u16());
        if port.is_none_or(|port| port != self.listen.port()) {
            return Ok(());
        }
        let source = upstream.effective.iter().rfind(|row| row.key == "base_url").map(|row| row.source.to_string());
        Err(Failure::refused(format!(
            "upstream {}: base_url = {address:?} (from {}) is this gateway itself: expected the address of the API (--base-url)",
            upstream.name,
            source.unwrap_or_default()
        )))
    }

    /// Their names; none where the other flags mean one.
    fn names<'a>(&'a self, config: &'a Config) -> Vec<&'a str> {
        let mut names: Vec<&str> = match &self.upstream[..] {
            [] if self.access.base_url.is_some() => Vec::new(),
            [] => config.names(),
            given => given.iter().map(String::as_str).collect(),
        };
        names.sort_unstable();
        names.dedup();
        names
    }

    fn overrides(&self) -> Overrides {
        let others = Overrides {
            fleet: self.fleet.clone(),
            concurrency: self.concurrency.clone(),
            max_retries: self.max_retries.clone(),
            ..Overrides::default()
        };
        self.access.clone().over(self.limits.clone().over(others))
    }

    /// A flag that can only be meant for one upstream.
    fn flag_for_one(&self) -> Option<&'static str> {
        let flags = [(self.concurrency.is_some(), "--concurrency"), (self.max_retries.is_some(), "--max-retries")];
        let own = flags.into_iter().find_map(|(given, flag)| given.then_some(flag));
        self.limits.given().or(own).or_else(|| self.access.given())
    }
}
