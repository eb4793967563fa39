//! The command line as a layer.

use std::path::PathBuf;

use super::error::Source;
use super::schema::{ConcurrencySection, RetrySection, UpstreamSection};
use super::setting::Setting;
use super::shapes::Settings;

/// What flags said, as it was typed: the configuration reads the values, so that a flag takes what a file takes.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--config`: the file to read.
    pub config: Option<PathBuf>,
    /// `--upstream`: the entry's or the provider's name.
    pub upstream: Option<String>,
    /// `--base-url`.
    pub base_url: Option<String>,
    /// `--api-key-env`: the variable that holds the key.
    pub api_key_env: Option<String>,
    /// `--api-key-file`: the file that holds the key.
    pub api_key_file: Option<PathBuf>,
    /// Each `--limit`: one limit, or several with commas between.
    pub limits: Vec<String>,
    /// `--rpm`: requests a minute.
    pub rpm: Option<String>,
    /// `--tpm`: tokens a minute.
    pub tpm: Option<String>,
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
        let api_key_file = self.api_key_file.as_ref().map(|file| file.to_string_lossy().into_owned());
        UpstreamSection {
            base_url: flag("--base-url", &self.base_url),
            api_key_env: flag("--api-key-env", &self.api_key_env),
            api_key_file: flag("--api-key-file", &api_key_file),
            limits: Some(limits),
            rpm: flag("--rpm", &self.rpm),
            tpm: flag("--tpm", &self.tpm),
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
