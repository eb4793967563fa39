//! Redaction of what must not leave the machine: keys, and parts of the payload that an error repeats.

use std::borrow::Cow;
use std::sync::LazyLock;

use paceline_providers::secrets::{SECRET, hidden};
use regex::Regex;
use serde_json::Value;

/// Shorter texts of a payload may be words of the error itself.
const SHORTEST: usize = 6;

/// More texts of a payload are not looked for: an error repeats one of them, not thousands.
const MOST: usize = 10_000;

/// What else stays on the machine, and what takes its place.
static PATTERNS: LazyLock<[(Regex, &str); 2]> = LazyLock::new(|| {
    let patterns = [
        // Addresses of people.
        (r"[\w.+-]+@[\w-]+\.[\w.-]+", "[address]"),
        // Anything long without a space may be a key: a hash or an encoded payload looks like one.
        (r"[A-Za-z0-9+/=_-]{40,}", SECRET),
    ];
    patterns.map(|(pattern, mark)| (Regex::new(pattern).expect("a constant pattern"), mark))
});

/// A text without what looks like a secret, and without the texts of `payload` that it repeats.
///
/// Patterns cannot know every secret: a password that is an English word stays. Show a judge the
/// message of an error, not the body of an answer.
///
/// ```
/// let message = "user alice-4711: wrong key sk-abcdefghijklmnop";
/// assert_eq!(paceline_judge::redacted(message, r#"{"user":"alice-4711"}"#), "user [payload]: wrong key [key]");
/// ```
pub fn redacted(text: &str, payload: &str) -> String {
    Redactor::of(payload).redacted(text)
}

/// The texts to redact in everything that a judge gets about one item.
#[derive(Debug)]
pub(crate) struct Redactor {
    /// The longest first, so that a part does not spoil the whole.
    payload: Vec<String>,
}

impl Redactor {
    pub(crate) fn of(payload: &str) -> Self {
        let mut texts = Vec::new();
        match serde_json::from_str(payload) {
            Ok(value) => gather(&value, &mut texts),
            Err(_) => texts.push(payload.trim().to_owned()),
        }
        texts.retain(|text| text.len() >= SHORTEST);
        texts.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        texts.dedup();
        Self { payload: texts }
    }

    pub(crate) fn redacted(&self, text: &str) -> String {
        let mut text = hidden(text);
        for (pattern, mark) in PATTERNS.iter() {
            if let Cow::Owned(without) = pattern.replace_all(&text, *mark) {
                text = Cow::Owned(without);
            }
        }
        for part in self.payload.iter().filter(|part| part.len() <= text.len()).cloned().collect::<Vec<_>>() {
            if text.contains(&part) {
                text = Cow::Owned(text.replace(&part, "[payload]"));
            }
        }
        text.into_owned()
    }

    /// Every text of a JSON value.
    pub(crate) fn redact(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.redacted(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.redact(value)),
            Value::Object(members) => members.values_mut().for_each(|value| self.redact(value)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Texts and numbers of a payload.
fn gather(value: &Value, texts: &mut Vec<String>) {
    if texts.len() >= MOST {
        return;
    }
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Number(number) => texts.push(number.to_string()),
        Value::Array(values) => values.iter().for_each(|value| gather(value, texts)),
        Value::Object(members) => members.values().for_each(|value| gather(value, texts)),
        Value::Null | Value::Bool(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_payloads_are_taken_out_and_words_stay() {
        for (text, expected) in [
            ("server is busy, try again in 20 s", "server is busy, try again in 20 s"),
            ("Incorrect API key provided: sk-proj-abcdefghijkl1234.", "Incorrect API key provided: [key]."),
            ("curl -u me:pw https://u@ex.org:PASS@host/", "curl -u [key] https://[key]@host/"),
            ("mail to ann.lee@example.org bounced", "mail to [address] bounced"),
            ("hash 0123456789abcdef0123456789abcdef01234567 differs", "hash [key] differs"),
            ("invalid value 'a secret plan' in field notes", "invalid value '[payload]' in field notes"),
            ("order 90210777 is locked", "order [payload] is locked"),
            ("the number 7 stays", "the number 7 stays"),
        ] {
            let payload = r#"{"notes":["a secret plan","of"],"order":90210777,"n":7}"#;
            assert_eq!(redacted(text, payload), expected);
        }
        assert_eq!(redacted("bad line: not json at all", "not json at all"), "bad line: [payload]");
    }

    #[test]
    fn a_large_hostile_text_takes_no_time_that_grows_faster_than_it() {
        let text = "://a@".repeat(20_000) + &"key=".repeat(20_000);
        assert!(redacted(&text, &text).contains("[key]"));
    }
}
