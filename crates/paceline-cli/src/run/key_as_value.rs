//! A key that was given as the value of another flag, which would be sent and kept with each request.

use std::ffi::OsString;

use http::{HeaderMap, HeaderValue};
use paceline_config::Upstream;
use paceline_providers::secrets::{SECRET, Secrets};

use crate::exit::Failure;
use crate::upstream;

/// Flags whose values may carry a key.
const FOR_KEYS: [&str; 5] = ["--base-url", "--fleet", "--header", "--proxy", "--via"];

/// The headers of all calls, which no other flag has a key of.
///
/// # Errors
/// A key that is missing or cannot be used, and one that is the value of another flag.
pub(super) fn headers(upstream: &Upstream) -> Result<HeaderMap, Failure> {
    let headers = upstream::headers_of_batch(upstream)?;
    refuse(std::env::args_os(), &headers)?;
    Ok(headers)
}

/// Refuses a command line of which the value of a plain flag is one of the keys that calls carry.
///
/// # Errors
/// Names the flag, and never the key.
fn refuse(words: impl IntoIterator<Item = OsString>, headers: &HeaderMap) -> Result<(), Failure> {
    let keys = Secrets::of(headers.values().filter(|value| HeaderValue::is_sensitive(value)));
    let is_key = |value: &str| value != SECRET && keys.removed_from_text(value.to_owned()) == SECRET;
    let mut before = String::new();
    for word in words {
        let word = word.to_string_lossy().into_owned();
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) if flag.starts_with("--") => (flag, value),
            _ => (before.as_str(), word.as_str()),
        };
        if flag.starts_with('-') && !FOR_KEYS.contains(&flag) && is_key(value) {
            return Err(Failure::refused(format!(
                "the value of {flag} is the key of the upstream, which would be sent and kept with each request: give {flag} a value of \
                 its own"
            )));
        }
        before = word;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_value_of_no_plain_flag() {
        let mut key = HeaderValue::from_static("Bearer sk-MARK-7f3a/+=Zq9\"x");
        key.set_sensitive(true);
        let plain = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, key), (http::header::ACCEPT, plain)]);
        let refused = |words: &[&str]| refuse(words.iter().map(OsString::from), &headers).is_err();
        for words in [
            &["paceline", "run", "--model", "sk-MARK-7f3a/+=Zq9\"x"][..],
            &["run", "-o", "sk-MARK-7f3a/+=Zq9\"x"],
            &["run", "--endpoint=sk-MARK-7f3a/+=Zq9\"x"],
        ] {
            assert!(refused(words), "{words:?}");
        }
        for words in [
            &["run", "--model", "gpt-4o-mini", "--header", "X-Key: sk-MARK-7f3a/+=Zq9\"x"][..],
            &["run", "--proxy", "sk-MARK-7f3a/+=Zq9\"x", "--model", "[key]"],
            &["run", "--model", "application/json"],
            &["run", "--model", "a-sk-MARK-7f3a/+=Zq9\"x"],
        ] {
            assert!(!refused(words), "{words:?}");
        }
    }
}
