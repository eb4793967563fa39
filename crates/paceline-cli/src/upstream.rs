//! From flags, environment and file to the upstream that a command works with, and its key.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use paceline_config::{Config, Environment, KeySource, Overrides, Proxy, Tier, Upstream};
use paceline_core::Dimension;
use paceline_http::{Sender, SenderConfig};
use paceline_providers::secrets::{SECRET, hidden};
use paceline_providers::table::Scope;
use paceline_providers::{Dialect, Provider, is_loopback};
use paceline_store::ScopeRow;

use crate::args::{Everywhere, UpstreamArgs};
use crate::exit::Failure;
use crate::files;
use crate::text;

/// Whether a configured limit reserves room for the tokens of an answer before its call leaves.
pub(crate) fn limits_answers(upstream: &Upstream) -> bool {
    const OF_ANSWERS: [Dimension; 3] = [Dimension::Tokens, Dimension::ProjectTokens, Dimension::OutputTokens];
    let tiers = upstream.pacer.tiers.iter().map(|(_, limits)| limits);
    let quotas = tiers.chain([&upstream.pacer.limits]).flat_map(|limits| &limits.quotas);
    upstream.dialect.reserves_answers() && quotas.into_iter().any(|quota| OF_ANSWERS.contains(&quota.dimension))
}

/// Warns, once, of a request that sets no bound on its answer while `what` counts answers. `is_unbounded` parses the request, so
/// it is asked until then only.
pub(crate) fn warn_of_unbounded(what: &str, is_unbounded: impl FnOnce() -> bool) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !WARNED.load(Ordering::Relaxed) && is_unbounded() && !WARNED.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{what} counts the tokens of answers, but requests set no bound on them: each call reserves the average of the \
             answers so far, and longer answers may exceed it; to keep to it, set a bound such as max_tokens in each request"
        );
    }
}

/// Warns of tiers that no item of a job belongs to, once its input is read: `scopes` are those of its items.
pub(crate) fn warn_of_idle_tiers(upstream: &Upstream, scopes: &[ScopeRow]) {
    let is_idle = |tier: &&Tier| scopes.iter().all(|scope| scope.name != tier.scope);
    let idle: Vec<_> = upstream.tiers.iter().filter(is_idle).map(|tier| text::printable(&tier.scope)).collect();
    if !idle.is_empty() {
        tracing::warn!(
            "no line of the input matches {}, so the limits there do not act: `match` is the start of a path, `model` the \
             model of a body, `label` the text of `label` in the metadata of a line",
            idle.join(", ")
        );
    }
}

/// The upstream in force.
///
/// # Errors
/// Refuses the first value that cannot be, naming the knob, its value, its origin and what was expected.
pub(crate) fn resolve(args: &UpstreamArgs, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let args = args.clone();
    let overrides = Overrides {
        upstream: args.upstream,
        limits: args.limit,
        rpm: args.rpm,
        scope: args.scope,
        tpm: args.tpm,
        burst: args.burst,
        concurrency: args.concurrency,
        max_retries: args.max_retries,
        max_deferrals: args.max_deferrals,
        pace: args.pace,
        deadline: args.deadline,
        ..Overrides::default()
    };
    configured(args.access.over(overrides), everywhere)
}

/// The same, with flags of one's own.
///
/// # Errors
/// Likewise.
pub(crate) fn configured(overrides: Overrides, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let overrides = Overrides { config: everywhere.config.clone(), ..overrides };
    let hidden = [&overrides.base_url, &overrides.proxy].into_iter().flatten().chain(&overrides.headers);
    if let Some(value) = hidden.into_iter().find(|value| value.contains(SECRET)) {
        return Err(Failure::refused(format!(
            "{value:?}: {SECRET} stands for a secret that was left out; write the secret there"
        )));
    }
    let config = Config::load(Environment::from_iter(std::env::vars_os()), overrides).map_err(Failure::refused)?;
    let upstream = config.upstream().map_err(Failure::refused)?;
    refuse_unusable_proxy(&upstream)?;
    Ok(upstream)
}

/// Lets no more calls be under way at once than this process may have files open, of which each takes so many. Logs it where that
/// is fewer than were to be.
pub(crate) fn bound_by_files(upstream: &mut Upstream, each: u64) {
    let Some(room) = files::room_for_calls(each).filter(|room| *room < upstream.pacer.concurrency.max()) else {
        return;
    };
    upstream.pacer.concurrency = upstream.pacer.concurrency.at_most(room);
    tracing::warn!(
        "at most {} at once, because the system lets this process open few files: raise `ulimit -n` for more, or set \
         --concurrency {room}",
        text::counted(u64::from(room), "call")
    );
}

/// The headers that every call to the upstream carries, its key among them. A key that others can read, on its way or in its
/// file, is warned about.
///
/// # Errors
/// Refuses a key that is needed and missing, unreadable, or no header value. The key itself is never named.
pub(crate) fn headers(upstream: &Upstream) -> Result<HeaderMap, Failure> {
    let key = read_key(&upstream.key, upstream.provider)?;
    let place = key_place(&upstream.key).unwrap_or_default();
    let invalid = |invalid| Failure::refused(format!("the key in {place} {invalid}"));
    let headers = upstream.access.headers(key.as_deref()).map_err(invalid)?;
    if headers.values().any(HeaderValue::is_sensitive)
        && let Some(address) = &upstream.base_url
        && address.starts_with("http://")
        && !is_loopback(address)
    {
        tracing::warn!("the key is sent to {address} unencrypted, where others can read it: use https://");
    }
    Ok(headers)
}

/// What sends calls to the upstream, with those headers and so much time for each.
///
/// # Errors
/// Refuses a certificate that cannot be read, a proxy and an address that are none.
pub(crate) fn sender(upstream: &Upstream, headers: HeaderMap, timeout: Duration) -> Result<Sender, Failure> {
    let base_url = upstream.base_url.clone().unwrap_or_default();
    let client = paceline_http::client(&base_url, &upstream.access).map_err(Failure::refused)?;
    if let Some((_, key)) = &upstream.access.client
        && let Ok(file) = File::open(key)
    {
        warn_if_exposed("the client's key", &file, &key.display().to_string());
    }
    let config = SenderConfig {
        headers,
        timeout,
        idempotency_header: upstream.access.idempotency_header.clone(),
        unknown_outcome: upstream.access.unknown_outcome,
        ..SenderConfig::new(base_url, upstream.dialect.clone())
    };
    Sender::new(client, config)
        .map_err(|error| Failure::refused(format!("cannot set up calls to the upstream: {error}")))
}

/// Describes where calls go, and by which proxy: either may be unreachable.
pub(crate) fn destination(upstream: &Upstream) -> String {
    let address = match upstream.dialect.scope() {
        Scope::Host => "the hosts of the input",
        _ => upstream.base_url.as_deref().unwrap_or_default(),
    };
    match (&upstream.access.proxy, proxy_of_environment(upstream)) {
        (Proxy::At(proxy), _) => format!("{address} through the proxy {}", hidden(proxy)),
        (_, Some((name, _))) => format!("{address} (the variable {name} sets a proxy)"),
        _ => address.to_owned(),
    }
}

/// The proxy that the environment names for calls to the upstream: the variable, and what it says.
pub(crate) fn proxy_of_environment(upstream: &Upstream) -> Option<(&'static str, String)> {
    let address = asks_environment(upstream)?;
    // The one that the client asks, which knows NO_PROXY.
    Matcher::from_system().intercept(&address)?;
    proxy_variable(address.scheme_str()?)
}

/// The client ignores a variable that it cannot read, and would send the key without the proxy.
fn refuse_unusable_proxy(upstream: &Upstream) -> Result<(), Failure> {
    let Some(address) = asks_environment(upstream) else { return Ok(()) };
    let lines_name_hosts = upstream.dialect.scope() == Scope::Host;
    let schemes = if lines_name_hosts { vec!["https", "http"] } else { address.scheme_str().into_iter().collect() };
    let without = first_set(["NO_PROXY", "no_proxy"]).map_or_else(String::new, |(_, hosts)| hosts);
    let through = |proxy: String| Matcher::builder().all(proxy).no(without.clone()).build().intercept(&address);
    if through("http://proxy".to_owned()).is_none() {
        return Ok(());
    }
    for (name, value) in schemes.into_iter().filter_map(proxy_variable) {
        let proxy = through(value.clone());
        if !proxy.is_some_and(|proxy| matches!(proxy.uri().scheme_str(), Some("http" | "https"))) {
            // In what is no address a password is not seen as one.
            let shown = value.rsplit_once('@').map_or(value.clone(), |(_, host)| format!("{SECRET}@{host}"));
            return Err(Failure::refused(format!(
                "the variable {name} = {shown:?}: expected the address of a proxy such as \
                 http://proxy.example.com:3128; correct it, or use no proxy with --proxy none"
            )));
        }
    }
    Ok(())
}

/// The upstream's address, where the environment decides about the proxy to it.
fn asks_environment(upstream: &Upstream) -> Option<Uri> {
    let address = upstream.base_url.as_deref().filter(|address| !is_loopback(address))?;
    if upstream.access.proxy == Proxy::Environment { address.parse().ok() } else { None }
}

/// The variable that names the proxy for addresses of that scheme, and what it says.
fn proxy_variable(scheme: &str) -> Option<(&'static str, String)> {
    let names = if scheme == "https" { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    first_set(names).or_else(|| first_set(["ALL_PROXY", "all_proxy"]))
}

/// The client asks the first of two spellings that is there, also where it is empty.
fn first_set(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let set = |name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
    names.into_iter().find_map(set).filter(|(_, value)| !value.is_empty())
}

/// The same for a call of that scope, which may name its host.
pub(crate) fn destination_of(scope: &str, dialect: &Dialect, destination: &str) -> String {
    if dialect.scope() == Scope::Host { format!("{destination}, last at {scope}") } else { destination.to_owned() }
}

/// Describes where the key is; none where none is configured.
pub(crate) fn key_place(key: &KeySource) -> Option<String> {
    match key {
        KeySource::None => None,
        KeySource::Variable { name, .. } => Some(name.clone()),
        KeySource::File(path) => Some(path.display().to_string()),
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
    // Editors of some systems begin a file with a byte order mark.
    let key = key.trim_start_matches('\u{feff}').trim();
    if key.is_empty() {
        let place = key_place(source).unwrap_or_default();
        let is_what = if matches!(source, KeySource::File(_)) {
            "is an empty file; put the key into it"
        } else {
            "is not set or empty; set it"
        };
        return Err(Failure::refused(format!(
            "no key for {provider}: {place} {is_what}, or name another with --api-key-env or \
             --api-key-file (--upstream mock needs none)"
        )));
    }
    if let (KeySource::File(path), Some(name)) = (source, assigned(key)) {
        return Err(Failure::refused(format!(
            "the key file {} sets a variable, {name}=...: expected the key alone; write only what stands behind the `=` there",
            path.display()
        )));
    }
    Ok(Some(key.to_owned()))
}

/// The variable that a text sets, where it is a line for a shell. Keys of Base64 have nothing but `=` behind their first one.
fn assigned(text: &str) -> Option<&str> {
    let (name, value) = text.strip_prefix("export ").unwrap_or(text).split_once('=')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    (is_name && name.starts_with(|c: char| !c.is_ascii_digit()) && !value.trim_matches('=').is_empty()).then_some(name)
}

fn read_file(path: &Path) -> Result<String, Failure> {
    // The user may have put the key itself in place of the file.
    let shown = path.display().to_string();
    let shown = hidden(&shown);
    let unreadable = |error| Failure::refused(format!("the key file {shown} cannot be read: {error}"));
    let mut file = File::open(path).map_err(unreadable)?;
    let mut key = String::new();
    file.read_to_string(&mut key).map_err(unreadable)?;
    warn_if_exposed("the key file", &file, &shown);
    Ok(key)
}

fn warn_if_exposed(what: &str, file: &File, shown: &str) {
    if let Some(mode) = others_may_read(file) {
        tracing::warn!("{what} {shown} can be read by others (mode {mode:o}): chmod 600 {shown}");
    }
}

/// The mode of a file that not only its user may read. A pipe or a device has none that matters.
#[cfg(unix)]
fn others_may_read(file: &File) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let about = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    Some(about.permissions().mode() & 0o777).filter(|mode| mode & 0o077 != 0)
}

#[cfg(not(unix))]
const fn others_may_read(_: &File) -> Option<u32> {
    None
}
