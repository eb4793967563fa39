//! Whose limits a call counts in: a host and a key, as a name that reveals neither.

use http::HeaderMap;
use url::Url;

/// Identifies the account of a file without revealing anything else.
const CONTEXT: &str = "paceline 2026-11 lock of a host and key";

/// Scheme, host and port of an address; a path below them is the same server. What is no address is given back.
pub fn account_host(address: &str) -> String {
    Url::parse(address).map_or_else(|_| address.to_owned(), |url| url.origin().ascii_serialization())
}

/// The name of the account that calls to a [host](account_host) with those headers belong to, of which the sensitive ones are its
/// key: 32 hexadecimal digits, which reveal neither host nor key.
pub fn account_name(host: &str, headers: &HeaderMap) -> String {
    let mut account = host.as_bytes().to_vec();
    for (header, value) in headers.iter().filter(|(_, value)| value.is_sensitive()) {
        for part in [header.as_str().as_bytes(), value.as_bytes()] {
            account.push(0);
            account.extend_from_slice(part);
        }
    }
    let hash = blake3::derive_key(CONTEXT, &account);
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn key(key: &'static str) -> HeaderMap {
        let mut value = HeaderValue::from_static(key);
        value.set_sensitive(true);
        let plain = ("accept".parse().expect("a name"), HeaderValue::from_static(key));
        HeaderMap::from_iter([("authorization".parse().expect("a name"), value), plain])
    }

    #[test]
    fn an_account_is_a_host_and_a_key() {
        let name = |address, secret| account_name(&account_host(address), &key(secret));
        assert_eq!(name("https://h/v1", "a"), name("https://h:443", "a"));
        assert_ne!(name("https://h", "a"), name("https://h", "b"));
        assert_ne!(name("https://h", "a"), name("https://g", "a"));
        // Processes of other versions have to know it by this name.
        assert_eq!(name("https://h", "a"), "9eba8e0a89818d97d216931d8b1f6e90");
    }
}
