//! An upstream's address and the path of a call, as one address.

use http::Uri;

/// The address of a call: `path`, which may have a query, below `base`. A base that ends in `/v1` and a path that begins
/// with it share one `/v1`. A query of the base stays behind the path, before the path's own; a fragment, which no server
/// gets to see, is left out.
pub fn join_url(base: &str, path: &str) -> String {
    let base = before(base, '#').0;
    let (base, always) = before(base, '?');
    let (path, query) = before(before(path, '#').0, '?');
    let base = base.trim_end_matches('/');
    let shared = path == "/v1" || path.starts_with("/v1/");
    let base = base.strip_suffix("/v1").filter(|_| shared).unwrap_or(base);
    let queries: Vec<&str> = [always, query].into_iter().flatten().filter(|query| !query.is_empty()).collect();
    match queries.as_slice() {
        [] => [base, path].concat(),
        queries => [base, path, "?", &queries.join("&")].concat(),
    }
}

/// A path, or the beginning of another text, up to the first of these letters. Paths are short and looked at several times for
/// each call: letter by letter that takes a fraction of what a search for characters does.
///
/// ```
/// assert_eq!(paceline_providers::path_before("/v1/models?n=1", b"?#"), "/v1/models");
/// ```
#[inline]
pub fn path_before<'t, const N: usize>(text: &'t str, ends: &[u8; N]) -> &'t str {
    let end = text.bytes().position(|byte| ends.contains(&byte));
    &text[..end.unwrap_or(text.len())]
}

/// The path of a whole address below `base`, as [`join_url`] takes it; none of an address elsewhere, or with a user name.
///
/// ```
/// use paceline_providers::below;
/// assert_eq!(below("https://API.example/v1/models?x=1", "https://api.example:443/v1").as_deref(), Some("/v1/models?x=1"));
/// assert_eq!(below("https://elsewhere.example/v1/models", "https://api.example/v1"), None);
/// ```
pub fn below(url: &str, base: &str) -> Option<String> {
    let (url, base): (Uri, Uri) = (url.parse().ok()?, base.parse().ok()?);
    if origin(&url)? != origin(&base)? || url.authority()?.as_str().contains('@') {
        return None;
    }
    let prefix = base.path().trim_end_matches('/');
    let rest = url.path_and_query()?.as_str().strip_prefix(prefix)?;
    // Calls below a base that ends in /v1 are known by it, however they are named.
    let version = if prefix.ends_with("/v1") { "/v1" } else { "" };
    rest.starts_with('/').then(|| format!("{version}{rest}"))
}

/// Scheme, host and port of a web address, in lower case.
pub fn origin(uri: &Uri) -> Option<(String, String, u16)> {
    let scheme = uri.scheme_str()?.to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    Some((scheme, host_name(uri.host()?), uri.port_u16().unwrap_or(usual)))
}

/// A name with a dot at its end is the same one in full.
pub fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// A host's name without its port, as all of its spellings have it: in lower case, without a dot at its end, and an address of
/// IPv6, which stands in brackets, in its shortest form.
///
/// ```
/// use paceline_providers::host_name;
/// assert_eq!(host_name("API.example."), "api.example");
/// assert_eq!(host_name("[0:0:0:0:0:0:0:1]"), "[::1]");
/// ```
pub fn host_name(host: &str) -> String {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')?.parse::<std::net::Ipv6Addr>().ok());
    address.map_or_else(|| without_dot(host).to_ascii_lowercase(), |address| format!("[{address}]"))
}

/// Whether a URL leads to this very machine: no proxy is asked there, and no key is needed.
pub fn is_loopback(url: &str) -> bool {
    let uri: Uri = url.parse().unwrap_or_default();
    is_loopback_host(uri.host().unwrap_or_default())
}

/// The same of a host without its port: a name, or an address, that of IPv6 in brackets.
pub fn is_loopback_host(host: &str) -> bool {
    let host = host.trim_matches(['[', ']']);
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// The host of a whole address, as the scope of its calls is called: in lower case, with its port where that is not the usual
/// one; none of a path. The scheme stands before it where another is to be expected, which is https without a port and http with
/// one: what speaks TLS at a port and what does not are two servers, and a mistyped scheme is no fault of the other.
///
/// ```
/// use paceline_providers::host;
/// assert_eq!(host("https://API.example:443/v1?x=1").as_deref(), Some("api.example"));
/// assert_eq!(host("http://127.0.0.1:8080/").as_deref(), Some("127.0.0.1:8080"));
/// assert_eq!(host("https://127.0.0.1:8080/").as_deref(), Some("https://127.0.0.1:8080"));
/// assert_eq!(host("http://api.example/v1").as_deref(), Some("http://api.example"));
/// assert_eq!(host("http://api.example.:81/v1").as_deref(), Some("api.example:81"));
/// assert_eq!(host("http://[0:0::1]:81/v1").as_deref(), Some("[::1]:81"));
/// assert_eq!(host("/v1"), None);
/// ```
pub fn host(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let is_safe = uri.scheme_str()? == "https";
    let usual = if is_safe { 443 } else { 80 };
    let host = host_name(uri.host()?);
    Some(match (uri.port_u16().filter(|port| *port != usual), is_safe) {
        (Some(port), false) => format!("{host}:{port}"),
        (Some(port), true) => format!("https://{host}:{port}"),
        (None, false) => format!("http://{host}"),
        (None, true) => host,
    })
}

/// The path of a whole address, with what follows it; a path as it is.
pub fn path_of(url: &str) -> &str {
    let Some((_, behind)) = url.split_once("://").filter(|_| !url.starts_with('/')) else { return url };
    behind.find('/').map_or("/", |path| &behind[path..])
}

/// What stands before a sign, and what behind it where it is there.
fn before(text: &str, sign: char) -> (&str, Option<&str>) {
    text.split_once(sign).map_or((text, None), |(before, behind)| (before, Some(behind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_prefix_is_sent_once_and_queries_stand_behind_the_path() {
        for (base, path, expected) in [
            ("https://h/v1", "/v1/chat/completions", "https://h/v1/chat/completions"),
            ("https://h/v1/", "/v1/chat/completions", "https://h/v1/chat/completions"),
            ("https://h", "/v1/chat/completions", "https://h/v1/chat/completions"),
            ("https://h/", "/v1", "https://h/v1"),
            ("https://h/v1", "/v1?x=1", "https://h/v1?x=1"),
            ("https://h/v1", "/chat/completions", "https://h/v1/chat/completions"),
            ("https://h/api/v1", "/v1/x?y=1", "https://h/api/v1/x?y=1"),
            ("https://h/v1", "/v10/x", "https://h/v1/v10/x"),
            ("https://h/openai", "/v1/x", "https://h/openai/v1/x"),
            ("https://h/openai?api-version=7", "/v1/x", "https://h/openai/v1/x?api-version=7"),
            ("https://h/v1/?api-version=7", "/v1/x?y=/v1?", "https://h/v1/x?api-version=7&y=/v1?"),
            ("https://h/v1?", "/v1/x?", "https://h/v1/x"),
            ("https://h/v1#top", "/v1/x", "https://h/v1/x"),
            ("https://h?a=1#top", "/v1/x?b=2#here", "https://h/v1/x?a=1&b=2"),
        ] {
            assert_eq!(join_url(base, path), expected, "{base} {path}");
        }
    }
}
