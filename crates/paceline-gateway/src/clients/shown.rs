//! The key that a request shows, which goes no further.

use http::Request;

use crate::query;

/// A shorter key may be a part of other words by chance.
const LEAST_WITHIN: usize = 16;

/// Removes a key wherever else a request has it.
pub(super) fn remove_key<Body>(request: &mut Request<Body>, key: &str) {
    let has_key = |value: &str| key_in(value) == key || (key.len() >= LEAST_WITHIN && value.contains(key));
    query::remove(request.uri_mut(), |name, value| has_key(name) || has_key(value));
    let headers = request.headers_mut();
    let with_key = headers.iter().filter(|(_, value)| has_key(&String::from_utf8_lossy(value.as_bytes())));
    let with_key: Vec<_> = with_key.map(|(name, _)| name.clone()).collect();
    with_key.iter().for_each(|name| drop(headers.remove(name)));
}

/// The key in the value of a header: `Bearer KEY`, or the key alone.
pub(super) fn key_in(value: &str) -> &str {
    let value = value.trim();
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
        _ => value,
    }
}
