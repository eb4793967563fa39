//! A key must not reach a file or a log, also when a server repeats it in its answer.

use bytes::Bytes;
use http::HeaderValue;
use memchr::memmem::Finder;

/// A shorter key is no secret, and taking it out would spoil answers that have nothing to do with it.
const SHORTEST: usize = 8;

/// The keys that calls carry in their headers, to be taken out of what a server says: the values, of `Bearer KEY` only KEY. Keys
/// below 8 bytes are words, and stay.
#[derive(Clone, Debug)]
pub struct Secrets {
    keys: Vec<Finder<'static>>,
    instead: &'static str,
}

impl Secrets {
    /// The keys of these values; `instead` takes their place.
    pub fn of<'a>(values: impl Iterator<Item = &'a HeaderValue>, instead: &'static str) -> Self {
        let keys = values.map(|value| without_scheme(value.as_bytes())).filter(|key| key.len() >= SHORTEST);
        Self { keys: keys.map(|key| Finder::new(key).into_owned()).collect(), instead }
    }

    /// A body without them.
    pub fn removed_from(&self, body: Bytes) -> Bytes {
        self.keys.iter().fold(body, |body, key| match key.find(&body) {
            Some(first) => self.without(&body, key, first),
            None => body,
        })
    }

    /// A text without them.
    pub fn removed_from_text(&self, text: String) -> String {
        let body = self.removed_from(Bytes::from(text));
        String::from_utf8_lossy(&body).into_owned()
    }

    fn without(&self, body: &[u8], key: &Finder<'_>, first: usize) -> Bytes {
        let (mut kept, mut rest, mut next) = (Vec::with_capacity(body.len()), body, Some(first));
        while let Some(at) = next {
            kept.extend_from_slice(&rest[..at]);
            kept.extend_from_slice(self.instead.as_bytes());
            rest = &rest[at + key.needle().len()..];
            next = key.find(rest);
        }
        kept.extend_from_slice(rest);
        kept.into()
    }
}

/// The second of two words, if it is long enough for a key; else the whole value.
fn without_scheme(value: &[u8]) -> &[u8] {
    let mut words = value.split(|byte| *byte == b' ');
    match (words.next(), words.next(), words.next()) {
        (Some(_), Some(key), None) if key.len() >= SHORTEST => key,
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(header: &str, body: &str) -> String {
        let value = HeaderValue::from_str(header).unwrap();
        let secrets = Secrets::of([value].iter(), "[key]");
        let body = secrets.removed_from(Bytes::copy_from_slice(body.as_bytes()));
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
        assert_eq!(removed("my own key", "it is my own key"), "it is [key]", "a key may have blanks");
        assert_eq!(removed("Key abcdefgh", "Key abcdefgh"), "Key [key]");
    }
}
