//! The query of a request: what its parameters say, and that no key of a client goes on in it.

use std::borrow::Cow;

use http::Uri;
use http::uri::PathAndQuery;
use paceline_providers::names_later;
use percent_encoding::percent_decode_str;

/// A text that is encoded more often is none that a program sends.
pub(crate) const MOST_DECODED: usize = 8;

/// The parameter in which Google's clients send their key.
pub(crate) const KEY: &str = "key";

/// Parameters in which clients of language models send their keys, and nothing else.
const OF_CLIENTS: [&str; 5] = [KEY, "api_key", "api-key", "apikey", "access_token"];

/// The parameters of a path with a query, decoded.
pub(crate) fn parameters(path: &str) -> impl Iterator<Item = (String, String)> {
    path.split_once('?').map_or("", |(_, query)| query).split(['&', ';']).map(pair)
}

/// Whether a parameter asks for an answer that another call fetches later.
pub(crate) fn asks_later(path: &str) -> bool {
    let is_no = |value: &str| matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "null");
    parameters(path).any(|(name, value)| names_later(&name) && !is_no(&value))
}

/// The same path without the parameters that are to go; none where all stay.
pub(crate) fn without(path: &str, goes: impl Fn(&str, &str) -> bool) -> Option<String> {
    let (path, query) = path.split_once('?')?;
    // Where a server takes `;` for a part of a value, what stands on both sides of it stays or goes together.
    let stays = |part: &&str| !part.split(';').map(pair).any(|(name, value)| goes(&name, &value));
    let left: Vec<_> = query.split('&').filter(stays).collect();
    let is_all = left.len() == query.split('&').count();
    let left = if left.is_empty() { path.to_owned() } else { format!("{path}?{}", left.join("&")) };
    (!is_all).then_some(left)
}

/// The same path without a client's keys, for an API of language models.
pub(crate) fn without_keys(path: &str) -> Option<String> {
    without(path, |name, _| OF_CLIENTS.iter().any(|known| name.eq_ignore_ascii_case(known)))
}

/// Takes those parameters out of an address.
pub(crate) fn remove(uri: &mut Uri, goes: impl Fn(&str, &str) -> bool) {
    let Some(mut left) = uri.path_and_query().and_then(|all| without(all.as_str(), goes)) else { return };
    if !left.starts_with('/') {
        left.insert(0, '/');
    }
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = PathAndQuery::try_from(left).ok();
    // What cannot be put together again goes to no upstream.
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

fn pair(text: &str) -> (String, String) {
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    (decoded(name), decoded(value))
}

/// Also where a server before the one that reads it has decoded once.
fn decoded(text: &str) -> String {
    decoded_often(&text.replace('+', " ")).into_owned()
}

/// A text that is percent-encoded, perhaps more than once.
pub fn decoded_often(text: &str) -> Cow<'_, str> {
    let mut text = Cow::Borrowed(text);
    for _ in 0..MOST_DECODED {
        if !text.contains('%') {
            break;
        }
        let next = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if next == *text {
            break;
        }
        text = next.into();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_is_taken_out_and_the_rest_stays_as_it_came() {
        for (path, expected) in [
            ("/v1/models", None),
            ("/v1/models?page=%202&x", None),
            ("/v1/models?key=k", Some("/v1/models")),
            ("/v1/models?a=%2f&x=k&b", Some("/v1/models?a=%2f&b")),
            ("/v1/models?x=%6B&b=1", Some("/v1/models?b=1")),
            ("/v1/models?x=%25%36B", Some("/v1/models")),
            ("/v1/models?a=1;x=k&b=1", Some("/v1/models?b=1")),
            ("/?", None),
        ] {
            assert_eq!(without(path, |_, value| value == "k").as_deref(), expected, "{path}");
        }
        let mut uri = Uri::from_static("http://h:1/v1/models?x=k");
        remove(&mut uri, |_, value| value == "k");
        assert_eq!(uri, "http://h:1/v1/models");
        for target in ["http://h:1?x=k", "http://h:1/?x=k", "/?x=k"] {
            let mut uri: Uri = target.parse().expect("an address");
            remove(&mut uri, |_, value| value == "k");
            assert_eq!((uri.path(), uri.query()), ("/", None), "{target}");
        }
    }

    #[test]
    fn a_key_is_known_by_its_name_however_that_is_written() {
        for path in ["/x?key=a", "/x?%6Bey=a", "/x?API-Key=a", "/x?api%5fkey=a", "/x?access_token=a", "/x?key"] {
            assert_eq!(without_keys(path).as_deref(), Some("/x"), "{path}");
        }
        assert_eq!(without_keys("/x?keys=a&monkey=b"), None);
    }
}
