//! Every model that the body of a request names, wherever a server could read it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::outline::Text;

/// Members with a model, models, or what takes the place of a model: strings, and objects of that form.
const NAMES: [&str; 6] =
    ["model", "models", "fallbacks", "fallback_models", "context_window_fallbacks", "content_policy_fallbacks"];

/// Members whose objects have such members of their own: what a proxy adds to the body, and tools that ask a model.
const OBJECTS: [&str; 2] = ["extra_body", "tools"];

/// Whether a member of a body, or a parameter of a query, of that name names a model or several.
///
/// ```
/// use paceline_providers::names_models;
/// assert!(names_models("Model") && names_models("fallbacks") && !names_models("user"));
/// ```
pub fn names_models(name: &str) -> bool {
    is_one_of(&NAMES, name)
}

/// Every model that a server may find in the body of a request, where it is one object that names models by texts, and nothing
/// after it. Servers differ: some take the first of two members of one name and some the last, some read names in any case of
/// letters, OpenRouter goes on to those in `models`, and LiteLLM to `fallbacks`, which may be objects, and it reads `extra_body`.
///
/// ```
/// use paceline_providers::models_of;
/// assert_eq!(models_of(br#"{"model":"a","Model":"b","models":["c"]}"#), Some(vec!["a".into(), "b".into(), "c".into()]));
/// assert_eq!(models_of(br#"{"fallbacks":[{"model":"a"}],"extra_body":{"model":"b"}}"#), Some(vec!["a".into(), "b".into()]));
/// assert_eq!(models_of(br#"{"messages":[]}"#), Some(vec![]));
/// assert_eq!(models_of(br#"{"model":7}"#), None);
/// assert_eq!(models_of(br#"{"model":"a"}{"model":"b"}"#), None);
/// ```
pub fn models_of(body: &[u8]) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_slice(body);
    json.deserialize_map(Reader { found: &mut found, place: Place::Members }).ok()?;
    json.end().ok()?;
    Some(found)
}

fn is_one_of(known: &[&str], name: &str) -> bool {
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Where a value stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Objects with members of these names; anything else has none.
    Members,
    /// Under `model`: a text.
    Name,
    /// Under one of the other names: texts, objects, and arrays of these.
    Names,
    /// Another member of an object there: LiteLLM maps a model to an array of others. Anything else has no names.
    Others,
    /// In such an array.
    Other,
}

/// Reads the names in a value.
struct Reader<'a> {
    found: &'a mut Vec<String>,
    place: Place,
}

impl Reader<'_> {
    /// A value that is no text, no object and no array.
    fn other<E: Error>(&self) -> Result<(), E> {
        if matches!(self.place, Place::Name | Place::Names) {
            return Err(E::custom("a model is named by a text"));
        }
        Ok(())
    }
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
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        if self.place == Place::Name {
            return Err(A::Error::custom("a model is named by a text"));
        }
        let is_read = matches!(self.place, Place::Members | Place::Names);
        while let Some(Text(key)) = entries.next_key()? {
            let place = match &*key {
                _ if !is_read => None,
                key if key.eq_ignore_ascii_case("model") => Some(Place::Name),
                key if names_models(key) => Some(Place::Names),
                key if is_one_of(&OBJECTS, key) => Some(Place::Members),
                _ => (self.place == Place::Names).then_some(Place::Others),
            };
            match place {
                Some(place) => entries.next_value_seed(Reader { found: self.found, place })?,
                None => drop(entries.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let place = match self.place {
            Place::Name => return Err(A::Error::custom("a model is named by a text")),
            Place::Others => Place::Other,
            place => place,
        };
        while elements.next_element_seed(Reader { found: self.found, place })?.is_some() {}
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        if matches!(self.place, Place::Name | Place::Names | Place::Other) {
            self.found.push(text.to_owned());
        }
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        if self.place == Place::Names { Ok(()) } else { self.other() }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.other()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.other()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.other()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        self.other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_a_server_reads_them_and_nowhere_else() {
        for (body, expected) in [
            (r#"{"model":"a","fallbacks":["b",{"model":"c"},{"a":["d"]}]}"#, Some("abcd")),
            (r#"{"fallbacks":[{"model":"a","messages":[{"role":"user","content":["x"]}],"stop":null}]}"#, Some("a")),
            (r#"{"fallbacks":"a","models":null,"context_window_fallbacks":[{"x":["b","c"]}]}"#, Some("abc")),
            (r#"{"extra_body":{"model":"a","extra_body":{"models":["b"]}},"model":"c"}"#, Some("abc")),
            (r#"{"extra_body":null,"tools":[{"type":"t","model":"a"},{"function":{"model":{}}}]}"#, Some("a")),
            (r#"{"metadata":{"model":"x"},"messages":[{"model":"y"}],"input":{"models":["z"]}}"#, Some("")),
            (r#"{"extra_body":{"model":7}}"#, None),
            (r#"{"models":[7]}"#, None),
            (r#"{"model":["a"]}"#, None),
            (r#"{"model":null}"#, None),
            (r#"[{"model":"a"}]"#, None),
            (r#"{"model":"a"} {"model":"b"}"#, None),
            (r#"{"model":"a"},"#, None),
        ] {
            assert_eq!(models_of(body.as_bytes()).map(|all| all.concat()).as_deref(), expected, "{body}");
        }
        let deep = format!(r#"{{"a":{}{},"model":"m"}}"#, "[".repeat(1_000), "]".repeat(1_000));
        assert_eq!(models_of(deep.as_bytes()), Some(vec!["m".to_owned()]), "nothing is built of what is skipped");
    }
}
