//! The body of an answer, reduced to the places that a decision may look at.
//!
//! A body may be JSON, JSON in a one-element array, a stream of server-sent events, HTML from an edge, text or nothing.
//! None of that is an error: what cannot be read decides nothing.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::stream::{self, Stream};

/// Top-level keys that some step reads. All others, such as the vectors of an embedding, are skipped unparsed.
const KEPT: [&str; 20] = [
    "UnprocessedItems",
    "UnprocessedKeys",
    "base_resp",
    "choices",
    "code",
    "detail",
    "error",
    "errors",
    "incomplete_details",
    "message",
    "model",
    "object",
    "ok",
    "promptFeedback",
    "retry_after",
    "status",
    "stop_reason",
    "title",
    "type",
    "usage",
];

/// So much of a text that is no JSON is kept.
const TEXT: usize = 2_000;
/// So much of a message is kept for people.
const WORDS: usize = 300;

/// What a body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// No byte but blanks.
    #[default]
    Nothing,
    /// One JSON object, whatever its keys.
    Object,
    /// Server-sent events.
    Stream,
    /// Anything else: a page, half an object, bytes.
    Text,
}

/// What an answer said.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) kind: Kind,
    /// The kept keys of a JSON object; of a stream, its error.
    pub(super) root: Map<String, Value>,
    /// The beginning of a body that is not JSON.
    pub(super) text: String,
    /// The body was a stream of events.
    pub(super) stream: Option<Stream>,
}

impl Kind {
    /// For a person who follows the decision.
    pub(super) const fn step(self) -> &'static str {
        match self {
            Self::Nothing => "body: empty",
            Self::Object => "body: JSON",
            Self::Stream => "body: event stream",
            Self::Text => "body: text",
        }
    }
}

impl Body {
    pub(super) fn parse(bytes: &[u8], content_type: &str) -> Self {
        let bytes = bytes.trim_ascii_start();
        let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        if is_stream(bytes, content_type) {
            let mut stream = stream::read(bytes);
            let root = std::mem::take(&mut stream.error);
            return Self { kind: Kind::Stream, root, text: String::new(), stream: Some(stream) };
        }
        match outline(bytes, &KEPT) {
            Some(root) => Self { kind: Kind::Object, root, ..Self::default() },
            None => Self {
                kind: if bytes.is_empty() { Kind::Nothing } else { Kind::Text },
                text: beginning(&String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT)]), TEXT),
                ..Self::default()
            },
        }
    }

    pub(super) fn error(&self) -> Option<&Value> {
        self.root.get("error")
    }

    /// A value inside `error`.
    pub(super) fn in_error(&self, pointer: &str) -> Option<&Value> {
        self.error()?.pointer(pointer)
    }

    /// The places where a code that decides alone may stand.
    pub(super) fn codes(&self) -> impl Iterator<Item = &str> {
        let inside = ["/type", "/code", "/details/error_code", "/innererror/code"];
        inside
            .into_iter()
            .filter_map(|pointer| self.in_error(pointer)?.as_str())
            .chain(self.error().and_then(Value::as_str))
    }

    pub(super) fn has_code(&self, known: &[&str]) -> bool {
        self.codes().any(|code| known.contains(&code))
    }

    /// The code to report: the error's own, else the body's.
    pub(super) fn code(&self) -> Option<String> {
        let details = || self.in_error("/details/error_code");
        let code =
            self.in_error("/code").filter(|code| !code.is_null()).or_else(details).or_else(|| self.root.get("code"));
        printed(code?).or_else(|| self.error()?.as_str().map(str::to_owned))
    }

    /// The type of the error.
    pub(super) fn error_type(&self) -> Option<String> {
        self.in_error("/type").and_then(printed)
    }

    /// The error message, wherever it stands; empty when there is none.
    pub(super) fn message(&self) -> &str {
        let top = |key: &str| self.root.get(key).and_then(Value::as_str);
        let inside = self.in_error("/message").and_then(Value::as_str);
        let places =
            [inside, self.error().and_then(Value::as_str), top("message"), top("detail"), top("errors"), top("title")];
        places.into_iter().flatten().next().unwrap_or(&self.text)
    }

    /// The message for people: short, on one line, without anything that looks like a key; nothing for HTML.
    pub(super) fn words(&self) -> Option<String> {
        let message = self.message().trim();
        if message.is_empty() || message.starts_with('<') {
            return None;
        }
        let words: Vec<&str> =
            message.split_whitespace().map(|word| if is_key(word) { "(key)" } else { word }).collect();
        // What a server says reaches terminals and logs: it must not move their cursors or set their titles.
        let plain: String = words.join(" ").chars().filter(|c| !c.is_control()).collect();
        Some(beginning(&plain, WORDS))
    }
}

/// Whether a body holds server-sent events: no line of them begins like JSON, whatever the content type says.
pub(super) fn is_stream(body: &[u8], content_type: &str) -> bool {
    let begins = |start: &[u8]| body.trim_ascii_start().starts_with(start);
    begins(b"event:")
        || begins(b"data:")
        || (content_type.starts_with("text/event-stream") && !begins(b"{") && !begins(b"["))
}

/// Some servers repeat the key that they refuse.
fn is_key(word: &str) -> bool {
    let word = word.trim_start_matches(['"', '\'', '`', '(']);
    ["sk-", "sk_", "gsk_", "xai-", "AIza"].into_iter().any(|prefix| word.starts_with(prefix))
}

fn printed(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// At most `most` bytes from the beginning, whole characters.
fn beginning(text: &str, most: usize) -> String {
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Some keys of a JSON object, or of the only object in an array; everything else is skipped without being built.
pub(super) fn outline(json: &[u8], keys: &[&str]) -> Option<Map<String, Value>> {
    serde_json::Deserializer::from_slice(json).deserialize_any(Outline(keys)).ok()
}

struct Outline<'k>(&'k [&'k str]);

impl<'de> Visitor<'de> for Outline<'_> {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, or one in an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if self.0.contains(&key.as_str()) {
                kept.insert(key, entries.next_value()?);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(kept)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let first = elements.next_element::<Value>()?;
        match (first, elements.next_element::<IgnoredAny>()?) {
            (Some(Value::Object(mut object)), None) => {
                object.retain(|key, _| self.0.contains(&key.as_str()));
                Ok(object)
            }
            _ => Err(serde::de::Error::custom("not one object")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::proptest;

    fn body(text: &str) -> Body {
        Body::parse(text.as_bytes(), "application/json")
    }

    #[test]
    fn errors_in_every_form_that_was_seen() {
        for (text, code, message) in [
            (r#"{"error":{"code":"a","message":"m"}}"#, Some("a"), "m"),
            ("\n\n{\"error\":{\"code\":429,\"message\":\"m\"}}", Some("429"), "m"),
            (r#"[{"error":{"code":null,"message":"m"}}]"#, None, "m"),
            (r#"{"error":"ratelimited"}"#, None, "ratelimited"),
            (r#"{"errors":"no"}"#, None, "no"),
            (r#"{"error":{"details":{"error_code":"b"}}}"#, Some("b"), ""),
            (r#"{"title":"t","detail":"d","status":429}"#, None, "d"),
            (r#"{"type":"rate_limited","code":"1300","message":"m"}"#, Some("1300"), "m"),
            ("error code: 1015", None, "error code: 1015"),
            ("[1, 2]", None, "[1, 2]"),
            ("\u{feff}{\"message\":\"m\"}", None, "m"),
            ("", None, ""),
        ] {
            let body = body(text);
            assert_eq!((body.code().as_deref(), body.message()), (code, message), "{text}");
        }
    }

    #[test]
    fn words_are_short_and_hold_no_key() {
        let words = |text: &str| body(text).words();
        assert_eq!(
            words(r#"{"error":{"message":"Incorrect API key provided: sk-abc\nsorry"}}"#).as_deref(),
            Some("Incorrect API key provided: (key) sorry")
        );
        assert_eq!(words("<html>no</html>"), None);
        assert_eq!(words(r#"{"error":{"message":"\u001b[31mred\u001b]0;x\u0007"}}"#).as_deref(), Some("[31mred]0;x"));
        let long = words(&format!("{}é", "a".repeat(WORDS - 1))).expect("some words");
        assert_eq!(long, "a".repeat(WORDS - 1));
    }

    #[test]
    fn values_that_no_step_reads_are_not_kept() {
        let root = body(r#"{"data":[{"embedding":[0.1,0.2]}],"usage":{"prompt_tokens":3}}"#).root;
        assert_eq!(root.keys().collect::<Vec<_>>(), ["usage"]);
    }

    proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>, json in r#"[\[{"errorcdmsag:,0-9}\]]{0,60}"#) {
            for bytes in [&bytes[..], json.as_bytes()] {
                let body = Body::parse(bytes, "");
                body.code();
                body.words();
                body.codes().count();
            }
        }
    }
}
