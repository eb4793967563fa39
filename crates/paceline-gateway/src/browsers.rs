//! What a browser says of the page that makes a request: pages of the web must not spend the key of an upstream.

use std::net::IpAddr;

use http::Uri;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use paceline_providers::is_loopback_host;

/// Whether the request comes from a page of the web that a browser shows: it could spend the key, and read answers where its
/// name leads to this machine. Programs name this machine, and no origin. `is_tls`: the gateway is reached by https.
pub(crate) fn is_of_a_page(uri: &Uri, headers: &HeaderMap, is_tls: impl Fn() -> bool) -> bool {
    let is_ours = is_name_of_this_machine;
    let mut hosts = headers.get_all(header::HOST).iter().map(|host| Authority::try_from(host.as_bytes()));
    hosts.any(|host| !host.is_ok_and(|host| is_ours(host.host())))
        || uri.authority().is_some_and(|authority| !is_ours(authority.host()))
        || is_of_another_site(uri, headers, is_tls)
}

fn is_name_of_this_machine(host: &str) -> bool {
    is_loopback_host(host) || host.to_ascii_lowercase().ends_with(".localhost")
}

/// Whether a browser says that a page of another site makes the request, or one of another port of this machine: an image of such
/// a page comes without an origin.
pub(crate) fn is_of_another_site(uri: &Uri, headers: &HeaderMap, is_tls: impl Fn() -> bool) -> bool {
    let named = || Authority::try_from(headers.get(header::HOST)?.as_bytes()).ok();
    let is_own = |origin: &HeaderValue| {
        let own = uri.authority().cloned().or_else(named);
        own.is_some_and(|own| is_origin_of(origin, &own, is_tls()))
    };
    !headers.get_all(header::ORIGIN).iter().all(is_own)
        || says(headers, "sec-fetch-site", "same-site")
        || is_led(headers)
}

/// Whether an origin is that of the gateway, by the host and the port that the request names: letter by letter, but for their
/// case and for the usual port. A name that is none of this machine is not believed: who has it may let it lead here.
fn is_origin_of(origin: &HeaderValue, own: &Authority, is_tls: bool) -> bool {
    let (scheme, usual) = if is_tls { ("https://", ":443") } else { ("http://", ":80") };
    let host = own.host();
    let leads_here = is_name_of_this_machine(host) || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let own = own.as_str();
    let own = [scheme, own.strip_suffix(usual).unwrap_or(own)].concat();
    let is_equal = |origin: &str| origin.strip_suffix(usual).unwrap_or(origin).eq_ignore_ascii_case(&own);
    leads_here && origin.to_str().is_ok_and(is_equal)
}

/// Whether a browser says that a page of another site led it here, be it by a link, or that it takes the answer for a script that
/// stands between it and all that has this origin.
pub(crate) fn is_led(headers: &HeaderMap) -> bool {
    says(headers, "sec-fetch-site", "cross-site")
        || says(headers, "sec-fetch-dest", "serviceworker")
        || headers.contains_key("service-worker")
}

fn says(headers: &HeaderMap, name: &'static str, value: &str) -> bool {
    let said = headers.get(HeaderName::from_static(name));
    said.is_some_and(|said| said.as_bytes().eq_ignore_ascii_case(value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::map;

    #[test]
    fn pages_of_the_web_are_told_from_programs() {
        let local = Uri::from_static("/openai/v1");
        for (pairs, expected) in [
            (&[("host", "127.0.0.1:4747")][..], false),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:4747")], false),
            (&[("host", "LocalHost:4747"), ("origin", "http://localhost:4747")], false),
            (&[("host", "[::1]:4747"), ("origin", "http://[::1]:4747")], false),
            (&[("host", "localhost"), ("origin", "http://localhost:80")], false),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:3000")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost")], true),
            (&[("host", "localhost:4747"), ("origin", "https://localhost:4747")], true),
            (&[("host", "localhost:4747"), ("origin", "http://127.0.0.1:4747")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost.:4747")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:4747.")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:4747/")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:47470")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:4747.evil.example")], true),
            (&[("host", "localhost:4747"), ("origin", "http://localhost:4747@evil.example")], true),
            (&[("host", "localhost:4747"), ("origin", "http://evil.example@localhost:4747")], true),
            (&[("host", "localhost:4747"), ("origin", "http://a.localhost:4747")], true),
            (&[("host", "localhost:4747"), ("origin", "")], true),
            (&[("host", "gateway.localhost")], false),
            (&[("host", "gateway.localhost:4747")], false),
            (&[("host", "localhost.evil.example:4747")], true),
            (&[("host", "evil.example:4747.localhost")], true),
            (&[("host", "0.0.0.0:4747")], true),
            (&[("host", "[::ffff:127.0.0.1]:4747")], true),
            (&[("host", "OpenAI.localhost:4747")], false),
            (&[("host", "localhost.example:4747")], true),
            (&[("host", "[::1]:4747")], false),
            (&[], false),
            (&[("host", "evil.example")], true),
            (&[("host", "127.0.0.1:4747"), ("origin", "https://evil.example")], true),
            (&[("host", "127.0.0.1:4747"), ("origin", "null")], true),
            (&[("host", "127.0.0.1:4747"), ("sec-fetch-site", "cross-site")], true),
            (&[("host", "127.0.0.1:4747"), ("sec-fetch-site", "CROSS-SITE")], true),
            (&[("host", "localhost:4747"), ("sec-fetch-site", "same-site"), ("sec-fetch-dest", "image")], true),
            (&[("host", "localhost:4747"), ("sec-fetch-site", "same-origin")], false),
            (&[("host", "127.0.0.1:4747"), ("sec-fetch-site", "same-origin"), ("service-worker", "script")], true),
            (&[("host", "127.0.0.1:4747"), ("sec-fetch-dest", "serviceworker")], true),
            (&[("host", "127.0.0.1:4747"), ("sec-fetch-site", "none"), ("sec-fetch-dest", "document")], false),
        ] {
            assert_eq!(is_of_a_page(&local, &map(pairs), || false), expected, "{pairs:?}");
        }
        assert!(is_of_a_page(&Uri::from_static("http://evil.example/openai/v1"), &HeaderMap::new(), || false));
        for (host, origin, expected) in [
            ("10.0.0.5:4747", "http://10.0.0.5:4747", false),
            ("10.0.0.5:4747", "http://10.0.0.5", true),
            ("10.0.0.5:4747", "http://localhost:4747", true),
            ("evil.example:4747", "http://evil.example:4747", true),
        ] {
            let found = is_of_another_site(&local, &map(&[("host", host), ("origin", origin)]), || false);
            assert_eq!(found, expected, "{host} {origin}");
        }
        let mut twice = map(&[("host", "localhost"), ("origin", "https://localhost")]);
        assert!(!is_of_another_site(&local, &twice, || true), "with TLS");
        twice.append("origin", HeaderValue::from_static("https://evil.example"));
        assert!(is_of_another_site(&local, &twice, || true));
    }
}
