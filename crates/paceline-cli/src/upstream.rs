//! From flags, environment and file to the upstream that a command works with, and its key.

use std::path::PathBuf;

use http::HeaderMap;
use paceline::config::{Config, Environment, KeySource, Overrides, Upstream};
use paceline::provider::Provider;

use crate::args::{Everywhere, UpstreamArgs};
use crate::exit::Failure;

/// The upstream in force.
///
/// # Errors
/// Refuses the first value that cannot be, naming the knob, its value, its origin and what was expected.
pub(crate) fn resolve(args: &UpstreamArgs, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let args = args.clone();
    let overrides = Overrides {
        upstream: args.upstream,
        base_url: args.base_url,
        api_key_env: args.api_key_env,
        api_key_file: args.api_key_file,
        limits: args.limit,
        rpm: args.rpm,
        tpm: args.tpm,
        burst: args.burst,
        concurrency: args.concurrency,
        max_retries: args.max_retries,
        max_deferrals: args.max_deferrals,
        pace: args.pace,
        deadline: args.deadline,
        ..Overrides::default()
    };
    configured(overrides, everywhere)
}

/// The same, with flags of one's own.
///
/// # Errors
/// Likewise.
pub(crate) fn configured(overrides: Overrides, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let overrides = Overrides { config: everywhere.config.clone(), ..overrides };
    let config = Config::load(Environment::from_iter(std::env::vars_os()), overrides).map_err(Failure::refused)?;
    config.upstream().map_err(Failure::refused)
}

/// The headers that every call to the upstream carries, its key among them.
///
/// # Errors
/// Refuses a key that is needed and missing, unreadable, or no header value. The key itself is never named.
pub(crate) fn headers(upstream: &Upstream) -> Result<HeaderMap, Failure> {
    let mut headers: HeaderMap = upstream.provider.headers().collect();
    if let Some(key) = read_key(&upstream.key, upstream.provider)? {
        let place = key_place(&upstream.key);
        let invalid = |_| Failure::refused(format!("the key in {place} holds characters that no header may carry"));
        let (name, value) = upstream.provider.key_header(&key).map_err(invalid)?;
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Where the key is, in words.
pub(crate) fn key_place(key: &KeySource) -> String {
    match key {
        KeySource::None => "no variable at all (name one with --api-key-env)".to_owned(),
        KeySource::Variable { name, .. } => name.clone(),
        KeySource::File(path) => path.display().to_string(),
    }
}

fn read_key(source: &KeySource, provider: Provider) -> Result<Option<String>, Failure> {
    let key = match source {
        KeySource::None => return Ok(None),
        KeySource::Variable { name, required } => {
            let key = std::env::var(name).unwrap_or_default();
            if key.trim().is_empty() && !required {
                return Ok(None);
            }
            key
        }
        KeySource::File(path) => read_file(path)?,
    };
    let key = key.trim();
    if key.is_empty() {
        let place = key_place(source);
        return Err(Failure::refused(format!(
            "no key for {provider}: {place} is not set or empty; set it, or name another with --api-key-env or \
             --api-key-file (--upstream mock needs none)"
        )));
    }
    Ok(Some(key.to_owned()))
}

fn read_file(path: &PathBuf) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::refused(format!("the key file {} cannot be read: {error}", path.display())))
}
