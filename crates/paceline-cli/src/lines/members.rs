//! The members of a JSON object with their positions in its text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The keys of an object and the text of their values. Nothing is copied but keys with escapes.
#[derive(Debug)]
pub(crate) struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// Why a text is no usable object.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAnObject {
    /// It is something else, or no JSON.
    #[error("{message} at column {column}")]
    Json {
        /// What is wrong.
        message: String,
        /// Where, from 1.
        column: usize,
    },
    /// It ends before its object does.
    #[error(
        "the line ends inside {inside}; each object stands on one line, which jq -c . FILE makes of one that does not"
    )]
    Cut {
        /// What is open, and for a text where it begins.
        inside: String,
    },
    /// Two values for one key: readers of JSON do not agree which of them counts.
    #[error("duplicate key `{0}`")]
    Duplicate(String),
}

impl<'a> Members<'a> {
    /// Reads an object that stands in one line. Values are checked to be JSON and not read further.
    ///
    /// # Errors
    /// It is no JSON, no object, or has a key twice. Objects inside are not searched for repeated keys.
    pub(crate) fn read(text: &'a str) -> Result<Self, NotAnObject> {
        let members: Self = serde_json::from_str(text).map_err(|error| {
            if error.is_eof() && text.trim_ascii_start().starts_with('{') {
                return NotAnObject::Cut { inside: open_at_end(text) };
            }
            let (message, column) = (error.to_string(), error.column());
            let place = format!(" at line {} column {column}", error.line());
            NotAnObject::Json { message: message.strip_suffix(&place).unwrap_or(&message).to_owned(), column }
        })?;
        members.repeated().map_or(Ok(()), |key| Err(NotAnObject::Duplicate(key.to_owned())))?;
        Ok(members)
    }

    /// The value of a key, `null` counting as none.
    pub(crate) fn get(&self, key: &str) -> Option<&'a RawValue> {
        self.raw(key).filter(|value| value.get() != "null")
    }

    /// The value of a key, `null` included.
    pub(crate) fn raw(&self, key: &str) -> Option<&'a RawValue> {
        self.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// The value of a key, if it is a text.
    pub(crate) fn text(&self, key: &str) -> Option<Cow<'a, str>> {
        text(self.raw(key)?)
    }

    /// All members, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(key, value)| (&**key, *value))
    }

    /// The object without these keys, the other values as they stand; none when it has none of the keys.
    pub(crate) fn without(&self, keys: &[&str]) -> Option<String> {
        self.iter().any(|(key, _)| keys.contains(&key)).then(|| {
            let mut text = String::from("{");
            for (key, value) in self.iter().filter(|(key, _)| !keys.contains(key)) {
                if text.len() > 1 {
                    text.push(',');
                }
                text += &serde_json::Value::from(key).to_string();
                text.push(':');
                text += value.get();
            }
            text.push('}');
            text
        })
    }

    fn repeated(&self) -> Option<&str> {
        let mut keys: Vec<&str> = self.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
    }
}

/// What a text that is cut ends in: the string that is never closed, else the object.
fn open_at_end(text: &str) -> String {
    let (mut opened, mut is_escaped) = (None, false);
    for (at, byte) in text.bytes().enumerate() {
        match (opened, byte) {
            (Some(_), b'\\') => is_escaped = !is_escaped,
            (Some(_), b'"') if !is_escaped => opened = None,
            (Some(_), _) => is_escaped = false,
            (None, b'"') => opened = Some(at + 1),
            (None, _) => {}
        }
    }
    opened.map_or_else(|| "an object".to_owned(), |column| format!("the string that begins at column {column}"))
}

/// A JSON string's text.
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(value.get()).ok().map(|text| text.0)
}

/// Borrows a string that has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Collect)
    }
}

struct Collect;

impl<'de> Visitor<'de> for Collect {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::with_capacity(8);
        while let Some((Text(key), value)) = map.next_entry()? {
            members.push((key, value));
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_text() {
        let members =
            Members::read(r#" {"a": 1.50, "b\u0061": [ {"x":null} ], "n": null, "t":"\"q\""} "#).expect("an object");
        assert_eq!(members.get("a").map(RawValue::get), Some("1.50"));
        assert_eq!(members.get("ba").map(RawValue::get), Some(r#"[ {"x":null} ]"#));
        assert!(members.get("n").is_none() && members.raw("n").is_some() && members.raw("m").is_none());
        assert_eq!((members.text("t").as_deref(), members.text("a")), (Some("\"q\""), None));
    }

    #[test]
    fn errors_name_the_column_alone() {
        for (text, expected) in [
            (
                "{",
                "the line ends inside an object; each object stands on one line, which jq -c . FILE makes of one that does not",
            ),
            (
                r#"{"a":"b","c":"d\\","e":"f\"}"#,
                "the line ends inside the string that begins at column 24; each object stands on one line, which jq -c . FILE makes of one that does not",
            ),
            (r#"{"a":1 "b":2}"#, "expected `,` or `}` at column 8"),
            ("[]", "invalid type: sequence, expected an object at column 0"),
            (r#"{"a":1,"b":2,"\u0061":3}"#, "duplicate key `a`"),
            ("{} {}", "trailing characters at column 4"),
        ] {
            assert_eq!(Members::read(text).map(|_| ()).map_err(|error| error.to_string()), Err(expected.to_owned()));
        }
    }
}
