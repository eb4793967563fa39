//! Which upstream a request is for, and its path there.

use std::net::Ipv4Addr;

use http::header::HOST;
use http::{Request, Uri};

use crate::spelling::stays_inside;

/// The first parts of paths that a gateway answers itself: an upstream of that name would be shadowed, or shadow them.
pub const OWN_ROUTES: [&str; 5] = ["healthz", "readyz", "metrics", "api", "v1"];

/// The one of these upstreams that the host of a request names: `openai.localhost:4747` is `openai`.
pub(crate) fn upstream_of_host<'a, Body>(
    request: &Request<Body>,
    mut names: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let field = || request.headers().get(HOST)?.to_str().ok();
    let host = request.uri().host().or_else(field)?;
    let (label, _) = host.split_once('.')?;
    let name = names.find(|name| name.eq_ignore_ascii_case(label))?;
    let host = host.rsplit_once(':').map_or(host, |(host, _port)| host);
    host.parse::<Ipv4Addr>().is_err().then_some(name)
}

/// The target of a request: `/NAME/rest?query`, or the whole path where its host names the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// The name that its path begins with.
    pub(crate) name: &'a str,
    /// The path below it, with the query.
    pub(crate) path: &'a str,
}

impl<'a> Target<'a> {
    /// The target of an address, for the upstream that its host names, if it names one; none where its path leaves the folder of
    /// an upstream.
    pub(crate) fn of(uri: &'a Uri, at_host: Option<&'a str>) -> Option<Self> {
        let all = uri.path_and_query()?.as_str();
        let below = all.strip_prefix('/')?;
        let end = below.find(['/', '?']).unwrap_or(below.len());
        let (first, rest) = below.split_at(end);
        let (name, path) = at_host.map_or((first, rest), |name| (name, all));
        stays_inside(uri.path()).then_some(Self { name, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_of_a_path_names_the_upstream() {
        for (uri, expected) in [
            ("/openai/v1/chat/completions", Some(("openai", "/v1/chat/completions"))),
            ("/openai/v1/files?limit=1", Some(("openai", "/v1/files?limit=1"))),
            ("/openai", Some(("openai", ""))),
            ("/openai?x=/y", Some(("openai", "?x=/y"))),
            ("/", Some(("", ""))),
            ("http://elsewhere.example/openai/v1", Some(("openai", "/v1"))),
            ("/openai/v1/../admin", None),
            ("/openai/v1/%2e%2E/admin", None),
            ("/openai/v1/..%2fadmin", None),
            ("/openai/v1/..;x/admin", None),
            ("/openai/v1/..%5cadmin", None),
            ("/openai/v1/%252e%252e/admin", None),
            ("/openai/v1/..%25252fadmin", None),
            ("/openai/v1/..%3fx/admin", None),
            ("/openai/v1/..%00/admin", None),
            ("/openai/v1/%2e", None),
            ("/openai/v1/%25252525252525252541", None),
            ("/openai/v1/100%/%zz", Some(("openai", "/v1/100%/%zz"))),
            ("/openai/v1/a..b/...", Some(("openai", "/v1/a..b/..."))),
        ] {
            let uri: Uri = uri.parse().expect("an address");
            assert_eq!(Target::of(&uri, None).map(|target| (target.name, target.path)), expected, "{uri}");
        }
    }

    #[test]
    fn the_first_part_of_a_host_names_the_upstream_of_every_path() {
        let names = ["openai", "127"];
        for (host, uri, expected) in [
            ("openai.localhost:4747", "/v1/models?x=1", Some(("openai", "/v1/models?x=1"))),
            ("OpenAI.gateway.example", "/metrics", Some(("openai", "/metrics"))),
            ("openai.localhost", "/127/v1", Some(("openai", "/127/v1"))),
            ("openai.localhost", "/v1/%2e%2e/admin", None),
            ("localhost:4747", "/openai/v1", Some(("openai", "/v1"))),
            ("openai:4747", "/openai/v1", Some(("openai", "/v1"))),
            ("127.0.0.1:4747", "/openai/v1", Some(("openai", "/v1"))),
            ("other.localhost", "/openai/v1", Some(("openai", "/v1"))),
        ] {
            for (uri, field) in [(uri.to_owned(), host), (format!("http://{host}{uri}"), "elsewhere.example")] {
                let request = Request::builder().uri(uri).header(HOST, field).body(()).expect("a request");
                let at_host = upstream_of_host(&request, names.into_iter());
                let target = Target::of(request.uri(), at_host);
                assert_eq!(target.map(|target| (target.name, target.path)), expected, "{host} {}", request.uri());
            }
        }
    }
}
