//! The hosts of tiers: which calls are of a tier that names a host, and which hosts are apart in their tier.

use paceline_providers::without_dot;
use url::{Host, Url};

use super::upstream::TierMatch;

/// Whether that address is of a host, which may be named without its port.
pub(crate) fn goes_to(url: &str, host: &str) -> bool {
    let (named, port) = port_of(host).map_or((host, None), |(named, port)| (named, Some(port)));
    let (Ok(url), Ok(named)) = (Url::parse(url), Host::parse(without_dot(named))) else { return false };
    let is_there = |port: &str| port.parse().ok() == url.port_or_known_default();
    url.host_str().map(without_dot) == Some(&*named.to_string()) && port.is_none_or(is_there)
}

/// Whether a host of a tier has the limits of that for itself, as one of several: another server at a port of its own is one.
pub(crate) fn is_part(of: &TierMatch, host: &str) -> bool {
    match of {
        TierMatch::Host(name) => port_of(host).is_some() && port_of(name).is_none(),
        TierMatch::Path(_) | TierMatch::Model(_) | TierMatch::Label(_) => true,
    }
}

/// A host without its port, and that.
fn port_of(host: &str) -> Option<(&str, &str)> {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    host.rsplit_once(':').filter(|(_, port)| is_port(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_be_named_without_its_port_and_with_a_dot_at_its_end() {
        for (url, host, expected) in [
            ("https://user@Slow.Example/a", "slow.example", true),
            ("http://slow.example.:81?n=1", "slow.example", true),
            ("http://slow.example.:81?n=1", "slow.example:81", true),
            ("http://slow.example:81/", "slow.example:82", false),
            ("http://slow.example/", "slow.example:81", false),
            ("http://slow.example/", "slow.example.", true),
            ("http://[::1]:81/", "[::1]", true),
            ("http://[::1]/", "[::1]", true),
            ("http://[0:0:0:0:0:0:0:1]:81/", "[::1]:81", true),
            ("http://[::1]:81/", "[0:0::1]", true),
            ("http://slow.example/", "slow.example:80", true),
            ("https://slow.example/", "slow.example:80", false),
            ("https://b\u{fc}cher.example/", "xn--bcher-kva.example", true),
            ("http://slow.example.org/slow.example", "slow.example", false),
            ("/slow.example", "slow.example", false),
        ] {
            assert_eq!(goes_to(url, host), expected, "{url} {host}");
        }
    }
}
