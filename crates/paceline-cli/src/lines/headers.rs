//! The headers that a line gives its call.

use http::{HeaderMap, HeaderName, HeaderValue};
use paceline_config::is_of_connection;
use paceline_providers::secrets::is_secret_header;
use serde_json::value::RawValue;

use crate::lines::members::{self, Members};
use crate::upstream::carries_key;

/// More than any API asks for; servers refuse requests with much more.
const MOST: usize = 64;
const LARGEST: usize = 16 << 10;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Where it is set: of no use to a client of the gateway.
pub(crate) const SET_FOR_ALL: &str = "; set it in paceline.toml (headers, or key_header for the key), or with --header or --key-header; it goes to \
     the host of --base-url alone, so a host with a key of its own needs a run of its own";

fn refuse_key(name: &str) -> Result<(), String> {
    match carries_key(name) {
        true => Err(format!("`{name}` cannot be set for one line{SET_FOR_ALL}")),
        false => Ok(()),
    }
}

/// Refuses headers that carry keys, whatever else is wrong with them.
///
/// # Errors
/// Names the header.
pub(crate) fn refuse_keys(headers: &RawValue) -> Result<(), String> {
    let Ok(members) = Members::read(headers.get()) else { return Ok(()) };
    members.iter().try_for_each(|(name, _)| refuse_key(name))
}

/// Reads an object of texts. Values are not repeated in errors: they may be secret.
///
/// # Errors
/// Names the header that cannot be sent.
pub(crate) fn read(headers: &RawValue) -> Result<HeaderMap, String> {
    let members = Members::read(headers.get()).map_err(|error| format!("expected an object of strings: {error}"))?;
    let mut map = HeaderMap::new();
    let mut size = 0;
    for (key, value) in members.iter() {
        let name = HeaderName::from_bytes(key.as_bytes())
            .map_err(|_| format!("`{}` is not a header name", key.escape_debug()))?;
        refuse_key(key)?;
        if is_of_connection(&name) {
            return Err(format!("`{key}` cannot be set: the connection sets it"));
        }
        let text = members::text(value).ok_or_else(|| format!("`{key}`: expected a string"))?;
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| format!("`{key}`: its value has characters that a header cannot carry"))?;
        // What recognises a request again is told, not hidden.
        value.set_sensitive(is_secret_header(key, &text) && name != IDEMPOTENCY_KEY);
        size += name.as_str().len() + value.len();
        if map.insert(name, value).is_some() {
            return Err(format!("`{key}` is there twice"));
        }
    }
    if map.len() > MOST || size > LARGEST {
        return Err(format!("too many: expected at most {MOST} with {} KiB together", LARGEST >> 10));
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{json, value::to_raw_value};

    #[test]
    fn keys_framing_and_nonsense_are_refused() {
        let many: serde_json::Map<_, _> = (0..65).map(|n| (format!("x-{n}"), json!("v"))).collect();
        for headers in [
            json!({"Authorization": "Bearer stolen"}),
            json!({"x-api-key": "k"}),
            json!({"HOST": "evil.example"}),
            json!({"content-length": "1"}),
            json!({"Transfer-Encoding": "chunked"}),
            json!({"proxy-authorization": "x"}),
            json!({"x": 1}),
            json!({"x": "two\r\nlines: 1"}),
            json!({"": "x"}),
            json!({"a b": "x"}),
            json!({"X": "1", "x": "2"}),
            json!({"x": "v".repeat(20_000)}),
            json!(["x"]),
            json!(many),
        ] {
            let raw = to_raw_value(&headers).expect("JSON");
            let error = read(&raw).expect_err(raw.get());
            assert!(!error.contains("stolen"));
        }
    }

    #[test]
    fn others_are_taken_as_they_are() {
        let raw = to_raw_value(&json!({"Accept": "text/csv", "X-Trace": "a=b; c"})).expect("JSON");
        let headers = read(&raw).expect("good");
        assert_eq!(
            (&headers["accept"], &headers["x-trace"]),
            (&"text/csv".parse().expect("v"), &"a=b; c".parse().expect("v"))
        );
    }
}
