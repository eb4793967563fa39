//! The keys of clients, which go no further than the gateway: not to an upstream, and into nothing that others see.

use std::collections::BTreeMap;

use http::Request;

use super::hash::KeyHash;
use crate::headers::letters_of;
use crate::query;
use crate::refusal::Refusal;

/// A shorter key may be a part of other words by chance.
const LEAST_WITHIN: usize = 16;

/// Removes a key wherever else a request has it, but for its path: without it that would be another one.
pub(super) fn remove_key<Body>(request: &mut Request<Body>, key: &str) {
    query::remove(request.uri_mut(), |name, value| shows(name, key) || shows(value, key));
    let letters: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
    let headers = request.headers_mut();
    let with_key = headers.iter().filter(|(name, value)| {
        shows(&String::from_utf8_lossy(value.as_bytes()), key)
            || (letters.len() >= LEAST_WITHIN
                && name.as_str().len() > letters.len()
                && letters_of(name).contains(&letters))
    });
    let with_key: Vec<_> = with_key.map(|(name, _)| name.clone()).collect();
    with_key.iter().for_each(|name| drop(headers.remove(name)));
}

/// Whether a path has the key that its request shows, or that of another client.
///
/// # Errors
/// It has one.
pub(super) fn check_path<Of>(clients: &BTreeMap<KeyHash, Of>, key: Option<&str>, path: &str) -> Result<(), Refusal> {
    let decoded = query::decoded_often(path);
    let has_its_own = key.is_some_and(|key| path.len() > key.len() && shows(&decoded, key));
    if has_its_own || has_a_key(clients, &decoded) { Err(misplaced("path")) } else { Ok(()) }
}

fn shows(value: &str, key: &str) -> bool {
    key_in(value) == key || (key.len() >= LEAST_WITHIN && value.contains(key))
}

/// The key in the value of a header: `Bearer KEY`, or the key alone.
pub(super) fn key_in(value: &str) -> &str {
    let value = value.trim();
    match value.split_once(' ') {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case("bearer") => key.trim(),
        _ => value,
    }
}

/// Whether one of the keys of clients stands in a text that others see, such as a path, a model or the name of a scope.
pub(super) fn has_a_key<Of>(clients: &BTreeMap<KeyHash, Of>, text: &str) -> bool {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && !matches!(letter, '_' | '-'));
    words.filter(|word| word.len() >= LEAST_WITHIN).any(|word| clients.contains_key(&KeyHash::of(word)))
}

/// A request that has a key where others would see it.
pub(super) fn misplaced(place: &str) -> Refusal {
    Refusal::bad_request(format!(
        "a key of a client stands in the {place} of the request, which goes to the upstream and into the log: show it where the client \
         has its API key, or in the header x-paceline-key, and there alone"
    ))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::clients::Clients;

    #[test]
    fn a_key_where_others_would_see_it_is_refused_or_taken_out() {
        let key = "pl_0123456789abcdef";
        let clients = Clients::of_keys(&[("ci", key)]);
        let request =
            |target: &str| Request::builder().uri(target).header("x-api-key", key).body(()).expect("a request");
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let twice = encoded.replace('%', "%25");
        for target in
            [format!("/api/x/{key}"), format!("/api/pre{key}/x"), format!("/api/{encoded}"), format!("/{twice}?a=1")]
        {
            let mut request = request(&target);
            let refused = Clients::admit(&clients, &mut request).expect_err("its key stands in the path");
            assert_eq!((refused.code(), refused.message().contains(key)), ("bad_request", false), "{target}");
        }
        let named = HeaderName::from_bytes(format!("x-{}", key.replace('_', "-")).as_bytes()).expect("a name");
        let mut in_a_name = request("/api/x");
        in_a_name.headers_mut().insert(named, HeaderValue::from_static("1"));
        assert!(Clients::admit(&clients, &mut in_a_name).is_ok() && in_a_name.headers().is_empty());
        let of_clients = Clients::WithKeys(clients);
        for (name, is_right) in [("gpt-5", true), (key, false), (&format!("/v1/x ft:{key} flex"), false)] {
            assert_eq!(of_clients.check_name(name).is_ok(), is_right, "{name}");
        }
    }
}
