//! The members of a request's body that bound its answer, and whether every server reads the same in them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::models::{EXTRA, is_one_of};
use super::outline::Text;

/// The most tokens of one answer, in the body itself, ...
pub(super) const OWN: [&str; 6] =
    ["max_completion_tokens", "max_output_tokens", "max_tokens", "max_gen_len", "max_tokens_to_sample", "maxTokens"];

/// ... and in an object there.
pub(super) const NESTED: [(&str, &str); 7] = [
    ("inferenceConfig", "maxTokens"),
    ("inferenceConfig", "max_new_tokens"),
    ("textGenerationConfig", "maxTokenCount"),
    ("generationConfig", "maxOutputTokens"),
    ("generationConfig", "max_output_tokens"),
    ("generation_config", "maxOutputTokens"),
    ("generation_config", "max_output_tokens"),
];

/// How many answers, in the body itself, ...
pub(super) const CHOICES: [&str; 2] = ["n", "best_of"];

/// ... and in Gemini's objects.
pub(super) const CHOICES_OF_GEMINI: [&str; 2] = ["candidateCount", "candidate_count"];

/// The prompts of the older completions, each of which is answered.
const PROMPT: &str = "prompt";

/// What else is read beside the bounds: one that cannot be read would hide them.
const BESIDE: [&str; 3] = ["model", "service_tier", "speed"];

/// Whether the body of a request bounds its answer so that every server reads the same in it: each bound stands there once, in
/// its own letters, as a number. Of two some servers take the first and some the last, some heed no case of letters, some read
/// numbers in texts, and LiteLLM heeds those in `extra_body`. A body that is no object has none.
///
/// ```
/// use paceline_providers::bounds_are_plain;
/// assert!(bounds_are_plain(br#"{"max_tokens":100,"n":2,"messages":[{"n":1,"n":1}]}"#));
/// assert!(!bounds_are_plain(br#"{"max_tokens":100,"max_tokens":1}"#) && !bounds_are_plain(br#"{"Max_Tokens":100}"#));
/// assert!(!bounds_are_plain(br#"{"n":"100"}"#) && !bounds_are_plain(br#"{"extra_body":{"n":100}}"#));
/// ```
pub fn bounds_are_plain(body: &[u8]) -> bool {
    !body.trim_ascii_start().starts_with(b"{")
        || Object(Place::Body).deserialize(&mut serde_json::Deserializer::from_slice(body)).is_ok()
}

/// An object in which bounds stand, or null.
struct Object(Place);

#[derive(Clone, Copy)]
enum Place {
    Body,
    /// What a proxy adds to it: a bound there is a second one.
    Extra,
    /// Under that name in the body.
    Nested(&'static str),
}

impl Place {
    /// The names that are read there.
    fn names(self) -> Vec<&'static str> {
        let nested = |at| NESTED.iter().filter(move |(object, _)| *object == at).map(|(_, name)| *name);
        match self {
            Self::Nested(at) => nested(at).chain(CHOICES_OF_GEMINI).collect(),
            Self::Body | Self::Extra => {
                let objects = NESTED.iter().map(|(object, _)| *object);
                OWN.into_iter().chain(CHOICES).chain(objects).chain([PROMPT, EXTRA]).collect()
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Object {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Object {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let (names, mut seen) = (self.0.names(), Vec::new());
        while let Some(Text(key)) = entries.next_key()? {
            if BESIDE.contains(&&*key) {
                entries.next_value::<Value>()?;
                continue;
            }
            let own = names.iter().find(|name| **name == key);
            let Some(name) = own.or_else(|| names.iter().find(|name| is_one_of(&[name], &key))) else {
                entries.next_value::<IgnoredAny>()?;
                continue;
            };
            if own.is_none() || seen.contains(name) || matches!(self.0, Place::Extra) {
                return Err(A::Error::custom("servers differ in which bound they heed"));
            }
            seen.push(*name);
            match *name {
                EXTRA => entries.next_value_seed(Self(Place::Extra))?,
                PROMPT => drop(entries.next_value::<IgnoredAny>()?),
                name if NESTED.iter().any(|(object, _)| *object == name) => {
                    entries.next_value_seed(Self(Place::Nested(name)))?;
                }
                _ => drop(entries.next_value::<Option<f64>>()?),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_that_servers_read_differently_is_none() {
        for body in [
            r#"{"max_tokens":10000,"max_tokens":1}"#,
            r#"{"max_tokens":1,"max\u005ftokens":10000}"#,
            r#"{"max_tokens":1,"Max_Tokens":10000}"#,
            r#"{"max_toKens":10000}"#,
            r#"{"MaxTokens":7}"#,
            r#"{"n":100,"n":1}"#,
            r#"{"N":100}"#,
            r#"{"n":"100"}"#,
            r#"{"max_tokens":"10000","max_completion_tokens":1}"#,
            r#"{"max_tokens":[1]}"#,
            r#"{"maxTokens":1e999,"n":100}"#,
            r#"{"best_of":{"n":1}}"#,
            r#"{"generationConfig":{"maxOutputTokens":9,"maxOutputTokens":1}}"#,
            r#"{"generationConfig":{"maxOutputTokens":"9"}}"#,
            r#"{"generationConfig":{"CandidateCount":9}}"#,
            r#"{"generationConfig":{"maxOutputTokens":1},"generationConfig":{"maxOutputTokens":9}}"#,
            r#"{"inferenceconfig":{"maxTokens":9}}"#,
            r#"{"generationConfig":[{"maxOutputTokens":1}]}"#,
            r#"{"extra_body":{"max_tokens":9}}"#,
            r#"{"extra_body":{"generationConfig":{"candidateCount":9}}}"#,
            r#"{"prompt":["a","b"],"prompt":"a"}"#,
            r#"{"Prompt":["a","b"],"prompt":"a"}"#,
            &format!(r#"{{"speed":{}{},"n":100}}"#, "[".repeat(200), "]".repeat(200)),
            r#" {"n":1"#,
        ] {
            assert!(!bounds_are_plain(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn usual_bounds_are_plain() {
        for body in [
            r#"{"model":"m","max_tokens":100,"max_completion_tokens":100,"n":2,"best_of":null,"stream":true}"#,
            r#"{"maxTokens":7,"max_tokens":7,"top_n":"3","N-best":[1]}"#,
            r#"{"generationConfig":{"maxOutputTokens":7.0,"candidateCount":2,"topK":"4"},"contents":[]}"#,
            r#"{"generation_config":{"max_output_tokens":7},"generationConfig":null}"#,
            r#"{"inferenceConfig":{"maxTokens":7,"stopSequences":["n"]},"extra_body":{"top_k":4}}"#,
            r#"{"prompt":{"id":"pmpt_1"},"extra_body":null,"metadata":{"n":"1","N":"2"}}"#,
            r#"{"messages":[{"max_tokens":"1","max_tokens":2}],"tools":[{"parameters":{"properties":{"n":{}}}}]}"#,
            r#"{"model":"a","model":"b"}"#,
            "",
            "[7]",
            "no JSON",
        ] {
            assert!(bounds_are_plain(body.as_bytes()), "{body}");
        }
    }
}
