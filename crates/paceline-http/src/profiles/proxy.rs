//! The proxy that the environment names, as the client will ask for it.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use paceline_config::{Proxy, Upstream};
use paceline_providers::is_loopback;
use paceline_providers::secrets::{SECRET, hidden};
use paceline_providers::table::Scope;

use super::access::AccessError;

/// The proxy that the environment of the process names for calls to the upstream: the variable, and what it says.
pub fn proxy_of_environment(upstream: &Upstream) -> Option<(&'static str, String)> {
    let address = asks_environment(upstream)?;
    // The one that the client asks, which knows NO_PROXY.
    Matcher::from_system().intercept(&address)?;
    variable(address.scheme_str()?)
}

/// The proxy on the way to an upstream, with what it wants to know of the caller, for a client of one's own.
///
/// # Errors
/// An address that is none, and a variable of the environment that names none.
pub fn proxy_to(upstream: &Upstream) -> Result<Option<Intercept>, AccessError> {
    check_proxy(upstream)?;
    let Some(to) = upstream.base_url.as_deref().and_then(|address| address.parse::<Uri>().ok()) else {
        return Ok(None);
    };
    Ok(match &upstream.access.proxy {
        Proxy::At(address) => {
            let found = Matcher::builder().all(address.clone()).build().intercept(&to);
            Some(found.ok_or_else(|| AccessError::Proxy(hidden(address).into_owned()))?)
        }
        Proxy::Environment if asks_environment(upstream).is_some() => Matcher::from_system().intercept(&to),
        Proxy::Environment | Proxy::None => None,
    })
}

/// Refuses a proxy of the environment that the client cannot use: it would ignore that, and send the key without the proxy.
///
/// # Errors
/// The variable, its value, and what was expected.
pub fn check_proxy(upstream: &Upstream) -> Result<(), AccessError> {
    let Some(address) = asks_environment(upstream) else { return Ok(()) };
    let lines_name_hosts = upstream.dialect.scope() == Scope::Host;
    let schemes = if lines_name_hosts { vec!["https", "http"] } else { address.scheme_str().into_iter().collect() };
    let without = first_set(["NO_PROXY", "no_proxy"]).map_or_else(String::new, |(_, hosts)| hosts);
    let through = |proxy: String| Matcher::builder().all(proxy).no(without.clone()).build().intercept(&address);
    if through("http://proxy".to_owned()).is_none() {
        return Ok(());
    }
    for (variable, value) in schemes.into_iter().filter_map(variable) {
        let proxy = through(value.clone());
        if !proxy.is_some_and(|proxy| matches!(proxy.uri().scheme_str(), Some("http" | "https"))) {
            // In what is no address a password is not seen as one.
            let shown = value.rsplit_once('@').map_or(value.clone(), |(_, host)| format!("{SECRET}@{host}"));
            return Err(AccessError::ProxyVariable { variable, shown });
        }
    }
    Ok(())
}

/// Whether a call to the upstream, or to a host that a line names, may go through a proxy.
pub(super) fn may_be_proxied(upstream: &Upstream) -> bool {
    let is_set = || ["http", "https"].into_iter().any(|scheme| variable(scheme).is_some());
    match &upstream.access.proxy {
        Proxy::At(_) => true,
        Proxy::None => false,
        // Elsewhere the settings of the system name proxies too.
        Proxy::Environment => {
            asks_environment(upstream).is_some() && (cfg!(any(windows, target_os = "macos")) || is_set())
        }
    }
}

/// The upstream's address, where the environment decides about the proxy to it.
fn asks_environment(upstream: &Upstream) -> Option<Uri> {
    let address = upstream.base_url.as_deref().filter(|address| !is_loopback(address))?;
    if upstream.access.proxy == Proxy::Environment { address.parse().ok() } else { None }
}

/// The variable that names the proxy for addresses of that scheme, and what it says.
fn variable(scheme: &str) -> Option<(&'static str, String)> {
    let names = if scheme == "https" { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    first_set(names).or_else(|| first_set(["ALL_PROXY", "all_proxy"]))
}

/// The client asks the first of two spellings that is there, also where it is empty.
fn first_set(names: [&'static str; 2]) -> Option<(&'static str, String)> {
    let set = |name| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
    names.into_iter().find_map(set).filter(|(_, value)| !value.is_empty())
}
