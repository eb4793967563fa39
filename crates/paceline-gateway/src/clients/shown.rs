//! The keys of clients, which go no further than the gateway: not to an upstream, and into nothing that others see.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, Request};
use paceline_providers::models_of;

use super::hash::KeyHash;
use crate::headers::{KEY, OF_CLIENTS, letters_of};
use crate::query;
use crate::refusal::Refusal;

/// A shorter key may be a part of other words by chance.
const LEAST_WITHIN: usize = 16;

/// Of a key that the gateway made.
pub(super) const LENGTH: usize = KeyHash::PREFIX.len() + 2 * KeyHash::RANDOM;

/// What stands where a request may show a key.
pub(super) fn each_shown<Body>(request: &Request<Body>) -> impl Iterator<Item = String> {
    let fields = [KEY].into_iter().chain(OF_CLIENTS).flat_map(|name| request.headers().get_all(name));
    let fields = fields.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let parameters = query::parameters(target).filter(|(name, _)| name.eq_ignore_ascii_case(query::KEY));
    fields.chain(parameters.map(|(_, key)| key))
}

/// Removes the key that a request shows, and those of others, wherever else they stand, but for its path: without it that would
/// be another one.
pub(super) fn remove_keys<Body, Of>(clients: &BTreeMap<KeyHash, Of>, request: &mut Request<Body>, key: Option<&str>) {
    let shows = |text: &str| key.is_some_and(|key| shows(text, key)) || has_a_whole_key(clients, text);
    query::remove(request.uri_mut(), |name, value| shows(name) || shows(value));
    let letters: String = key.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect();
    remove_where(request.headers_mut(), |name, value| {
        shows(value)
            || has_a_key_as_name(clients, name)
            || (letters.len() >= LEAST_WITHIN
                && name.as_str().len() > letters.len()
                && letters_of(name).contains(&letters))
    });
}

/// Removes the header fields that have a key of a client in them, of the line of a batch.
pub(super) fn remove_fields<Of>(clients: &BTreeMap<KeyHash, Of>, headers: &mut HeaderMap) {
    remove_where(headers, |name, value| has_a_key(clients, value) || has_a_key_as_name(clients, name));
}

fn remove_where(headers: &mut HeaderMap, shows: impl Fn(&HeaderName, &str) -> bool) {
    let with_key = headers.iter().filter(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        shows(name, &query::decoded_often(&value))
    });
    let with_key: Vec<_> = with_key.map(|(name, _)| name.clone()).collect();
    with_key.iter().for_each(|name| drop(headers.remove(name)));
}

/// Whether the line of a request, its method and its path, has the key that the request shows, or that of another client.
///
/// # Errors
/// It has one.
pub(super) fn check_line<Body, Of>(
    clients: &BTreeMap<KeyHash, Of>,
    key: Option<&str>,
    request: &Request<Body>,
) -> Result<(), Refusal> {
    let has_one = |text: &str| {
        let decoded = query::decoded_often(text);
        key.is_some_and(|key| shows(&decoded, key)) || has_a_key(clients, &decoded)
    };
    let line = [("method", request.method().as_str()), ("path", request.uri().path())];
    line.into_iter().find(|(_, text)| has_one(text)).map_or(Ok(()), |(place, _)| Err(misplaced(place)))
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
    has_a_whole_key(clients, text)
        || words.filter(|word| word.len() >= LEAST_WITHIN).any(|word| clients.contains_key(&KeyHash::of(word)))
}

/// The same of a key by its shape, whatever stands beside it.
fn has_a_whole_key<Of>(clients: &BTreeMap<KeyHash, Of>, text: &str) -> bool {
    let shaped = text.match_indices(KeyHash::PREFIX).filter_map(|(at, _)| text.get(at..at + LENGTH));
    let mut shaped =
        shaped.filter(|key| key.bytes().skip(KeyHash::PREFIX.len()).all(|digit| digit.is_ascii_hexdigit()));
    shaped.any(|key| clients.contains_key(&KeyHash::of(key)))
}

/// The same in a body, as a model that it names: where that is no object of JSON whose models can be read, and `is_searched`,
/// anywhere.
pub(super) fn has_a_key_in_body<Of>(clients: &BTreeMap<KeyHash, Of>, body: &[u8], is_searched: bool) -> bool {
    if let Some(models) = models_of(body) {
        return models.iter().any(|model| has_a_key(clients, model));
    }
    is_searched && has_a_key_anywhere(clients, body)
}

/// The same anywhere in a text.
pub(super) fn has_a_key_anywhere<Of>(clients: &BTreeMap<KeyHash, Of>, text: &[u8]) -> bool {
    let words = text.split(|byte| !byte.is_ascii_alphanumeric() && !matches!(byte, b'_' | b'%'));
    let mut words = words.filter(|word| word.len() >= LENGTH).filter_map(|word| str::from_utf8(word).ok());
    words.any(|word| has_a_whole_key(clients, &query::decoded_often(word)))
}

/// The same in the name of a header field, where `-` may stand for `_`.
fn has_a_key_as_name<Of>(clients: &BTreeMap<KeyHash, Of>, name: &HeaderName) -> bool {
    name.as_str().len() >= LEAST_WITHIN && has_a_whole_key(clients, &name.as_str().replace('-', "_"))
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
    use http::HeaderValue;

    use super::*;
    use crate::clients::Clients;

    #[test]
    fn a_key_is_found_whatever_stands_beside_it_and_whichever_client_sends_it() {
        let [own, other] = ["ab", "cd"].map(|digits| format!("{}{}", KeyHash::PREFIX, digits.repeat(KeyHash::RANDOM)));
        let clients = Clients::of_keys(&[("own", &own), ("other", &other)]);
        for glued in
            [format!("{own}{own}"), format!("{own}x"), format!("gpt{other}"), format!("_{other}"), other.clone()]
        {
            assert!(has_a_key(&clients, &glued), "{}", glued.len());
            let target = format!("/api/x?deployment={glued}&b=1");
            let request = Request::builder().uri(target).header("x-api-key", &own).header("user-agent", &glued);
            let mut request = request.header("x-team", format!("a;{glued}")).body(()).expect("a request");
            assert!(Clients::admit(&clients, &mut request).is_ok() && request.headers().is_empty());
            assert_eq!(request.uri(), "/api/x?b=1");
            let mut headers = HeaderMap::from_iter([(HeaderName::from_static("x-a"), glued.parse().expect("a value"))]);
            remove_fields(&clients, &mut headers);
            assert!(headers.is_empty());
        }
        let (dashed, encoded) = (other.replace('_', "-"), format!("k={}; z=1", other.replace('_', "%5f")));
        for (name, value) in
            [(&*other, "1"), (&dashed, "1"), (&format!("x-{other}"), "1"), (&own, "1"), ("cookie", &encoded)]
        {
            let field = || HeaderName::from_bytes(name.as_bytes()).expect("a name");
            let request = Request::builder().uri("/api/x").header("x-api-key", &own).header(field(), value);
            let mut request = request.body(()).expect("a request");
            assert!(Clients::admit(&clients, &mut request).is_ok() && request.headers().is_empty(), "{name}");
            let mut headers = HeaderMap::from_iter([(field(), value.parse().expect("a value"))]);
            remove_fields(&clients, &mut headers);
            assert!(headers.is_empty(), "{name}");
        }
        let part =
            |name: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{other}\r\n--b--");
        for (body, is_searched, has_one) in [
            (format!(r#"{{"model":"m","Model":"{other}"}}"#), false, true),
            (format!(r#"{{"model":"{other}","model":"m"}}"#), false, true),
            (format!(r#"{{"model":"m","messages":[{{"content":"{other}"}}]}}"#), true, false),
            (format!("model={other}&a=1"), true, true),
            (format!("model={}", other.replace('_', "%5F")), true, true),
            (part("model"), true, true),
            (part("model"), false, false),
            (format!("\u{e9}{own}\n"), true, true),
            (String::new(), true, false),
        ] {
            assert_eq!(has_a_key_in_body(&clients, body.as_bytes(), is_searched), has_one, "{body}");
        }
        assert!(!has_a_key(&clients, &own.replace('a', "0")) && !has_a_key(&clients, "pl_é"));
    }

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
        for (method, shown) in [(key, key), (key, "none"), (&*format!("X{key}"), key)] {
            let mut request = request("/api/x");
            *request.method_mut() = method.parse().expect("a method");
            request.headers_mut().insert("x-api-key", shown.parse().expect("a value"));
            let refused = Clients::admit(&clients, &mut request).expect_err("a key is its method");
            assert_eq!((refused.code(), refused.message().contains(key)), ("bad_request", false), "{method}");
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
