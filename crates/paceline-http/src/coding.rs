//! How the body of an answer is coded.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, TRANSFER_ENCODING};

/// What servers write there of a body that is not coded, whatever they mean by it.
const NONE: [&str; 7] = ["7bit", "8bit", "aws-chunked", "binary", "identity", "none", "utf-8"];

/// The codings of a body that is not what it was before it was sent, in small letters: those of its content, then those of its
/// way here ([`transfer_codings`]).
pub fn codings(headers: &HeaderMap) -> Vec<String> {
    let mut codings = names(headers, &CONTENT_ENCODING);
    codings.retain(|name| !NONE.contains(&&**name));
    codings.append(&mut transfer_codings(headers));
    codings
}

/// Those of its way here alone, but for chunks, which come last (RFC 9112, 7: `gzip, chunked`): HTTP libraries leave them to
/// their callers.
pub fn transfer_codings(headers: &HeaderMap) -> Vec<String> {
    let mut names = names(headers, &TRANSFER_ENCODING);
    names.pop_if(|last| last == "chunked");
    names.retain(|name| name != "identity");
    names
}

fn names(headers: &HeaderMap, field: &HeaderName) -> Vec<String> {
    let values = headers.get_all(field).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).to_lowercase());
    let names = values.flat_map(|value| value.split(',').map(|name| name.trim().to_owned()).collect::<Vec<_>>());
    names.filter(|name| !name.is_empty()).collect()
}

/// Whether that is what servers use that were not asked for any.
pub fn is_gzip(coding: &str) -> bool {
    matches!(coding, "gzip" | "x-gzip")
}

/// Leaves out what a head says of a coding that its body has no more.
pub fn without_coding(headers: &mut HeaderMap) {
    [CONTENT_ENCODING, TRANSFER_ENCODING, CONTENT_LENGTH].iter().for_each(|name| drop(headers.remove(name)));
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_is_no_coding_is_left_out() {
        for (name, value, expected) in [
            (CONTENT_ENCODING, "", &[][..]),
            (CONTENT_ENCODING, "Identity , ", &[]),
            (CONTENT_ENCODING, "UTF-8", &[]),
            (CONTENT_ENCODING, "none, br", &["br"]),
            (CONTENT_ENCODING, "GZIP", &["gzip"]),
            (CONTENT_ENCODING, "br, gzip", &["br", "gzip"]),
            (TRANSFER_ENCODING, "chunked", &[]),
            (TRANSFER_ENCODING, "x-gzip , Chunked", &["x-gzip"]),
            (TRANSFER_ENCODING, "identity", &[]),
            (TRANSFER_ENCODING, "identity, chunked", &[]),
            (TRANSFER_ENCODING, "chunked, identity", &["chunked"]),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(codings(&headers), expected, "{value}");
            without_coding(&mut headers);
            assert!(headers.is_empty());
        }
    }
}
