//! The key must not reach a file, also when a server repeats it in its answer.

use bytes::Bytes;
use http::HeaderMap;
use memchr::memmem::Finder;

/// What stands in an answer where the key stood.
const INSTEAD: &[u8] = b"[key]";

/// A shorter key is no secret, and taking it out would spoil answers that have nothing to do with it.
const SHORTEST: usize = 8;

/// The keys that each call carries.
#[derive(Clone, Debug)]
pub(crate) struct Secrets(Vec<Finder<'static>>);

impl Secrets {
    /// Those of headers that are marked sensitive.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let values = headers.values().filter(|value| value.is_sensitive()).map(|value| value.as_bytes());
        let keys = values.map(|value| value.strip_prefix(b"Bearer ").unwrap_or(value));
        Self(keys.filter(|key| key.len() >= SHORTEST).map(|key| Finder::new(key).into_owned()).collect())
    }

    /// A body without them.
    pub(crate) fn removed_from(&self, body: Bytes) -> Bytes {
        self.0.iter().fold(body, |body, key| match key.find(&body) {
            Some(first) => without(&body, key, first),
            None => body,
        })
    }
}

fn without(body: &[u8], key: &Finder<'_>, first: usize) -> Bytes {
    let (mut kept, mut rest, mut next) = (Vec::with_capacity(body.len()), body, Some(first));
    while let Some(at) = next {
        kept.extend_from_slice(&rest[..at]);
        kept.extend_from_slice(INSTEAD);
        rest = &rest[at + key.needle().len()..];
        next = key.find(rest);
    }
    kept.extend_from_slice(rest);
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn removed(header: &str, body: &str) -> String {
        let mut value = HeaderValue::from_str(header).unwrap();
        value.set_sensitive(true);
        let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value)]);
        let body = Secrets::of(&headers).removed_from(Bytes::copy_from_slice(body.as_bytes()));
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[test]
    fn a_key_is_taken_out_wherever_it_stands() {
        let body = r#"{"a":"sk-secret","b":"Bearer sk-secret","c":"sk-secresk-secret!"}"#;
        let clean = r#"{"a":"[key]","b":"Bearer [key]","c":"sk-secre[key]!"}"#;
        assert_eq!(removed("Bearer sk-secret", body), clean);
        assert_eq!(removed("sk-secret", body), clean);
        assert_eq!(removed("Bearer sk-other1", body), body);
        assert_eq!(removed("test", "a test"), "a test", "too short to be one");
    }
}
