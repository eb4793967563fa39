//! From flags, environment and file to the upstream that a command works with, and its key.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_config::{
    Config, Environment, KeySource, Overrides, Proxy, SettingError, Source, Tier, TierMatch, Upstream, title_case,
};
use paceline_core::{Dimension, tier_and_part};
use paceline_http::{SenderConfig, check_proxy, client, gateway, proxy_of_environment};
use paceline_providers::host_name;
use paceline_providers::secrets::{SECRET, hidden};
use paceline_providers::table::Scope;
use paceline_store::{ACCOUNT, ScopeRow};

use crate::args::{Everywhere, UpstreamArgs};
use crate::exit::Failure;
use crate::files;
use crate::logging;
use crate::mock::{self, MockServer};
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
            "{what} counts the tokens of answers, but requests set no bound on them: each call reserves what the \
             answers so far have shown, and longer answers may exceed it; to keep to it, set a bound such as max_tokens in each request (for \
             prompts: --max-output-tokens)"
        );
    }
}

/// What carries keys, which the upstream's configuration has.
const KEYS: [&str; 4] = ["api-key", "authorization", "x-api-key", "x-goog-api-key"];

/// Whether such a header carries a key, so that no line may have it.
pub(crate) fn carries_key(name: &str) -> bool {
    KEYS.iter().any(|key| name.eq_ignore_ascii_case(key))
}

/// Warns, once, of headers that go to the host of the upstream's address alone, because their names say that they are secret,
/// where calls go to other hosts too. `to_others` looks at a call or at all of them, so it is asked until then only.
pub(crate) fn warn_of_withheld(upstream: &Upstream, to_others: impl FnOnce() -> bool) {
    static WARNED: AtomicBool = AtomicBool::new(false);
    let names: Vec<&str> = upstream.access.secret_headers().map(HeaderName::as_str).collect();
    let home = upstream.base_url.as_deref().and_then(paceline_providers::host);
    let Some(home) = home.filter(|_| !names.is_empty() && !WARNED.load(Ordering::Relaxed)) else { return };
    if to_others() && !WARNED.swap(true, Ordering::Relaxed) {
        let (headers, go, none) =
            if names.len() == 1 { ("header", "goes", "no such header") } else { ("headers", "go", "none of them") };
        let of_a_run = |name: &&str| carries_key(name);
        let advice = if names.iter().any(of_a_run) {
            "a host that needs a key of its own needs a run of its own"
        } else {
            "a line for another host may have its own in `headers`"
        };
        let names = names.join(", ");
        tracing::warn!(
            "the {headers} {names} {go} to {home} alone, the host of --base-url; calls to other hosts carry {none}: {advice}"
        );
    }
}

/// Warns of what does not act on a job, once its input is read: `scopes` are those of its items.
pub(crate) fn warn_of_scopes(upstream: &Upstream, scopes: &[ScopeRow]) {
    warn_of_idle_tiers(upstream, scopes);
    warn_of_hosts(upstream, || scopes.to_vec());
}

/// Warns of headers that go to the host of the upstream's address alone, where a job has items of others.
pub(crate) fn warn_of_hosts(upstream: &Upstream, scopes: impl FnOnce() -> Vec<ScopeRow>) {
    let home = upstream.base_url.as_deref().and_then(paceline_providers::host);
    let is_other = |name: &str| name != ACCOUNT && Some(name) != home.as_deref();
    let host_of = |name: &str| match upstream.tiers.iter().find(|tier| is_of(name, &tier.scope)) {
        Some(_) => tier_and_part(name).map(|(_, host)| host.to_owned()),
        None => Some(name.to_owned()),
    };
    let by_host = upstream.dialect.scope() == Scope::Host;
    warn_of_withheld(upstream, || {
        by_host && scopes().iter().filter_map(|row| host_of(&row.name)).any(|host| is_other(&host))
    });
}

/// Warns of tiers that keep hosts apart, and not in a fleet.
pub(crate) fn warn_of_tiers_in_a_fleet(upstream: &Upstream) {
    let is_of_many = |tier: &&Tier| !matches!(tier.matches, TierMatch::Host(_));
    let tiers: Vec<_> = upstream.tiers.iter().filter(is_of_many).map(|tier| text::printable(&tier.scope)).collect();
    if upstream.fleet.is_some() && upstream.dialect.scope() == Scope::Host && !tiers.is_empty() {
        tracing::warn!(
            "in a fleet all hosts of {} share its limits and its pauses: while one of them has asked for a pause, no call of the tier \
             leaves, to any host, in any process. Leave such tiers out, or give each host a tier of its own (host = \"NAME\")",
            tiers.join(", ")
        );
    }
}

/// Whether a scope of that name is a tier, or the part of one host in it.
pub(crate) fn is_of(scope: &str, tier: &str) -> bool {
    scope == tier || tier_and_part(scope).is_some_and(|(whole, _)| whole == tier)
}

/// The host of a scope that is a part of a tier, or a tier of one host; of any other the scope.
pub(crate) fn host_of(scope: &str) -> &str {
    let host = tier_and_part(scope).map(|(_, host)| host);
    host.or_else(|| scope.strip_prefix("tier host=")).unwrap_or(scope)
}

/// Whether a scope is a host, which may be named without its port.
pub(crate) fn is_host(scope: &str, named: &str) -> bool {
    let bare = |name: &str| {
        let name = host_of(name);
        let name = name.strip_prefix("tier ").unwrap_or(name);
        let rest = ["https://", "http://"].iter().find_map(|scheme| name.strip_prefix(scheme)).unwrap_or(name);
        let rest = rest.trim_end_matches(['/', '.']);
        match rest.split_once(']') {
            Some((_, port)) => host_name(&rest[..rest.len() - port.len()]) + port,
            None => rest.replace(".:", ":").to_ascii_lowercase(),
        }
    };
    scope == named
        || bare(scope).strip_prefix(&bare(named)).is_some_and(|port| port.is_empty() || port.starts_with(':'))
}

/// Warns of tiers that no item of a job belongs to.
fn warn_of_idle_tiers(upstream: &Upstream, scopes: &[ScopeRow]) {
    let is_idle = |tier: &&Tier| !scopes.iter().any(|scope| is_of(&scope.name, &tier.scope));
    let (taken, idle): (Vec<_>, Vec<_>) =
        upstream.tiers.iter().filter(is_idle).partition(|tier| taken_before(tier, scopes).is_some());
    for tier in taken {
        let before = text::printable(taken_before(tier, scopes).unwrap_or_default());
        let tier = text::printable(&tier.scope);
        tracing::warn!(
            "{before} stands before {tier} and takes its lines, so the limits there do not act: put {tier} first"
        );
    }
    if !idle.is_empty() {
        let idle: Vec<_> = idle.into_iter().map(|tier| text::printable(&tier.scope)).collect();
        tracing::warn!(
            "no line of the input matches {}, so the limits there do not act: `match` is the start of a path, `model` the \
             model of a body, `label` the text of `label` in the metadata of a line, `host` one host by its whole name, as it \
             is called (xn--... where it has other letters), under `scope = \"host\"`",
            idle.join(", ")
        );
    }
}

/// The tier that has the lines of a host which another tier is for.
fn taken_before<'a>(tier: &Tier, scopes: &'a [ScopeRow]) -> Option<&'a str> {
    let host = tier.scope.strip_prefix("tier host=")?;
    let parts = scopes.iter().filter_map(|row| tier_and_part(&row.name));
    parts.filter(|(_, part)| is_host(part, host)).map(|(whole, _)| whole).next()
}

/// The upstream in force.
///
/// # Errors
/// Refuses the first value that cannot be, naming the knob, its value, its origin and what was expected.
pub(crate) fn resolve(args: &UpstreamArgs, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    configured(overrides_of(args), everywhere)
}

/// What the flags of an upstream override.
pub(crate) fn overrides_of(args: &UpstreamArgs) -> Overrides {
    let args = args.clone();
    let overrides = Overrides {
        upstream: args.upstream,
        via: args.through.via,
        fleet: args.through.fleet,
        scope: args.scope,
        burst: args.burst,
        concurrency: args.concurrency,
        max_retries: args.max_retries,
        max_deferrals: args.max_deferrals,
        pace: args.pace,
        deadline: args.deadline,
        ..Overrides::default()
    };
    args.access.over(args.limits.over(overrides))
}

/// The same, with flags of one's own.
///
/// # Errors
/// Likewise.
pub(crate) fn configured(overrides: Overrides, everywhere: &Everywhere) -> Result<Upstream, Failure> {
    let config = loaded(overrides, everywhere)?;
    checked(config.upstream())
}

/// Says in the log which configuration file a run has read. Where lines are drawn, a person sees what is there.
pub(crate) fn tell_file(upstream: &Upstream, quiet: bool) {
    if logging::draws(quiet) {
        return;
    }
    match &upstream.file {
        Some(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            tracing::info!("configuration: {}", text::printable(&path.display().to_string()));
        }
        None => tracing::info!(
            "configuration: no file, for there is no paceline.toml in {} or in the user's configuration folder",
            std::env::current_dir().unwrap_or_default().display()
        ),
    }
}

/// The configuration under those flags.
///
/// # Errors
/// A file that cannot be read or parsed, names that do not exist, and a flag whose secret was left out.
pub(crate) fn loaded(overrides: Overrides, everywhere: &Everywhere) -> Result<Config, Failure> {
    let overrides = Overrides { config: everywhere.config.clone(), ..overrides };
    let hidden = [&overrides.base_url, &overrides.via, &overrides.fleet, &overrides.proxy]
        .into_iter()
        .flatten()
        .chain(&overrides.headers);
    if let Some(value) = hidden.into_iter().find(|value| value.contains(SECRET)) {
        return Err(Failure::refused(format!(
            "{value:?}: {SECRET} stands for a secret that was left out; write the secret there"
        )));
    }
    Config::load(environment(), overrides).map_err(Failure::refused)
}

/// An upstream, unless the environment names a proxy that cannot be used for it.
///
/// # Errors
/// Refuses both.
pub(crate) fn checked(upstream: Result<Upstream, SettingError>) -> Result<Upstream, Failure> {
    let upstream = upstream.map_err(Failure::refused)?;
    check_proxy(&upstream).map_err(Failure::refused)?;
    refuse_endpoint(&upstream)?;
    Ok(upstream)
}

/// Whether calls to the upstream could be set up, for a command that sends none. The mock that a run starts has no address yet,
/// and needs no certificates.
///
/// # Errors
/// A certificate or a client's key that cannot be read, or a proxy that is none.
pub(crate) fn check_access(upstream: &Upstream) -> Result<(), Failure> {
    if mock::is_own(upstream) {
        return Ok(());
    }
    client(upstream.base_url.as_deref().unwrap_or_default(), &upstream.access).map(drop).map_err(Failure::refused)
}

/// Refuses a base URL that ends in the endpoint of its API: each call adds that.
fn refuse_endpoint(upstream: &Upstream) -> Result<(), Failure> {
    let base = upstream.base_url.as_deref().unwrap_or_default();
    let path = base.trim_end_matches('/');
    let Some(endpoint) = upstream.provider.endpoint().filter(|endpoint| path.ends_with(endpoint)) else {
        return Ok(());
    };
    Err(Failure::refused(format!(
        "base_url = {:?}: expected an address without {endpoint}, which each call puts behind it: {}",
        hidden(base),
        hidden(path.strip_suffix(endpoint).unwrap_or_default())
    )))
}

fn environment() -> Environment {
    std::env::vars_os().collect()
}

/// Lets no more calls be under way at once than this process may have files open, of which each takes so many. Logs it where that
/// is fewer than were to be.
///
/// # Errors
/// There is no room for the files of the run itself.
pub(crate) fn bound_by_files(upstream: &mut Upstream, each: u64) -> Result<(), Failure> {
    if let Some(why) = files::too_few() {
        return Err(Failure::Refused(why));
    }
    let Some(room) = files::room_for_calls(each).filter(|room| *room < upstream.pacer.concurrency.max()) else {
        return Ok(());
    };
    upstream.pacer.concurrency = upstream.pacer.concurrency.at_most(room);
    tracing::warn!(
        "at most {} at once: the system lets this process open few files; raise `ulimit -n` for more",
        text::counted(u64::from(room), "call")
    );
    Ok(())
}

/// How the calls of a job are sent, with those headers and so much time for each.
pub(crate) fn sending(upstream: &Upstream, headers: HeaderMap, timeout: Duration) -> SenderConfig {
    let keeps_connections = files::may_keep_connections(upstream.pacer.concurrency.max());
    SenderConfig { keeps_connections, ..SenderConfig::of(upstream, headers, timeout) }
}

/// The headers that every call to the upstream carries, its key among them.
///
/// # Errors
/// Refuses a key that is needed and missing, unreadable, or no header value. The key itself is never named.
pub(crate) fn headers(upstream: &Upstream) -> Result<HeaderMap, Failure> {
    let flags = |message: String| {
        message.replace("api_key_env or api_key_file", "--api-key-env or --api-key-file (--upstream mock needs none)")
    };
    paceline_http::headers(upstream, &environment()).map_err(|error| Failure::refused(flags(error.to_string())))
}

/// The same for work that waits behind what is interactive, in a gateway.
///
/// # Errors
/// Likewise.
pub(crate) fn headers_of_batch(upstream: &Upstream) -> Result<HeaderMap, Failure> {
    let mut headers = headers(upstream)?;
    if upstream.via.is_some() {
        headers.entry(gateway::PRIORITY).or_insert(HeaderValue::from_static("batch"));
    }
    Ok(headers)
}

/// Whether calls are of an account that other processes may call: not where a gateway stands between, nor those of the mock.
pub(crate) const fn is_own_account(upstream: &Upstream, mock: Option<&MockServer>) -> bool {
    upstream.via.is_none() && mock.is_none()
}

/// What to do where a gateway refuses the key that calls show to it, or that they show none.
pub(crate) const KEY_AT_GATEWAY: &str = "send a key of the gateway that may do this (--header 'x-paceline-key: KEY')";

/// The secret that calls carry, for people; else why they carry none, and what to do.
pub(crate) fn key_sent(upstream: &Upstream) -> Result<String, String> {
    let key = match &upstream.key {
        KeySource::Variable { name, .. } if environment().get(name).is_none_or(|key| key.trim().is_empty()) => None,
        key => key.place(),
    };
    if let Some(via) = &upstream.via {
        return Ok(format!("the upstream key of the gateway at {}", via.gateway));
    }
    let headers: Vec<String> = upstream.access.secret_headers().map(|name| header_in(upstream, name)).collect();
    match (key, upstream.key.place()) {
        (Some(place), _) => Ok(format!("the key in {place}")),
        _ if !headers.is_empty() => Ok(headers.join(" or ")),
        (None, Some(unset)) => Err(format!("{unset} is not set, so no key was sent: set it")),
        (None, None) => Err("no key was sent: name one with --api-key-env or --api-key-file".to_owned()),
    }
}

/// What to do where the secret that calls carry was refused: by 401 its value or its place is wrong, by 403 it may also be that
/// of a ban.
pub(crate) fn advice_on_key(upstream: &Upstream, status: u16) -> String {
    let key = match key_sent(upstream) {
        Ok(key) => key,
        Err(unsent) => return unsent,
    };
    let is_placed = upstream.via.is_none() && upstream.key.place().is_some_and(|place| key.ends_with(&place));
    let (sent, place) = match is_placed {
        true => {
            let sent = format!(", sent as `{}`,", upstream.access.key_as_sent());
            (sent, ", and the header that carries it (--key-header, --key-scheme)")
        }
        false => (String::new(), ""),
    };
    match status {
        401 if upstream.via.is_some() => format!("the provider refused {key}: replace it there"),
        401 => format!("{key}{sent} was refused: check its value{place}"),
        _ => format!("check what {key}{sent} is permitted to use, and whether the server keeps this machine out"),
    }
}

/// A header as people write its name, and where it was set.
fn header_in(upstream: &Upstream, name: &HeaderName) -> String {
    let name_shown = title_case(name);
    let key = format!("headers.{name}");
    match upstream.effective.iter().rfind(|row| row.key == key).map(|row| &row.source) {
        Some(Source::Flag(flag)) => format!("the header {name_shown} of {flag}"),
        Some(source) => format!("the header {name_shown} ({source})"),
        None => format!("the header {name_shown}"),
    }
}

/// Where calls go, and by which proxy: either may be unreachable.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    address: String,
    /// Each scope is a host, which the lines name.
    by_host: bool,
    /// In words behind the address.
    proxy: Option<String>,
}

impl Destination {
    /// Where the calls of a scope go.
    pub(crate) fn of(&self, scope: &str) -> String {
        let address = if self.by_host { host_of(scope) } else { &self.address };
        format!("{address}{}", self.proxy().unwrap_or_default())
    }

    /// What a message says of the proxy, behind the address.
    pub(crate) fn proxy(&self) -> Option<&str> {
        self.proxy.as_deref()
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)?;
        f.write_str(self.proxy().unwrap_or_default())
    }
}

/// Where the calls to an upstream go.
pub(crate) fn destination(upstream: &Upstream) -> Destination {
    let address = match upstream.dialect.scope() {
        Scope::Host => "the hosts of the input",
        _ => upstream.base_url.as_deref().unwrap_or_default(),
    };
    let by_host = upstream.dialect.scope() == Scope::Host && upstream.via.is_none();
    let gateway = upstream.via.as_ref().map(|_| format!("the gateway at {address}"));
    let address = gateway.unwrap_or_else(|| address.to_owned());
    let proxy = match (&upstream.access.proxy, proxy_of_environment(upstream)) {
        (Proxy::At(proxy), _) => Some(format!(" through the proxy {}", hidden(proxy))),
        (_, Some((name, _))) => Some(format!(" (the variable {name} sets a proxy)")),
        _ => None,
    };
    Destination { address, by_host, proxy }
}

/// Whether configured limits hold for several hosts, of which a user may expect that each has them.
pub(crate) fn limits_span_hosts(upstream: &Upstream) -> bool {
    upstream.dialect.scope() == Scope::Host && !upstream.pacer.limits.quotas.is_empty()
}

/// The configured limits, for people.
pub(crate) fn limits(upstream: &Upstream) -> &'static str {
    match limits_span_hosts(upstream) {
        true => "the configured limits, a ceiling over all hosts together",
        false => "the configured limits",
    }
}
