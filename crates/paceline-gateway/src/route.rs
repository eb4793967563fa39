//! Which upstream a request is for, and its path there.

use std::borrow::Cow;

use http::Uri;
use percent_encoding::percent_decode_str;

/// The first parts of paths that a gateway answers itself: an upstream of that name would be shadowed, or shadow them.
pub const OWN_ROUTES: [&str; 5] = ["healthz", "readyz", "metrics", "api", "v1"];

/// The target of a request: `/NAME/rest?query`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    /// The name that its path begins with.
    pub(crate) name: &'a str,
    /// The path below it, with the query.
    pub(crate) path: &'a str,
}

impl<'a> Target<'a> {
    /// The target of an address; none where its path leaves the folder of an upstream.
    pub(crate) fn of(uri: &'a Uri) -> Option<Self> {
        let all = uri.path_and_query()?.as_str();
        let below = all.strip_prefix('/')?;
        let end = below.find(['/', '?']).unwrap_or(below.len());
        let (name, path) = below.split_at(end);
        stays_inside(uri.path()).then_some(Self { name, path })
    }
}

/// A path that is encoded more often is none that a program sends.
const MOST_DECODED: usize = 8;

/// A server resolves `..`, and may do so behind the path of its base address; also percent-encoded, and again where another
/// server before it has decoded once.
fn stays_inside(path: &str) -> bool {
    let resolves = |part: &str| {
        let end = part.find(|c: char| matches!(c, ';' | '?' | '#' | ' ') || c.is_control());
        matches!(&part[..end.unwrap_or(part.len())], "." | "..")
    };
    let mut path = Cow::Borrowed(path);
    for _ in 0..MOST_DECODED {
        if path.split(['/', '\\']).any(resolves) {
            return false;
        }
        let decoded = percent_decode_str(&path).decode_utf8_lossy().into_owned();
        if decoded == path {
            return true;
        }
        path = decoded.into();
    }
    false
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
            assert_eq!(Target::of(&uri).map(|target| (target.name, target.path)), expected, "{uri}");
        }
    }
}
