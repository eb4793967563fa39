//! What the body of a request names that its server adds to the prompt: earlier answers, conversations, files. No body tells how
//! long that is.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::later::is_json;
use super::models::plain;
use super::outline::Text;

/// Members whose text is such a name, in small letters and without what stands between them.
const NAMES: [&str; 9] = [
    "previousresponseid",
    "previousinteractionid",
    "conversation",
    "conversationid",
    "cachedcontent",
    "fileid",
    "fileuri",
    "fileurl",
    "documenturl",
];

/// Members whose object has such a name as its `id`.
const HOLDERS: [&str; 2] = ["conversation", "prompt"];

/// The type of an item that the server has, by its `id`.
const ITEM: &str = "item_reference";

/// So many of one body are read: each counts.
const MOST: usize = 1_000;

/// A print of each thing that a body names so, wherever it stands but in `metadata`. A body of JSON that is nested too deep to
/// be read here names one that nothing is known of.
///
/// ```
/// use paceline_providers::references_of;
/// let body = br#"{"previous_response_id":"resp_1","input":[{"type":"input_file","file_id":"file-1"}]}"#;
/// assert_eq!(references_of(body).len(), 2);
/// assert_eq!(references_of(br#"{"conversation":{"id":"conv_1"},"metadata":{"conversation":"c"}}"#).len(), 1);
/// assert!(references_of(br#"{"input":"previous_response_id"}"#).is_empty());
/// ```
pub fn references_of(body: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let read = Reader { found: &mut found, place: Place::Anywhere };
    if read.deserialize(&mut serde_json::Deserializer::from_slice(body)).is_err() && is_json(body) {
        found.push(print_of(""));
    }
    found
}

/// A print of the name that an answer has for itself, which a later request may name: its first member `id`.
///
/// ```
/// use paceline_providers::{reference_to, references_of};
/// let answer = br#"{"id":"resp_1","object":"response"}"#;
/// assert_eq!(reference_to(answer), references_of(br#"{"previous_response_id":"resp_1"}"#).first().copied());
/// ```
pub fn reference_to(answer: &[u8]) -> Option<u64> {
    const ID: &[u8] = b"\"id\"";
    let behind = answer[memchr::memmem::find(answer, ID)? + ID.len()..].trim_ascii_start();
    let name = behind.strip_prefix(b":")?.trim_ascii_start().strip_prefix(b"\"")?;
    let name = &name[..memchr::memchr(b'"', name)?];
    str::from_utf8(name).ok().map(print_of)
}

fn print_of(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

/// Where a value stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Anywhere,
    /// A text here is a name; of an object its `id`.
    Name,
    /// Of an object its `id` is one, and a text is none.
    Holder,
    /// A text here may say that the object is an item that the server has.
    Type,
}

struct Reader<'a> {
    found: &'a mut Vec<u64>,
    place: Place,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let holds = matches!(self.place, Place::Name | Place::Holder);
        while let Some(Text(key)) = entries.next_key()? {
            let key = plain(&key);
            let place = match &*key {
                key if NAMES.contains(&key) => Place::Name,
                key if HOLDERS.contains(&key) => Place::Holder,
                "id" if holds => Place::Name,
                "type" => Place::Type,
                _ => Place::Anywhere,
            };
            let found = if key.ends_with("metadata") { &mut Vec::new() } else { &mut *self.found };
            entries.next_value_seed(Reader { found, place })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        while elements.next_element_seed(Reader { found: self.found, place: self.place })?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        // What is there itself counts with its length.
        let is_name = self.place == Place::Name && !text.starts_with("data:");
        if (is_name || self.place == Place::Type && text == ITEM) && self.found.len() < MOST {
            self.found.push(print_of(text));
        }
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_adds_is_found_wherever_it_is_named() {
        for (body, expected) in [
            (r#"{"previous\u005fresponse_id":"resp_1"}"#, 1),
            (r#"{"Previous_Response_Id":"resp_1"}"#, 1),
            (r#"{"conversation":"conv_1"}"#, 1),
            (r#"{"prompt":{"id":"pmpt_1","version":"2"}}"#, 1),
            (r#"{"prompt":"id"}"#, 0),
            (r#"{"input":[{"type":"item_reference","id":"msg_1"},{"id":"msg_2","type":"message"}]}"#, 1),
            (r#"{"messages":[{"content":[{"type":"file","file":{"file_id":"file-1"}}]}]}"#, 1),
            (r#"{"messages":[{"content":[{"type":"document","source":{"type":"file","file_id":"f"}}]}]}"#, 1),
            (r#"{"contents":[{"parts":[{"fileData":{"fileUri":"https://x/y"}},{"file_data":{"file_uri":"u"}}]}]}"#, 2),
            (r#"{"cachedContent":"cachedContents/1"}"#, 1),
            (r#"{"input":[{"type":"input_file","file_url":"https://x/y.pdf"},{"file_url":"data:x;base64,AA"}]}"#, 1),
            (r#"{"metadata":{"file_id":"a"},"search_metadata":{"conversation_id":"b"}}"#, 0),
            (r#"{"tools":[{"parameters":{"properties":{"file_id":{"type":"string"}}}}]}"#, 0),
        ] {
            assert_eq!(references_of(body.as_bytes()).len(), expected, "{body}");
        }
        let nested = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!((references_of(nested.as_bytes()).len(), references_of(b"no JSON").len()), (1, 0));
        assert_eq!(references_of(format!("[{}0]", r#"{"file_id":"f"},"#.repeat(2_000)).as_bytes()).len(), MOST);
        let stream = b"event: response.created\ndata: {\"response\":{\"id\": \"resp_1\",\"x\":1}}\n\n";
        assert_eq!(reference_to(stream), Some(print_of("resp_1")));
        assert_eq!(reference_to(b"{\"id\":7,\"id\":\"a\"}"), None);
    }
}
