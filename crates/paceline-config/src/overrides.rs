//! The command line as a layer.

use std::fmt;
use std::path::PathBuf;

use super::error::Source;
use super::schema::{ConcurrencySection, RetrySection, UpstreamSection};
use super::setting::Setting;
use super::shapes::{HeaderSettings, Settings};

/// The flags, as typed: the configuration reads the values, so that a flag takes what a file takes.
#[derive(Clone, Default)]
pub struct Overrides {
    /// `--config`: the file to read.
    pub config: Option<PathBuf>,
    /// `--upstream`: the entry's or the provider's name.
    pub upstream: Option<String>,
    /// `--base-url`.
    pub base_url: Option<String>,
    /// `--via`: the gateway that calls go through.
    pub via: Option<String>,
    /// `--fleet`: the store with the ledger of a fleet.
    pub fleet: Option<String>,
    /// `--api-key-env`: the variable that holds the key.
    pub api_key_env: Option<String>,
    /// `--api-key-file`: the file that holds the key.
    pub api_key_file: Option<PathBuf>,
    /// `--key-header`: the header that carries the key.
    pub key_header: Option<String>,
    /// `--key-scheme`: the word before the key.
    pub key_scheme: Option<String>,
    /// Each `--header`, such as `Name: value`.
    pub headers: Vec<String>,
    /// `--ca-file`: authorities that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
    /// `--client-cert`.
    pub client_cert: Option<PathBuf>,
    /// `--client-key`.
    pub client_key: Option<PathBuf>,
    /// `--idempotency-header`.
    pub idempotency_header: Option<String>,
    /// `--unknown-outcome`.
    pub unknown_outcome: Option<String>,
    /// `--proxy`.
    pub proxy: Option<String>,
    /// Each `--limit`: one limit, or several with commas between.
    pub limits: Vec<String>,
    /// `--rpm`: requests a minute.
    pub rpm: Option<String>,
    /// `--tpm`: tokens a minute.
    pub tpm: Option<String>,
    /// `--scope`: what is slowed down together.
    pub scope: Option<String>,
    /// `--burst`.
    pub burst: Option<String>,
    /// `--concurrency`: the most calls in flight.
    pub concurrency: Option<String>,
    /// `--max-retries`.
    pub max_retries: Option<String>,
    /// `--max-deferrals`.
    pub max_deferrals: Option<String>,
    /// `--pace`.
    pub pace: Option<String>,
    /// `--deadline`.
    pub deadline: Option<String>,
}

impl Overrides {
    /// The flags as a layer. Only flags that were given make a value.
    pub(crate) fn section(&self) -> UpstreamSection {
        let flag = |name: &'static str, text: &Option<String>| {
            text.as_ref().map(|text| Setting::new(text.as_str(), Source::Flag(name)))
        };
        let limit = |text: &str| Setting::new(text, Source::Flag("--limit"));
        let limits = Settings(self.limits.iter().flat_map(|text| text.split(',')).map(limit).collect());
        let max = flag("--concurrency", &self.concurrency);
        let concurrency = max.map(|max| ConcurrencySection { max: Some(max), ..ConcurrencySection::default() });
        let max_retries = flag("--max-retries", &self.max_retries);
        let retry = max_retries.map(|max| RetrySection { max_retries: Some(max), ..RetrySection::default() });
        let file = |name: &'static str, path: &Option<PathBuf>| {
            path.as_ref().map(|path| Setting::new(path.to_string_lossy(), Source::Flag(name)))
        };
        let header = |value: &str| Setting::new(value, Source::Flag("--header"));
        let headers = HeaderSettings::of_lines(self.headers.iter().map(String::as_str), header);
        UpstreamSection {
            base_url: flag("--base-url", &self.base_url),
            via: flag("--via", &self.via),
            fleet: flag("--fleet", &self.fleet),
            api_key_env: flag("--api-key-env", &self.api_key_env),
            api_key_file: file("--api-key-file", &self.api_key_file),
            key_header: flag("--key-header", &self.key_header),
            key_scheme: flag("--key-scheme", &self.key_scheme),
            headers: Some(headers),
            ca_file: file("--ca-file", &self.ca_file),
            client_cert: file("--client-cert", &self.client_cert),
            client_key: file("--client-key", &self.client_key),
            idempotency_header: flag("--idempotency-header", &self.idempotency_header),
            unknown_outcome: flag("--unknown-outcome", &self.unknown_outcome),
            proxy: flag("--proxy", &self.proxy),
            limits: Some(limits),
            rpm: flag("--rpm", &self.rpm),
            tpm: flag("--tpm", &self.tpm),
            scope: flag("--scope", &self.scope),
            burst: flag("--burst", &self.burst),
            concurrency,
            retry,
            max_deferrals: flag("--max-deferrals", &self.max_deferrals),
            pace: flag("--pace", &self.pace),
            deadline: flag("--deadline", &self.deadline),
            ..UpstreamSection::default()
        }
    }
}

/// Without headers and addresses, which may hold a key or a password.
impl fmt::Debug for Overrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, upstream, limits, rpm, tpm, concurrency, pace, .. } = self;
        f.debug_struct("Overrides")
            .field("config", config)
            .field("upstream", upstream)
            .field("limits", limits)
            .field("rpm", rpm)
            .field("tpm", tpm)
            .field("concurrency", concurrency)
            .field("pace", pace)
            .finish_non_exhaustive()
    }
}
