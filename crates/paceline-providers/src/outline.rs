//! Some keys of a JSON object; everything else is skipped without being built.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::address::path_before;
use super::bounds::{CHOICES, CHOICES_OF_GEMINI, NESTED, OWN};
use super::prompt::Prompt;
use super::twice::{Twice, merge};

/// Of a pruned value these members are left, ...
const LEFT: [&str; 5] = ["error", "finishReason", "finish_reason", "statistics", "tokenCount"];

/// ... and of these members the same.
const PRUNED_TOO: &str = "embeddings";

/// These tell how many tokens an answer has: where one stands twice, the larger counts.
const OF_USAGE: [&str; 7] = [
    "amazon-bedrock-invocationMetrics",
    "generation_token_count",
    "inputTextTokenCount",
    "meta",
    "prompt_token_count",
    "usage",
    "usageMetadata",
];

/// Which keys.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    /// Kept as they are.
    pub(super) kept: &'static [&'static str],
    /// Kept without anything but why they ended, what failed in them and the tokens that they count.
    pub(super) pruned: &'static [&'static str],
    /// An array of several objects counts as one object: the first error in it, and the last value of everything else.
    /// Without this only an array around a single object is read.
    pub(super) arrays: bool,
}

/// The outline of a JSON object, or of an array of them.
pub(super) fn outline(json: &[u8], keys: &Outline) -> Option<Root> {
    serde_json::Deserializer::from_slice(json).deserialize_any(keys).ok()
}

/// What the body of a request says of its call, where it is an object: read once, however often it is asked.
///
/// ```
/// use paceline_providers::Asked;
/// assert_eq!(Asked::of(br#"{"messages":[],"model":"gpt-4o-mini"}"#).model(), Some("gpt-4o-mini"));
/// assert_eq!(Asked::of(b"no object").model(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Asked {
    members: Root,
    prompt: OnceLock<Prompt>,
}

/// Which members bound an answer, by the end of the path: a server ignores those of other APIs.
const BOUNDS_OF_PATHS: [(&str, &[&str]); 8] = [
    ("/chat/completions", &["max_completion_tokens", "max_tokens"]),
    ("/completions", &["max_tokens"]),
    ("/responses", &["max_output_tokens"]),
    ("/messages", &["max_tokens"]),
    ("/converse", &["inferenceConfig"]),
    ("/converse-stream", &["inferenceConfig"]),
    (":generateContent", &OF_GEMINI),
    (":streamGenerateContent", &OF_GEMINI),
];

/// Those that models of Bedrock alone heed: Llama, older ones of Anthropic and of AI21, Titan.
const OF_INVOKE: [&str; 4] = ["max_gen_len", "max_tokens_to_sample", "maxTokens", "textGenerationConfig"];

/// The ends of the paths of those models.
const INVOKE: [&str; 2] = ["/invoke", "/invoke-with-response-stream"];

/// The objects in which Gemini's requests bound their answers.
const OF_GEMINI: [&str; 2] = ["generationConfig", "generation_config"];

impl Asked {
    /// What that body says.
    pub fn of(body: &[u8]) -> Self {
        const KEYS: Outline = Outline {
            kept: &[
                "model",
                "max_completion_tokens",
                "max_output_tokens",
                "max_tokens",
                "max_gen_len",
                "max_tokens_to_sample",
                "maxTokens",
                "n",
                "best_of",
                "inferenceConfig",
                "textGenerationConfig",
                "service_tier",
                "speed",
                "generationConfig",
                "generation_config",
            ],
            pruned: &[],
            arrays: false,
        };
        // A number that is too large, or what is nested too deep, hides no model.
        const MODEL: Outline = Outline { kept: &["model"], ..KEYS };
        let members = outline(body, &KEYS).or_else(|| outline(body, &MODEL)).unwrap_or_default();
        Self { members, prompt: OnceLock::new() }
    }

    /// Reads at once what that body, from which it was made, holds as a prompt: else that is read when it is asked for first.
    pub fn read_prompt(&self, body: &[u8]) {
        self.prompt(body);
    }

    /// What that body, from which it was made, holds as a prompt.
    pub(super) fn prompt(&self, body: &[u8]) -> Prompt {
        *self.prompt.get_or_init(|| Prompt::of(body))
    }

    /// The model that it names.
    pub fn model(&self) -> Option<&str> {
        self.members.get("model")?.as_str()
    }

    /// The tier that it asks for, which has limits of its own beside those of its model: `flex`, `priority`, `fast`.
    ///
    /// ```
    /// use paceline_providers::Asked;
    /// assert_eq!(Asked::of(br#"{"service_tier":"flex"}"#).tier(), Some("flex"));
    /// assert_eq!(Asked::of(br#"{"service_tier":"auto"}"#).tier(), None);
    /// ```
    pub fn tier(&self) -> Option<&'static str> {
        let asked = ["service_tier", "speed"].iter().filter_map(|key| self.members.get(key)?.as_str());
        asked.filter_map(|asked| ["flex", "priority", "fast"].into_iter().find(|tier| *tier == asked)).next()
    }

    /// The tokens that it allows one answer of a call of that path; none when it names no bound. The largest, where it names
    /// several: servers differ in which they heed. Where an API of that path is known, a bound of another one is none.
    ///
    /// ```
    /// use paceline_providers::Asked;
    /// let longest = |path: &str, body: &[u8]| Asked::of(body).longest_answer(path);
    /// assert_eq!(longest("/v1/chat/completions", br#"{"max_tokens":500.0}"#), Some(500));
    /// assert_eq!(longest("/x", br#"{"generationConfig":{"maxOutputTokens":200}}"#), Some(200));
    /// assert_eq!(longest("/model/m/invoke", br#"{"max_gen_len":300}"#), Some(300));
    /// assert_eq!(longest("/v1/chat/completions", br#"{"max_output_tokens":1}"#), None);
    /// assert_eq!(longest("/v1/chat/completions", br#"{"max_tokens":"500"}"#), None);
    /// ```
    pub fn longest_answer(&self, path: &str) -> Option<u64> {
        let path = path_before(path, b"?#;").trim_end_matches('/');
        let heeded = BOUNDS_OF_PATHS.iter().find(|(end, _)| ends_with(path, end)).map(|(_, keys)| *keys);
        let is_invoke = INVOKE.iter().any(|end| ends_with(path, end));
        let is_heeded = |key: &str| heeded.map_or(is_invoke || !OF_INVOKE.contains(&key), |keys| keys.contains(&key));
        // A body has fewer of them than there are names.
        let bounds = self.members.0.iter().filter(|(key, _)| is_heeded(key)).flat_map(|(key, value)| {
            let own = OWN.contains(&&**key).then_some(value);
            let nested = NESTED.iter().filter(move |(outer, _)| outer == key);
            own.into_iter().chain(nested.filter_map(|(_, inner)| value.get(inner)))
        });
        bounds.filter_map(count).max()
    }

    /// The same over all the answers that it asks for.
    pub(super) fn bound(&self, path: &str) -> Option<u64> {
        Some(self.longest_answer(path)?.saturating_mul(self.choices()))
    }

    /// How many answers it asks for.
    pub(super) fn choices(&self) -> u64 {
        let of_gemini = OF_GEMINI.iter().filter_map(|key| self.members.get(key));
        let of_gemini = of_gemini.flat_map(|inner| CHOICES_OF_GEMINI.iter().map(move |key| inner.get(key)));
        let answers = CHOICES.iter().map(|key| self.members.get(key)).chain(of_gemini);
        answers.filter_map(|answers| count(answers?)).max().unwrap_or(1).max(1)
    }
}

/// Whether the path is one of a prompt, for whose answer a known API has a bound.
pub(super) fn is_of_prompt(path: &str) -> bool {
    let path = path_before(path, b"?#;").trim_end_matches('/');
    BOUNDS_OF_PATHS.iter().any(|(end, _)| ends_with(path, end))
}

/// In any case of letters, as some servers read paths.
fn ends_with(path: &str, end: &str) -> bool {
    let at = path.len().checked_sub(end.len());
    at.and_then(|at| path.get(at..)).is_some_and(|last| last.eq_ignore_ascii_case(end))
}

/// A number of things as programs write it: `5000`, and `5000.0` too. A fraction is the next whole number.
fn count(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|number| *number >= 0.0).map(|number| number.ceil() as u64))
}

/// The model that the body of a request names, where it is an object; see [`Asked`].
pub fn model_of(body: &[u8]) -> Option<String> {
    Asked::of(body).model().map(ToOwned::to_owned)
}

/// The few members of an object that are kept. So few are found faster one by one than by their hashes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Root(Vec<(Cow<'static, str>, Value)>);

impl Root {
    /// The last value under a key.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    pub(super) fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A later value replaces an earlier one: no more is kept than there are keys to keep, however long the text.
    pub(super) fn set(&mut self, key: Cow<'static, str>, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => *known = value,
            None => self.0.push((key, value)),
        }
    }

    /// Adds a value beside one that may stand under that key already.
    fn add(&mut self, key: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, known)) => merge(known, value),
            None => self.0.push((key.into(), value)),
        }
    }

    /// Adds a later object: its values replace those that are there, but for an error.
    fn extend(&mut self, later: Self) {
        let failed = self.contains_key("error");
        for (key, value) in later.0.into_iter().filter(|(key, _)| !(failed && key == "error")) {
            self.set(key, value);
        }
    }
}

impl From<Map<String, Value>> for Root {
    fn from(members: Map<String, Value>) -> Self {
        Self(members.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }
}

impl<'de> Visitor<'de> for &Outline {
    type Value = Root;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object, or objects in an array")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut left = Root::default();
        while let Some(Text(key)) = entries.next_key()? {
            let named = |known: &&&'static str| **known == key;
            if let Some(key) = self.kept.iter().find(named) {
                match OF_USAGE.contains(key) {
                    true => left.add(key, entries.next_value::<Twice>()?.0),
                    false => left.set(Cow::Borrowed(key), entries.next_value()?),
                }
            } else if let Some(key) = self.pruned.iter().find(named) {
                let value = entries.next_value_seed(Pruned)?;
                left.set(Cow::Borrowed(key), value);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(left)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Self::Value, A::Error> {
        let first = elements.next_element_seed(self)?;
        let mut all = first.ok_or_else(|| serde::de::Error::custom("no object"))?;
        while let Some(next) = elements.next_element_seed(self)? {
            if !self.arrays {
                return Err(serde::de::Error::custom("several objects"));
            }
            all.extend(next);
        }
        Ok(all)
    }
}

impl<'de> DeserializeSeed<'de> for &Outline {
    type Value = Root;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

/// A key, borrowed where it holds no escapes.
pub(super) struct Text<'de>(pub(super) Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Arrays of objects, with the members of [`LEFT`] only; anything else is null.
struct Pruned;

impl<'de> DeserializeSeed<'de> for Pruned {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pruned {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut left = Vec::new();
        while let Some(element) = elements.next_element_seed(Self)? {
            left.push(element);
        }
        Ok(Value::Array(left))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut left = Map::new();
        while let Some(Text(key)) = entries.next_key()? {
            if LEFT.contains(&&*key) {
                left.insert(key.into_owned(), entries.next_value::<Twice>()?.0);
            } else if key == PRUNED_TOO {
                left.insert(key.into_owned(), entries.next_value_seed(Self)?);
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Value::Object(left))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str, arrays: bool) -> Option<Value> {
        let keys = Outline { kept: &["error", "k"], pruned: &["choices"], arrays };
        outline(text.as_bytes(), &keys)
            .map(|root| root.0.into_iter().map(|(key, value)| (key.into_owned(), value)).collect())
    }

    #[test]
    fn keys_are_kept_pruned_or_skipped() {
        let text = r#"{"k":[1,{"a":"b"}],"choices":[{"finish_reason":"stop","text":"long"},7,"x",null],"z":{"k":2}}"#;
        assert_eq!(
            read(text, false),
            Some(json!({"k": [1, {"a": "b"}], "choices": [{"finish_reason": "stop"}, null, null, null]}))
        );
        assert_eq!(read(r#"{"choices":"none","\u006b":1}"#, false), Some(json!({"choices": null, "k": 1})));
        for text in ["", "7", "\"k\"", r#"{"k":1"#, "[1]"] {
            assert_eq!(read(text, false), None, "{text}");
        }
    }

    #[test]
    fn arrays_are_read_where_they_may_be_streams() {
        let text = r#"[{"k":1,"error":"first"},{"k":2,"error":"second"}]"#;
        assert_eq!(read(text, true), Some(json!({"k": 2, "error": "first"})));
        assert_eq!(read(text, false), None);
        assert_eq!(read(r#"[{"k":1}]"#, false), Some(json!({"k": 1})));
        assert_eq!(read("[]", true), None);
    }

    #[test]
    fn no_other_value_hides_the_model() {
        let deep = format!(r#"{{"inferenceConfig":{}{},"model":"m"}}"#, "[".repeat(200), "]".repeat(200));
        for text in [r#"{"model":"m","max_tokens":1e999}"#, &deep] {
            assert_eq!(Asked::of(text.as_bytes()).model(), Some("m"), "{text}");
        }
    }

    #[test]
    fn a_bound_is_read_however_it_is_written() {
        for (body, bound) in [
            (r#"{"max_tokens":5000}"#, Some(5_000)),
            (r#"{"max_tokens":5000.0}"#, Some(5_000)),
            (r#"{"max_tokens":5e3,"n":2.0}"#, Some(10_000)),
            (r#"{"max_completion_tokens":4999.2}"#, Some(5_000)),
            (r#"{"max_output_tokens":0.5}"#, Some(1)),
            (r#"{"max_tokens":0}"#, Some(0)),
            (r#"{"max_tokens":1e30}"#, Some(u64::MAX)),
            (r#"{"max_tokens":-7.0}"#, None),
            (r#"{"max_tokens":-7}"#, None),
            (r#"{"max_tokens":"7"}"#, None),
            (r#"{"max_tokens":null}"#, None),
            (r#"{"max_tokens":[7]}"#, None),
            (r#"{"inferenceConfig":{"maxTokens":7.0}}"#, Some(7)),
            (r#"{"generationConfig":{"maxOutputTokens":7}}"#, Some(7)),
            (r#"{"generation_config":{"max_output_tokens":7,"candidate_count":3}}"#, Some(21)),
            (r#"{"generationConfig":{"maxOutputTokens":7.5,"candidateCount":2}}"#, Some(16)),
            (r#"{"max_tokens":3,"generationConfig":{"maxOutputTokens":7}}"#, Some(7)),
            (r#"{"max_tokens":3,"generationConfig":{},"generation_config":{"candidateCount":5}}"#, Some(15)),
        ] {
            assert_eq!(Asked::of(body.as_bytes()).bound("/x"), bound, "{body}");
        }
    }

    #[test]
    fn a_bound_of_another_api_is_none() {
        let body =
            br#"{"max_tokens":1,"max_completion_tokens":2,"max_output_tokens":3,"inferenceConfig":{"maxTokens":4},
            "generationConfig":{"maxOutputTokens":5}}"#;
        for (path, bound) in [
            ("/v1/chat/completions", 2),
            ("/openai/deployments/d/Chat/completions/?api-version=x", 2),
            ("/v1/completions;a", 1),
            ("/v1/responses", 3),
            ("/v1/messages", 1),
            ("/model/m/converse", 4),
            ("/v1beta/models/m:generateContent", 5),
            ("/v1beta/models/m:streamGenerateContent?alt=sse", 5),
            ("/model/m/invoke", 5),
        ] {
            assert_eq!(Asked::of(body).longest_answer(path), Some(bound), "{path}");
        }
        for body in [
            r#"{"max_gen_len":7}"#,
            r#"{"max_tokens_to_sample":7}"#,
            r#"{"maxTokens":7}"#,
            r#"{"textGenerationConfig":{"maxTokenCount":7}}"#,
            r#"{"inferenceConfig":{"max_new_tokens":7}}"#,
        ] {
            for path in ["/model/meta.llama3/invoke", "/model/m/invoke-with-response-stream"] {
                assert_eq!(Asked::of(body.as_bytes()).longest_answer(path), Some(7), "{path}: {body}");
            }
        }
        for (path, body) in [
            ("/v1/chat/completions", r#"{"max_output_tokens":1}"#),
            ("/v1/chat/completions", r#"{"generationConfig":{"maxOutputTokens":1},"n":2}"#),
            ("/v1/responses", r#"{"max_tokens":1}"#),
            ("/v1/messages", r#"{"max_completion_tokens":1}"#),
            ("/v2/chat", r#"{"max_gen_len":1,"maxTokens":1,"textGenerationConfig":{"maxTokenCount":1}}"#),
        ] {
            assert_eq!(Asked::of(body.as_bytes()).bound(path), None, "{path}: {body}");
        }
    }

    #[test]
    fn no_more_is_kept_than_there_are_keys() {
        let keys = Outline { kept: &["error", "k"], pruned: &["choices"], arrays: true };
        let object = r#"{"k":1,"k":2,"choices":[],"k":3,"z":4}"#;
        let root = outline(format!("[{}]", [object; 1_000].join(",")).as_bytes(), &keys).expect("objects");
        assert_eq!(root.0, [("k".into(), json!(3)), ("choices".into(), json!([]))]);
    }
}
